"""Thousands of stored rows as columns: one array for each number.

The same value of all rows is read at once: decoding each row into Python objects would take longer
than the rest of a report. Importing this imports numpy.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specwatch.domain.model import HISTOGRAMS, MAPPINGS
from specwatch.store.packing import COLUMNS, KEYS, RowData

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Here = npt.NDArray[np.bool_]
"""For each row whether it has the value."""

UNKNOWN = -1
"""The count that means nil."""

# The first byte of a value (https://github.com/msgpack/msgpack/blob/master/spec.md).
_LAST_SMALL, _NIL, _FLOAT, _ARRAY16 = 0x7F, 0xC0, 0xCB, 0xDC
_MAPS, _ARRAYS = 0x80 >> 4, 0x90 >> 4
_NUMBERS = {_NIL: 0, _FLOAT: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes after the first byte of a number; small numbers have only one byte."""
_OTHER = 99
_WIDTH = np.array([0 if code <= _LAST_SMALL else _NUMBERS.get(code, _OTHER) for code in range(256)])
_SHIFT = np.array([64 - 8 * (_NUMBERS.get(code, 8) or 8) for code in range(256)], np.uint64)
_WORD = 8
_TOO_LARGE = np.uint64(1 << 63)

_MOST_NUMBERS = 1 << 62
_FIELDS_BEFORE_DOWN = 19
"""Fields of a row from before the field ``down_seconds`` existed."""


class UnusualError(ValueError):
    """A value that no counter, gauge or latency has: negative, or above 2^63."""


class KeyCounts(NamedTuple):
    """The counts of one key of a mapping, in the rows that have it."""

    key: str
    rows: Ints
    counts: Ints


class Packed(NamedTuple):
    """Trimmed histograms of the rows that have one: the counts from the first bucket in use on."""

    rows: Ints
    sums: Floats
    first: Ints
    counts: list[Ints]


class RowColumns:
    """The values of packed windows; missing counts are ``UNKNOWN`` and missing numbers NaN.

    ``stored`` are the columns of packed windows, ``unwanted`` the rows whose histogram is skipped,
    by its name. Raises UnusualError for a number that no server has, or another of
    ``damage.UNDECODABLE`` for a damaged row.
    """

    def __init__(self, stored: Sequence[Sequence[Any]], unwanted: Mapping[str, Here]) -> None:
        *columns, blobs = stored
        self.counts: dict[str, Ints] = dict(zip(COLUMNS[:-1], map(ints, columns), strict=True))
        """By field of a window, its tally or its gauges; also mode and source."""
        self.numbers: dict[str, Floats] = {}
        """The same for fractions."""
        self.histograms: list[Packed | None] = []
        self.mappings: list[list[KeyCounts]] = [[] for _ in MAPPINGS]
        """The entries of each mapping."""
        data = _SideBySide(blobs)
        fields = data.lengths()
        for name in RowData.__struct_fields__:
            if name == "accepted_per_position":
                self.position_lengths = data.lengths()
                self.positions = list(data.row(self.position_lengths))
            elif name == "mappings":
                stored_mappings = data.lengths()
                for place in range(int(stored_mappings.max())):
                    lengths = data.lengths(stored_mappings > place)
                    self.mappings[place] = _entries(data, lengths)
            elif name == "histograms":
                data.lengths()
                self.histograms = [
                    _histogram(data, unwanted.get(histogram)) for histogram in HISTOGRAMS
                ]
            elif name == "down_seconds":
                self.numbers[name] = data.numbers(fields > _FIELDS_BEFORE_DOWN)
            elif name.endswith("_seconds") or name == "kv_cache_usage_max":
                self.numbers[name] = data.numbers()
            else:
                self.counts[name] = data.counts()
        data.require_end(fields <= _FIELDS_BEFORE_DOWN + 1)

    @property
    def mode(self) -> Ints:
        """The index of each row's mode."""
        return self.counts["mode"]

    def all_counted(self) -> Here:
        """For each row whether drafts, tokens, latencies and finished requests are counted."""
        known = self.counts["drafts"] != UNKNOWN
        known &= self.counts["generation_tokens"] != UNKNOWN
        for packed in (self.histograms[HISTOGRAMS.index(name)] for name in ("ttft", "tpot")):
            timed = np.zeros(len(known), np.bool_)
            if packed is not None:
                timed[packed.rows] = True
            known &= timed
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


