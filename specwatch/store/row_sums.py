"""Adds up thousands of stored rows without building a window of each.

The sums are equal to those of :func:`specwatch.domain.merge.merge_windows`, to the last digit.
Importing this imports numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import (
    HISTOGRAMS,
    HOUR,
    LOAD_BINS,
    MAPPINGS,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.store.contexts import Shared, shared_of
from specwatch.store.damage import UNDECODABLE, Damage
from specwatch.store.minutes_by_hour import HourRow, SeriesById, windows_by_hour
from specwatch.store.packing import MODES, SOURCES
from specwatch.store.row_columns import (
    UNKNOWN,
    Floats,
    Here,
    Ints,
    KeyCounts,
    Packed,
    RowColumns,
    UnusualError,
    ints,
    numbered,
    unwanted,
)

_LAST_OF_BINS = np.array([last for _, last in LOAD_BINS if last is not None])
_EXACT = 2**53
"""A sum of whole numbers is exact as a float that is below this."""
_GAUGES = tuple(name for name in Gauges.__struct_fields__ if name != "gpu_memory_total")
_REST = (
    "server_drafts", "source_drafts", "observed_seconds", "scrapes_ok", "scrapes_failed",
    "restarts", "down_seconds",
)  # fmt: skip
"""Fields of a window that are numbers."""


class RowGroup(NamedTuple):
    """What the rows of one window have in common; ``without`` names histograms that are not
    wanted."""

    series: SeriesId
    start: int
    mode: Mode
    shared: Shared
    without: Collection[str] = ()


def fold(
    rows: Sequence[tuple[Any, ...]],
    series: SeriesById,
    contents: Mapping[int, str],
    damage: Damage,
) -> Iterator[tuple[HourRow, Window]]:
    """Yield the hours of minutes, equal to those of a roll-up.

    A row is ``start, series_id, context_id`` and the columns of a packed window; rows are sorted by
    start. Rows that cannot be decoded are noted in ``damage``.
    """
    starts, ids, contexts, *stored = zip(*rows, strict=True)
    try:
        of_series = ints(ids)
        without = {id_: unused for id_, (_, unused) in series.items()}
        columns = RowColumns(stored, unwanted(of_series, without))
        places, group = _places(ints(starts), of_series, ints(contexts), columns)
        groups = [
            RowGroup(
                series[place.series_id][0],
                place.start,
                MODES[place.mode],
                shared_of(contents[place.context]),
                series[place.series_id][1],
            )
            for place in places
        ]
        windows = list(zip(places, sums(columns, group, groups), strict=True))
    except UNDECODABLE:
        # Row by row: for any numbers, without damaged rows.
        windows = [
            (place, merge_windows(of_hour, start=place.start, length=HOUR))
            for place, of_hour in windows_by_hour(rows, series, contents, damage).items()
        ]
    yield from windows


def sums(columns: RowColumns, group: Ints, groups: Sequence[RowGroup]) -> list[Window]:
    """The sum of each group's rows as the window of an hour; ``group`` has the index of each row's
    group. Raises UnusualError for sums that floats cannot hold."""
    adding = _Adding(columns, group, groups)
    source = np.zeros(len(groups), np.int64)
    source[group] = columns.counts["source"]  # that of each group's last row
    gpu_memory_total = (member.shared.gpu_memory_total for member in groups)
    return [
        Window(
            member.series, member.start, HOUR, member.mode, tally, gauges,
            member.shared.environment, SOURCES[of], *rest,
        )
        for member, tally, gauges, of, *rest in zip(
            groups,
            map(Tally, *map(adding.total, Tally.__struct_fields__)),
            map(Gauges, *map(adding.total, _GAUGES), gpu_memory_total),
            source.tolist(),
            *map(adding.total, _REST),
            strict=True,
        )
    ]  # fmt: skip


def _places(
    starts: Ints, ids: Ints, contexts: Ints, columns: RowColumns
) -> tuple[list[HourRow], Ints]:
    """The keys of the hours in their order, and the index of each row's key."""
    seconds, integral = columns.numbers["busy_seconds"], columns.numbers["running_seconds"]
    mean = np.divide(integral, seconds, out=np.zeros(len(starts)), where=seconds != 0)
    bins = np.where(mean > 0, np.searchsorted(_LAST_OF_BINS, np.rint(mean)), -1)
    keys = [starts - starts % HOUR, ids, contexts, columns.mode, bins]
    first, group = numbered(keys)
    places = zip(*(key[first].tolist() for key in keys), strict=True)
    return [HourRow(*values) for values in places], group


