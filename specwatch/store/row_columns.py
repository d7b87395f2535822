"""Thousands of stored rows as columns: one array for each number.

Importing this imports numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specwatch.domain.model import HISTOGRAMS, MAPPINGS
from specwatch.store.packing import KEYS
from specwatch.store.side_by_side import UNKNOWN, Floats, Here, Ints, SideBySide

_MOST_NUMBERS = 1 << 62
_FIELDS_BEFORE_DOWN = 19
"""Fields of a row from before the field ``down_seconds`` existed."""


class Positions(NamedTuple):
    """Counts by position; ``lengths`` is ``UNKNOWN`` for rows without them."""

    lengths: Ints
    counts: list[Ints]


class KeyCounts(NamedTuple):
    """The counts of one key of a mapping, in the rows that have it."""

    key: str
    rows: Ints
    counts: Ints


class Packed(NamedTuple):
    """Trimmed histograms: the counts from the first bucket in use on."""

    known: Here
    sums: Floats
    first: Ints
    counts: list[Ints]


class RowColumns:
    """The values of packed windows; missing counts are ``UNKNOWN`` and missing numbers NaN.

    ``stored`` are the columns of packed windows, ``without`` names histograms to skip. Raises
    UnusualError for a number that no server has, or another of ``damage.UNDECODABLE`` for a damaged
    row.
    """

    def __init__(self, stored: Sequence[Sequence[Any]], without: Collection[str] = ()) -> None:
        *columns, blobs = stored
        (
            self.mode, self.source, self.drafts, self.draft_tokens, self.accepted_tokens,
            self.generation_tokens, self.scrapes_ok, self.scrapes_failed,
        ) = map(ints, columns)  # fmt: skip
        data = SideBySide(blobs)
        fields = data.lengths()
        lengths = data.lengths()
        self.positions = Positions(lengths, list(data.row(lengths)))
        self.prompt_tokens = data.counts()
        self.preemptions = data.counts()
        self.prefix_cache_queries = data.counts()
        self.prefix_cache_hits = data.counts()
        self.mappings = _mappings(data)
        data.lengths()
        self.histograms = [_histogram(data, wanted=name not in without) for name in HISTOGRAMS]
        self.sampled_seconds = data.numbers()
        self.busy_seconds = data.numbers()
        self.running_seconds = data.numbers()
        self.waiting_seconds = data.numbers()
        self.running_max = data.counts()
        self.waiting_max = data.counts()
        self.kv_cache_usage_max = data.numbers()
        self.gpu_memory_used_max = data.counts()
        self.server_drafts = data.counts()
        self.source_drafts = data.counts()
        self.observed_seconds = data.numbers()
        self.restarts = data.counts()
        self.down_seconds = data.numbers(fields > _FIELDS_BEFORE_DOWN)
        data.require_end(fields <= _FIELDS_BEFORE_DOWN + 1)

    def all_counted(self) -> Here:
        """For each row whether drafts, tokens, latencies and finished requests are counted."""
        known = (self.drafts != UNKNOWN) & (self.generation_tokens != UNKNOWN)
        for packed in (self.histograms[HISTOGRAMS.index(name)] for name in ("ttft", "tpot")):
            known &= False if packed is None else packed.known
        finished = np.zeros(len(known), np.bool_)
        for entry in self.mappings[MAPPINGS.index("requests")]:
            finished[entry.rows[entry.counts > 0]] = True
        usable: Here = known & finished
        return usable


def ints(values: Sequence[int | None]) -> Ints:
    """Whole numbers as an array, ``UNKNOWN`` for None."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        known = (UNKNOWN if value is None else value for value in values)
        return np.fromiter(known, np.int64, len(values))


def replaced(values: Ints, by: Mapping[int, int]) -> Ints:
    """The replacement of each value."""
    distinct, indices = np.unique(values, return_inverse=True)
    return np.array([by[value] for value in distinct.tolist()], np.int64)[indices]


def numbered(columns: Sequence[Ints | Here]) -> tuple[Ints, Ints]:
    """Number rows from 0, equal rows alike: the first row of each number, and the number of each
    row."""
    number = np.zeros(len(columns[0]), np.int64)
    numbers = 1
    for column in columns:
        values = column.astype(np.int64)
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if numbers * span > _MOST_NUMBERS:
            distinct, values = np.unique(values, return_inverse=True)
            low, span = 0, len(distinct)
        number = number * span + (values - low)
        numbers *= span
    _, first, numbers_of_rows = np.unique(number, return_index=True, return_inverse=True)
    return first, numbers_of_rows


def _mappings(data: SideBySide) -> list[list[KeyCounts]]:
    """The entries of each mapping, in storage order; empty ones at the end are left out."""
    mappings: list[list[KeyCounts]] = [[] for _ in MAPPINGS]
    stored = data.lengths()
    for place in range(int(stored.max())):
        here = stored > place
        mappings[place] = _entries(data, data.lengths(here))
    return mappings


def _entries(data: SideBySide, lengths: Ints) -> list[KeyCounts]:
    names: dict[str, int] = {}
    columns = []
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        keys = data.keys(here, names)
        columns.append((np.flatnonzero(here), keys[here], data.counts(here)[here]))
    if not columns:
        return []
    rows, keys, counts = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    texts = {number: text for text, number in names.items()}
    return [
        KeyCounts(texts[key] if key < 0 else KEYS[key], rows[keys == key], counts[keys == key])
        for key in np.unique(keys).tolist()
    ]


def _histogram(data: SideBySide, *, wanted: bool) -> Packed | None:
    """The histograms of all rows; None if no row has one, or they are not wanted."""
    lengths = data.lengths()
    known = lengths > 0
    if not wanted or not known.any():
        data.skip(lengths)
        return None
    sums = data.numbers(known)
    first = data.counts(lengths > 1)
    return Packed(known, sums, first, list(data.row(lengths - 2)))
