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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import HOUR, MINUTE, Moment, Window
from specwatch.errors import NoAnswer, StoreUnavailable
from specwatch.lab.backfill.prometheus import Prometheus, TooMuch
from specwatch.lab.backfill.prometheus_pages import (
    ScrapedPage,
    ScrapedServer,
    joined,
    merged,
    page_selector,
    pages_of,
    servers_of,
    union,
)
from specwatch.lab.backfill.prometheus_targets import BackfillSource
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.counts import PackedWindow, pack
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
from specwatch.store.texts import storable

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
"""Seconds between tries to write."""

Result = TypeVar("Result")


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
        servers = merged([*servers, *_servers(prometheus, expr, start, end)])
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
        return merged([*first, *_servers(prometheus, expr, middle, until)])
    return servers_of(points)


def end_of(store: Store | None, wanted: float, now: float) -> int:
    """Until when minutes may be written: whole minutes that no daemon is about to write."""
    latest = now
    if store is not None and daemon_runs(store):
        latest = now - MARGIN
    return int(min(wanted, latest) // MINUTE) * MINUTE


@dataclass(frozen=True)
class Backfill:
    """Fills in targets one after the other; without a store it writes nothing.

    ``progress`` is called with a target, an hour that is done (Unix seconds), and how many minutes
    were written in it. ``step`` is the time between two pages in seconds, None for every scrape.
    Without ``write`` it only reports what it would write. With ``past_cursors`` the old cursor of a
    daemon that has ended does not limit the span.
    """

    prometheus: Prometheus
    store: Store | None
    daemon: str
    progress: Callable[[str, int, int], None]
    step: float | None = None
    write: bool = True
    past_cursors: bool = False
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def fill(self, source: BackfillSource, span: Span) -> Filled:
        """Fill in one target. Raises what :class:`Prometheus` and :class:`Store` raise; what was
        written before stays."""
        filling = _Filling(self, source, span)
        hours = written = kept = skipped = queries = 0
        for hour in filling.present.hours:
            hours += 1
            missing = filling.missing(hour)
            minutes = 0
            if not len(missing):
                skipped += 1
                filling.skip()
            else:
                queries += math.ceil((min(hour + HOUR, filling.until) - hour) / _SLICE)
                writes = self.write and self.store is not None
                minutes = filling.hour(hour) if writes else len(missing)
            written += minutes
            kept += max(len(filling.present.of_hour(hour)) - minutes, 0)
            self.progress(source.target, hour, minutes)
        return Filled(
            source.target,
            source.instance,
            hours,
            written,
            kept,
            skipped,
            filling.until,
            queries,
            filling.held_by,
        )


def retried(write: Callable[[], Result], sleep: Callable[[float], None]) -> Result:
    """Write to the store, for half a minute again if it is unavailable."""
    for delay in _DELAYS:
        try:
            return write()
        except StoreUnavailable:
            sleep(delay)
    return write()


class _Filling:
    """Fills in the hours of one target. Models are called as in the store."""

    def __init__(self, backfill: Backfill, source: BackfillSource, span: Span) -> None:
        self._backfill = backfill
        self._source = source
        self._store = backfill.store
        self._known: dict[str, MinuteSet] = {}
        """By model, the minutes that are in the store, or counted in a later window."""
        self._unnamed = source.target
        self.until = span.until
        """Unix time of the end: earlier than that of the span if a daemon counts the rest."""
        self.held_by: Hold | None = None
        """The daemon that counts the rest."""
        self._gone: list[Hold] = []
        """Daemons that have ended, whose cursors are passed."""
        if self._store is not None:
            self._look_at(self._store, span)
        self._pages_of = {
            storable(model or self._unnamed): minutes.within(span.since, self.until)
            for model, minutes in source.models.items()
        }
        self._written = MinuteSet()
        """Minutes that a backfill wrote: their counts end with their last page in Prometheus."""
        self.present = source.present.within(span.since, self.until)
        """Minutes with a page."""
        self._watch: WindowBuilder | None = None
        self._last: float | None = None
        """Unix time of the last page."""
        self._before: dict[int, float] = {}
        """By minute, the Unix time of the last page before it, if that is in an earlier minute."""
        self._slice, self._good_slices = _SLICE, 0
        """The seconds that one query asks for, and how many in a row were answered."""

    def _look_at(self, store: Store, span: Span) -> None:
        """Find out which minutes the store has, and where daemons will go on."""
        target = self._source.target
        self._known = counted_minutes(store, target, span.since - HOUR)
        self._unnamed = next(iter(watched_models(store, target)), target)
        for hold in holds(store, target):
            last = int(hold.wall // MINUTE) * MINUTE
            old = hold.wall < self._backfill.now() - OLD
            if self._backfill.past_cursors and not hold.runs and old:
                self._gone.append(hold)
            elif last < self.until:
                # The daemon counts the time after its cursor itself, also if it is down now.
                self.until, self.held_by = last, hold

    def missing(self, hour: int) -> MinuteSet:
        """Minutes of an hour that have a page and lack a model in the store."""
        return union(
            minutes.of_hour(hour).without(self._known.get(model, MinuteSet()))
            for model, minutes in self._pages_of.items()
        )

    def skip(self) -> None:
        """An hour is left out: the next one starts with the last page before it."""
        self._watch = None

    def hour(self, hour: int) -> int:
        """Fetch and write an hour; returns how many minutes were written."""
        if self._watch is None:
            self._watch = self._begin(hour)
        end = min(hour + HOUR, self.until)
        self._note_backfilled(hour, end)
        self._before = {}
        windows = self._observe(self._watch, hour, end)
        closed = self._watch.close().batch
        windows += closed.windows if closed is not None else ()
        gap = self._watch.times.max_gap
        fresh = [w for w in windows if hour <= w.start < end and self._is_new(w, gap)]
        if not fresh:
            return 0
        # Only after the write: a failure leaves the hour as it was.
        written = self._add(hour, fresh)
        for window in fresh:
            model = storable(window.series.model_name)
            self._known.setdefault(model, MinuteSet()).add(window.start)
        starts = {window.start for window in written}
        self._written.update(MinuteSet(starts))
        return len(starts)

    def _begin(self, hour: int) -> WindowBuilder:
        """A builder that has processed the last pages before an hour, so that counts across its
        start are known."""
        watch = WindowBuilder(self._backfill.daemon, self._source.target, max_gap=3 * MINUTE)
        watch.unnamed_model = self._unnamed
        self._last = None
        minute = self._source.present.last_before(hour)
        if minute is not None:
            self._observe(watch, minute, minute + MINUTE)
            self._note_backfilled(minute, minute + MINUTE)
        return watch

    def _note_backfilled(self, since: int, until: int) -> None:
        if self._store is not None:
            self._written.update(backfilled(self._store, self._source.target, since, until))

    def _observe(self, watch: WindowBuilder, since: float, until: float) -> list[Window]:
        windows: list[Window] = []
        for pages in self._pages(since, until):
            intervals = [later.at - earlier.at for earlier, later in pairwise(pages)]
            if intervals:
                shortest, longest = _INTERVALS
                usual = min(max(statistics.median(intervals), shortest), longest)
                watch.times.max_gap = 3 * usual
            for page in pages:
                observation = watch.observe(page.samples, Moment(page.at, page.at))
                if observation.batch is not None:
                    windows += observation.batch.windows
                if observation.error is None:
                    minute = int(page.at // MINUTE) * MINUTE
                    if self._last is not None and self._last < minute:
                        self._before[minute] = self._last
                    self._last = page.at
        return windows

    def _pages(self, since: float, until: float) -> Iterator[list[ScrapedPage]]:
        """Yield the pages of a span, sorted by time, in lists that fit into memory."""
        while since < until:
            end = min(since + self._slice, until)
            servers = self._source.between(since, end)
            try:
                pages = joined([self._pages_of_server(server, since, end) for server in servers])
            except TooMuch as error:
                if end - since <= _SHORTEST_SLICE:
                    raise NoAnswer(str(error)) from None
                self._slice, self._good_slices = (end - since) / 2, 0
                continue
            self._good_slices += 1
            if self._good_slices >= _GOOD_SLICES:
                self._slice, self._good_slices = min(self._slice * 2, _SLICE), 0
            yield pages
            since = end

    def _pages_of_server(
        self, server: ScrapedServer, since: float, until: float
    ) -> list[ScrapedPage]:
        prometheus, step = self._backfill.prometheus, self._backfill.step
        selector = page_selector(server.labels)
        if step is None:
            window = f"[{(until - since) * 1000:.0f}ms]"
            series = prometheus.query(selector + window, until - 0.001)
        else:
            # The end of each step, so that what happened in a minute is counted in that minute.
            first = (since // step + 1) * step - 0.001
            if first >= until:
                return []
            series = prometheus.query_range(selector, first, until - 0.001, step)
        return pages_of(series, server.labels, since, until)

    def _add(self, hour: int, windows: Sequence[Window]) -> list[Window]:
        """Write the windows of an hour in one transaction; returns those that were not stored yet.

        The cursors of daemons that have ended are deleted with the first window after them.
        """
        store, target = self._store, self._source.target
        if store is None:
            return []
        daemon = writing_daemon(store, target, hour) or self._backfill.daemon
        packed = [
            pack(
                msgspec.structs.replace(w, series=msgspec.structs.replace(w.series, daemon=daemon))
            )
            for w in windows
        ]
        by_packed = dict(zip(packed, windows, strict=True))
        missing = pick_missing(target, hour, self._gone)
        chosen: list[PackedWindow] = []

        def pick(connection: sa.Connection, offered: Sequence[PackedWindow]) -> list[PackedWindow]:
            chosen[:] = missing(connection, offered)
            return chosen

        backfill = self._backfill
        retried(lambda: store.add_missing(packed, backfill.now(), pick), backfill.sleep)
        return [by_packed[minute] for minute in chosen]

    def _is_new(self, window: Window, gap: float) -> bool:
        """Whether no window in the store counts any part of this one."""
        known = self._known.get(storable(window.series.model_name), MinuteSet())
        if window.start in known:
            return False
        before = self._before.get(window.start)
        if before is None:
            return True
        first = int(before // MINUTE) * MINUTE
        if any(minute in known for minute in range(first + MINUTE, window.start, MINUTE)):
            return False
        watched_on = first in known and first not in self._written
        return not watched_on or before + gap >= first + MINUTE