def unwanted(series: Ints, without: Mapping[int, Collection[str]]) -> dict[str, Here]:
    """The rows of series whose histogram is not wanted, by its name; ``without`` has the names of
    these by series."""
    distinct, indices = np.unique(series, return_inverse=True)
    unused = [without[id_] for id_ in distinct.tolist()]
    return {
        name: np.array([name in own for own in unused])[indices]
        for name in HISTOGRAMS
        if any(name in own for own in unused)
    }


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


def _entries(data: _SideBySide, lengths: Ints) -> list[KeyCounts]:
    """The entries of one mapping, whose lengths were read."""
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
    least = -len(names)
    if keys.max() >= len(KEYS):
        raise UnusualError
    return [
        KeyCounts(texts[key] if key < 0 else KEYS[key], rows[keys == key], counts[keys == key])
        for key in (np.flatnonzero(np.bincount(keys - least)) + least).tolist()
    ]


def _histogram(data: _SideBySide, unwanted: Here | None) -> Packed | None:
    """The histograms of all rows; None if no row has one that is wanted."""
    lengths = data.lengths()
    known = lengths > 0
    if unwanted is not None:
        skipped = np.flatnonzero(known & unwanted)
        with data.only(skipped) as part:
            part.skip(lengths.take(skipped))
        known &= ~unwanted
    rows = np.flatnonzero(known)
    if not len(rows):
        return None
    lengths = lengths.take(rows)
    with data.only(rows) as part:
        sums = part.numbers()
        first = part.counts(lengths > 1)
        return Packed(rows, sums, first, list(part.row(lengths - 2)))


