"""Windows of one model, as tests of the report want them."""

from __future__ import annotations

from typing import Any

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
)
from tests.segments import segment

T0 = 1_793_577_600
"""Monday 2 November 2026, 00:00 UTC."""
BOUNDS = (0.25, 0.5, 1.0)


def at(hour: float) -> float:
    """That many hours after :data:`T0`."""
    return T0 + hour * HOUR


def drafted(drafts: int, rate: float = 0.5, k: int = 4, **others: Any) -> Tally:
    """A tally of so many drafts of ``k`` tokens."""
    accepted = round(drafts * k * rate)
    return Tally(drafts=drafts, draft_tokens=drafts * k, accepted_tokens=accepted, **others)


def slow(good: int, bad: int, metric: str = "ttft") -> Tally:
    """Requests below half a second, and above."""
    counts = (good - good // 2, good // 2, bad, 0)
    return Tally(**{metric: Histogram(BOUNDS, counts, 1.0)})  # type: ignore[arg-type]


def window(
    hour: int,
    counted: Tally | None = None,
    *,
    temperature: str = "all",
    mode: Mode = Mode.ON,
    seconds: float = 3600.0,
    running: float = 4.0,
    version: str | None = "0.31.0",
    fingerprint: str | None = "aaaa-4",
    length: int = HOUR,
    daemon: str = "d",
    **others: Any,
) -> Window:
    """The hour number ``hour`` since :data:`T0`, watched and busy for ``seconds`` of it."""
    others.setdefault("scrapes_ok", 720)
    if temperature != "all":
        others.setdefault("source", Source.TAP)
    return Window(
        series=SeriesId(daemon, "chat", "model", segment(temperature)),
        start=T0 + hour * length,
        length=length,
        mode=mode,
        tally=Tally() if counted is None else counted,
        gauges=Gauges(seconds, seconds, seconds * running),
        environment=Environment(version, fingerprint),
        observed_seconds=seconds,
        **others,
    )
