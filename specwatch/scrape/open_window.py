"""The window that is being filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specwatch.domain import buckets
from specwatch.domain.buckets import Bucket
from specwatch.domain.model import (
    MINUTE,
    Environment,
    Gauges,
    Mode,
    Series,
    SeriesId,
    Tally,
    Window,
)
from specwatch.scrape import counted
from specwatch.scrape.counted import Counted
from specwatch.scrape.gauges import counted as counted_gauges


def by_bucket_of_tap() -> Counted[Bucket]:
    """Empty books of a tap, in which only buckets that counted something stand."""
    return Counted(buckets.by_bucket, only_moved=True)


@dataclass(slots=True)
class OpenWindow:
    """The window that is being filled, as far as it concerns all models of the target."""

    start: int
    observed_seconds: float = 0.0
    down_seconds: float = 0.0
    scrapes_ok: int = 0
    scrapes_failed: int = 0
    restarts: int = 0
    modes: dict[str, Mode] = field(default_factory=dict)
    gauges: dict[str, Gauges] = field(default_factory=dict)
    proxy_restarts: int = 0
    engine: Counted[str] = field(default_factory=lambda: Counted(counted.models))
    inside: Counted[Bucket] = field(default_factory=by_bucket_of_tap)
    """What the tap in the engine's process counted."""
    proxy: Counted[Bucket] = field(default_factory=by_bucket_of_tap)

    def add(self, increments: Mapping[Series, float], *, tapped: bool) -> None:
        """Count what the engine's page says beyond the one before; ``tapped`` has a tap's too."""
        engine, inside = self.engine.increments, self.inside.increments
        for series, increment in increments.items():
            if increment:
                counts = inside if tapped and series.temperature else engine
                counts[series] = counts.get(series, 0.0) + increment

    def closed(
        self, series: SeriesId, model: str, mode: Mode, total: Tally, environment: Environment
    ) -> Window:
        """The window of one model, which the engine calls ``model``."""
        return Window(
            series=series,
            start=self.start,
            length=MINUTE,
            mode=mode,
            tally=total,
            gauges=counted_gauges(self.gauges.get(model, Gauges()), total, self.observed_seconds),
            environment=environment,
            server_drafts=total.drafts,
            source_drafts=total.drafts,
            observed_seconds=self.observed_seconds,
            down_seconds=self.down_seconds,
            scrapes_ok=self.scrapes_ok,
            scrapes_failed=self.scrapes_failed,
            restarts=self.restarts,
        )
