"""When the pages of one target were read, how much time they cover, and their gauges meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Mode, Moment, Series
from specwatch.errors import NO_ANSWER, ScrapeReason
from specwatch.scrape import tally
from specwatch.scrape.downtime import Downtime
from specwatch.scrape.gauges import GpuMemory, gauges_over
from specwatch.scrape.open_window import OpenWindow

_STEP = 1.0
"""Seconds by which the wall clock and the other one may drift apart between two pages."""


class PageTimes:
    """The times of one server's pages; what they cover is added to the open window."""

    def __init__(self, max_gap: float) -> None:
        """``max_gap``: the longest time in seconds between two samples of a gauge in which it is
        known."""
        self.max_gap = max_gap
        self.wall: float | None = None
        """Unix time of the last good page."""
        self.sampled: Mapping[str, tally.Sampled] = {}
        """The gauges of the last good page by model."""
        self._monotonic: float | None = None
        self._downtime = Downtime()

    @property
    def load(self) -> float | None:
        """Requests that ran or waited at the last page, of all models; None if unknown."""
        samples = [sample for sample in self.sampled.values() if sample.running is not None]
        if not samples:
            return None
        return sum((sample.running or 0.0) + (sample.waiting or 0.0) for sample in samples)

    def seen_at(self, now: Moment) -> float | None:
        """Unix time of the last good page; None if the clock was set since."""
        if self.wall is None or self._monotonic is None:
            return self.wall
        stepped = abs(now.offset - (self.wall - self._monotonic)) > _STEP
        return None if stepped else self.wall

    def supersede(self, wall: float) -> None:
        """Another process read the last good page, at this Unix time."""
        self.wall, self._monotonic, self.sampled = wall, None, {}

    def add(
        self,
        window: OpenWindow,
        models: Mapping[str, Mapping[Series, float]],
        now: Moment,
        *,
        modes: Mapping[str, Mode],
        gpu_memory: GpuMemory | None,
        process_start: float | None,
        restarted: bool,
    ) -> None:
        """Add a page read at ``now`` with these samples by model."""
        elapsed = 0.0
        if self._monotonic is not None:
            elapsed = now.monotonic - self._monotonic
        elif self.wall is not None:
            elapsed = max(0.0, now.wall - self.wall)
        window.down_seconds += self._downtime.until_page(
            now.monotonic, self.max_gap, restarted=restarted
        )
        covered = max(0.0, elapsed - self._downtime.seconds)
        if restarted and process_start is not None and self._monotonic is None:
            # What an earlier daemon saw of the outage is in its windows.
            covered = min(covered, max(0.0, now.wall - process_start))
        window.observed_seconds += covered
        window.scrapes_ok += 1
        self._downtime.end(now.monotonic)
        known = 0.0 < elapsed <= self.max_gap and not restarted and self._monotonic is not None
        sampled = {model: tally.sampled(samples) for model, samples in models.items()}
        for model, sample in sampled.items():
            before = self.sampled.get(model) if known else None
            window.add_sample(model, modes[model], gauges_over(before, sample, elapsed, gpu_memory))
        self.sampled = sampled
        self.wall, self._monotonic = now.wall, now.monotonic

    def fail(self, window: OpenWindow, now: Moment, reason: ScrapeReason) -> None:
        """Add a scrape that failed at ``now``."""
        window.scrapes_failed += 1
        window.down_seconds += self._downtime.fail(
            now.monotonic, self.max_gap, silent=reason in NO_ANSWER
        )

    def end(self, window: OpenWindow, reason: ScrapeReason) -> None:
        """Before a window ends with a scrape that failed: add the silence up to the one before."""
        if reason in NO_ANSWER:
            window.down_seconds += self._downtime.until_last_try()
