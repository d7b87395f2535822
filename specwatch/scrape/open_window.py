"""The window that is being filled, and what each source counted in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specwatch.domain import buckets, merge
from specwatch.domain.buckets import Bucket
from specwatch.domain.model import (
    ALL,
    MINUTE,
    Cursor,
    Environment,
    Gauges,
    Mode,
    Series,
    SeriesId,
    Tally,
    Window,
)
from specwatch.engines.sample_names import GAUGES
from specwatch.scrape import tally
from specwatch.scrape.counters import CounterTracker
from specwatch.scrape.gauges import counted as counted_gauges

Key = TypeVar("Key")
Grouping = Callable[[Mapping[Series, float], list[str]], Mapping[Key, Mapping[Series, float]]]
"""Groups the series of a page; adds a sentence to the list about each part that it leaves out."""


@dataclass(slots=True)
class Counted(Generic[Key]):
    """What one source counted in a window, through restarts of its process.

    With ``only_moved``, groups in which nothing was counted are left out.
    """

    group: Grouping[Key]
    only_moved: bool = False
    increments: dict[Series, float] = field(default_factory=dict)
    """What the current process counted."""
    ended: dict[Key, list[Tally]] = field(default_factory=dict)
    """Tallies of the processes before it."""

    def add(self, increments: Mapping[Series, float]) -> None:
        """Add what the current process counted."""
        for series, increment in increments.items():
            if increment:
                self.increments[series] = self.increments.get(series, 0.0) + increment

    def add_ended(self, parts: Mapping[Key, Tally]) -> None:
        """Add what a process counted that has ended."""
        for key, part in parts.items():
            self.ended.setdefault(key, []).append(part)

    def end(self, series: Mapping[Series, float], problems: list[str]) -> None:
        """End the process that had those series: its successor may count other series."""
        self.add_ended(self._current(series, problems))
        self.increments = {}

    def __bool__(self) -> bool:
        return bool(self.increments or self.ended)

    def tallies(self, series: Mapping[Series, float], problems: list[str]) -> dict[Key, Tally]:
        """What was counted, by group; ``series`` are those of the current process.

        Series that did not move count as zero, not as unknown.
        """
        parts = {key: list(ended) for key, ended in self.ended.items()}
        for key, part in self._current(series, problems).items():
            parts.setdefault(key, []).append(part)
        return {key: merge.sum_tallies(tallies) for key, tallies in parts.items()}

    def _current(self, series: Mapping[Series, float], problems: list[str]) -> dict[Key, Tally]:
        if self.only_moved and not self.increments:
            return {}
        complete = {**dict.fromkeys(series, 0.0), **self.increments}
        return {
            key: tally.tally_of(samples, problems)
            for key, samples in self.group(complete, problems).items()
            if not self.only_moved or any(series in self.increments for series in samples)
        }


def _of_tap() -> Counted[Bucket]:
    return Counted(buckets.by_bucket, only_moved=True)


@dataclass(slots=True)
class OpenWindow:
    """The window that is being filled, for all models of the target."""

    start: int
    observed_seconds: float = 0.0
    down_seconds: float = 0.0
    scrapes_ok: int = 0
    scrapes_failed: int = 0
    restarts: int = 0
    modes: dict[str, Mode] = field(default_factory=dict)
    gauges: dict[str, Gauges] = field(default_factory=dict)
    proxy_restarts: int = 0
    engine: Counted[str] = field(
        default_factory=lambda: Counted(lambda samples, _: tally.parts_of(samples).models)
    )
    inside: Counted[Bucket] = field(default_factory=_of_tap)
    """What the tap in the engine's process counted."""
    proxy: Counted[Bucket] = field(default_factory=_of_tap)

    def add(self, increments: Mapping[Series, float], *, tapped: bool) -> None:
        """Add what the engine's page counts beyond the one before.

        With ``tapped``, the page has a tap's counters as well.
        """
        engine, inside = self.engine.increments, self.inside.increments
        for series, increment in increments.items():
            if increment:
                counts = inside if tapped and series.segment != ALL else engine
                counts[series] = counts.get(series, 0.0) + increment

    def add_sample(self, model: str, mode: Mode, span: Gauges) -> None:
        """Add a model's mode on a page, and its gauges since the page before."""
        self.modes[model] = merge.merge_modes(self.modes.get(model, mode), mode)
        self.gauges[model] = merge.merge_gauges(self.gauges.get(model, Gauges()), span)

    def closed(
        self, series: SeriesId, model: str, mode: Mode, total: Tally, environment: Environment
    ) -> Window:
        """The window of one model, whose name on the engine's page is ``model``."""
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


class FirstPages:
    """The first pages of the engine and of its proxy, None before they are read.

    A daemon begins to watch while its database is away. Once the database is back, it has the
    cursor at which the daemon's previous process stopped.
    """

    def __init__(self) -> None:
        self.engine: tuple[Mapping[Series, float], float] | None = None
        """With its Unix time."""
        self.proxy: Mapping[Series, float] | None = None

    def count_since(self, cursor: Cursor, window: OpenWindow) -> None:
        """Add what was counted between ``cursor`` and these pages to ``window``."""
        if self.engine is None:
            return
        page, wall = self.engine
        increments, restarted = CounterTracker(cursor.samples, cursor.process_start).advance(page)
        window.restarts += restarted
        window.observed_seconds += max(0.0, wall - cursor.wall)
        before = OpenWindow(window.start)
        before.add(increments, tapped=True)
        window.engine.add_ended(before.engine.tallies(_counters(page), []))
        window.inside.add_ended(before.inside.tallies(_counters(page), []))
        if cursor.proxy is not None and self.proxy is not None:
            increments, restarted = CounterTracker(*cursor.proxy).advance(self.proxy)
            window.proxy_restarts += restarted
            before.proxy.add(increments)
            window.proxy.add_ended(before.proxy.tallies(_counters(self.proxy), []))


def _counters(page: Mapping[Series, float]) -> dict[Series, float]:
    return {series: 0.0 for series in page if series.quantity not in GAUGES}
