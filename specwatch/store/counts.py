"""Windows as rows of whole numbers and arrays, as they are written.

A row has the columns of every fact (:data:`specwatch.domain.model.FACTS`) and those that are
derived for people. What many windows share is a :class:`Context`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import sqlalchemy as sa

from specwatch.domain.facts import MILLIONTHS, Fact, Kind
from specwatch.domain.histogram import quantiles
from specwatch.domain.model import (
    FACTS,
    HISTOGRAMS,
    Environment,
    Histogram,
    Mode,
    Segment,
    SeriesId,
    Source,
    Window,
)
from specwatch.scrape.tally import most_frequent
from specwatch.store import schema, views
from specwatch.store.texts import digest_of, storable

LARGEST = 2**53
"""The largest number of one minute, so that an hour fits into 63 bits. In microseconds it is 285
years, as many as a thousand requests take in three months: a minute may count a long gap."""
_MODES = {mode.value: mode for mode in Mode}
FACT_COLUMNS = tuple(column.name for fact in FACTS for column in schema.stored_columns(fact))
COLUMNS = (*FACT_COLUMNS, *(column.name for column in schema.derived_columns()))
"""Columns that a window fills beside its key and context, in this order."""


class Context(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What many windows share: the row of ``contexts``, without its number."""

    mode: Mode
    source: Source
    engine_version: str | None
    fingerprint: str | None
    gpu_memory_total: int | None
    bounds: tuple[tuple[float, ...] | None, ...]
    """Of each histogram, in the order of HISTOGRAMS; None for one that the windows lack."""
    coarsened: tuple[str, ...]

    @property
    def environment(self) -> Environment:
        """The software."""
        return Environment(self.engine_version, self.fingerprint)

    def row(self) -> dict[str, object]:
        """The columns of its row; the digest is the same in every process."""
        values = msgspec.structs.asdict(self)
        known = zip(HISTOGRAMS, self.bounds, strict=True)
        values["bounds"] = _json({name: edges for name, edges in known if edges is not None})
        values["coarsened"] = _json(self.coarsened)
        return {"digest": digest_of(_json(list(values.values()))), **values}

    @staticmethod
    def of_row(row: sa.Row[Any]) -> Context:
        """The context of a row of ``contexts``."""
        edges = _BOUNDS.decode(row.bounds)
        return Context(
            _MODES[row.mode],
            Source(row.source),
            row.engine_version,
            row.fingerprint,
            row.gpu_memory_total,
            tuple(edges.get(name) for name in HISTOGRAMS),
            tuple(_NAMES.decode(row.coarsened)),
        )


class PackedWindow(msgspec.Struct, frozen=True, gc=False):
    """One window, about 500 bytes: series and context are shared between windows."""

    series: SeriesId
    start: int
    length: int
    context: Context
    row: bytes

    def columns(self) -> tuple[Any, ...]:
        """Values of :data:`COLUMNS`."""
        return _ROW.decode(self.row)


_ENCODER = msgspec.msgpack.Encoder()
_ROW = msgspec.msgpack.Decoder(tuple[Any, ...])
_BOUNDS = msgspec.json.Decoder(dict[str, tuple[float, ...]])
_NAMES = msgspec.json.Decoder(list[str])


def pack(window: Window) -> PackedWindow:
    """Pack one window of a minute. Raises ValueError for a number that no server has: negative, or
    above :data:`LARGEST`.

    Names that Postgres cannot store (NUL, lone surrogates, over 600 bytes) are replaced.
    """
    try:
        row = _ENCODER.encode(row_of(window, LARGEST))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"window {window.start} of {window.series} cannot be stored: {error}"
        ) from error
    return PackedWindow(
        _series(window.series), window.start, window.length, context_of(window), row
    )


def row_of(window: Window, largest: int) -> tuple[Any, ...]:
    """The values of :data:`COLUMNS` for a window.

    Raises ValueError for a number that is negative or above ``largest``.
    """
    owners = {"tally": window.tally, "gauges": window.gauges, "": window}
    values: list[Any] = []
    for fact in FACTS:
        values += _ENCODERS[fact.kind](getattr(owners[fact.of], fact.name), fact, largest)
    requests = window.tally.requests
    values.append(sum(requests.values()) if requests else None)
    for asked in views.QUANTILES.values():
        histogram = getattr(window.tally, asked[0].histogram.name)
        shares = [quantile.percent / 100 for quantile in asked]
        found = quantiles(histogram, shares) if histogram is not None else []
        values += [_derived(each.value) for each in found] or [None] * len(asked)
    return tuple(values)


