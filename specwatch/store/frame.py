"""Many rows at once: an array for each number, and the one sum of them.

Importing this imports numpy.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from specwatch.domain.facts import MILLIONTHS, Fact, Kind
from specwatch.domain.merge import merge_modes
from specwatch.domain.model import (
    FACTS,
    HISTOGRAMS,
    HOUR,
    LOAD_BINS,
    Gauges,
    Histogram,
    SeriesId,
    Tally,
    Window,
)
from specwatch.store import schema
from specwatch.store.counts import FACT_COLUMNS, LARGEST, Context
from specwatch.store.statements import (
    UNDECODABLE,
    contexts_of,
    fetch_rows,
    note_undecodable,
    selected,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
UNKNOWN = -1
"""The number that stands for NULL; no stored number is negative."""
_BEGIN, _EMPTY, _NULL, _FIRST_KEY = -2, -3, -4, -5
_MOST = 64 * LARGEST
"""The largest number of a row: an hour of minutes."""
_MOST_SUM = 2.0**62

_LAST_OF_BINS = np.array([last for _, last in LOAD_BINS if last is not None])


class Entries(NamedTuple):
    """Counts at places of arrays: of each its row, its place and the count; ``known`` marks the
    rows that have an array."""

    known: Mask
    rows: Ints
    places: Ints
    counts: Ints


class HourKey(NamedTuple):
    """The key of a row of hours; ``load_bin`` is -1 while idle."""

    start: int
    series_id: int
    context_id: int
    load_bin: int


class Group(NamedTuple):
    """What the sum of some rows is: one window of ``length`` seconds from ``start``."""

    series: SeriesId
    start: int
    length: int = HOUR


class Frame:
    """Rows of the minutes or the hours as columns, by start.

    ``texts`` has by column its values in all rows, divided by commas, with :func:`_null` in place
    of NULL; None where all are NULL. ``contexts`` has at least those of the rows, by id.
    """

    def __init__(self, texts: Mapping[str, str | None], contexts: Mapping[int, Context]) -> None:
        self._size = (texts["start"] or "").count(",") + 1 if texts["start"] else 0
        self.starts, self.series, self.context_ids = (
            self._ints(texts[name]) for name in ("start", "series_id", "context_id")
        )
        self.contexts = {id_: contexts[id_] for id_ in set(self.context_ids.tolist())}
        self.numbers: dict[str, Ints] = {}
        """By column; histograms have their sums in here."""
        self.arrays: dict[str, Entries] = {}
        """Histograms and counts by position, by the name of the fact."""
        self.keys: dict[str, dict[str, tuple[Ints, Ints]]] = {}
        """Counts by key, by the name of the fact: of each key the rows that have it."""
        for fact in FACTS:
            self._read(fact, texts)
        hours = "load_bin" in texts
        self.load_bins = self._ints(texts["load_bin"]) if hours else self._load_bins()
        if (np.diff(self.starts) < 0).any():
            self.take(np.argsort(self.starts, kind="stable"))

    @classmethod
    def read(
        cls,
        connection: sa.Connection,
        table: sa.Table,
        where: str,
        contexts: dict[int, Context],
        *,
        without: Collection[str] = (),
    ) -> Frame:
        """The rows of a table for which ``where`` is true, but for those that cannot be decoded,
        which are logged. Contexts that are not known yet are added to ``contexts``; histograms in
        ``without`` are left out."""
        names = HOUR_COLUMNS if table is schema.hours else MINUTE_COLUMNS
        unwanted = {
            column.name
            for fact in FACTS
            if fact.name in without
            for column in schema.stored_columns(fact)
        }
        wanted = [name for name in names if name not in unwanted]
        query = ", ".join(_joined(connection, table, name) for name in wanted)
        ((*found,),) = fetch_rows(connection, f"SELECT {query} FROM {table.name} WHERE {where}")  # noqa: S608
        texts = dict.fromkeys(names) | dict(zip(wanted, found, strict=True))
        ids = set(map(int, (texts["context_id"] or "").split(","))) if found[0] else set()
        contexts |= contexts_of(connection, ids - contexts.keys())
        try:
            return cls(texts, contexts)
        except UNDECODABLE:
            query = f"SELECT {selected(connection, table, wanted)} FROM {table.name} WHERE {where}"  # noqa: S608
            rows = fetch_rows(connection, query)
        sound = [row for row in rows if _is_sound(table, wanted, row, contexts)]
        return cls(dict.fromkeys(names) | texts_of(wanted, sound), contexts)

    def keep(self, here: Mask | Sequence[bool]) -> None:
        """Keep some rows: those that are marked."""
        self.take(np.flatnonzero(here))

    def take(self, rows: Ints) -> None:
        """Keep some rows, by their numbers, in that order."""
        places = np.full(self._size, -1)
        places[rows] = np.arange(len(rows))
        self._size = len(rows)
        self.starts, self.series = self.starts[rows], self.series[rows]
        self.context_ids, self.load_bins = self.context_ids[rows], self.load_bins[rows]
        self.numbers = {name: values[rows] for name, values in self.numbers.items()}
        for name, entries in self.arrays.items():
            moved = places[entries.rows]
            kept = moved >= 0
            self.arrays[name] = Entries(
                entries.known[rows], moved[kept], entries.places[kept], entries.counts[kept]
            )
        for by_key in self.keys.values():
            for key, (of_key, counts) in by_key.items():
                moved = places[of_key]
                kept = moved >= 0
                by_key[key] = moved[kept], counts[kept]

    def __len__(self) -> int:
        return self._size

    def _read(self, fact: Fact, texts: Mapping[str, str | None]) -> None:
        names = [column.name for column in schema.stored_columns(fact)]
        text = texts[names[0]]
        match fact.kind:
            case Kind.KEYS:
                self.keys[fact.name] = self._keys(text)
            case Kind.POSITIONS:
                known, lengths, flat = self._arrays(text)
                rows = np.repeat(np.arange(self._size), lengths)
                places = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                self.arrays[fact.name] = Entries(known, rows, places, flat)
            case Kind.HISTOGRAM:
                entries = _trimmed(*self._arrays(text))
                self._require_places(fact, entries)
                self.arrays[fact.name] = entries
                self.numbers[names[1]] = _checked(self._ints(texts[names[1]]))
            case Kind.COUNT | Kind.INTEGRAL | Kind.LARGEST:
                self.numbers[names[0]] = _checked(self._ints(text))

    def _ints(self, text: str | None) -> Ints:
        """Whole numbers, ``UNKNOWN`` for each where there is no text."""
        if text is None:
            return np.full(self._size, UNKNOWN)
        numbers = _parsed(text)
        if len(numbers) != self._size:
            raise ValueError("a number is expected in each row")
        return numbers

    def _arrays(self, text: str | None) -> tuple[Mask, Ints, Ints]:
        """Arrays: which rows have one, the length of each, and all their numbers."""
        if text is None:
            none = np.zeros(self._size, np.int64)
            return none.astype(np.bool_), none, none[:0]
        # Each array begins with a mark; one without numbers has another one in their place.
        marked = text.replace("[]", f"[{_EMPTY}]").replace("[", f"{_BEGIN},").replace("]", "")
        flat, begins = self._marked(marked)
        lengths = np.diff(np.append(begins, len(flat))) - 1
        first = flat[begins + 1]
        lengths[(first == _EMPTY) | (first == _NULL)] = 0
        counts = flat[flat >= 0]
        if len(counts) != lengths.sum():
            raise ValueError("a number of an array is negative")
        return first != _NULL, lengths, _checked(counts)

    def _keys(self, text: str | None) -> dict[str, tuple[Ints, Ints]]:
        """JSON objects: the rows that have each key, and their counts."""
        if text is None:
            return {}
        marked, keys = text, list[str]()
        # Each key becomes a mark as well. There are few, and none has a quotation mark in it.
        while '"' in marked:
            key, _, _ = marked.partition('"')[2].partition('"')
            marked = marked.replace(f'"{key}":', f"{_FIRST_KEY - len(keys)},")
            keys.append(key)
            if f'"{key}"' in marked:
                raise ValueError(f"{key} has no count")
        marked = marked.replace("{}", f"{{{_EMPTY}}}").replace("{", f"{_BEGIN},")
        marked = marked.replace("}", "")
        flat, begins = self._marked(marked)
        rows = np.cumsum(np.isin(np.arange(len(flat)), begins)) - 1
        found = {}
        for number, key in enumerate(keys):
            here = np.flatnonzero(flat == _FIRST_KEY - number)
            if (here + 1 >= len(flat)).any():
                raise ValueError(f"{key} has no count")
            found[key] = rows[here], _checked(flat[here + 1])
        return found

    def _marked(self, text: str) -> tuple[Ints, Ints]:
        """The numbers of a text, and the places of the marks with which each row begins."""
        flat = _parsed(text)
        begins = np.flatnonzero(flat == _BEGIN)
        if len(begins) != self._size or (self._size and begins[0]):
            raise ValueError("an array or an object is expected in each row")
        return flat, begins

    def _require_places(self, fact: Fact, entries: Entries) -> None:
        """Raise ValueError for a count of a bucket that there is not."""
        bounds = HISTOGRAMS.index(fact.name)
        sizes = {id_: len(each.bounds[bounds] or ()) + 1 for id_, each in self.contexts.items()}
        if len(entries.rows):
            most = self.of_contexts(sizes)[entries.rows]
            if ((entries.places < 0) | (entries.places >= most)).any():
                raise ValueError(f"{fact.column} has more buckets than there are bounds")

    def _load_bins(self) -> Ints:
        # In seconds, as a window divides them: a mean between two bins is rounded alike.
        busy, running = (self.numbers[name] / MILLIONTHS for name in ("busy_us", "running_us"))
        mean = np.divide(running, busy, out=np.zeros(len(busy)), where=busy > 0)
        return np.where(mean > 0, np.searchsorted(_LAST_OF_BINS, np.rint(mean)), -1)

    def context(self, row: int) -> Context:
        """The context of a row."""
        return self.contexts[int(self.context_ids[row])]

    def of_contexts(self, values: Mapping[int, int]) -> Ints:
        """For each row the value of its context."""
        return replaced(self.context_ids, values)

    def by_hour(self, series: Mapping[int, SeriesId]) -> Iterator[tuple[HourKey, Window]]:
        """Yield the hours of minutes; ``series`` are those of the rows, by id."""
        if not len(self):
            return
        keys = (self.starts - self.starts % HOUR, self.series, self.context_ids, self.load_bins)
        first, group = numbered(keys)
        found = [
            HourKey(*values) for values in zip(*(k[first].tolist() for k in keys), strict=True)
        ]
        groups = [Group(series[key.series_id], key.start) for key in found]
        yield from zip(found, self.sum(group, groups), strict=True)

    def sum(self, group: Ints, groups: Sequence[Group]) -> list[Window]:
        """The exact sum of the rows of each group; ``group`` has the number of each row's.

        Environment and source are those of the last row. Histograms with unlike bounds are added in
        the bounds that they share, and are marked as coarsened.
        """
        return _Sum(self, group, len(groups)).windows(groups)


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


MINUTE_COLUMNS = ("start", "series_id", "context_id", *FACT_COLUMNS)
HOUR_COLUMNS = ("start", "series_id", "context_id", "load_bin", *FACT_COLUMNS)


def texts_of(names: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, str | None]:
    """The texts of a frame for rows."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {
        name: ",".join(_null(name) if value is None else str(value) for value in column)
        if any(value is not None for value in column)
        else None
        for name, column in zip(names, map(tuple, columns), strict=True)
    }


