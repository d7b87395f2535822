"""A stored history with bad minutes at known times."""

from __future__ import annotations

from collections.abc import Iterable

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import (
    MINUTE,
    Batch,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.segments import segment

T0 = 1_700_000_000 // 3600 * 3600
"""The beginning: 2023-11-14 22:00 UTC."""
MODEL = "llama"
_PLAIN = 0.01
_K = 4
_LOAD_BIN, _CONCURRENCY = 2, 3.5
_SOFTWARE = Environment("0.32.0", "abc-4")


def minute(number: int, *, acceptance: float = 0.75, target: str = "chat") -> list[Window]:
    """One minute: half of the drafts at temperature 0, half above 0.7, where a fifth less of them
    is kept; a step costs 1.5 plain ones."""
    parts = {"0": _tally(500, acceptance), "(0.7,1]": _tally(500, 0.8 * acceptance)}
    drafts, accepted = 1000, sum(part.accepted_tokens or 0 for part in parts.values())
    whole = Tally(
        drafts=drafts,
        draft_tokens=_K * drafts,
        accepted_tokens=accepted,
        generation_tokens=drafts + accepted + 20,
        requests={"stop": 20},
        preemptions=0,
        ttft=Histogram((0.1, 0.5), (10, 10, 0), 2.0),
        inter_token=Histogram((), (drafts,), drafts * 1.5 * _PLAIN * (1 + 0.02 * (number % 3))),
    )
    return [
        _window(number, target, label, counted)
        for label, counted in {"all": whole, **parts}.items()
    ]


def fill(url: str, windows: Iterable[Window], *, baseline: bool = True) -> None:
    """Write windows, and a baseline."""
    store = Store(url, daemon="left")
    store.open(0.0)
    store.write([pack_batch(Batch(tuple(windows), None))], 0.0)
    if baseline:
        store.write_measurements([_measurement()], float(T0))
    store.close(0.0)


def _tally(drafts: int, acceptance: float) -> Tally:
    return Tally(
        drafts=drafts,
        draft_tokens=_K * drafts,
        accepted_tokens=round(_K * drafts * acceptance),
        requests={"stop": 10},
    )


def _window(number: int, target: str, label: str, counted: Tally) -> Window:
    return Window(
        series=SeriesId("left", target, MODEL, segment(label)),
        start=T0 + MINUTE * number,
        length=MINUTE,
        mode=Mode.ON,
        tally=counted,
        gauges=Gauges(60.0, 60.0, 60 * _CONCURRENCY, 0.0, 4, 1, 0.5),
        environment=_SOFTWARE,
        source=Source.SERVER if label == "all" else Source.TAP,
        server_drafts=1000,
        source_drafts=1000,
        observed_seconds=60.0,
        scrapes_ok=12,
    )


def _measurement() -> Measurement:
    key = BaselineKey("chat", MODEL, "0.32.0", "abc")
    points = tuple(
        Point(T0 - 60.0 * n, _CONCURRENCY, _PLAIN * (1000 + 20 * (n % 3)), 1000.0)
        for n in range(12)
    )
    return Measurement(key, _LOAD_BIN, Origin.CALIBRATION, points)