class _Adding:
    """Adds up columns by group, floats in the order of the rows."""

    def __init__(self, columns: RowColumns, group: Ints, groups: Sequence[RowGroup]) -> None:
        self._columns = columns
        self._group = group
        self._groups = groups
        self._count = len(groups)

    def total(self, name: str) -> list[Any]:
        """The sum of a field of windows, tallies or gauges for each group; maxima of some fields,
        and None if all are unknown."""
        if name == "accepted_per_position":
            return self._positions()
        if name in HISTOGRAMS:
            return self._histograms(name)
        if name in MAPPINGS:
            return self._by_key(self._columns.mappings[MAPPINGS.index(name)])
        if name in self._columns.numbers:
            numbers = self._columns.numbers[name]
            if not name.endswith("_max"):
                return list(self._sum(numbers).tolist())
            maxima = np.full(self._count, -np.inf)
            np.fmax.at(maxima, self._group, numbers)
            return [None if value == -np.inf else value for value in maxima.tolist()]
        counts = self._columns.counts[name]
        if name.endswith("_max"):
            return self._most(counts)
        known = counts != UNKNOWN
        all_known = bool(known.all())
        totals: list[Any] = self._exact(counts if all_known else counts * known).tolist()
        if all_known:
            return totals
        return [
            total if here else None for total, here in zip(totals, self._any(known), strict=True)
        ]

    def _positions(self) -> list[tuple[int, ...] | None]:
        """The sums by position, as many as the longest row of each group has."""
        lengths = self._most(self._columns.position_lengths)
        columns = [self._exact(count).tolist() for count in self._columns.positions]
        sums_of_groups = list(zip(*columns, strict=True)) if columns else [()] * self._count
        return [
            None if length is None else counts[:length]
            for length, counts in zip(lengths, sums_of_groups, strict=True)
        ]

    def _by_key(self, entries: Sequence[KeyCounts]) -> list[dict[str, int]]:
        mappings: list[dict[str, int]] = [{} for _ in range(self._count)]
        for entry in entries:
            group = self._group[entry.rows]
            counts = self._exact(entry.counts, group).tolist()
            for index in np.flatnonzero(np.bincount(group)).tolist():
                mappings[index][entry.key] = counts[index]
        return mappings

    def _histograms(self, name: str) -> list[Histogram | None]:
        packed = self._columns.histograms[HISTOGRAMS.index(name)]
        if packed is None:
            return [None] * self._count
        layouts = [member.shared.layouts[HISTOGRAMS.index(name)] for member in self._groups]
        group = self._group.take(packed.rows)
        counted = self._buckets(packed, group, max(layout.size for layout in layouts))
        return [
            Histogram(layout.bounds, tuple(row[: layout.size]), total, layout.coarsened)
            if here and name not in member.without
            else None
            for layout, row, total, here, member in zip(
                layouts,
                counted,
                self._sum(packed.sums, group).tolist(),
                (np.bincount(group, minlength=self._count) > 0).tolist(),
                self._groups,
                strict=True,
            )
        ]

    def _buckets(self, packed: Packed, group: Ints, size: int) -> list[list[int]]:
        """The counts of each group's buckets."""
        # A row adds nothing after its own counts, so that those cells may be the next group's.
        cells = np.zeros(self._count * size + len(packed.counts) + 1)
        first = group * size + packed.first
        if packed.first.min() < 0 or packed.first.max() >= size or len(packed.counts) > size:
            raise UnusualError
        for offset, counts in enumerate(packed.counts):
            cells += np.bincount(first + offset, counts, len(cells))
        if cells.max() >= _EXACT:
            raise UnusualError
        counted = cells[: self._count * size].astype(np.int64).reshape(-1, size)
        rows: list[list[int]] = counted.tolist()
        return rows

    def _exact(self, values: Ints, group: Ints | None = None) -> Ints:
        """The sums of whole numbers. Raises UnusualError if floats cannot hold them."""
        sums_of_groups = self._sum(values, group)
        if sums_of_groups.max() >= _EXACT:
            raise UnusualError
        return sums_of_groups.astype(np.int64)

    def _sum(self, values: Ints | Floats, group: Ints | None = None) -> Floats:
        group = self._group if group is None else group
        return np.asarray(np.bincount(group, values, self._count), np.float64)

    def _any(self, here: Here) -> Here:
        """Whether any row of each group is marked."""
        return np.bincount(self._group, here, self._count) > 0

    def _most(self, counts: Ints) -> list[int | None]:
        """The greatest known counts; None without any."""
        greatest = np.full(self._count, UNKNOWN)
        np.maximum.at(greatest, self._group, counts)
        return [None if value == UNKNOWN else value for value in greatest.tolist()]
