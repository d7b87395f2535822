"""Contexts, which many rows share, and texts and numbers as every database stores them."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from specwatch.domain.model import HISTOGRAMS, Environment, Histogram

_ID_BITS = 47
_EXACT = 2**53
_LONGEST_NAME = 600
"""Bytes of a name: Postgres cannot index rows of more than 2704."""
LARGEST_REMEMBERED = 1 << 16
"""Characters of the series of a cursor up to which their layout is cached."""

Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither NaN nor infinite: pages with such values are refused, so a row with one is damaged."""


class Context(NamedTuple):
    """Text that many rows share, and its id, which is computed from the text."""

    id: int
    content: str


class _ContextContent(msgspec.Struct, frozen=True):
    """The content of a window's context."""

    engine_version: str | None
    fingerprint: str | None
    gpu_memory_total: int | None
    bounds: dict[str, tuple[float, ...]]
    coarsened: tuple[str, ...]


def storable(text: str) -> str:
    """The text as every database can store and index it; only hostile texts are changed."""
    if len(text) <= _LONGEST_NAME // 4 and text.isascii() and "\0" not in text:
        return text
    encoded = re.sub("[\0\ud800-\udfff]", "\ufffd", text).encode()
    if len(encoded) > _LONGEST_NAME:
        digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
        encoded = encoded[: _LONGEST_NAME - len(digest)] + digest.encode()
    return encoded.decode(errors="replace")


def shared_size(context: Context) -> int:
    """The bytes that a context adds to a row: 0 for a usual one, which many rows share."""
    size = len(context.content)
    return size if size > LARGEST_REMEMBERED else 0


def addressed(content: object) -> Context:
    """The context with this content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Context(context_id(text), text)


def context_id(content: str) -> int:
    """The id of a context; with another id, the content is not what was stored."""
    # 47 bits stay within six bytes of a SQLite integer; a thousand contexts collide with a
    # probability of 4e-9.
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _ID_BITS)


@lru_cache(maxsize=1024)
def context_of(
    engine_version: str | None,
    fingerprint: str | None,
    gpu_memory_total: int | None,
    histograms: tuple[tuple[tuple[float, ...], bool] | None, ...],
) -> Context:
    """The context of a window; ``histograms`` has the bounds of each, and whether coarsened."""
    known = {
        name: histogram
        for name, histogram in zip(HISTOGRAMS, histograms, strict=True)
        if histogram is not None
    }
    return addressed(
        {
            "engine_version": engine_version,
            "fingerprint": fingerprint,
            "gpu_memory_total": gpu_memory_total,
            "bounds": {name: list(map(float, bounds)) for name, (bounds, _) in known.items()},
            "coarsened": [name for name, (_, coarsened) in known.items() if coarsened],
        }
    )


class HistogramLayout(NamedTuple):
    """The bounds of a histogram, which many rows share."""

    name: str
    bounds: tuple[float, ...]
    coarsened: bool
    size: int
    """The number of its counts."""

    def dense(self, trimmed: tuple[int | float, ...]) -> Histogram:
        """The histogram of a row's sum, first bucket in use, and counts.

        Raises ValueError for buckets that do not exist.
        """
        missing = self.size
        counts: tuple[Any, ...] = ()
        if len(trimmed) > 1:
            first = trimmed[1]
            missing -= len(trimmed) - 2
            if not 0 <= first <= missing or min(trimmed[2:], default=0) < 0:
                raise ValueError(f"{self.name} has counts of buckets that do not exist")
            counts = (0,) * int(first) + trimmed[2:]
            missing -= int(first)
        counts += (0,) * missing
        return Histogram(self.bounds, counts, float(trimmed[0]), self.coarsened)


class Shared(NamedTuple):
    """What the windows of one context share; ``layouts`` are in storage order."""

    environment: Environment
    gpu_memory_total: int | None
    layouts: tuple[HistogramLayout, ...]


@lru_cache(maxsize=1024)
def shared_of(content: str) -> Shared:
    """The content of a context, decoded."""
    shared = msgspec.convert(json.loads(content), _ContextContent)
    bounds = [shared.bounds.get(name, ()) for name in HISTOGRAMS]
    return Shared(
        Environment(shared.engine_version, shared.fingerprint),
        shared.gpu_memory_total,
        tuple(
            HistogramLayout(name, edges, name in shared.coarsened, len(edges) + 1)
            for name, edges in zip(HISTOGRAMS, bounds, strict=True)
        ),
    )


def short(value: float) -> float:
    """The number as the type with the shortest msgpack form: whole floats as integers."""
    return int(value) if -_EXACT < value < _EXACT and value == int(value) else value