_NULLS = {
    fact.column: "{}" if fact.kind is Kind.KEYS else f"[{_NULL}]"
    for fact in FACTS
    if fact.kind in (Kind.KEYS, Kind.POSITIONS, Kind.HISTOGRAM)
}


def replaced(values: Ints, by: Mapping[int, int]) -> Ints:
    """The replacement of each value."""
    distinct, indices = np.unique(values, return_inverse=True)
    return np.array([by[value] for value in distinct.tolist()], np.int64)[indices]


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


def _joined(connection: sa.Connection, table: sa.Table, name: str) -> str:
    """A column in all rows as one text: in one pass, so that all columns have one order. A value
    of each row as an object of Python would take longer than the rest."""
    null = _null(name)
    if connection.dialect.name == "sqlite":
        text, joined = f"coalesce({name}, '{null}')", "group_concat"
    else:
        value = selected(connection, table, [name])
        text, joined = f"coalesce(({value})::text, '{null}')", "string_agg"
    return f"CASE WHEN count({name}) > 0 THEN {joined}({text}, ',') END"


def _null(column: str) -> str:
    """What stands for NULL in the text of a column."""
    return _NULLS.get(column, str(UNKNOWN))


def _is_sound(
    table: sa.Table, names: Sequence[str], row: Sequence[Any], contexts: Mapping[int, Context]
) -> bool:
    """Whether a row can be decoded; if not, it is logged."""
    every = HOUR_COLUMNS if table is schema.hours else MINUTE_COLUMNS
    texts = texts_of(names, [row])
    try:
        for name, text in texts.items():
            if text is not None and name not in _NULLS and not re.fullmatch(r"-?\d+", text):
                raise ValueError(f"{name} is {text[:20]!r}: expected a whole number")
        Frame(dict.fromkeys(every) | texts, contexts)
    except UNDECODABLE as error:
        note_undecodable(table, {"start": row[0], "series_id": row[1]}, error)
        return False
    return True


def _parsed(text: str) -> Ints:
    """Whole numbers, divided by commas. Numbers that are not whole end it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what is left of the text
        return np.fromstring(text, np.int64, sep=",")


def _trimmed(known: Mask, lengths: Ints, flat: Ints) -> Entries:
    """Entries of arrays that begin with the place of their first count."""
    begins = np.cumsum(lengths) - lengths
    filled = lengths > 0
    heads = begins[filled]
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(flat)) - np.repeat(begins, lengths) - 1
    places += np.repeat(flat[heads], lengths[filled])
    counted = np.ones(len(flat), np.bool_)
    counted[heads] = False
    return Entries(known, rows[counted], places[counted], flat[counted])


def _checked(numbers: Ints) -> Ints:
    """The numbers. Raises ValueError for one that specwatch does not write."""
    if numbers.size and not (numbers.min() >= UNKNOWN and numbers.max() <= _MOST):
        raise ValueError("a number is negative, or larger than any server has")
    return numbers


def _exact(values: Ints) -> type:
    """The type in which these numbers add up exactly: whole numbers of Python where 63 bits may
    not do, as for a server that counts what none can."""
    most = float(values.max(initial=0)) * values.size
    return np.int64 if most < _MOST_SUM else object
