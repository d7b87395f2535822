"""The hours of one target: those that are rolled up, and those of minutes that are not yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import HOUR, MINUTE, Segment, SeriesId, Window
from specwatch.report.grouped_data import Recorded
from specwatch.store import schema
from specwatch.store.counts import Context
from specwatch.store.frame import Frame, replaced
from specwatch.store.frame_sum import sum_by_hour
from specwatch.store.readers import Reader, best_watched
from specwatch.store.statements import read_series, series_of

_HOURS_AT_ONCE = 14 * 24
_MINUTES_AT_ONCE = 24
"""Hours of minutes that are read at once: a busy target has ten thousand of a day."""

Summed = Callable[[Frame, Mapping[int, "Member"]], Iterable[Recorded]]
"""Makes windows from rows of the hours, and all series."""


class Member(NamedTuple):
    """A series of the target. Minutes before ``rolled_until`` are contained in hours; those before
    ``pruned_until`` are deleted, but for late ones."""

    series: SeriesId
    first_start: int
    last_start: int
    rolled_until: int
    pruned_until: int

    @property
    def order(self) -> tuple[str, Segment, str]:
        """The order of windows with the same start."""
        return self.series.model_name, self.series.segment, self.series.daemon

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
    without: Collection[str] = (),
    summed: Summed | None = None,
) -> Iterator[Recorded]:
    """Yield the hours of series of one target that start in ``since <= start < until``.

    Times are Unix seconds. They are the windows that the store would have if it rolled up now all
    rows before ``until``. An hour has a window for each mode, load bin and environment, by start;
    of two daemons the one with more good scrapes counts. ``contexts`` caches those that were read,
    by id; ``without`` names histograms that are not needed. Raises StoreError.

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
        yield from _between(reader, members, hour, stop, contexts, without, summed)
        hour = _hour(stop + HOUR - 1)


def _between(
    reader: Reader,
    members: Mapping[int, Member],
    hour: int,
    stop: int,
    contexts: dict[int, Context],
    without: Collection[str],
    summed: Summed | None,
) -> Iterator[Recorded]:
    """The hours that start in a span, rolled up or not."""
    late = {
        id_: member
        for id_, member in members.items()
        if member.pending and member.rolled_until < stop
    }
    with reader.reading() as connection:
        # Minutes first: what is rolled up and deleted meanwhile is then in both.
        minutes = None
        if late:
            where = _where(hour, stop, MINUTE, late)
            minutes = Frame.read(connection, schema.minutes, where, late, contexts, without=without)
        where = _where(hour, stop, HOUR, members)
        stored = Frame.read(connection, schema.hours, where, members, contexts, without=without)
    if summed is not None and not minutes and len({m.series.daemon for m in members.values()}) == 1:
        yield from summed(stored, members)
        return
    if minutes:
        rolled = replaced(minutes.series, {id_: one.rolled_until for id_, one in late.items()})
        minutes.keep(minutes.starts >= rolled)
        # A stored hour counts only if some of its minutes are gone.
        pruned = replaced(minutes.series, {id_: one.pruned_until for id_, one in late.items()})
        rebuilt = {
            (start - start % HOUR, id_)
            for start, id_, until in zip(
                minutes.starts.tolist(), minutes.series.tolist(), pruned.tolist(), strict=True
            )
            if start - start % HOUR >= until
        }
        places = zip(stored.starts.tolist(), stored.series.tolist(), strict=True)
        stored.keep([place not in rebuilt for place in places])
    ordered = sorted(members.items(), key=lambda item: item[1].order)
    ranks = {id_: rank for rank, (id_, _) in enumerate(ordered)}
    series = {id_: member.series for id_, member in members.items()}
    windows: dict[_Key, Window] = {}
    for frame in (stored, minutes):
        for group, window in () if frame is None else sum_by_hour(frame, series):
            key = (group.start, ranks[group.series_id], group.context_id, group.load_bin)
            known = windows.get(key)
            windows[key] = (
                window
                if known is None
                else merge_windows([known, window], start=group.start, length=HOUR)
            )
    yield from best_watched(windows[key] for key in sorted(windows))


def _where(hour: int, stop: int, length: int, ids: Collection[int]) -> str:
    """The rows of series that start in a span. Keys are written out: binding a parameter for each
    takes longer than the query."""
    starts = ", ".join(map(str, range(hour, stop, length)))
    return f"start IN ({starts}) AND series_id {_among(ids)}"


def _among(ids: Collection[int]) -> str:
    """Neighbours are found with one seek for each start."""
    first, last = min(ids), max(ids)
    if last - first == len(ids) - 1:
        return f"BETWEEN {first} AND {last}"
    return f"IN ({', '.join(map(str, ids))})"


def _hour(time: int) -> int:
    return time - time % HOUR


def _up(time: float) -> int:
    """The next whole second."""
    return int(-(-time // 1))
