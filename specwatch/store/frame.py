"""Many rows at once: an array for each number, and the one sum of them.

Importing this imports numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from specwatch.domain.facts import MILLIONTHS, Fact, Kind
from specwatch.domain.model import (
    FACTS,
    HISTOGRAMS,
    LOAD_BINS,
)
from specwatch.store import schema
from specwatch.store.column_texts import (
    Entries,
    Ints,
    Mask,
    Texts,
    entries_of,
    joined,
    keys_of,
    numbers_of,
    require_whole,
    texts_of,
    trimmed_entries_of,
)
from specwatch.store.counts import FACT_COLUMNS, Context
from specwatch.store.statements import (
    UNDECODABLE,
    contexts_of,
    fetch_rows,
    note_undecodable,
    selected,
)

MINUTE_COLUMNS = ("start", "series_id", "context_id", *FACT_COLUMNS)
HOUR_COLUMNS = ("start", "series_id", "context_id", "load_bin", *FACT_COLUMNS)
_LAST_OF_BINS = np.array([last for _, last in LOAD_BINS if last is not None])


class Frame:
    """Rows of the minutes or the hours as columns, by start.

    ``contexts`` has at least those of the rows, by id. Raises one of ``UNDECODABLE`` for rows that
    specwatch has not written so.
    """

    def __init__(self, texts: Texts, contexts: Mapping[int, Context]) -> None:
        starts = texts["start"]
        self._size = starts.count(",") + 1 if starts else 0
        self.starts, self.series, self.context_ids = (
            numbers_of(texts[name], self._size) for name in ("start", "series_id", "context_id")
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
        self.load_bins = numbers_of(texts["load_bin"], self._size) if hours else self._load_bins()
        if (np.diff(self.starts) < 0).any():
            self.take(np.argsort(self.starts, kind="stable"))

    @classmethod
    def read(
        cls,
        connection: sa.Connection,
        table: sa.Table,
        where: str,
        series: Collection[int],
        contexts: dict[int, Context],
        *,
        without: Collection[str] = (),
    ) -> Frame:
        """The rows of these series for which ``where`` is true, but for those that cannot be
        decoded, which are logged.

        Contexts that are not known yet are added to ``contexts``; histograms in ``without`` are
        left out.
        """
        names = HOUR_COLUMNS if table is schema.hours else MINUTE_COLUMNS
        unwanted = {
            column.name
            for fact in FACTS
            if fact.name in without
            for column in schema.stored_columns(fact)
        }
        wanted = [name for name in names if name not in unwanted]
        none: dict[str, str | None] = dict.fromkeys(names)
        query = ", ".join(joined(connection, table, name) for name in wanted)
        (found,) = fetch_rows(connection, f"SELECT {query} FROM {table.name} WHERE {where}")  # noqa: S608
        texts = none | dict(zip(wanted, found, strict=True))
        try:
            rows = (texts["start"] or "").count(",") + 1 if texts["start"] else 0
            ids = set(numbers_of(texts["context_id"], rows).tolist())
            contexts |= contexts_of(connection, ids - contexts.keys())
            frame = cls(texts, contexts)
        except UNDECODABLE:
            sound = _sound_rows(connection, table, wanted, where, contexts)
            frame = cls(none | texts_of(wanted, sound), contexts)
        # One that was added since its series were read, or is found by the key of another.
        here = np.isin(frame.series, list(series))
        if not here.all():
            frame.keep(here)
        return frame

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

    def _read(self, fact: Fact, texts: Texts) -> None:
        names = [column.name for column in schema.stored_columns(fact)]
        text = texts[names[0]]
        match fact.kind:
            case Kind.KEYS:
                self.keys[fact.name] = keys_of(text, self._size)
            case Kind.POSITIONS:
                self.arrays[fact.name] = entries_of(text, self._size)
            case Kind.HISTOGRAM:
                entries = trimmed_entries_of(text, self._size)
                self._require_places(fact, entries)
                self.arrays[fact.name] = entries
                self.numbers[names[1]] = numbers_of(texts[names[1]], self._size)
            case Kind.COUNT | Kind.INTEGRAL | Kind.LARGEST:
                self.numbers[names[0]] = numbers_of(text, self._size)

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


def replaced(values: Ints, by: Mapping[int, int]) -> Ints:
    """The replacement of each value."""
    distinct, indices = np.unique(values, return_inverse=True)
    return np.array([by[value] for value in distinct.tolist()], np.int64)[indices]


def _sound_rows(
    connection: sa.Connection,
    table: sa.Table,
    names: Sequence[str],
    where: str,
    contexts: dict[int, Context],
) -> list[tuple[Any, ...]]:
    """The rows for which ``where`` is true and that can be decoded; others are logged."""
    query = f"SELECT {selected(connection, table, names)} FROM {table.name} WHERE {where}"  # noqa: S608
    rows = fetch_rows(connection, query)
    ids = {row[2] for row in rows if isinstance(row[2], int)}
    contexts |= contexts_of(connection, ids - contexts.keys())
    every: dict[str, str | None] = dict.fromkeys(
        HOUR_COLUMNS if table is schema.hours else MINUTE_COLUMNS
    )
    sound = []
    for row in rows:
        texts = texts_of(names, [row])
        try:
            require_whole(texts)
            Frame(every | texts, contexts)
        except UNDECODABLE as error:
            note_undecodable(table, {"start": row[0], "series_id": row[1]}, error)
        else:
            sound.append(row)
    return sound
