"""Adds up thousands of stored rows without building a window of each.

The sums are equal to those of :func:`specwatch.domain.merge.merge_windows`, to the last digit.
Importing this imports numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import (
    HISTOGRAMS,
    HOUR,
    LOAD_BINS,
    MINUTE,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.store import schema
from specwatch.store.contexts import Shared, shared_of
from specwatch.store.damage import UNDECODABLE, Damage, require_types, sound
from specwatch.store.packing import COLUMNS, MODES, SOURCES, assemble
from specwatch.store.readers import place
from specwatch.store.row_columns import KeyCounts, Packed, Positions, RowColumns, ints, numbered
from specwatch.store.side_by_side import UNKNOWN, Floats, Ints, UnusualError

_LAST_OF_BINS = np.array([last for _, last in LOAD_BINS if last is not None])
_EXACT = 2**53
"""Sums of whole numbers below this are exact as floats."""


class HourRow(NamedTuple):
    """The key of a row of hours; ``load_bin`` is -1 while idle."""

    start: int
    series_id: int
    context: int
    mode: int
    load_bin: int


class RowGroup(NamedTuple):
    """What the rows of one window have in common; ``without`` names histograms that are not
    wanted."""

    series: SeriesId
    start: int
    mode: Mode
    shared: Shared
    without: Collection[str] = ()


Series = Mapping[int, tuple[SeriesId, Collection[str]]]
"""Series by id, and the histograms of each that are not wanted."""


_NAMES = ("start", "series_id", "context_id", *COLUMNS)


def fold(
    rows: Sequence[tuple[Any, ...]],
    series: Series,
    contents: Mapping[int, str],
    damage: Damage,
) -> Iterator[tuple[HourRow, Window]]:
    """Yield the hours of minutes, equal to those of a roll-up.

    A row is ``start, series_id, context_id`` and the columns of a packed window; rows are sorted by
    start. Rows that cannot be decoded are noted in ``damage``.
    """
    unwanted = frozenset.intersection(*(frozenset(unused) for _, unused in series.values()))
    starts, ids, contexts, *stored = zip(*rows, strict=True)
    try:
        columns = RowColumns(stored, unwanted)
        places, group = _places(ints(starts), ints(ids), ints(contexts), columns)
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
        windows = list(_one_by_one(rows, series, contents, damage))
    yield from windows


def sums(columns: RowColumns, group: Ints, groups: Sequence[RowGroup]) -> list[Window]:
    """The sum of each group's rows as the window of an hour; ``group`` has the index of each row's
    group. Raises UnusualError for sums that floats cannot hold."""
    adding = _Adding(group, len(groups))
    total, seconds = adding.counts, adding.numbers
    source = np.zeros(len(groups), np.int64)
    source[group] = columns.source  # that of each group's last row
    gauges = zip(
        seconds(columns.sampled_seconds),
        seconds(columns.busy_seconds),
        seconds(columns.running_seconds),
        seconds(columns.waiting_seconds),
        adding.most(columns.running_max),
        adding.most(columns.waiting_max),
        adding.greatest(columns.kv_cache_usage_max),
        adding.most(columns.gpu_memory_used_max),
        (member.shared.gpu_memory_total for member in groups),
        strict=True,
    )
    return [
        Window(
            member.series, member.start, HOUR, member.mode, tally, Gauges(*sampled),
            member.shared.environment, SOURCES[of], *rest,
        )
        for member, tally, sampled, of, *rest in zip(
            groups,
            _tallies(columns, adding, groups),
            gauges,
            source.tolist(),
            total(columns.server_drafts),
            total(columns.source_drafts),
            seconds(columns.observed_seconds),
            total(columns.scrapes_ok),
            total(columns.scrapes_failed),
            total(columns.restarts),
            seconds(columns.down_seconds),
            strict=True,
        )
    ]  # fmt: skip


def _tallies(columns: RowColumns, adding: _Adding, groups: Sequence[RowGroup]) -> list[Tally]:
    total = adding.counts
    latencies = [
        _histograms(name, packed, adding, groups)
        for name, packed in zip(HISTOGRAMS, columns.histograms, strict=True)
    ]
    requests, records, uncovered = (_by_key(mapping, adding) for mapping in columns.mappings)
    values = zip(
        total(columns.drafts),
        total(columns.draft_tokens),
        total(columns.accepted_tokens),
        _positions(columns.positions, adding),
        total(columns.prompt_tokens),
        total(columns.generation_tokens),
        total(columns.preemptions),
        total(columns.prefix_cache_queries),
        total(columns.prefix_cache_hits),
        requests,
        *latencies,
        records,
        uncovered,
        strict=True,
    )
    return [Tally(*value) for value in values]


def _places(
    starts: Ints, ids: Ints, contexts: Ints, columns: RowColumns
) -> tuple[list[HourRow], Ints]:
    """The keys of the hours in their order, and the index of each row's key."""
    seconds, integral = columns.busy_seconds, columns.running_seconds
    mean = np.divide(integral, seconds, out=np.zeros(len(starts)), where=seconds != 0)
    bins = np.where(mean > 0, np.searchsorted(_LAST_OF_BINS, np.rint(mean)), -1)
    keys = [starts - starts % HOUR, ids, contexts, columns.mode, bins]
    first, group = numbered(keys)
    places = zip(*(key[first].tolist() for key in keys), strict=True)
    return [HourRow(*values) for values in places], group


