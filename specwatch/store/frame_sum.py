"""The sum of many rows: exact, of whole numbers, and of histograms bucket by bucket.

Importing this imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from specwatch.domain.facts import Fact, Kind
from specwatch.domain.merge import merge_modes
from specwatch.domain.model import (
    FACTS,
    HISTOGRAMS,
    HOUR,
    Gauges,
    Histogram,
    SeriesId,
    Tally,
    Window,
)
from specwatch.store import schema
from specwatch.store.column_texts import UNKNOWN, Entries, Ints, Mask
from specwatch.store.counts import Context
from specwatch.store.frame import Frame

_MOST_SUM = 2.0**62


class Group(NamedTuple):
    """What the sum of some rows is: one window of ``length`` seconds from ``start``."""

    series: SeriesId
    start: int
    length: int = HOUR


class HourKey(NamedTuple):
    """The key of a row of hours; ``load_bin`` is -1 while idle."""

    start: int
    series_id: int
    context_id: int
    load_bin: int


def sum_rows(frame: Frame, group: Ints, groups: Sequence[Group]) -> list[Window]:
    """The exact sum of the rows of each group; ``group`` has the number of each row's.

    Environment and source are those of the last row. Histograms with unlike bounds are added in the
    bounds that they share, and are marked as coarsened.
    """
    return _Sum(frame, group, len(groups)).windows(groups)


def sum_by_hour(frame: Frame, series: Mapping[int, SeriesId]) -> Iterator[tuple[HourKey, Window]]:
    """Yield the hours of minutes; ``series`` are those of the rows, by id."""
    if not len(frame):
        return
    keys = (frame.starts - frame.starts % HOUR, frame.series, frame.context_ids, frame.load_bins)
    first, group = numbered(keys)
    found = [HourKey(*values) for values in zip(*(k[first].tolist() for k in keys), strict=True)]
    groups = [Group(series[key.series_id], key.start) for key in found]
    yield from zip(found, sum_rows(frame, group, groups), strict=True)


class _Sum:
    def __init__(self, frame: Frame, group: Ints, size: int) -> None:
        self._frame = frame
        self._group = group
        self._size = size
        self._order = np.argsort(group, kind="stable")
        self._begins = np.searchsorted(group[self._order], np.arange(size))
        ends = np.append(self._begins[1:], len(group)) - 1
        self._last = [frame.context(int(row)) for row in self._order[ends]]
        first, _ = numbered((group, frame.context_ids))
        self._contexts: list[list[Context]] = [[] for _ in range(size)]
        for row in first.tolist():
            self._contexts[int(group[row])].append(frame.context(row))

    def windows(self, groups: Sequence[Group]) -> list[Window]:
        fields: dict[str, dict[str, Sequence[Any]]] = {"tally": {}, "gauges": {}, "": {}}
        for fact in FACTS:
            fields[fact.of][fact.name] = self._total(fact)
        totals = {
            "gpu_memory_total": [
                max((m for c in contexts if (m := c.gpu_memory_total) is not None), default=None)
                for contexts in self._contexts
            ],
            **fields["gauges"],
        }
        tallies, gauges, rest = (
            [dict(zip(of, values, strict=True)) for values in zip(*of.values(), strict=True)]
            for of in (fields["tally"], totals, fields[""])
        )
        return [
            Window(
                series=member.series,
                start=member.start,
                length=member.length,
                mode=reduce(merge_modes, (context.mode for context in contexts)),
                tally=Tally(**tally),
                gauges=Gauges(**sampled),
                environment=last.environment,
                source=last.source,
                **own,
            )
            for member, contexts, last, tally, sampled, own in zip(
                groups, self._contexts, self._last, tallies, gauges, rest, strict=True
            )
        ]

    def _total(self, fact: Fact) -> Sequence[Any]:
        frame = self._frame
        match fact.kind:
            case Kind.COUNT | Kind.INTEGRAL | Kind.LARGEST:
                return self._scaled(fact, frame.numbers[fact.column])
            case Kind.POSITIONS:
                return self._positions(frame.arrays[fact.name])
            case Kind.KEYS:
                return self._keys(frame.keys[fact.name])
            case Kind.HISTOGRAM:
                if fact.name not in frame.arrays:
                    return [None] * self._size
                return self._histograms(fact, frame.arrays[fact.name])

    def _scaled(self, fact: Fact, values: Ints) -> list[Any]:
        add = np.maximum if fact.kind is Kind.LARGEST else np.add
        known = values != UNKNOWN
        counted: Any = np.where(known, values, 0).astype(_exact(values))
        totals = add.reduceat(counted[self._order], self._begins)
        found = totals.tolist() if fact.scale == 1 else (totals / fact.scale).tolist()
        if known.all():
            return list(found)
        return [
            value if here else None for value, here in zip(found, self._any(known), strict=True)
        ]

    def _positions(self, entries: Entries) -> list[tuple[int, ...] | None]:
        sizes = np.zeros(self._size, np.int64)
        np.maximum.at(sizes, self._group[entries.rows], entries.places + 1)
        return [
            tuple(counts[:size]) if here else None
            for counts, size, here in zip(
                self._cells(entries, entries.places, int(sizes.max(initial=0))),
                sizes.tolist(),
                self._any(entries.known),
                strict=True,
            )
        ]

    def _keys(self, keys: Mapping[str, tuple[Ints, Ints]]) -> list[dict[str, int]]:
        mappings: list[dict[str, int]] = [{} for _ in range(self._size)]
        for key in sorted(keys):
            rows, counts = keys[key]
            group = self._group[rows]
            totals: Any = np.zeros(self._size, _exact(counts))
            np.add.at(totals, group, counts)
            for index in np.unique(group).tolist():
                mappings[index][key] = int(totals[index])
        return mappings

    def _histograms(self, fact: Fact, entries: Entries) -> list[Histogram | None]:
        (_, sums) = (column.name for column in schema.stored_columns(fact))
        place = HISTOGRAMS.index(fact.name)
        bounds, coarsened = self._bounds(place, fact.name)
        places = self._coarse(entries, place, bounds)
        size = max((len(edges) + 1 for edges in bounds if edges is not None), default=0)
        totals = self._scaled(fact, self._frame.numbers[sums])
        return [
            Histogram(edges, tuple(counts[: len(edges) + 1]), total, coarse)
            if here and edges is not None
            else None
            for edges, counts, total, coarse, here in zip(
                bounds,
                self._cells(entries, places, size),
                totals,
                coarsened,
                self._any(entries.known),
                strict=True,
            )
        ]

    def _bounds(self, place: int, name: str) -> tuple[list[tuple[float, ...] | None], list[bool]]:
        """The bounds of each group's sum of a histogram, and whether some were left out."""
        bounds: list[tuple[float, ...] | None] = []
        coarsened = []
        every = {
            (each.bounds[place], name in each.coarsened) for each in self._frame.contexts.values()
        }
        if len(every) == 1:
            ((edges, coarse),) = every
            return [edges] * self._size, [coarse] * self._size
        for contexts in self._contexts:
            distinct = {edges for c in contexts if (edges := c.bounds[place]) is not None}
            if len(distinct) < 2:
                bounds.append(next(iter(distinct), None))
            else:
                bounds.append(tuple(sorted(set.intersection(*map(set, distinct)))))
            coarsened.append(len(distinct) > 1 or any(name in c.coarsened for c in contexts))
        return bounds, coarsened

    def _coarse(
        self, entries: Entries, place: int, bounds: Sequence[tuple[float, ...] | None]
    ) -> Ints:
        """The bucket of each entry in the bounds of its group."""
        mixed = np.array(
            [len({context.bounds[place] for context in each}) > 1 for each in self._contexts]
        )
        group = self._group[entries.rows]
        moved = np.flatnonzero(mixed[group])
        places = entries.places.copy()
        for index in moved.tolist():
            own = self._frame.context(int(entries.rows[index])).bounds[place] or ()
            shared = bounds[int(group[index])] or ()
            bucket = int(places[index])
            upper = own[bucket] if bucket < len(own) else np.inf
            places[index] = np.searchsorted(shared, upper)
        return places

    def _cells(self, entries: Entries, places: Ints, size: int) -> list[list[int]]:
        """The counts at each place of each group."""
        cells: Any = np.zeros(self._size * size, _exact(entries.counts))
        np.add.at(cells, self._group[entries.rows] * size + places, entries.counts)
        counted: list[list[int]] = cells.reshape(self._size, size).tolist()
        return counted

    def _any(self, known: Mask) -> list[bool]:
        """Whether any row of each group is marked."""
        here: list[bool] = np.logical_or.reduceat(known[self._order], self._begins).tolist()
        return here


def numbered(columns: Sequence[Ints | Mask]) -> tuple[Ints, Ints]:
    """Number rows from 0, equal rows alike: the first row of each number, and the number of each
    row."""
    order = np.lexsort(columns[::-1])
    changed = np.zeros(len(order), np.bool_)
    changed[:1] = True
    for column in columns:
        ordered = column[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    numbers = np.zeros(len(order), np.int64)
    numbers[order] = np.cumsum(changed) - 1
    return order[changed], numbers


def _exact(values: Ints) -> type:
    """The type in which these numbers add up exactly: whole numbers of Python where 63 bits may
    not do, as for a server that counts what none can."""
    most = float(values.max(initial=0)) * values.size
    return np.int64 if most < _MOST_SUM else object
