"""The hours of a target for its report, added up where the report shows only sums.

Most rows are those of temperature buckets. A report shows the drafts of a bucket hour by hour and
everything else as sums. Of the time before its period it shows sums only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from specwatch.domain.model import ALL_TEMPERATURES, HOUR, Mode, Window
from specwatch.report.grouped_data import Beside, Drafted, Recorded, add_drafted
from specwatch.report.hours import HOUR_NAMES, Member, Row, Without
from specwatch.store import schema
from specwatch.store.contexts import Shared, shared_of
from specwatch.store.damage import UNDECODABLE, Damage, require_types, sound
from specwatch.store.packing import MODES, assemble
from specwatch.store.readers import place

if TYPE_CHECKING:
    from specwatch.store.row_columns import Here, Ints, RowColumns

_NOT_BEFORE = frozenset({"request_acceptance"})
"""Histograms of buckets that a report shows only for its period, not for the time before it."""
_START = attrgetter("start")


class _Keys(NamedTuple):
    """The key columns of rows."""

    start: Ints
    series: Ints
    context: Ints
    load_bin: Ints


class BucketSums:
    """Makes windows from rows of the hours.

    The period begins at ``since``. Before ``hours_since`` the report needs no single hour with
    speculation (both Unix seconds).

    Each bucket gets one window for each mode, load bin and environment, for the period and for the
    time before. Its start is that of the last hour in it. Within the period the drafts of each hour
    come with the window of all temperatures. Before ``hours_since`` windows of all temperatures are
    added up, too. Every row stays a window of one hour where speculation is off, or where the
    server does not count everything itself: there a report needs the hours of buckets.
    """

    def __init__(self, since: float, without: Without, hours_since: float = -math.inf) -> None:
        self._since = since
        self._hours_since = hours_since
        self._without = without

    def __call__(
        self,
        rows: Sequence[Row],
        members: Mapping[int, Member],
        contents: Mapping[int, str],
        damage: Damage,
    ) -> list[Recorded]:
        """Windows of rows that one daemon wrote, by start; damaged rows are noted."""
        if not rows:
            return []
        try:
            sums = self._summed(rows, members, contents)
        except UNDECODABLE:
            decode = partial(self._window, members=members, contents=contents)
            sums = list(sound(damage, schema.hours, rows, decode, place))
        return sorted(sums, key=_START)

    def _window(
        self, row: Row, members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> Window:
        require_types(schema.hours, HOUR_NAMES, row)
        series = members[row[1]].series
        return assemble(
            series, row[0], HOUR, contents.get(row[2]), row[4:], without=self._without(series)
        )

    def _summed(
        self, rows: Sequence[Row], members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> list[Recorded]:
        import numpy as np

        from specwatch.store.row_columns import RowColumns, ints, numbered, unwanted
        from specwatch.store.row_sums import RowGroup, sums

        unused = {id_: frozenset(self._without(member.series)) for id_, member in members.items()}
        starts, ids, contexts, bins, *stored = zip(*rows, strict=True)
        keys = _Keys(*map(ints, (starts, ids, contexts, bins)))
        columns = RowColumns(stored, unwanted(keys.series, unused))
        shared = {id_: shared_of(contents[id_]) for id_ in set(contexts)}
        whole, complete = _wholes(keys, members, shared, columns)
        begun = keys.start
        now = begun >= self._since
        of_bucket = whole >= 0
        long_ago = (begun < self._hours_since) & (columns.mode == Mode.ON.code)
        # Rows that are added up have all of these in common; every other row is a group by itself.
        added = of_bucket | (complete & long_ago & ~now)
        alone = np.where(added, -1, np.arange(len(rows)))
        alike = (now, keys.series, keys.context, keys.load_bin, columns.mode)
        first, group = numbered([alone, *(np.where(added, column, 0) for column in alike)])
        last = np.zeros(len(first), np.int64)
        last[group] = np.arange(len(rows))
        groups = []
        before = {id_: own | _NOT_BEFORE for id_, own in unused.items()}
        ended = (of_bucket & ~now)[last].tolist()
        for index, over in zip(last.tolist(), ended, strict=True):
            start, id_, context, _, mode = rows[index][:5]
            own = (before if over else unused)[id_]
            groups.append(RowGroup(members[id_].series, start, MODES[mode], shared[context], own))
        summed: list[Recorded] = []
        beside = _beside(members, ids, whole, of_bucket & now, columns)
        windows = sums(columns, group, groups)
        for number, index in enumerate(last.tolist()):
            window = windows[number]
            if of_bucket[index]:
                # What was sampled is of the last window of all temperatures beside it.
                beside_it = windows[group[whole[index]]]
                mode, gauges, environment = beside_it.mode, beside_it.gauges, beside_it.environment
                summed.append(
                    Window(window.series, window.start, HOUR, mode, window.tally, gauges,
                           environment, window.source)
                )  # fmt: skip
            else:
                drafted = beside.get(index)
                summed.append(window if drafted is None else Beside(window.start, window, drafted))
        return summed


def _beside(
    members: Mapping[int, Member],
    ids: Sequence[int],
    whole: Ints,
    chosen: Here,
    columns: RowColumns,
) -> dict[int, dict[str, Drafted]]:
    """What the chosen rows drafted, by their row of all temperatures."""
    import numpy as np

    rows = np.flatnonzero(chosen)
    label = {id_: member.series.temperature for id_, member in members.items()}
    counted = (columns.counts[name][rows] for name in ("drafts", "draft_tokens", "accepted_tokens"))
    drafted = zip(*(np.maximum(counts, 0).tolist() for counts in counted), strict=True)
    by_whole: dict[int, dict[str, Drafted]] = {}
    for row, beside, counts in zip(rows.tolist(), whole[rows].tolist(), drafted, strict=True):
        add_drafted(by_whole.setdefault(beside, {}), label[ids[row]], counts)
    return by_whole


def _wholes(
    keys: _Keys,
    members: Mapping[int, Member],
    shared: Mapping[int, Shared],
    columns: RowColumns,
) -> tuple[Ints, Here]:
    """The row of all temperatures beside each row, of the same server; and which rows those are.

    -1 for a row that is itself of all temperatures, and where there is no such row, where
    speculation is off, or where the server does not count everything that a report shows.
    """
    import numpy as np

    from specwatch.store.row_columns import numbered, replaced

    model = {id_: member.series.model_name for id_, member in members.items()}
    models = list(dict.fromkeys(model.values()))
    environments = list(dict.fromkeys(context.environment for context in shared.values()))
    of_series = {id_: models.index(name) for id_, name in model.items()}
    of_context = {id_: environments.index(member.environment) for id_, member in shared.items()}
    of_all = {
        id_ for id_, member in members.items() if member.series.temperature == ALL_TEMPERATURES
    }
    # What windows of one server have in common.
    first, place = numbered(
        [
            keys.start,
            replaced(keys.series, of_series),
            replaced(keys.context, of_context),
            keys.load_bin,
            columns.mode,
        ]
    )
    all_temperatures = replaced(keys.series, {id_: id_ in of_all for id_ in members}) > 0
    ran = columns.mode != Mode.OFF.code
    complete = all_temperatures & ran & columns.all_counted()
    places = np.full(len(first), -1)
    places[place[complete]] = np.flatnonzero(complete)
    return np.where(all_temperatures, -1, places[place]), complete
