"""Reads thousands of msgpack arrays of one form at once: the same value of all arrays together.

Decoding each into Python objects would take longer than the rest of a report. Importing this
imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Here = npt.NDArray[np.bool_]
"""For each array whether it has the value."""

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


class UnusualError(ValueError):
    """A value that no counter, gauge or latency has: negative, or above 2^63."""


class SideBySide:
    """Arrays of one form; each method reads the next value of all of them.

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
            if not np.isin(which, (_NIL, _ARRAY16)).all():
                raise UnusualError
            long = others[which == _ARRAY16]
            lengths[others] = UNKNOWN
            lengths[long] = self._words[self._at[long]] >> np.uint64(48)
            self._at[long] += 2
        return lengths

    def counts(self, here: Here | None = None) -> Ints:
        """Whole numbers; ``UNKNOWN`` for nil."""
        first = self._first(here)
        counts = first.astype(np.int64)
        wide = np.flatnonzero(first > _LAST_SMALL)
        if len(wide):
            kind, bits = self._wide(first, wide)
            nil = kind == _NIL
            if (kind == _FLOAT).any() or (bits[~nil] >= _TOO_LARGE).any():
                raise UnusualError
            counts[wide] = np.where(nil, UNKNOWN, bits.astype(np.int64))
        return counts

    def numbers(self, here: Here | None = None) -> Floats:
        """Numbers of any type; NaN for nil."""
        first = self._first(here)
        numbers = first.astype(np.float64)
        wide = np.flatnonzero(first > _LAST_SMALL)
        if len(wide):
            kind, bits = self._wide(first, wide)
            numbers[wide] = np.where(kind == _FLOAT, bits.view(np.float64), bits)
            if not (numbers[wide] >= 0).all() or np.isinf(numbers[wide]).any():
                raise UnusualError
            numbers[wide[kind == _NIL]] = np.nan
        return numbers

    def row(self, lengths: Ints) -> Iterator[Ints]:
        """Yield the counts of arrays whose lengths were read, place by place."""
        for place in range(int(lengths.max(initial=0))):
            here = lengths > place
            yield self.counts(None if here.all() else here)

    def skip(self, lengths: Ints) -> None:
        """Skip as many numbers."""
        for place in range(int(lengths.max(initial=0))):
            here = lengths > place
            width = _WIDTH.take(self._first(here))
            if width.max() == _OTHER:
                raise UnusualError
            self._at += width

    def keys(self, here: Here, names: dict[str, int]) -> Ints:
        """Keys that are whole numbers or texts. A text is read as its number in ``names``, which is
        below zero; new texts are added to it."""
        first = self._bytes.take(self._at)
        texts = here & ((first >> 5 == 0xA0 >> 5) | (first == 0xD9) | (first == 0xDA))
        rows = np.flatnonzero(texts).tolist()
        keys = self.counts(here & ~texts if rows else here)
        for row in rows:
            keys[row] = self._text(row, names)
        return keys

    def _text(self, row: int, names: dict[str, int]) -> int:
        position = int(self._at[row])
        first = self._joined[position]
        more = {0xD9: 1, 0xDA: 2}.get(first, 0)
        begin = position + 1 + more
        length = int.from_bytes(self._joined[position + 1 : begin]) if more else first & 0x1F
        self._at[row] = begin + length
        return names.setdefault(self._joined[begin : begin + length].decode(), -1 - len(names))

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
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """The first bytes of numbers longer than a byte, and the bits that follow."""
        kind = first[wide]
        width = _WIDTH[kind]
        if width.max() == _OTHER:
            raise UnusualError
        positions = self._at[wide]
        self._at[wide] = positions + width
        return kind, self._words[positions].astype(np.uint64) >> _SHIFT[kind]