def _derived(value: float | None) -> int | None:
    """A quantile as it is stored; None for one that no server has."""
    if value is None or not abs(value) < LARGEST / MILLIONTHS:
        return None
    return round(value * MILLIONTHS)


def context_of(window: Window) -> Context:
    """The context of a window."""
    environment = window.environment
    memory = window.gauges.gpu_memory_total
    histograms = [getattr(window.tally, name) for name in HISTOGRAMS]
    return _shared(
        Context(
            window.mode,
            window.source,
            None if environment.engine_version is None else storable(environment.engine_version),
            None if environment.fingerprint is None else storable(environment.fingerprint),
            memory if memory is not None and 0 <= memory <= LARGEST else None,
            tuple(None if each is None else each.bounds for each in histograms),
            tuple(
                name
                for name, each in zip(HISTOGRAMS, histograms, strict=True)
                if each is not None and each.coarsened
            ),
        )
    )


@lru_cache(maxsize=1024)
def _shared(context: Context) -> Context:
    """One object for all equal contexts."""
    return context


@lru_cache(maxsize=8192)
def _series(series: SeriesId) -> SeriesId:
    return SeriesId(
        storable(series.daemon),
        storable(series.target),
        storable(series.model_name),
        Segment(storable(series.segment.dimension), storable(series.segment.value)),
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _number(value: float | None, fact: Fact, largest: int) -> tuple[int | None]:
    if value is None:
        return (None,)
    stored = round(value * fact.scale) if fact.scale != 1 else int(value)
    return (_checked(stored, fact, largest),)


def _checked(stored: int, fact: Fact, largest: int) -> int:
    if not 0 <= stored <= largest:
        raise ValueError(f"{fact.column} is {stored:.3g}, which no server has")
    return stored


def _positions(value: Sequence[int] | None, fact: Fact, largest: int) -> tuple[str | None]:
    if value is None:
        return (None,)
    if value:
        _checked(min(value), fact, largest)
        _checked(max(value), fact, largest)
    return (_json(value),)


def _keys(value: Mapping[str, int], fact: Fact, largest: int) -> tuple[str | None]:
    if not value:
        return (None,)
    for count in value.values():
        _checked(count, fact, largest)
    # Zeros take most of the bytes; where all are zero, one says that they are counted.
    counted = {key: count for key, count in value.items() if count} or dict([*value.items()][:1])
    stored: dict[str, int] = {}
    for key, count in most_frequent(dict(sorted(counted.items()))).items():
        stored[_key(key)] = stored.get(_key(key), 0) + count
    return (_json(stored),)


@lru_cache(maxsize=1024)
def _key(text: str) -> str:
    """A key as it is stored: as JSON it needs no escape."""
    return re.sub(r'[\0-\x1f"\\]', "\ufffd", storable(text))


def _histogram(value: Histogram | None, fact: Fact, largest: int) -> tuple[str | None, int | None]:
    if value is None:
        return None, None
    used = [index for index, count in enumerate(value.counts) if count]
    counts: list[int] = []
    if used:
        first, last = used[0], used[-1]
        counts = [first, *value.counts[first : last + 1]]
        _checked(min(counts), fact, largest)
        _checked(max(counts), fact, largest)
    # Clocks that go back give negative latencies, whose sum says nothing.
    total = max(round(value.sum * fact.scale), 0)
    return _json(counts), _checked(total, fact, largest)


_ENCODERS: Mapping[Kind, Callable[[Any, Fact, int], Collection[Any]]] = {
    Kind.COUNT: _number,
    Kind.INTEGRAL: _number,
    Kind.LARGEST: _number,
    Kind.POSITIONS: _positions,
    Kind.KEYS: _keys,
    Kind.HISTOGRAM: _histogram,
}