class _Adding:
    """Adds up columns by group, floats in the order of the rows."""

    def __init__(self, group: Ints, count: int) -> None:
        self.group = group
        self.count = count

    def counts(self, values: Ints) -> list[int | None]:
        """The sums of known values; None without any."""
        known = values != UNKNOWN
        all_known = bool(known.all())
        totals: list[int | None] = self.exact(values if all_known else values * known).tolist()
        if all_known:
            return totals
        return [
            total if here else None for total, here in zip(totals, self.any(known), strict=True)
        ]

    def exact(self, values: Ints) -> Ints:
        """The sums of whole numbers. Raises UnusualError if floats cannot hold them."""
        if int(values.max()) * len(values) >= _EXACT:
            raise UnusualError
        return np.bincount(self.group, values, self.count).astype(np.int64)

    def any(self, here: npt.NDArray[np.bool_]) -> list[bool]:
        """Whether any row of each group is marked."""
        result: list[bool] = (np.bincount(self.group, here, self.count) > 0).tolist()
        return result

    def numbers(self, values: Floats) -> list[float]:
        """The sums of floats."""
        result: list[float] = np.bincount(self.group, values, self.count).tolist()
        return result

    def most(self, values: Ints) -> list[int | None]:
        """The greatest known values; None without any."""
        greatest = np.full(self.count, UNKNOWN)
        np.maximum.at(greatest, self.group, values)
        return [None if value == UNKNOWN else value for value in greatest.tolist()]

    def greatest(self, values: Floats) -> list[float | None]:
        """The greatest floats; None if all are NaN."""
        maxima = np.full(self.count, -np.inf)
        np.fmax.at(maxima, self.group, values)
        return [None if value == -np.inf else value for value in maxima.tolist()]


def _positions(values: Positions, adding: _Adding) -> list[tuple[int, ...] | None]:
    """The sums by position, as many as the longest row of each group has."""
    lengths = adding.most(values.lengths)
    columns = [adding.exact(count).tolist() for count in values.counts]
    sums_of_groups = list(zip(*columns, strict=True)) if columns else [()] * adding.count
    return [
        None if length is None else counts[:length]
        for length, counts in zip(lengths, sums_of_groups, strict=True)
    ]


def _by_key(entries: Sequence[KeyCounts], adding: _Adding) -> list[dict[str, int]]:
    mappings: list[dict[str, int]] = [{} for _ in range(adding.count)]
    for entry in entries:
        group = adding.group[entry.rows]
        counts = _Adding(group, adding.count).exact(entry.counts).tolist()
        for index in np.unique(group).tolist():
            mappings[index][entry.key] = counts[index]
    return mappings


def _histograms(
    name: str, packed: Packed | None, adding: _Adding, groups: Sequence[RowGroup]
) -> list[Histogram | None]:
    if packed is None:
        return [None] * adding.count
    layouts = [group.shared.layouts[HISTOGRAMS.index(name)] for group in groups]
    size = max(layout.size for layout in layouts)
    # A row adds nothing after its own counts, so that those cells may be the next group's.
    cells = np.zeros(adding.count * size + len(packed.counts) + 1)
    first = adding.group * size + packed.first
    if packed.first.min() < 0 or packed.first.max() >= size or len(packed.counts) > size:
        raise UnusualError
    for offset, counts in enumerate(packed.counts):
        if int(counts.max()) * len(counts) >= _EXACT:
            raise UnusualError
        cells += np.bincount(first + offset, counts, len(cells))
    counted = cells[: adding.count * size].astype(np.int64).reshape(-1, size).tolist()
    return [
        Histogram(layout.bounds, tuple(row[: layout.size]), total, layout.coarsened)
        if here and name not in group.without
        else None
        for layout, row, total, here, group in zip(
            layouts,
            counted,
            adding.numbers(packed.sums),
            adding.any(packed.known),
            groups,
            strict=True,
        )
    ]


def _one_by_one(
    rows: Sequence[tuple[Any, ...]],
    series: Series,
    contents: Mapping[int, str],
    damage: Damage,
) -> Iterator[tuple[HourRow, Window]]:
    """The same row by row: for any numbers, without damaged rows."""

    def decode(row: tuple[Any, ...]) -> tuple[HourRow, Window]:
        require_types(schema.minutes, _NAMES, row)
        start, id_, context, *columns = row
        own, unused = series[id_]
        window = assemble(own, start, MINUTE, contents.get(context), tuple(columns), without=unused)
        load_bin = -1 if window.load_bin is None else window.load_bin
        return HourRow(start - start % HOUR, id_, context, columns[0], load_bin), window

    by_place: dict[HourRow, list[Window]] = {}
    for key, window in sound(damage, schema.minutes, rows, decode, place):
        by_place.setdefault(key, []).append(window)
    for key, windows in by_place.items():
        yield key, merge_windows(windows, start=key.start, length=HOUR)