class _SideBySide:
    """Msgpack arrays of one form; each method reads the next value of all of them.

    Arrays without the value do not advance, and get 0. After an UnusualError nothing more can be
    read.
    """

    def __init__(self, blobs: Sequence[bytes]) -> None:
        self._joined = b"".join(blobs) + bytes(_WORD)
        self._bytes = np.frombuffer(self._joined, np.uint8)
        # The eight bytes from each byte on as one number, so that a gather reads any width.
        words = len(self._joined) - _WORD + 1
        self._words = np.ndarray(words, ">u8", self._joined, strides=(1,))
        lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
        self._ends = np.cumsum(lengths)
        self._at = self._ends - lengths

    @contextmanager
    def only(self, rows: Ints) -> Iterator[_SideBySide]:
        """Those of some rows: reading a value of few takes less time so."""
        part = copy.copy(self)
        part._at = self._at.take(rows)
        yield part
        self._at[rows] = part._at

    def require_end(self, here: Here) -> None:
        """Raise UnusualError unless these arrays were read to their end, and no other beyond it.

        Reading a damaged array usually runs into the next one.
        """
        if (self._at > self._ends).any() or (self._at != self._ends)[here].any():
            raise UnusualError

    def lengths(self, here: Here | None = None) -> Ints:
        """Elements of an array, or entries of a mapping; ``UNKNOWN`` for nil."""
        first = self._first(here)
        lengths = (first & 0x0F).astype(np.int64)
        kind = first >> 4
        others = np.flatnonzero((kind != _ARRAYS) & (kind != _MAPS) & (first > 0))
        if len(others):
            which = first[others]
            many = which == _ARRAY16
            if not (many | (which == _NIL)).all():
                raise UnusualError
            long = others[many]
            lengths[others] = UNKNOWN
            lengths[long] = self._words[self._at[long]] >> np.uint64(48)
            self._at[long] += 2
        return lengths

    def counts(self, here: Here | None = None) -> Ints:
        """Whole numbers; ``UNKNOWN`` for nil."""
        first = self._first(here)
        wide = (first > _LAST_SMALL).nonzero()[0]
        counts = first.astype(np.int64)
        if len(wide):
            kind, bits, width = self._wide(first, wide)
            nil = kind == _NIL
            if width == _WORD and ((kind == _FLOAT) | ((bits >= _TOO_LARGE) & ~nil)).any():
                raise UnusualError
            longer = bits.view(np.int64)
            longer[nil] = UNKNOWN
            counts[wide] = longer
        return counts

    def numbers(self, here: Here | None = None) -> Floats:
        """Numbers of any type; NaN for nil."""
        first = self._first(here)
        wide = (first > _LAST_SMALL).nonzero()[0]
        numbers = first.astype(np.float64)
        if len(wide):
            kind, bits, width = self._wide(first, wide)
            longer = bits.astype(np.float64)
            if width == _WORD:
                longer = np.where(kind == _FLOAT, bits.view(np.float64), longer)
                if not ((longer >= 0) & (longer < np.inf)).all():
                    raise UnusualError
            longer[kind == _NIL] = np.nan
            numbers[wide] = longer
        return numbers

    def row(self, lengths: Ints) -> Iterator[Ints]:
        """Yield the counts of arrays whose lengths were read, place by place."""
        for here in _places(lengths):
            yield self.counts(here)

    def skip(self, lengths: Ints) -> None:
        """Skip as many numbers: faster than reading them."""
        for here in _places(lengths):
            width = _WIDTH.take(self._first(here))
            if width.max() == _OTHER:
                raise UnusualError
            self._at += width

    def keys(self, here: Here, names: dict[str, int]) -> Ints:
        """Keys that are whole numbers or texts. A text is read as its number in ``names``, which is
        below zero; new texts are added to it."""
        first = self._bytes.take(self._at)
        if first.max() <= _LAST_SMALL:
            self._at += here
            return (first * here).astype(np.int64)
        texts = here & ((first >> 5 == 0xA0 >> 5) | (first == 0xD9) | (first == 0xDA))
        rows = np.flatnonzero(texts).tolist()
        keys = self.counts(here & ~texts if rows else here)
        for row in rows:
            position = int(self._at[row])
            more = {0xD9: 1, 0xDA: 2}.get(int(first[row]), 0)
            begin = position + 1 + more
            size = self._joined[position + 1 : begin]
            length = int.from_bytes(size) if more else int(first[row]) & 0x1F
            self._at[row] = begin + length
            text = self._joined[begin : begin + length].decode()
            keys[row] = names.setdefault(text, -1 - len(names))
        return keys

    def _first(self, here: Here | None) -> npt.NDArray[np.uint8]:
        """The first bytes of the values; the position moves past them."""
        codes = self._bytes.take(self._at)
        if here is None:
            self._at += 1
            return codes
        self._at += here
        return codes * here

    def _wide(
        self, first: npt.NDArray[np.uint8], wide: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], int]:
        """The first bytes of numbers longer than a byte, the bits that follow, and the number of
        bytes of the longest."""
        kind = first.take(wide)
        width = _WIDTH.take(kind)
        most = int(width.max())
        if most == _OTHER:
            raise UnusualError
        positions = self._at.take(wide)
        self._at[wide] = positions + width
        if not most:
            return kind, np.zeros(len(kind), np.uint64), most
        return kind, self._words[positions].astype(np.uint64) >> _SHIFT.take(kind), most


def _places(lengths: Ints) -> Iterator[Here | None]:
    """Yield for each place of arrays which of them have it; None for all."""
    most = int(lengths.max(initial=0))
    least = int(lengths.min(initial=most))
    for place in range(most):
        yield None if place < least else lengths > place
