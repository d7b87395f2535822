"""Fills the store from a Prometheus that has scraped the engines.

Its samples are put together to pages, which are processed as live ones are, hour by hour, oldest
first. The minutes of an hour are written in one transaction: a backfill that is killed leaves whole
hours behind, and the next one continues after them. What a window in the store counts is not
written again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from specwatch.backfill import prometheus_pages
from specwatch.backfill.prometheus import Prometheus, TooMuch
from specwatch.backfill.prometheus_pages import ScrapedPage, ScrapedServer
from specwatch.backfill.prometheus_targets import BackfillSource
from specwatch.backfill.target_minutes import TargetMinutes
from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import HOUR, MINUTE, Moment, Window
from specwatch.errors import NoAnswer, StoreUnavailable
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.contexts import storable
from specwatch.store.packing import PackedWindow, pack
from specwatch.store.repository import Store
from specwatch.store.stored_minutes import (
    Hold,
    backfilled,
    counted_minutes,
    daemon_runs,
    holds,
    pick_missing,
    watched_models,
    writing_daemon,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

MARGIN = 900
"""Seconds before now that are left to a running daemon, and to late samples."""
OLD = 24 * HOUR
"""Seconds after which the cursor of a daemon that has ended may be passed."""
_DAY = 24 * HOUR
_SLICE = 900.0
_SHORTEST_SLICE = 15.0
_GOOD_SLICES = 16
"""Successful slices in a row after which longer ones are tried again."""
_INTERVALS = (1.0, 120.0)
"""The shortest and longest plausible seconds between scrapes."""
_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)


class Filled(NamedTuple):
    """The result for one target."""

    target: str
    instance: str
    hours: int
    """Hours with a page in Prometheus."""
    minutes_written: int
    minutes_kept: int
    """Minutes with a page in Prometheus that were in the store already."""
    skipped_hours: int
    """Hours of which no minute was missing."""
    until: int
    """Unix time of the end: earlier than asked for if a daemon counts the rest itself."""
    queries: int
    """Queries that this takes if the server does not limit their size."""
    held_by: Hold | None = None
    """The daemon that counts the rest, if any."""


class FillProgress(Protocol):
    """Receives the progress."""

    def hour(self, target: str, hour: int, minutes: int) -> None:
        """An hour of a target is done, in which so many minutes were written."""


@dataclass(frozen=True)
class Span:
    """A span of time in whole minutes (Unix seconds)."""

    since: int
    until: int


def discover(
    prometheus: Prometheus,
    selector: str,
    span: Span,
    looked: Callable[[int], None] = lambda _: None,
) -> list[ScrapedServer]:
    """The servers that a presence selector finds in a span and in the hour before it.

    ``looked`` is called with the Unix time up to which it has searched.
    """
    servers: list[ScrapedServer] = []
    start = span.since - HOUR
    expr = f"count_over_time({selector}[1m])"
    while start < span.until:
        end = min(start + _DAY, span.until)
        servers = prometheus_pages.merged([*servers, *_servers(prometheus, expr, start, end)])
        start = end
        looked(start)
    return servers


def _servers(prometheus: Prometheus, expr: str, since: int, until: int) -> list[ScrapedServer]:
    try:
        # The last millisecond of each minute, as a range has its end but not its beginning.
        points = prometheus.query_range(expr, since + MINUTE - 0.001, until - 0.001, MINUTE)
    except TooMuch as error:
        if until - since <= HOUR:
            raise NoAnswer(str(error)) from None
        middle = since + (until - since) // 2 // HOUR * HOUR
        first = _servers(prometheus, expr, since, middle)
        return prometheus_pages.merged([*first, *_servers(prometheus, expr, middle, until)])
    return prometheus_pages.servers(points)


def end_of(store: Store | None, wanted: float, now: float) -> int:
    """Until when minutes may be written: whole minutes that no daemon is about to write."""
    latest = now
    if store is not None and daemon_runs(store):
        latest = now - MARGIN
    return int(min(wanted, latest) // MINUTE) * MINUTE


class Backfill:
    """Fills in targets one after the other; without a store it writes nothing."""

    def __init__(
        self,
        prometheus: Prometheus,
        store: Store | None,
        *,
        daemon: str,
        progress: FillProgress,
        step: float | None = None,
        write: bool = True,
        past_cursors: bool = False,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``step`` is the time between two pages in seconds, None for every scrape.

        Without ``write`` it only reports what it would write. With ``past_cursors`` the old cursor
        of a daemon that has ended does not limit the span.
        """
        self._prometheus = prometheus
        self._store = store
        self.daemon = daemon
        self._progress = progress
        self._step = step
        self._write = write and store is not None
        self._now = now
        self._sleep = sleep
        self._past_cursors = past_cursors
        self._slices: dict[str, _Slice] = defaultdict(_Slice)

    def fill(self, source: BackfillSource, span: Span) -> Filled:
        """Fill in one target. Raises what :class:`Prometheus` and :class:`Store` raise; what was
        written before stays."""
        target_minutes = self._minutes_of(source, span)
        hours = written = kept = skipped = queries = 0
        filling = _Filling(self, source, target_minutes)
        for hour in target_minutes.present.within(span.since, target_minutes.until).hours:
            hours += 1
            seen = target_minutes.present.of_hour(hour).within(span.since, target_minutes.until)
            if not target_minutes.lacks(hour):
                skipped += 1
                minutes = 0
                filling.skip()
            else:
                queries += math.ceil((min(hour + HOUR, target_minutes.until) - hour) / _SLICE)
                missing = target_minutes.missing(hour)
                minutes = filling.hour(hour) if self._write else len(missing)
            written += minutes
            kept += max(len(seen) - minutes, 0)
            self._progress.hour(source.target, hour, minutes)
        return Filled(
            source.target, source.instance, hours, written, kept, skipped,
            target_minutes.until, queries, target_minutes.held_by,
        )  # fmt: skip

    def hours(self, source: BackfillSource, span: Span) -> int:
        """How many hours of a target have a page."""
        return len(source.present.within(span.since, span.until).hours)

    def _minutes_of(self, source: BackfillSource, span: Span) -> TargetMinutes:
        known: dict[str, MinuteSet] = {}
        until, unnamed = span.until, source.target
        held_by: Hold | None = None
        gone: list[Hold] = []
        if self._store is not None:
            known = counted_minutes(self._store, source.target, span.since - HOUR)
            unnamed = next(iter(watched_models(self._store, source.target)), unnamed)
            for hold in holds(self._store, source.target):
                if self._past_cursors and not hold.runs and hold.wall < self._now() - OLD:
                    gone.append(hold)
                elif int(hold.wall // MINUTE) * MINUTE < until:
                    # The daemon counts the time after its cursor itself, also if it is down now.
                    until, held_by = int(hold.wall // MINUTE) * MINUTE, hold
        present = {storable(m or unnamed): minutes for m, minutes in source.models.items()}
        return TargetMinutes(
            present, known, (span.since, until), unnamed, held_by=held_by, gone=gone
        )

    def pages(
        self, source: BackfillSource, since: float, until: float
    ) -> Iterator[list[ScrapedPage]]:
        """Yield the pages of a span, sorted by time, in lists that fit into memory."""
        start = since
        slice_ = self._slices[source.target]
        while start < until:
            end = min(start + slice_.seconds, until)
            try:
                joined = prometheus_pages.joined(
                    [self._slice_of(server, start, end) for server in source.between(start, end)]
                )
            except TooMuch as error:
                if end - start <= _SHORTEST_SLICE:
                    raise NoAnswer(str(error)) from None
                slice_.was_too_long(end - start)
                continue
            slice_.was_good()
            yield joined
            start = end

    def _slice_of(self, server: ScrapedServer, since: float, until: float) -> list[ScrapedPage]:
        selector = prometheus_pages.page_selector(server.labels)
        if self._step is None:
            window = f"[{(until - since) * 1000:.0f}ms]"
            series = self._prometheus.query(selector + window, until - 0.001)
        else:
            # The end of each step, so that what happened in a minute is counted in that minute.
            first = (since // self._step + 1) * self._step - 0.001
            if first >= until:
                return []
            series = self._prometheus.query_range(selector, first, until - 0.001, self._step)
        return prometheus_pages.pages(series, server.labels, since, until)

    def add(
        self,
        source: BackfillSource,
        hour: int,
        windows: Sequence[Window],
        gone: Sequence[Hold] = (),
    ) -> list[Window]:
        """Write the windows of an hour in one transaction; returns those that were not stored yet.

        The cursors of ``gone`` are deleted with the first window after them."""
        store = self._store
        if store is None:
            return []
        daemon = writing_daemon(store, source.target, hour) or self.daemon
        packed = [pack(replace(w, series=replace(w.series, daemon=daemon))) for w in windows]
        by_packed = dict(zip(packed, windows, strict=True))
        missing = pick_missing(source.target, hour, gone)
        chosen: list[PackedWindow] = []

        def pick(connection: sa.Connection, offered: Sequence[PackedWindow]) -> list[PackedWindow]:
            chosen[:] = missing(connection, offered)
            return chosen

        for delay in (*_DELAYS, None):
            try:
                store.add_missing(packed, self._now(), pick)
                return [by_packed[minute] for minute in chosen]
            except StoreUnavailable:
                if delay is None:
                    raise
                self._sleep(delay)
        raise AssertionError("the last try ends it")

    def backfilled(self, source: BackfillSource, since: int, until: int) -> MinuteSet:
        """Minutes in the store that a backfill wrote."""
        if self._store is None:
            return MinuteSet()
        return backfilled(self._store, source.target, since, until)


class _Slice:
    """The seconds of a target that one query asks for."""

    def __init__(self) -> None:
        self.seconds = _SLICE
        self._good = 0

    def was_too_long(self, seconds: float) -> None:
        """The server refused a query of that length."""
        self.seconds, self._good = seconds / 2, 0

    def was_good(self) -> None:
        """The server answered a query."""
        self._good += 1
        if self._good >= _GOOD_SLICES:
            self.seconds, self._good = min(self.seconds * 2, _SLICE), 0


class _Filling:
    """Fills in the hours of one target."""

    def __init__(self, backfill: Backfill, source: BackfillSource, minutes: TargetMinutes) -> None:
        self._backfill = backfill
        self._source = source
        self._minutes = minutes
        self._watch: WindowBuilder | None = None
        self._last: float | None = None
        """Unix time of the last page."""
        self._before: dict[int, float] = {}
        """By minute, the Unix time of the last page before it, if that is in an earlier minute."""

    def skip(self) -> None:
        """An hour is left out: the next one starts with the last page before it."""
        self._watch = None

    def hour(self, hour: int) -> int:
        """Fetch and write an hour; returns how many minutes were written."""
        if self._watch is None:
            self._watch = self._begin(hour)
        end = min(hour + HOUR, self._minutes.until)
        self._minutes.ours.update(self._backfill.backfilled(self._source, hour, end))
        self._before = {}
        windows = self._observe(self._watch, hour, end)
        closed = self._watch.close().batch
        windows += closed.windows if closed is not None else ()
        fresh = [window for window in windows if hour <= window.start < end and self._new(window)]
        if not fresh:
            return 0
        # Only after the write: a failure leaves the hour as it was.
        written = self._backfill.add(self._source, hour, fresh, self._minutes.gone)
        self._minutes.take(fresh, ours=False)
        self._minutes.take(written, ours=True)
        return len({window.start for window in written})

    def _begin(self, hour: int) -> WindowBuilder:
        """A builder that has processed the last pages before an hour, so that counts across its
        start are known."""
        watch = WindowBuilder(self._backfill.daemon, self._source.target, max_gap=3 * MINUTE)
        watch.unnamed_model = self._minutes.unnamed
        self._last = None
        minute = self._minutes.present.last_before(hour)
        if minute is not None:
            self._observe(watch, minute, minute + MINUTE)
            ours = self._backfill.backfilled(self._source, minute, minute + MINUTE)
            self._minutes.ours.update(ours)
        return watch

    def _observe(self, watch: WindowBuilder, since: float, until: float) -> list[Window]:
        windows: list[Window] = []
        for pages in self._backfill.pages(self._source, since, until):
            intervals = [later.at - earlier.at for earlier, later in pairwise(pages)]
            if intervals:
                shortest, longest = _INTERVALS
                usual = min(max(statistics.median(intervals), shortest), longest)
                watch.max_gap = 3 * usual
            for page in pages:
                observation = watch.observe(page.samples, Moment(page.at, page.at))
                if observation.batch is not None:
                    windows += observation.batch.windows
                if observation.error is None:
                    self._note(page.at)
        return windows

    def _note(self, time: float) -> None:
        minute = int(time // MINUTE) * MINUTE
        if self._last is not None and self._last < minute:
            self._before[minute] = self._last
        self._last = time

    def _new(self, window: Window) -> bool:
        """Whether no window in the store counts any part of this one."""
        model = storable(window.series.model_name)
        if self._minutes.is_taken(model, window.start):
            return False
        before = self._before.get(window.start)
        if before is None:
            return True
        first = int(before // MINUTE) * MINUTE
        between = range(first + MINUTE, window.start, MINUTE)
        if any(self._minutes.is_taken(model, minute) for minute in between):
            return False
        watched_on = self._minutes.is_taken(model, first) and first not in self._minutes.ours
        gap = self._watch.max_gap if self._watch is not None else 0.0
        return not watched_on or before + gap >= first + MINUTE
