"""Builds the windows of one target from its pages.

The counts of a scrape go into the window in which the scrape happened. Failed scrapes are downtime
if the engine came back as another process, or did not answer for longer than ``max_gap``; shorter
failures lose nothing. Windows follow the wall clock but never overlap or run backwards: when the
clock steps back, the open window stays open until the clock has caught up. All durations come from
the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from specwatch.domain import buckets
from specwatch.domain.buckets import Bucket
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import (
    ALL,
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
from specwatch.engines.sample_names import meaningful, mode_of
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape import switch, tally
from specwatch.scrape.alternation import Alternation
from specwatch.scrape.counters import CounterTracker, Processes, process_start
from specwatch.scrape.engine_stop import DraftWatch
from specwatch.scrape.gauges import GpuMemory
from specwatch.scrape.open_window import Counted, FirstPages, OpenWindow
from specwatch.scrape.page_layout import Glance
from specwatch.scrape.page_times import PageTimes
from specwatch.scrape.switch import SwitchSetting
from specwatch.scrape.taps import Taps


class ScrapeResult(NamedTuple):
    """The result of a scrape.

    ``batch`` has the windows that ended, ``restarted`` is whether the engine is another process
    than before, ``error`` is why the page cannot be used, ``problems`` are sentences on what was
    left out of the closed windows. ``proxy_restarted`` and ``proxy_error`` are about the proxy.
    """

    batch: Batch | None
    restarted: bool = False
    error: PageError | None = None
    problems: tuple[str, ...] = ()
    proxy_restarted: bool = False
    proxy_error: PageError | None = None
    another: bool = False
    """Whether a process answered that had run beside the one before."""


class WindowBuilder:
    """The state of one target from scrape to scrape."""

    def __init__(
        self,
        daemon: str,
        target: str,
        *,
        max_gap: float,
        cursor: Cursor | None = None,
        cursor_follows: bool = False,
        closed_start: int | None = None,
        watched_since: float | None = None,
    ) -> None:
        """``max_gap`` as of :class:`PageTimes`; ``cursor_follows``: :meth:`resume` will be called;
        ``closed_start``: the last window that was closed early, so that none may begin there;
        ``watched_since``: see the attribute."""
        self._daemon = daemon
        self._target = target
        self.times = PageTimes(max_gap)
        self._tracker = CounterTracker()
        self._proxy_tracker = CounterTracker()
        self.taps = Taps()
        self._counted_since: float | None = None
        """Unix time of the page, read by us or before us, on which the next counts follow; None for
        the first ones."""
        self._from_zero = False
        """Whether all of the first page was counted."""
        self._page: Mapping[Series, float] = {}
        self.models: dict[str, Mode] = {}
        """The models of the last page (before any page, of the cursor), and their modes."""
        self.switch: SwitchSetting | None = None
        self._open: OpenWindow | None = None
        self.closed_start = closed_start
        self.watched_since = watched_since
        """Unix time since when whatever serves the target is watched: all that a process has
        counted on its first page is new, if that says that it began later. None if not known."""
        self.environment = Environment()
        self.gpu_memory: GpuMemory | None = None
        self.unnamed_model = target
        """What to call a model that the engine does not name (llama.cpp)."""
        self.processes = Processes()
        self._alternation = Alternation()
        self.drafting: bool | None = None
        """Whether the process says that it may draft, where its page does not tell (llama.cpp)."""
        self.draft_lengths: DraftLengths | None = None
        """Why its drafts vary in length, where its page does not tell (llama.cpp, SGLang)."""
        self.prefills = False
        """Whether the process says that it only prefills (SGLang)."""
        self.draft_watch = DraftWatch()
        self._base: Glance | None = None
        """The last page, where a glance at the next one may do."""
        self._glanced: tuple[Glance, Moment] | None = None
        """The last page, where its counters are not counted yet, and when it was read."""
        self._first_pages = FirstPages() if cursor_follows else None
        if cursor is not None:
            self._begin_at(cursor)

    @property
    def from_files(self) -> bool:
        """Whether the last page did not say when its process started."""
        return self._tracker.last is not None and self._tracker.process_start is None

    def observe(
        self,
        samples: Mapping[Series, float],
        now: Moment,
        proxy: Mapping[Series, float] | None = None,
    ) -> ScrapeResult:
        """Process a page read at ``now``, and the page of the target's proxy if it was read.

        A page without an engine's samples, or with counters that are not numbers, counts as a
        failed scrape.
        """
        self._count_glance()
        self._base = None
        problems: list[str] = []
        batch = self._roll(now, problems)
        window = self._window(now)
        start = process_start(samples)
        if self._tracker.last is None:
            self._count_from_zero(start)
        before = self._tracker.process_start
        another = self.processes.is_another(before, start, self.times.seen_at(now), now.wall)
        try:
            parts = tally.engine_parts(samples, window.modes)
            page = meaningful(samples)
            if start is None and self._alternation.is_another(
                self._tracker.last, page, now.monotonic
            ):
                self.processes.alternated_at = now.wall
                another = True
            if another:
                self.start_over()
            last = self._tracker.last
            increments, restarted = self._tracker.advance(page)
        except PageError as error:
            self.times.fail(window, now, error.reason)
            return ScrapeResult(batch, error=error, problems=tuple(problems))
        if self._first_pages is not None and last is None:
            self._first_pages.engine = samples, now.wall
        counted: Mapping[Series, float] = increments
        if start is None:
            counted = self._alternation.counted(increments, now.monotonic)
        if restarted:
            self._end_process(window, last or {}, problems)
            self._forget_process()
        setting = switch.setting_of(samples, None if restarted else self.switch)
        switched = last is not None and not restarted and switch.changed(self.switch, setting)
        self.switch = setting
        window.add(counted, tapped=bool(parts.tap))
        self._see(parts, page, increments, now, restarted=restarted)
        self._sample(window, parts.models, now, restarted=restarted, switched=switched)
        proxy_restarted, proxy_error = False, None
        if proxy is not None:
            try:
                proxy_restarted = self._observe_proxy(window, proxy, problems)
            except PageError as error:
                proxy_error = error
        sentences = tuple(problems)
        return ScrapeResult(
            batch, restarted, None, sentences, proxy_restarted, proxy_error, another
        )

    def begin_glances(self, glance: Glance | None) -> None:
        """Say how the page looks that was observed last; None if that is not known."""
        self._base = None
        known = self._tracker.process_start is not None and self._first_pages is None
        ordered = self.switch is not None and self.switch.ordered
        doubted = any(map(self.taps.doubts, self.models))
        usual = known and not (ordered or doubted)
        if glance is not None and usual and not glance.layout.stops_permanently:
            self._base = glance

    def glance(self, glance: Glance, now: Moment) -> ScrapeResult | None:
        """Process a page read at ``now`` without a look at each counter, which is not needed inside
        a minute; None for one that :meth:`observe` has to process."""
        base, window = self._base, self._open
        if base is None or window is None or self._start(now) > window.start:
            return None
        if not glance.continues(base):
            return None
        self._base, self._glanced = glance, (glance, now)
        self._sample(window, glance.gauges(), now, restarted=False, switched=False)
        return ScrapeResult(None)

    def _count_glance(self) -> None:
        """Count what was left uncounted of the last page."""
        glanced, self._glanced = self._glanced, None
        if glanced is None or self._open is None:
            return
        glance, now = glanced
        samples = glance.samples()
        page = meaningful(samples)
        increments, _ = self._tracker.advance(page)
        parts = tally.parts_of(samples)
        self._open.add(increments, tapped=bool(parts.tap))
        self._see(parts, page, increments, now, restarted=False)
        for model, mode in self.models.items():
            self._open.add_sample(model, mode, Gauges())

    def _see(
        self,
        parts: tally.Parts,
        page: Mapping[Series, float],
        increments: Mapping[Series, float],
        now: Moment,
        *,
        restarted: bool,
    ) -> None:
        """Take in what a page shows beside its counts."""
        self._page = page
        from_files = self._tracker.process_start is None
        self.draft_watch.see(parts.models, increments, now.wall, from_files=from_files)
        self._set_modes(parts.models)
        self.taps.see(
            parts,
            increments,
            now.monotonic,
            restarted=restarted,
            several_processes=self._tracker.process_start is None,
            unnamed=self.unnamed_model,
        )

    def _observe_proxy(
        self, window: OpenWindow, samples: Mapping[Series, float], problems: list[str]
    ) -> bool:
        """Process the proxy's page; returns whether it is another process than before."""
        parts = tally.parts_of(samples)
        page = {**parts.tap, **{s: v for s, v in samples.items() if s.quantity == "process_start"}}
        before = self._proxy_tracker.last
        increments, restarted = self._proxy_tracker.advance(page)
        if self._first_pages is not None and before is None:
            self._first_pages.proxy = page
        if restarted:
            window.proxy_restarts += 1
            self._drop_doubted(window.proxy)
            window.proxy.end(before or {}, problems)
        window.proxy.add(increments)
        self.taps.see_proxy(
            parts,
            increments,
            restarted=restarted,
            models={model: sample.running for model, sample in self.times.sampled.items()},
            unnamed=self.unnamed_model,
        )
        return restarted

    def fail(self, now: Moment, reason: ScrapeReason = ScrapeReason.REFUSED) -> ScrapeResult:
        """Note that a scrape failed at ``now``."""
        self._count_glance()
        self._base = None
        problems: list[str] = []
        ends = self._open is not None and self._start(now) > self._open.start
        if self._open is not None and ends:
            self.times.end(self._open, reason)
        batch = self._roll(now, problems)
        self.times.fail(self._window(now), now, reason)
        return ScrapeResult(batch, problems=tuple(problems))

    def close(self) -> ScrapeResult:
        """End the open window before its time, because the daemon stops."""
        self._count_glance()
        problems, windows = list[str](), tuple[Window, ...]()
        closed, self._open = self._open, None
        if closed is not None:
            held = self._alternation.release({})
            closed.add(held, tapped=any(series.segment != ALL for series in held))
            windows = self._build(closed, problems)
            self.closed_start = closed.start
        return ScrapeResult(self._batch(closed, windows), problems=tuple(problems))

    def so_far(self) -> Batch | None:
        """The open minute as it is, to be stored before it ends: in its place the whole one is, if
        we live to see it. None before the first page."""
        windows, cursor = self.peek(), self.cursor()
        if not windows or cursor is None:
            return None
        self._counted_since = cursor.wall
        return Batch(windows, cursor)

    def peek(self) -> tuple[Window, ...]:
        """The windows of the open minute so far."""
        self._count_glance()
        return self._build(self._open, []) if self._open is not None else ()

    def resume(self, cursor: Cursor | None, now: Moment) -> None:
        """Count what happened between a cursor that was read late and the first page.

        The database was away when the watch began; ``cursor`` is None if it has no cursor. The
        counts go into the open window.
        """
        self._base = None
        first, self._first_pages = self._first_pages, None
        if cursor is None or first is None:
            return
        if first.engine is None:
            self._begin_at(cursor)
            return
        first.count_since(cursor, self._window(now))
        if cursor.proxy is not None and first.proxy is None:
            self._proxy_tracker = CounterTracker(*cursor.proxy)

    def supersede(self, cursor: Cursor) -> None:
        """Continue from the cursor of another process, which has counted the open window.

        What was stored of that as a part stays: what comes now is in the next minute.
        """
        self._base = self._glanced = None
        self._alternation = Alternation()
        if self._open is not None:
            self.closed_start = self._open.start
            self._open = None
        self._proxy_tracker = CounterTracker()
        self._begin_at(cursor)

    def start_over(self) -> None:
        """Treat the next page as the first one of another server; the open window stays open."""
        self._count_glance()
        self._base = None
        if self._open is not None:
            self._end_process(self._open, self._tracker.last or {}, [])
        self._tracker = CounterTracker()
        self.taps = Taps()
        self._forget_process()
        self.times = PageTimes(self.times.max_gap)

    def _forget_process(self) -> None:
        """Forget what the process said of itself."""
        self.drafting, self.draft_lengths, self.prefills = None, None, False
        self.draft_watch = DraftWatch()

    def change_proxy(self) -> None:
        """Treat the proxy's next page as the first one of another proxy."""
        self._count_glance()
        if self._open is not None:
            self._open.proxy.end(self._proxy_tracker.last or {}, [])
        self._proxy_tracker = CounterTracker()
        self.taps.forget_proxy()

    def cursor(self) -> Cursor | None:
        """The counters at the last good page; None before the first one."""
        self._count_glance()
        engine, proxy = self._tracker, self._proxy_tracker
        if engine.last is None or self.times.wall is None:
            return None
        of_proxy = None if proxy.last is None else Counters(proxy.last, proxy.process_start)
        return Cursor(
            self._target,
            self._alternation.without_held(engine.last),
            engine.process_start,
            self.times.wall,
            of_proxy,
            self._counted_since,
        )

    def begin(self) -> Cursor | None:
        """Where counting begins, at a first page of which nothing is counted; else None."""
        cursor = self.cursor()
        if cursor is None or cursor.after is not None or self._from_zero:
            return None
        self._counted_since = cursor.wall
        return cursor

    def _count_from_zero(self, start: float | None) -> None:
        """Count all of the first page, if its process began at ``start`` under our eyes."""
        since, self.watched_since = self.watched_since, None
        if since is not None and start is not None and start >= since:
            self._begin_at(Cursor(self._target, {}, start, start))
            self._counted_since = None
            self._from_zero = True

    def _begin_at(self, cursor: Cursor) -> None:
        self._counted_since = cursor.wall
        self._tracker = CounterTracker(cursor.samples, cursor.process_start)
        self.times.supersede(cursor.wall)
        if cursor.proxy is not None:
            self._proxy_tracker = CounterTracker(*cursor.proxy)
        earlier = tally.parts_of(cursor.samples)
        self.models = {model: mode_of(samples) for model, samples in earlier.models.items()}
        self.taps = Taps(was_inside=bool(earlier.tap))

    def _roll(self, now: Moment, problems: list[str]) -> Batch | None:
        start = self._start(now)
        closed = self._open
        if closed is not None and start <= closed.start:
            return None
        self._open = OpenWindow(start)
        return None if closed is None else self._batch(closed, self._build(closed, problems))

    def _batch(self, closed: OpenWindow | None, windows: tuple[Window, ...]) -> Batch | None:
        if not windows or closed is None:
            return None
        cursor = self.cursor()
        if cursor is not None:
            self._counted_since = cursor.wall
        ranks = {}
        if not closed.restarts:
            ranks = tally.ranks_of(closed.engine.increments, self._tracker.last or ())
        named = {model or self.unnamed_model: of_model for model, of_model in ranks.items()}
        return Batch(windows, cursor, named)

    def _window(self, now: Moment) -> OpenWindow:
        if self._open is None:
            self._open = OpenWindow(self._start(now))
        return self._open

    def _start(self, now: Moment) -> int:
        """Where a window opened now begins: never at or before one that was closed early."""
        start = int(now.wall // MINUTE) * MINUTE
        return start if self.closed_start is None else max(start, self.closed_start + MINUTE)

    def _end_process(
        self, window: OpenWindow, series: Mapping[Series, float], problems: list[str]
    ) -> None:
        """End the counts of a process: its successor may have other series."""
        window.restarts += 1
        if window.scrapes_ok:
            window.engine.end(series, problems)
            self._drop_doubted(window.inside)
            window.inside.end(series, problems)
        else:
            window.engine.increments, window.inside.increments = {}, {}

    def _drop_doubted(self, counted: Counted[Bucket]) -> None:
        """Leave out what a tap cannot have counted, before its process is replaced."""
        doubted = {model for model in self.models if self.taps.doubts(model)}
        if doubted:
            counted.increments = {
                series: increment
                for series, increment in counted.increments.items()
                if buckets.matching(series.model_name, self.models, self.unnamed_model)
                not in doubted
            }

    def _sample(
        self,
        window: OpenWindow,
        models: Mapping[str, Mapping[Series, float]],
        now: Moment,
        *,
        restarted: bool,
        switched: bool,
    ) -> None:
        self.times.add(
            window,
            models,
            now,
            modes=dict.fromkeys(models, Mode.MIXED) if switched else self.models,
            gpu_memory=self.gpu_memory,
            process_start=self._tracker.process_start,
            restarted=restarted,
        )

    def _set_modes(self, models: Mapping[str, Mapping[Series, float]]) -> None:
        on = Mode.ON if self.switch is None else self.switch.mode
        self.models = {
            model: mode_of(
                samples,
                self.drafting,
                on=on,
                prefills=self.prefills or tally.prefills(self._page, samples),
            )
            for model, samples in models.items()
        }
        self.models |= {
            model: Mode.STOPPED
            for model in self.draft_watch.stops
            if self.models.get(model) is Mode.ON
        }
        self.models |= dict.fromkeys(self.draft_watch.left_over & self.models.keys(), Mode.OFF)

    def _build(self, window: OpenWindow, problems: list[str]) -> tuple[Window, ...]:
        tallies = window.engine.tallies(self._tracker.last or {}, problems)
        modes = window.modes or self.models
        fingerprint = tally.fingerprint_of(self._page, self.draft_lengths) if self._page else None
        environment = replace(self.environment, fingerprint=fingerprint)
        of_all = {}
        for model in sorted(modes):
            series = SeriesId(self._daemon, self._target, model or self.unnamed_model)
            total = tallies.get(model, Tally())
            of_all[model] = window.closed(series, model, modes[model], total, environment)
        return (*of_all.values(), *self._build_segments(window, of_all, problems))

    def _build_segments(
        self, window: OpenWindow, of_all: Mapping[str, Window], problems: list[str]
    ) -> list[Window]:
        """Windows by segment of the tap in use, without models whose counts are doubted."""
        source = self.taps.source
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
            doubts=self.taps.doubts,
            unnamed=self.unnamed_model,
            source=source,
            restarts=window.proxy_restarts if is_proxy else 0,
            problems=problems,
        )
