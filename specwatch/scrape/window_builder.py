"""Watching one target: from pages to closed windows.

The counts of a scrape go into the window in which the scrape happened. The time of failed scrapes
goes into windows as down time where the engine came back as another process, or did not answer for
longer than a gauge counts as known; in a shorter time of failures nothing is lost. Windows follow
the wall clock but never overlap or run backwards: when the clock steps back, the open window stays
open until the clock has caught up. All durations come from the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from specwatch.domain import buckets, merge
from specwatch.domain.buckets import Bucket
from specwatch.domain.model import (
    MINUTE,
    Batch,
    Counters,
    Cursor,
    Environment,
    Gauges,
    Mode,
    Moment,
    Series,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.engines.families import GAUGES
from specwatch.errors import NO_ANSWER, PageError, ScrapeReason
from specwatch.scrape import tally
from specwatch.scrape.counted import Counted
from specwatch.scrape.counters import CounterTracker
from specwatch.scrape.downtime import Downtime
from specwatch.scrape.gauges import GpuMemory, gauges_over
from specwatch.scrape.open_window import OpenWindow, by_bucket_of_tap
from specwatch.scrape.taps import Taps

MOST_MODELS = 64
"""Models of one target in a minute: a page with more is refused, since each takes memory."""


class Observation(NamedTuple):
    """What came of a scrape.

    ``batch`` holds the windows that the passing of time closed, ``restarted`` says that the engine
    is another process than before, ``error`` that the page was of no use, ``problems`` what had to
    be left out of the closed windows; ``proxy_restarted`` and ``proxy_error`` say the same of the
    proxy's page.
    """

    batch: Batch | None
    restarted: bool = False
    error: PageError | None = None
    problems: tuple[str, ...] = ()
    proxy_restarted: bool = False
    proxy_error: PageError | None = None


class WindowBuilder:
    """The state of one target between scrapes."""

    def __init__(
        self,
        daemon: str,
        target: str,
        *,
        max_gap: float,
        cursor: Cursor | None = None,
        cursor_follows: bool = False,
    ) -> None:
        """``max_gap`` is the longest time between two samples of a gauge, in seconds, over which
        the gauge counts as known; ``cursor_follows`` that :meth:`resume` will be called."""
        self._daemon = daemon
        self._target = target
        self.max_gap = max_gap
        self._tracker = CounterTracker()
        self._proxy_tracker = CounterTracker()
        self._taps = Taps()
        self._wall: float | None = None
        self._counted_since: float | None = None
        """Unix time of the page at which the open window's counts begin."""
        self._monotonic: float | None = None
        self._downtime = Downtime()
        self._page: Mapping[Series, float] = {}
        self._models: dict[str, Mode] = {}
        self._sampled: dict[str, tally.Sampled] = {}
        self._open: OpenWindow | None = None
        self._closed_start: int | None = None
        self.environment = Environment()
        self.gpu_memory: GpuMemory | None = None
        self.unnamed_model = target
        """What to call a model that the engine does not name (llama.cpp)."""
        self.drafting: bool | None = None
        """Whether the process says that it may draft, where its page does not tell (llama.cpp)."""
        self._cursor_follows = cursor_follows
        self._first: tuple[Mapping[Series, float], float] | None = None
        """The first page and its Unix time, while a cursor is to follow."""
        self._first_of_proxy: Mapping[Series, float] | None = None
        if cursor is not None:
            self._begin_at(cursor)

    @property
    def models(self) -> Mapping[str, Mode]:
        """The models of the last page (before any, of the cursor's), and whether each is served
        with speculation."""
        return self._models

    @property
    def load(self) -> float | None:
        """Requests that ran or waited at the last page, of all models; None where it told none."""
        samples = [sample for sample in self._sampled.values() if sample.running is not None]
        if not samples:
            return None
        return sum((sample.running or 0.0) + (sample.waiting or 0.0) for sample in samples)

    @property
    def taps(self) -> Taps:
        """What is known of the target's taps."""
        return self._taps

    def observe(
        self,
        samples: Mapping[Series, float],
        now: Moment,
        proxy: Mapping[Series, float] | None = None,
    ) -> Observation:
        """Take in a page read at ``now``, and that of the target's proxy where it was read.

        A page without an engine's samples, or with counters that are not numbers, counts as a
        failed scrape.
        """
        problems: list[str] = []
        batch = self._roll(now, problems)
        window = self._window(now)
        page = samples
        parts = tally.parts_of(samples)
        models = parts.models
        try:
            if not models:
                raise tally.no_engine(parts)
            count = len(window.modes.keys() | models.keys())
            if count > MOST_MODELS:
                raise PageError(
                    ScrapeReason.TOO_LARGE,
                    f"its pages of this minute name {count} models: expected at most"
                    f" {MOST_MODELS} on one server",
                )
            if tally.is_v0(samples):
                samples = tally.without_v0_totals(samples)
            before = self._tracker.last
            increments, restarted = self._tracker.advance(samples)
        except PageError as error:
            self._fail(window, now, error.reason)
            return Observation(batch, error=error, problems=tuple(problems))
        if self._cursor_follows and before is None:
            self._first = page, now.wall
        if self._counted_since is None:
            self._counted_since = now.wall
        if restarted:
            self._end_process(window, before or {}, problems)
            self.drafting = None
        window.add(increments, tapped=bool(parts.tap))
        self._sample(window, models, now, restarted=restarted)
        self._page = samples
        self._wall, self._monotonic = now.wall, now.monotonic
        self._taps.see(
            parts,
            increments,
            now.monotonic,
            restarted=restarted,
            several_processes=self._tracker.process_start is None,
            unnamed=self.unnamed_model,
        )
        proxy_restarted, proxy_error = False, None
        if proxy is not None:
            try:
                proxy_restarted = self._observe_proxy(window, proxy, problems)
            except PageError as error:
                proxy_error = error
        return Observation(
            batch,
            restarted,
            problems=tuple(problems),
            proxy_restarted=proxy_restarted,
            proxy_error=proxy_error,
        )

    def _observe_proxy(
        self, window: OpenWindow, samples: Mapping[Series, float], problems: list[str]
    ) -> bool:
        """Take in the proxy's page; returns whether it is another process than before."""
        parts = tally.parts_of(samples)
        page = {**parts.tap, **{s: v for s, v in samples.items() if s.quantity == "process_start"}}
        before = self._proxy_tracker.last
        increments, restarted = self._proxy_tracker.advance(page)
        if self._cursor_follows and before is None:
            self._first_of_proxy = page
        if restarted:
            window.proxy_restarts += 1
            self._drop_doubted(window.proxy)
            window.proxy.end(before or {}, problems)
        counts = window.proxy.increments
        for series, increment in increments.items():
            if increment:
                counts[series] = counts.get(series, 0.0) + increment
        self._taps.see_proxy(
            parts,
            increments,
            restarted=restarted,
            models={model: sample.running for model, sample in self._sampled.items()},
            unnamed=self.unnamed_model,
        )
        return restarted

    def fail(self, now: Moment, reason: ScrapeReason = ScrapeReason.REFUSED) -> Observation:
        """Take in that a scrape failed at ``now``."""
        problems: list[str] = []
        ends = self._open is not None and self._start(now) > self._open.start
        if self._open is not None and ends and reason in NO_ANSWER:
            self._open.down_seconds += self._downtime.until_last_try()
        batch = self._roll(now, problems)
        self._fail(self._window(now), now, reason)
        return Observation(batch, problems=tuple(problems))

    def _fail(self, window: OpenWindow, now: Moment, reason: ScrapeReason) -> None:
        window.scrapes_failed += 1
        window.down_seconds += self._downtime.fail(
            now.monotonic, self.max_gap, silent=reason in NO_ANSWER
        )

    def close(self) -> Observation:
        """End the open window before its time, because the daemon stops."""
        problems: list[str] = []
        windows: tuple[Window, ...] = ()
        if self._open is not None:
            windows = self._build(self._open, problems)
            self._closed_start = self._open.start
        self._open = None
        return Observation(self._batch(windows), problems=tuple(problems))

    def peek(self) -> tuple[Window, ...]:
        """The open window as far as it is filled."""
        return self._build(self._open, []) if self._open is not None else ()

    def resume(self, cursor: Cursor | None, now: Moment) -> None:
        """Count what happened between a cursor that came to light late and our first page.

        The database was away when the watch began; None says that it holds no cursor. The counts
        go into the open window.
        """
        first, self._first = self._first, None
        proxy, self._first_of_proxy = self._first_of_proxy, None
        follows, self._cursor_follows = self._cursor_follows, False
        if cursor is None or not follows:
            return
        if first is None:
            self._begin_at(cursor)
            return
        page, wall = first
        increments, restarted = CounterTracker(cursor.samples, cursor.process_start).advance(page)
        window = self._window(now)
        window.restarts += restarted
        window.observed_seconds += max(0.0, wall - cursor.wall)
        before = OpenWindow(window.start)
        before.add(increments, tapped=True)
        window.engine.add_ended(before.engine.tallies(_counters(page), []))
        window.inside.add_ended(before.inside.tallies(_counters(page), []))
        self._resume_proxy(window, cursor.proxy, proxy)

    def _resume_proxy(
        self, window: OpenWindow, stopped: Counters | None, first: Mapping[Series, float] | None
    ) -> None:
        if stopped is None:
            return
        if first is None:
            self._proxy_tracker = CounterTracker(*stopped)
            return
        increments, restarted = CounterTracker(*stopped).advance(first)
        window.proxy_restarts += restarted
        before = by_bucket_of_tap()
        before.increments.update({s: increment for s, increment in increments.items() if increment})
        window.proxy.add_ended(before.tallies(_counters(first), []))

    def supersede(self, cursor: Cursor) -> None:
        """Go on from the cursor of another process, which has counted what the open window has."""
        if self._open is not None:
            self._open = OpenWindow(self._open.start)
        self._proxy_tracker = CounterTracker()
        self._monotonic, self._sampled = None, {}
        self._begin_at(cursor)

    def start_over(self) -> None:
        """Take the next page for the first one of another server; the open window stays open."""
        if self._open is not None:
            self._end_process(self._open, self._tracker.last or {}, [])
        self._tracker = CounterTracker()
        self._taps = Taps()
        self.drafting = None
        self._wall = self._monotonic = None
        self._downtime = Downtime()
        self._sampled = {}

    def change_proxy(self) -> None:
        """Take the proxy's next page for the first one of another proxy."""
        if self._open is not None:
            self._open.proxy.end(self._proxy_tracker.last or {}, [])
        self._proxy_tracker = CounterTracker()
        self._taps.forget_proxy()

    def cursor(self) -> Cursor | None:
        """Where reading the counters stands; None before the first good page."""
        if self._tracker.last is None or self._wall is None:
            return None
        proxy = self._proxy_tracker
        return Cursor(
            self._target,
            self._tracker.last,
            self._tracker.process_start,
            self._wall,
            None if proxy.last is None else Counters(proxy.last, proxy.process_start),
            self._counted_since,
        )

    def _begin_at(self, cursor: Cursor) -> None:
        self._counted_since = cursor.wall
        self._tracker = CounterTracker(cursor.samples, cursor.process_start)
        self._wall = cursor.wall
        if cursor.proxy is not None:
            self._proxy_tracker = CounterTracker(*cursor.proxy)
        earlier = tally.parts_of(cursor.samples)
        self._models = {model: tally.mode_of(samples) for model, samples in earlier.models.items()}
        self._taps = Taps(was_inside=bool(earlier.tap))

    def _roll(self, now: Moment, problems: list[str]) -> Batch | None:
        start = self._start(now)
        closed = self._open
        if closed is not None and start <= closed.start:
            return None
        self._open = OpenWindow(start)
        if closed is None:
            return None
        windows = self._build(closed, problems)
        return self._batch(windows)

    def _batch(self, windows: tuple[Window, ...]) -> Batch | None:
        if not windows:
            return None
        cursor = self.cursor()
        if cursor is not None:
            self._counted_since = cursor.wall
        return Batch(windows, cursor)

    def _window(self, now: Moment) -> OpenWindow:
        if self._open is None:
            self._open = OpenWindow(self._start(now))
        return self._open

    def _start(self, now: Moment) -> int:
        """Where a window opened now begins: never at or before one that was closed early."""
        start = int(now.wall // MINUTE) * MINUTE
        return start if self._closed_start is None else max(start, self._closed_start + MINUTE)

    def _end_process(
        self, window: OpenWindow, series: Mapping[Series, float], problems: list[str]
    ) -> None:
        """Close the books of a process that is gone: its successor may count differently."""
        window.restarts += 1
        if window.scrapes_ok:
            window.engine.end(series, problems)
            self._drop_doubted(window.inside)
            window.inside.end(series, problems)
        else:
            window.engine.increments, window.inside.increments = {}, {}

    def _drop_doubted(self, books: Counted[Bucket]) -> None:
        """Leave out what a tap that is gone cannot have counted: its successor is not doubted."""
        doubted = {model for model in self._models if self._taps.doubts(model)}
        if doubted:
            books.increments = {
                series: increment
                for series, increment in books.increments.items()
                if buckets.matching(series.model_name, self._models, self.unnamed_model)
                not in doubted
            }

    def _sample(
        self,
        window: OpenWindow,
        models: Mapping[str, Mapping[Series, float]],
        now: Moment,
        *,
        restarted: bool,
    ) -> None:
        elapsed = 0.0
        if self._monotonic is not None:
            elapsed = now.monotonic - self._monotonic
        elif self._wall is not None:
            elapsed = max(0.0, now.wall - self._wall)
        window.down_seconds += self._downtime.until_page(
            now.monotonic, self.max_gap, restarted=restarted
        )
        window.observed_seconds += self._covered(elapsed, now, restarted=restarted)
        window.scrapes_ok += 1
        self._downtime.end(now.monotonic)
        known = 0.0 < elapsed <= self.max_gap and not restarted and self._monotonic is not None
        modes: dict[str, Mode] = {}
        before, self._sampled = self._sampled, {}
        for model, samples in models.items():
            mode = modes[model] = tally.mode_of(samples, self.drafting)
            window.modes[model] = merge.merge_modes(window.modes.get(model, mode), mode)
            sample = tally.sampled(samples)
            span = gauges_over(
                before.get(model) if known else None, sample, elapsed, self.gpu_memory
            )
            window.gauges[model] = merge.merge_gauges(window.gauges.get(model, Gauges()), span)
            self._sampled[model] = sample
        self._models = modes

    def _covered(self, elapsed: float, now: Moment, *, restarted: bool) -> float:
        """For how many of the ``elapsed`` seconds the counts of this page make up."""
        covered = max(0.0, elapsed - self._downtime.seconds)
        start = self._tracker.process_start
        if restarted and start is not None and self._monotonic is None:
            # What an earlier daemon saw of an outage is in its windows.
            return min(covered, max(0.0, now.wall - start))
        return covered

    def _build(self, window: OpenWindow, problems: list[str]) -> tuple[Window, ...]:
        tallies = window.engine.tallies(self._tracker.last or {}, problems)
        modes = window.modes or self._models
        environment = replace(
            self.environment, fingerprint=tally.fingerprint_of(self._page) if self._page else None
        )
        of_all = {}
        for model in sorted(modes):
            series = SeriesId(self._daemon, self._target, model or self.unnamed_model)
            total = tallies.get(model, Tally())
            of_all[model] = window.closed(series, model, modes[model], total, environment)
        by_temperature = self._build_buckets(window, of_all, problems)
        return (*of_all.values(), *by_temperature)

    def _build_buckets(
        self, window: OpenWindow, of_all: Mapping[str, Window], problems: list[str]
    ) -> list[Window]:
        """Windows by temperature from the tap that counts, but for models where it cannot."""
        source = self._taps.source
        if source is None:
            source = Source.TAP if window.inside else Source.PROXY
        is_proxy = source is Source.PROXY
        books = window.proxy if is_proxy else window.inside
        if not books:
            return []
        tracker = self._proxy_tracker if is_proxy else self._tracker
        return buckets.windows_of(
            books.tallies(tracker.last or {}, problems),
            of_all,
            doubts=self._taps.doubts,
            unnamed=self.unnamed_model,
            source=source,
            restarts=window.proxy_restarts if is_proxy else 0,
            problems=problems,
        )


def _counters(page: Mapping[Series, float]) -> dict[Series, float]:
    return {series: 0.0 for series in page if series.quantity not in GAUGES}
