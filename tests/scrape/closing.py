"""Windows as they close, of a made-up server: put together from a few plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from specwatch.domain.model import (
    MINUTE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from tests.segments import segment

START = 1_795_003_200
"""A whole hour."""
K = 4
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def minute(
    number: int,
    mode: Mode = Mode.ON,
    *,
    step: float = 0.02,
    acceptance: float = 0.5,
    steps: int = 2000,
    running: float = 3.0,
    wobble: float = 0.01,
    buckets: Mapping[str, tuple[int, float]] | None = None,
    model_name: str = "m",
    target: str = "t",
    restarts: int = 0,
) -> list[Window]:
    """The windows of one minute: ``number`` counts them from :data:`START`.

    ``step`` is the time of a decoding step in seconds, ``steps`` how many there were over all
    requests, ``acceptance`` the acceptance rate; ``wobble`` is how far each minute is off, in turn
    up and down. ``buckets`` are (drafts, acceptance rate) by temperature.
    """
    off_by = 1 + wobble * (1 if number % 2 else -1) * (1 + number % 3) / 2
    accepted = round(steps * K * acceptance) if mode is Mode.ON else 0
    seconds = steps * step * off_by
    tokens = steps + accepted
    requests = max(steps // 20, 1)
    tally = Tally(
        **(_drafts(steps, acceptance) if mode is Mode.ON else {}),
        generation_tokens=tokens + requests,
        requests={"stop": requests},
        ttft=_at(0.05, requests),
        tpot=_at(seconds / tokens, requests),
        inter_token=Histogram((), (steps,), seconds),
        output_length=Histogram((20.0, 100.0), (0, requests, 0), 50.0 * requests),
    )
    window = Window(
        series=SeriesId("d", target, model_name),
        start=START + number * MINUTE,
        length=MINUTE,
        mode=mode,
        tally=tally,
        gauges=Gauges(60.0, 60.0, 60.0 * running, 0.0, round(running)),
        environment=Environment("0.32.0", f"c-{K if mode is Mode.ON else 0}"),
        observed_seconds=60.0,
        scrapes_ok=12,
        restarts=restarts,
    )
    return [
        window,
        *(_bucket(window, temperature, *what) for temperature, what in (buckets or {}).items()),
    ]


def _bucket(window: Window, temperature: str, drafts: int, acceptance: float) -> Window:
    return replace(
        window,
        series=replace(window.series, segment=segment(temperature)),
        source=Source.TAP,
        tally=Tally(**_drafts(drafts, acceptance)),
        server_drafts=window.tally.drafts,
        source_drafts=window.tally.drafts,
    )


def _drafts(count: int, acceptance: float) -> dict[str, Any]:
    accepted = round(count * K * acceptance)
    return {
        "drafts": count,
        "draft_tokens": count * K,
        "accepted_tokens": accepted,
        "accepted_per_position": tuple(
            accepted // K + (index < accepted % K) for index in range(K)
        ),
    }


def _at(seconds: float, count: int) -> Histogram:
    place = sum(seconds > bound for bound in BOUNDS)
    counts = [0] * (len(BOUNDS) + 1)
    counts[place] = count
    return Histogram(BOUNDS, tuple(counts), seconds * count)
