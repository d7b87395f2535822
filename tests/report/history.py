"""Hours of one target with known truth, as the reader gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import (
    HOUR,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
    load_bin,
)
from specwatch.guard.status import StepRecord
from specwatch.report.build import build
from specwatch.report.grouped_data import ReportSources
from specwatch.report.model import ModelReport
from tests.domain.samples import RATE_BOUNDS, TPOT_BOUNDS, TTFT_BOUNDS, observed, spread
from tests.segments import segment

TARGET = "chat"
MODEL = "tiny"
HOURS = 24
SINCE = 1_700_006_400
"""A whole hour, Unix."""
ON = Environment("0.32.0", "cafe-4")
OFF = Environment("0.32.0", "cafe-0")
K = 4


def counted(
    *,
    tokens: int = 10_000,
    rate: float | None = 0.6,
    tpot: float = 0.02,
    ttft: float = 0.1,
    requests: int = 100,
    **others: Any,
) -> Tally:
    """What ``requests`` got that generated ``tokens``; ``rate`` is None without speculation."""
    between = Histogram((), (tokens,), tokens * tpot)
    fields: dict[str, Any] = {
        "prompt_tokens": 10 * requests,
        "generation_tokens": tokens + requests,
        "requests": {"stop": requests},
        "ttft": observed(spread(ttft, requests), TTFT_BOUNDS),
        "tpot": observed(spread(tpot, requests), TPOT_BOUNDS),
        "inter_token": between,
        "e2e": observed(spread(1.0, requests), (0.5, 1.0, 2.0)),
    }
    if rate is not None:
        fields |= drafted(tokens, rate)
    return Tally(**(fields | others))


def drafted(tokens: int, rate: float) -> dict[str, Any]:
    """Drafts that yielded so many tokens; positions are kept one after the other."""
    drafts = round(tokens / (1 + K * rate))
    accepted = round(drafts * K * rate)
    positions = tuple(
        min(drafts, max(accepted - at * drafts, 0)) for at in range(K)
    )  # every draft keeps as many as the others, or one more
    return {
        "drafts": drafts,
        "draft_tokens": K * drafts,
        "accepted_tokens": sum(positions),
        "accepted_per_position": positions,
    }


def bucket(requests: int = 50, rate: float = 0.6, tokens: int = 5000, **others: Any) -> Tally:
    """What a tap counts of one temperature."""
    return Tally(
        **(
            {
                "requests": {"stop": requests},
                "ttft": observed(spread(0.1, requests), TTFT_BOUNDS),
                "tpot": observed(spread(0.02, requests), TPOT_BOUNDS),
                "request_acceptance": observed([rate] * requests, RATE_BOUNDS),
                **drafted(tokens, rate),
            }
            | others
        )
    )


def hour(
    at: int,
    whole: Tally | None = None,
    *,
    mode: Mode = Mode.ON,
    running: float = 4.0,
    busy: float = 3000.0,
    buckets: Mapping[str, Tally] | None = None,
    environment: Environment | None = None,
    model: str = MODEL,
    length: int = HOUR,
    **others: Any,
) -> list[Window]:
    """Windows of the hour number ``at`` after :data:`SINCE`, of all temperatures and of each."""
    if whole is None:
        whole = counted() if mode is Mode.ON else counted(rate=None, tpot=0.03)
    one = Window(
        series=SeriesId("d", TARGET, model),
        start=SINCE + at * length,
        length=length,
        mode=mode,
        tally=whole,
        gauges=Gauges(
            sampled_seconds=float(length), busy_seconds=busy, running_seconds=busy * running
        ),
        environment=environment or (ON if mode is Mode.ON else OFF),
        observed_seconds=float(length),
        scrapes_ok=length // 5,
    )
    one = replace(one, **others)
    seen = sum(item.drafts or 0 for item in (buckets or {}).values())
    return [one] + [
        replace(
            one,
            series=replace(one.series, segment=segment(label)),
            tally=part,
            source=Source.TAP,
            server_drafts=whole.drafts,
            source_drafts=seen,
        )
        for label, part in (buckets or {}).items()
    ]


def measurement(
    running: float = 4.0,
    tpot: float = 0.03,
    *,
    environment: Environment = OFF,
    at: float = float(SINCE),
    points: int = 40,
    origin: Origin = Origin.CALIBRATION,
    ttft: Histogram | None = None,
    of_tpot: Histogram | None = None,
    model: str = MODEL,
) -> Measurement:
    """A baseline of one load, of points that are alike but for their weight."""
    bin_ = load_bin(running)
    assert bin_ is not None
    return Measurement(
        BaselineKey(TARGET, model, environment.engine_version, environment.configuration),
        bin_,
        origin,
        tuple(Point(at - 60.0 * n, running, tpot * (1000 + n), 1000.0 + n) for n in range(points)),
        ttft,
        of_tpot,
        points,
    )


def flat(hours: Iterable[list[Window]]) -> list[Window]:
    """By start, as the reader gives them."""
    return sorted((window for hour in hours for window in hour), key=lambda window: window.start)


def report(
    windows: Iterable[Window], *measurements: Measurement, hours: int = HOURS, **others: Any
) -> ModelReport:
    """That of the only model, over so many hours from :data:`SINCE`."""
    sources = ReportSources(target=TARGET, windows=windows, measurements=measurements, **others)
    (made,) = build(sources, SINCE, SINCE + hours * HOUR)
    return made


def step(
    when: float, incident: str, before: str, phase: str, reason: str, inputs: Any = None
) -> StepRecord:
    """A step of the guard as it is stored."""
    return StepRecord(TARGET, 1, when, "d", incident, before, phase, reason, inputs or {})
