"""Headers of .gguf files: keys and values, then the list of tensors. No tensor is read.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from specwatch.advise.gguf_config import BLOCKS, TYPE_NAMES
from specwatch.advise.stored_weights import Tensor
from specwatch.edges.bounded_file import opened
from specwatch.errors import ConfigError
from specwatch.wording.text import shown

MAGIC = b"GGUF"
_MOST_HEADER = 64 * 1024 * 1024
_MOST_KEYS = 65_536
_MOST_TENSORS = 1_000_000
_MOST_DIMENSIONS = 8
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip


class GgufHeader(NamedTuple):
    """What the header of one file says."""

    keys: dict[str, Any]
    tensors: list[Tensor]


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of one file; raises ConfigError where there is none, or the file ends."""
    with opened(path) as (file, size):
        reader = _Reader(path, file, min(size, _MOST_HEADER))
        tensor_count, key_count = _preamble(reader)
        keys = dict(_key(reader) for _number in range(key_count))
        places = [_tensor(reader) for _number in range(tensor_count)]
        alignment = keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 65536:
            raise reader.error(f"an alignment of {alignment}", "one up to 65,536")
        data = -(-reader.at // alignment) * alignment
    ends = sorted({offset for _tensor, offset in places} | {max(size - data, 0)})
    following = dict(pairwise(ends))
    tensors = []
    for tensor, offset in places:
        # Of a type that is not known, the place of the next tensor tells the size.
        filled = tensor.size if tensor.size >= 0 else following.get(offset, offset) - offset
        if offset + filled > size - data:
            found = f"{size:,} bytes, and {shown(tensor.name)} ending at {data + offset + filled:,}"
            raise reader.error(found, "all tensors of its header")
        tensors.append(tensor._replace(size=filled))
    return GgufHeader(keys, tensors)


def _preamble(reader: _Reader) -> tuple[int, int]:
    """How many tensors and keys follow."""
    magic = reader.take(4)
    if magic != MAGIC:
        raise reader.error(f"{magic!r} at its beginning", "GGUF")
    (version,) = reader.unpack("I")
    if version not in (2, 3):
        hint = " (is it big-endian?)" if version > 0xFFFF else ""
        raise reader.error(f"version {version}{hint}", "version 2 or 3")
    tensors, keys = reader.unpack("QQ")
    if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
        found = f"{tensors:,} tensors and {keys:,} keys"
        raise reader.error(found, f"at most {_MOST_TENSORS:,} and {_MOST_KEYS:,}")
    return tensors, keys


def _key(reader: _Reader) -> tuple[str, Any]:
    name = reader.text()
    (kind,) = reader.unpack("I")
    if kind == _STRING:
        return name, reader.text()
    if kind != _ARRAY:
        return name, reader.numbers(kind, 1, name)[0]
    kind, count = reader.unpack("IQ")
    if kind != _STRING:
        return name, reader.numbers(kind, count, name)
    if count > reader.left // 8:
        raise reader.error(f"{count:,} texts in {shown(name)}", f"at most {reader.left // 8:,}")
    return name, reader.texts(count)


def _tensor(reader: _Reader) -> tuple[Tensor, int]:
    """A tensor, of a size below 0 where its type is not known, and its offset in the data."""
    name = reader.text()
    (dimensions,) = reader.unpack("I")
    if dimensions > _MOST_DIMENSIONS:
        raise reader.error(f"{dimensions:,} dimensions of {shown(name)}", "at most 8")
    shape = reader.unpack(f"{dimensions}Q")
    kind, offset = reader.unpack("IQ")
    number = math.prod(shape)
    block, width = BLOCKS.get(kind, (0, 0))
    size = -(-number // block) * width if block else -1
    return Tensor(name, TYPE_NAMES.get(kind, f"type {kind}"), tuple(shape), size), offset


class _Reader:
    """Takes from a header what is left of it; allocates nothing that is not there."""

    def __init__(self, path: Path, file: BinaryIO, end: int) -> None:
        self._path = path
        self._file = file
        self._end = end
        self.at = 0

    @property
    def left(self) -> int:
        return self._end - self.at

    def take(self, length: int) -> bytes:
        if length > self._end - self.at:
            found = f"a header that wants {length:,} bytes more at byte {self.at:,}"
            raise self.error(found, f"an end before {self._end:,}")
        data = self._file.read(length)
        if len(data) < length:
            raise self.error(f"an end at byte {self.at + len(data):,}", "the rest of its header")
        self.at += length
        return data

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form := "<" + form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """``count`` texts, in one loop for the sake of vocabularies."""
        found = []
        read, at, end = self._file.read, self.at, self._end
        for _number in range(count):
            length = int.from_bytes(read(8), "little")
            at += 8 + length
            if at > end:
                raise self.error(
                    f"a header that wants {length:,} bytes more at byte {at - length:,}",
                    f"an end before {end:,}",
                )
            # A token may be part of a character: what is no UTF-8 is kept apart.
            found.append(read(length).decode("utf-8", "surrogateescape"))
        self.at = at
        return found

    def numbers(self, kind: int, count: int, name: str) -> list[Any]:
        form = _NUMBERS.get(kind)
        if form is None:
            raise self.error(f"{shown(name)} of type {kind}", "a type of GGUF's")
        data = self.take(count * struct.calcsize("<" + form))
        if form == "?":
            return [bool(byte) for byte in data]
        return [value for (value,) in struct.iter_unpack("<" + form, data)]

    def error(self, found: str, expected: str) -> ConfigError:
        return ConfigError(f"{self._path}: {found}; expected {expected}: download it again")
