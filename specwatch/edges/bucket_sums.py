"""The hours of a target for its report, of temperature buckets as sums where it needs no more.

Most rows are those of buckets, of which a report shows drafts by hour, and all else in sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from specwatch.edges.hours import Member, Row, Without
from specwatch.edges.packing import MODES, SOURCES, Shared, assemble, shared_of
from specwatch.model import ALL_TEMPERATURES, HOUR, Mode, SeriesId, Tally, Window

if TYPE_CHECKING:
    from specwatch.edges.row_columns import RowColumns
    from specwatch.edges.side_by_side import Ints

_NOT_BEFORE = frozenset({"request_acceptance"})
"""Histograms of buckets of which a report shows nothing from before its period."""
_IN_ORDER = attrgetter("start", "series.model_name", "series.temperature")


class BucketSums:
    """Makes windows of rows of the hours; the period begins at ``since`` (Unix seconds).

    Of a bucket the window of an hour has but its drafts and their tokens, and before the period
    there is none. What is missing comes as one window more for each mode, load bin and
    environment, at the last of the hours that it is the sum of: together they count what the rows
    do. Where speculation is off, or the server leaves to its buckets what it does not count, there
    is a window of each row: there a report looks at the hours of buckets, too.
    """

    def __init__(self, since: float, without: Without) -> None:
        self._since = since
        self._without = without

    def __call__(
        self, rows: Sequence[Row], members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> list[Window]:
        """The windows of rows that one daemon wrote, by start, model and temperature."""
        if not rows:
            return []
        # A report of nothing but this hour's minutes has no use for numpy.
        from specwatch.edges.side_by_side import UnusualError

        try:
            found = self._summed(rows, members, contents)
        except UnusualError:
            found = [self._window(row, members, contents) for row in rows]
        return sorted(found, key=_IN_ORDER)

    def _window(
        self, row: Row, members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> Window:
        series = members[row[1]].series
        return assemble(
            series, row[0], HOUR, contents[row[2]], row[4:], without=self._without(series)
        )

    def _summed(
        self, rows: Sequence[Row], members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> list[Window]:
        import numpy as np

        from specwatch.edges.folding import Group, sums
        from specwatch.edges.row_columns import RowColumns, ints, numbered

        unused = {id_: frozenset(self._without(each.series)) for id_, each in members.items()}
        starts, ids, contexts, bins, *stored = zip(*rows, strict=True)
        columns = RowColumns(stored, frozenset.intersection(*unused.values()))
        shared = {id_: shared_of(contents[id_]) for id_ in set(contexts)}
        whole = _wholes(rows, members, shared, columns)
        now = ints(starts) >= self._since
        # Rows that are added up are alike in all of these, any other is like none.
        added = whole >= 0
        alone = np.where(added, -1, np.arange(len(rows)))
        alike = (now, ints(ids), ints(contexts), ints(bins), columns.mode)
        first, group = numbered([alone, *(np.where(added, each, 0) for each in alike)])
        last = np.zeros(len(first), np.int64)
        last[group] = np.arange(len(rows))
        groups = []
        for at in last.tolist():
            start, id_, context, _, mode = rows[at][:5]
            own = unused[id_] | _NOT_BEFORE if added[at] and not now[at] else unused[id_]
            groups.append(Group(members[id_].series, start, MODES[mode], shared[context], own))
        found = sums(columns, group, groups)
        hours = []
        for at in np.flatnonzero(added & now).tolist():
            row, beside = rows[at], found[group[whole[at]]]
            series = members[row[1]].series
            hours.append(_of_bucket(series, row, beside, Tally(*row[6:9])))
        for number, at in enumerate(last.tolist()):
            if added[at]:
                series, counted = found[number].series, found[number].tally
                rest = _without_drafts(counted) if now[at] else counted
                found[number] = _of_bucket(series, rows[at], found[group[whole[at]]], rest)
        return [*found, *hours]


def _wholes(
    rows: Sequence[Row],
    members: Mapping[int, Member],
    shared: Mapping[int, Shared],
    columns: RowColumns,
) -> Ints:
    """Of each row of a bucket that of all temperatures beside it, -1 where there is none, or where
    speculation is off, or the server does not count itself all that a report looks for."""
    import numpy as np

    from specwatch.edges.row_columns import ints, numbered

    model = {id_: each.series.model_name for id_, each in members.items()}
    models = list(dict.fromkeys(model.values()))
    environments = list(dict.fromkeys(each.environment for each in shared.values()))
    of_series = {id_: models.index(name) for id_, name in model.items()}
    of_context = {id_: environments.index(each.environment) for id_, each in shared.items()}
    of_all = {id_ for id_, each in members.items() if each.series.temperature == ALL_TEMPERATURES}
    # What windows of one server have in common.
    first, place = numbered(
        [
            ints([row[0] for row in rows]),
            ints([of_series[row[1]] for row in rows]),
            ints([of_context[row[2]] for row in rows]),
            ints([row[3] for row in rows]),
            columns.mode,
        ]
    )
    all_temperatures = np.array([row[1] in of_all for row in rows])
    ran = columns.mode != MODES.index(Mode.OFF)
    complete = np.flatnonzero(all_temperatures & ran & columns.all_counted())
    found = np.full(len(first), -1)
    found[place[complete]] = complete
    return np.where(all_temperatures, -1, found[place])


def _of_bucket(series: SeriesId, row: Row, whole: Window, counted: Tally) -> Window:
    """A window of a bucket beside that of all temperatures: what was sampled is the same."""
    return Window(
        series,
        row[0],
        HOUR,
        whole.mode,
        counted,
        whole.gauges,
        whole.environment,
        SOURCES[row[5]],
    )


def _without_drafts(counted: Tally) -> Tally:
    return replace(counted, drafts=None, draft_tokens=None, accepted_tokens=None)
