"""Headers of .safetensors files: 8 bytes of length, then JSON. No tensor is read.

The format is https://huggingface.co/docs/safetensors/index, "Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from specwatch.advise.stored_weights import Tensor
from specwatch.edges.bounded_file import opened, read_file
from specwatch.errors import ConfigError
from specwatch.wording.text import shown

INDEX = "model.safetensors.index.json"
_MOST_HEADER = 32 * 1024 * 1024
_MOST_INDEX = 64 * 1024 * 1024
_LENGTH = 8
_REMEDY = "download it again"


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> Iterator[Tensor]:
    """Yield the tensors of one file; raises ConfigError where its header or its end is missing."""
    with opened(path) as (file, size):
        if size < _LENGTH:
            raise _error(path, f"{size} bytes", "a header's length in the first 8")
        length = int.from_bytes(file.read(_LENGTH), "little")
        if length > size - _LENGTH or length > _MOST_HEADER:
            found = f"a header of {length:,} bytes in a file of {size:,}"
            raise _error(path, found, f"at most {min(_MOST_HEADER, size - _LENGTH):,}")
        header = file.read(length)
    left = size - _LENGTH - length
    for name, entry in _entries(path, header):
        begin, end = entry.data_offsets
        if not 0 <= begin <= end or any(side < 0 for side in entry.shape):
            raise _error(path, f"{shown(name)} from byte {begin} to {end}", "a place in the file")
        if end > left:
            found = f"{left:,} bytes of tensors, and {shown(name)} ending at {end:,}"
            raise _error(path, found, "all tensors of its header")
        yield Tensor(name, entry.dtype, tuple(entry.shape), end - begin)


def _entries(path: Path, header: bytes) -> Iterator[tuple[str, _Entry]]:
    try:
        for name, raw in msgspec.json.decode(header, type=dict[str, msgspec.Raw]).items():
            if name != "__metadata__":
                yield name, msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = f"a header that cannot be read ({shown(str(error), 200)})"
        raise _error(path, found, "the JSON of safetensors") from None


def shards(folder: Path, names: Iterable[str]) -> tuple[list[Path], int | None]:
    """The files that hold a model's weights, of the ``names`` in its folder.

    Second comes the size that an index tells where not one of its files is there. Raises
    ConfigError naming the first file of an index that is missing.
    """
    present = {name for name in names if name.endswith(".safetensors")}
    listed, total = _index(folder)
    if listed:
        missing = sorted(listed - present)
        if len(missing) == len(listed):
            return [], total
        if missing:
            raise ConfigError(
                f"{folder / missing[0]}: is missing, {len(missing)} of {len(listed)} files are;"
                f" expected all that {INDEX} lists: download them"
            )
        return [folder / name for name in sorted(listed)], None
    # Mistral's own files lie beside the same weights under the usual names.
    usual = {name for name in present if not name.startswith("consolidated")}
    if "model.safetensors" in usual:
        usual = {"model.safetensors"}
    return [folder / name for name in sorted(usual or present)], None


def _index(folder: Path) -> tuple[set[str], int | None]:
    path = folder / INDEX
    data = read_file(path, _MOST_INDEX)
    if data is None:
        return set(), None
    try:
        index: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(path, f"no JSON ({shown(str(error), 200)})", "a weight_map") from None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise _error(path, "no weight_map", "the file of each tensor")
    names = set()
    for name in files.values():
        if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
            raise _error(
                path, f"{shown(str(name))!r} in its weight_map", "names of files beside it"
            )
        names.add(name)
    about = index.get("metadata")
    total = about.get("total_size") if isinstance(about, dict) else None
    return names, int(total) if isinstance(total, int | float) and 0 <= total < 2**62 else None


def _error(path: Path, found: str, expected: str) -> ConfigError:
    return ConfigError(f"{path}: {found}; expected {expected}: {_REMEDY}")
