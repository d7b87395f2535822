"""The hours of one target: those that are rolled up, and those of minutes that are not yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import HOUR, MINUTE, SeriesId, Window
from specwatch.report.grouped_data import Recorded
from specwatch.store import schema
from specwatch.store.counts import Context
from specwatch.store.frame import HOUR_COLUMNS, MINUTE_COLUMNS, Frame
from specwatch.store.readers import Reader
from specwatch.store.statements import contexts_of, fetch_rows, read_series, selected, series_of

_HOURS_AT_ONCE = 14 * 24
_MINUTES_AT_ONCE = 24
"""Hours of minutes that are read at once: a busy target has ten thousand of a day."""

_CONTEXT = itemgetter(2)
_WHAT = attrgetter("start", "series.model_name", "series.temperature")
Row = tuple[Any, ...]
"""The columns of a frame."""
Summed = Callable[
    [Sequence[Row], Mapping[int, "Member"], Mapping[int, Context]], Iterable[Recorded]
]
"""Makes windows from rows of the hours, all series, and contexts by id."""


class Member(NamedTuple):
    """A series of the target. Minutes before ``rolled_until`` are contained in hours; those before
    ``pruned_until`` are deleted, but for late ones."""

    series: SeriesId
    first_start: int
    last_start: int
    rolled_until: int
    pruned_until: int

    @property
    def order(self) -> tuple[str, str, str]:
        """The order of windows with the same start."""
        return self.series.model_name, self.series.temperature, self.series.daemon

    @property
    def pending(self) -> bool:
        """Whether there are minutes that are not rolled up."""
        return self.rolled_until <= self.last_start


_Key = tuple[int, int, int, int]
"""Start, rank of the series, context and load bin: the key of a row of the hours."""


def members_by_target(reader: Reader) -> dict[str, dict[int, Member]]:
    """All series by target and id, of all daemons. Raises StoreError."""
    with reader.connected() as connection:
        rows = read_series(connection)
    groups: dict[str, dict[int, Member]] = {}
    for row in rows:
        groups.setdefault(row.target, {})[row.id] = Member(
            series_of(row),
            row.first_start,
            row.last_start,
            row.rolled_until,
            row.pruned_until,
        )
    return groups


def hours_of(
    reader: Reader,
    members: Mapping[int, Member],
    since: float,
    until: float,
    *,
    contexts: dict[int, Context] | None = None,
    summed: Summed | None = None,
) -> Iterator[Recorded]:
    """Yield the hours of series of one target that start in ``since <= start < until``.

    Times are Unix seconds. They are the windows that the store would have if it rolled up now all
    rows before ``until``. An hour has a window for each mode, load bin and environment, by start;
    of two daemons the one with more good scrapes counts. ``contexts`` caches those that were read,
    by id. Raises StoreError.

    ``summed`` makes sums of rolled-up hours in place of a window for each; it is called if one
    daemon watched.
    """
    if not members:
        return
    first = min(member.first_start for member in members.values())
    hour = max(_hour(_up(since) + HOUR - 1), _hour(first))
    end = min(_up(until), 1 + max(member.last_start for member in members.values()))
    pending = [member for member in members.values() if member.pending]
    rolled = min((_hour(member.rolled_until) for member in pending), default=end)
    contexts = {} if contexts is None else contexts
    while hour < end:
        # What is rolled up of all series is read in long strides.
        far = _HOURS_AT_ONCE if hour < rolled else _MINUTES_AT_ONCE
        stop = min(hour + far * HOUR, rolled if hour < rolled else end, end)
        yield from _between(reader, members, hour, stop, contexts, summed)
        hour = _hour(stop + HOUR - 1)


def _between(
    reader: Reader,
    members: Mapping[int, Member],
    hour: int,
    stop: int,
    contexts: dict[int, Context],
    summed: Summed | None,
) -> Iterator[Recorded]:
    """The hours that start in a span, rolled up or not."""
    late = {
        id_: member
        for id_, member in members.items()
        if member.pending and member.rolled_until < stop
    }
    with reader.reading() as connection:
        minutes = _rows(connection, schema.minutes, hour, stop, MINUTE, late) if late else []
        stored = _rows(connection, schema.hours, hour, stop, HOUR, members)
        needed = {*map(_CONTEXT, minutes), *map(_CONTEXT, stored)} - contexts.keys()
        contexts |= contexts_of(connection, needed)
    if summed is not None and not minutes and len({m.series.daemon for m in members.values()}) == 1:
        yield from summed(stored, members, contexts)
        return
    if any(hour < member.rolled_until for member in late.values()):
        minutes = [row for row in minutes if row[0] >= late[row[1]].rolled_until]
    # A stored hour counts only if some of its minutes are gone.
    rebuilt = {
        (row[0] - row[0] % HOUR, row[1])
        for row in (minutes if stored else ())
        if row[0] - row[0] % HOUR >= members[row[1]].pruned_until
    }
    ordered = sorted(members.items(), key=lambda item: item[1].order)
    ranks = {id_: rank for rank, (id_, _) in enumerate(ordered)}
    series = {id_: member.series for id_, member in members.items()}
    windows: dict[_Key, Window] = {}
    kept = [row for row in stored if (row[0], row[1]) not in rebuilt]
    for group, window in Frame.readable(kept, contexts, hours=True).by_hour(series):
        key = (group.start, ranks[group.series_id], group.context_id, group.load_bin)
        windows[key] = window
    for group, window in Frame.readable(minutes, contexts).by_hour(series):
        key = (group.start, ranks[group.series_id], group.context_id, group.load_bin)
        if key in windows:
            window = merge_windows([windows[key], window], start=group.start, length=HOUR)
        windows[key] = window
    yield from _settled(windows)


def _settled(merged: Mapping[_Key, Window]) -> Iterator[Window]:
    """By start, model and temperature, each of the daemon with the most good scrapes."""
    ordered = (merged[key] for key in sorted(merged))
    for _, group in groupby(ordered, key=_WHAT):
        windows = list(group)
        scrapes: dict[str, int] = {}
        for window in windows:
            daemon = window.series.daemon
            scrapes[daemon] = scrapes.get(daemon, 0) + window.scrapes_ok
        best = min(scrapes, key=lambda name: (-scrapes[name], name))
        yield from (window for window in windows if window.series.daemon == best)


def _rows(
    connection: sa.Connection,
    table: sa.Table,
    hour: int,
    stop: int,
    length: int,
    ids: Collection[int],
) -> list[Row]:
    """Rows of series that start in a span: start, series, context, and their columns."""
    names = HOUR_COLUMNS if length == HOUR else MINUTE_COLUMNS
    order = "context_id, load_bin" if length == HOUR else "run_id, context_id"
    # Keys are written out: binding a parameter for each takes longer than the query.
    rows = fetch_rows(
        connection,
        f"SELECT {selected(connection, table, names)} FROM {table.name}"  # noqa: S608
        f" WHERE start IN ({', '.join(map(str, range(hour, stop, length)))})"
        f" AND series_id {_among(ids)} ORDER BY start, series_id, {order}",
    )
    return [row for row in rows if row[1] in ids]


def _among(ids: Collection[int]) -> str:
    """Neighbours are found with one seek for each start."""
    first, last = min(ids), max(ids)
    if last - first < len(ids):
        return f"BETWEEN {first} AND {last}"
    return f"IN ({', '.join(map(str, ids))})"


def _hour(time: int) -> int:
    return time - time % HOUR


def _up(time: float) -> int:
    """The next whole second."""
    return int(-(-time // 1))
