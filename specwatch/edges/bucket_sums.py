"""The hours of a target for its report, of temperature buckets as sums where it needs no more.

Most rows are those of buckets, of which a report shows drafts by hour, and all else in sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from specwatch.edges.hours import Member, Row, Without
from specwatch.edges.packing import SOURCES, assemble, shared_of
from specwatch.model import ALL_TEMPERATURES, HOUR, Mode, SeriesId, Tally, Window

_NOT_BEFORE = frozenset({"request_acceptance"})
"""Histograms of buckets of which a report shows nothing from before its period."""
_IN_ORDER = attrgetter("start", "series.model_name", "series.temperature")

_Slice = tuple[int, str, int, int, int]
"""Start, model, environment, load bin and mode: what windows of one server have in common."""
_Group = tuple[bool, int, int, int, int]
"""Rows that are added up: whether they are of the period, series, context, load bin and mode."""


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
        of_all = {
            id_ for id_, each in members.items() if each.series.temperature == ALL_TEMPERATURES
        }
        slices = _slices(rows, members, contents)
        found: list[Window] = []
        complete: dict[_Slice, Window] = {}
        for row, at in zip(rows, slices, strict=True):
            if row[1] in of_all:
                window = self._window(row, members, contents)
                found.append(window)
                if _is_complete(window):
                    complete[at] = window
        groups: dict[_Group, list[Row]] = {}
        last: dict[_Group, Window] = {}
        for row, at in zip(rows, slices, strict=True):
            start, id_, context, load_bin, mode = row[:5]
            if id_ in of_all:
                continue
            whole = complete.get(at)
            if whole is None:
                found.append(self._window(row, members, contents))
                continue
            now = start >= self._since
            group = (now, id_, context, load_bin, mode)
            groups.setdefault(group, []).append(row)
            last[group] = whole
            if now:
                found.append(_of_bucket(members[id_].series, row, whole, Tally(*row[6:9])))
        for group, tally in self._sums(groups, members, contents):
            series = members[group[1]].series
            found.append(_of_bucket(series, groups[group][-1], last[group], tally))
        return sorted(found, key=_IN_ORDER)

    def _window(
        self, row: Row, members: Mapping[int, Member], contents: Mapping[int, str]
    ) -> Window:
        series = members[row[1]].series
        return assemble(
            series, row[0], HOUR, contents[row[2]], row[4:], without=self._without(series)
        )

    def _sums(
        self,
        groups: Mapping[_Group, Sequence[Row]],
        members: Mapping[int, Member],
        contents: Mapping[int, str],
    ) -> list[tuple[_Group, Tally]]:
        # A report of nothing but this hour's minutes has no use for numpy.
        from specwatch.edges.folding import sum_rows

        found: list[tuple[_Group, Tally]] = []
        for now in (False, True):
            own = [group for group in groups if group[0] is now]
            if not own:
                continue
            unused = frozenset(self._without(members[own[0][1]].series))
            tallies = sum_rows(
                [row[4:] for group in own for row in groups[group]],
                [at for at, group in enumerate(own) for _ in groups[group]],
                [contents[group[2]] for group in own],
                unused if now else unused | _NOT_BEFORE,
            )
            if now:
                tallies = [_without_drafts(each) for each in tallies]
            found += zip(own, tallies, strict=True)
        return found


def _slices(
    rows: Sequence[Row], members: Mapping[int, Member], contents: Mapping[int, str]
) -> list[_Slice]:
    environments = {id_: shared_of(contents[id_]).environment for id_ in {row[2] for row in rows}}
    distinct = list(dict.fromkeys(environments.values()))
    number = {id_: distinct.index(each) for id_, each in environments.items()}
    model = {id_: each.series.model_name for id_, each in members.items()}
    return [(row[0], model[row[1]], number[row[2]], row[3], row[4]) for row in rows]


def _is_complete(whole: Window) -> bool:
    """Whether speculation ran, and the server counts itself all that a report looks for."""
    counted = whole.tally
    known = (counted.drafts, counted.generation_tokens, counted.ttft, counted.tpot)
    return whole.mode is not Mode.OFF and None not in known and any(counted.requests.values())


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
