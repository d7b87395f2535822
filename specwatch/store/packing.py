"""Windows and cursors as the few bytes in which they wait for the database and lie in it.

A row's numbers that people query are columns; everything else of a window is one msgpack array.
What thousands of windows share (environment, histogram bounds, the series of a cursor) is a
:class:`Context`, addressed by its content, so that packing needs no database.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from specwatch.domain.model import (
    HISTOGRAMS,
    MAPPINGS,
    Batch,
    Counters,
    Cursor,
    Environment,
    Gauges,
    Histogram,
    Mode,
    Series,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.scrape.tally import most_frequent
from specwatch.store.damage import MissingContext

MODES = (Mode.ON, Mode.OFF, Mode.MIXED, Mode.UNKNOWN)
SOURCES = (Source.SERVER, Source.TAP, Source.PROXY, Source.PROBE)
"""A mode or source is stored as its index in here: append only."""

KEYS = (
    "stop", "length", "abort", "error", "repetition", "tool_calls", "end_turn", "max_tokens",
    "tool_use", "completed", "incomplete",
    "record", "timings", "derived",
    "several", "beam_search", "refused", "failed", "aborted", "disconnected", "no_record",
    "unreadable", "endpoint", "stop_string",
)  # fmt: skip
"""A key of a mapping (a finish reason, a method, a reason of no coverage) that is in here is
stored as its index, any other as text: append only."""
_CODES = {key: code for code, key in enumerate(KEYS)}

COLUMNS = (
    "mode", "source", "drafts", "draft_tokens", "accepted_tokens", "generation_tokens",
    "scrapes_ok", "scrapes_failed", "data",
)  # fmt: skip
"""Columns that a packed window fills beside its key and context, in this order."""

_ID_BITS = 47
_LARGEST = 2**63 - 1
_EXACT = 2**53
_LONGEST_NAME = 600
"""Bytes of a name: Postgres cannot index rows of more than 2704."""
_LARGEST_REMEMBERED = 1 << 16
"""Characters of a cursor's series up to which their layout is remembered."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither NaN nor infinite, which pages are refused for: a row that has it is damaged."""


class Context(NamedTuple):
    """Text that many rows share, and the id that its content gives it."""

    id: int
    content: str


class PackedWindow(msgspec.Struct, frozen=True, gc=False):
    """One window, some 400 bytes in all: series and context are shared between windows."""

    series: SeriesId
    start: int
    length: int
    context: Context
    row: bytes

    def columns(self) -> tuple[Any, ...]:
        """Values of :data:`COLUMNS`."""
        return _ROW.decode(self.row)


class PackedCursor(msgspec.Struct, frozen=True, gc=False):
    """One cursor; ``layout`` lists its series, ``counters`` has their values in that order."""

    target: str
    layout: Context
    counters: bytes
    process_start: float | None
    wall: float
    after: float | None = None


class PackedBatch(msgspec.Struct, frozen=True, gc=False):
    """Packed windows of one target, and the cursor that belongs to exactly them."""

    windows: tuple[PackedWindow, ...]
    cursor: PackedCursor | None

    def __iter__(self) -> Iterator[PackedWindow]:
        return iter(self.windows)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits, less what all those of usual servers share."""
        size = sum(len(window.row) + _shared_size(window.context) for window in self.windows)
        if self.cursor is not None:
            size += len(self.cursor.counters) + _shared_size(self.cursor.layout)
        return size


class _Data(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What of a window is neither key, context nor column; new fields go to the end."""

    accepted_per_position: tuple[_Count, ...] | None
    prompt_tokens: _Count | None
    preemptions: _Count | None
    prefix_cache_queries: _Count | None
    prefix_cache_hits: _Count | None
    mappings: tuple[dict[int | str, _Count], ...]
    """Empty ones at the end are left out."""
    histograms: tuple[tuple[int | Finite, ...] | None, ...]
    """Of each the sum, the first bucket that is not empty, and the counts up to the last such."""
    sampled_seconds: Finite
    busy_seconds: Finite
    running_seconds: Finite
    waiting_seconds: Finite
    running_max: _Count
    waiting_max: _Count
    kv_cache_usage_max: Finite | None
    gpu_memory_used_max: _Count | None
    server_drafts: _Count | None
    source_drafts: _Count | None
    observed_seconds: Finite
    restarts: _Count
    down_seconds: Finite = 0.0


class _Shared(msgspec.Struct, frozen=True):
    """The content of a window's context."""

    engine_version: str | None
    fingerprint: str | None
    gpu_memory_total: int | None
    bounds: dict[str, tuple[float, ...]]
    coarsened: tuple[str, ...]


class _CursorData(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The values of a cursor's series; those of its proxy are None where it has none."""

    values: tuple[Finite, ...]
    proxy_values: tuple[Finite, ...] | None = None
    proxy_process_start: Finite | None = None


_ENCODER = msgspec.msgpack.Encoder()
_NO_MAPPINGS: tuple[dict[int | str, int], ...] = ({},) * len(MAPPINGS)

decode = msgspec.msgpack.Decoder(_Data).decode
"""What of a window is neither key, context nor column, from the column ``data``."""
_ROW = msgspec.msgpack.Decoder(tuple[Any, ...])
_CURSOR = msgspec.msgpack.Decoder(_CursorData)


def pack(window: Window) -> PackedWindow:
    """Pack one window. Raises ValueError where a number is none that a counter can have.

    Names that Postgres cannot store (NUL, lone surrogates, over 600 bytes) are replaced.
    """
    tally, gauges = window.tally, window.gauges
    histograms = [getattr(tally, name) for name in HISTOGRAMS]
    data = _Data(
        tally.accepted_per_position,
        tally.prompt_tokens,
        tally.preemptions,
        tally.prefix_cache_queries,
        tally.prefix_cache_hits,
        _mappings(tally),
        tuple(None if histogram is None else _trimmed(histogram) for histogram in histograms),
        _short(gauges.sampled_seconds),
        _short(gauges.busy_seconds),
        _short(gauges.running_seconds),
        _short(gauges.waiting_seconds),
        gauges.running_max,
        gauges.waiting_max,
        None if gauges.kv_cache_usage_max is None else _short(gauges.kv_cache_usage_max),
        gauges.gpu_memory_used_max,
        window.server_drafts,
        window.source_drafts,
        _short(window.observed_seconds),
        window.restarts,
        _short(window.down_seconds),
    )
    columns = (
        tally.drafts, tally.draft_tokens, tally.accepted_tokens, tally.generation_tokens,
        window.scrapes_ok, window.scrapes_failed,
    )  # fmt: skip
    try:
        if any(value is not None and not 0 <= value <= _LARGEST for value in columns):
            raise OverflowError("a count is negative or above 2^63-1")
        row = _ENCODER.encode(
            (
                MODES.index(window.mode),
                SOURCES.index(window.source),
                *columns,
                _ENCODER.encode(data),
            )
        )
    except OverflowError as error:
        raise ValueError(
            f"window {window.start} of {window.series} cannot be stored: {error}"
        ) from error
    environment = window.environment
    context = _context(
        environment.engine_version,
        environment.fingerprint,
        gauges.gpu_memory_total,
        tuple(
            None if histogram is None else (histogram.bounds, histogram.coarsened)
            for histogram in histograms
        ),
    )
    return PackedWindow(_series(window.series), window.start, window.length, context, row)


def unpack(packed: PackedWindow) -> Window:
    """The window that was packed, equal in every field."""
    return assemble(
        packed.series, packed.start, packed.length, packed.context.content, packed.columns()
    )


def assemble(
    series: SeriesId,
    start: int,
    length: int,
    context: str | None,
    columns: tuple[Any, ...],
    *,
    without: Collection[str] = (),
) -> Window:
    """Build a window from its key, its context's content and its :data:`COLUMNS`.

    ``without`` names histograms that are not wanted: they take half of the time. Raises
    MissingContext where there is no content, one of ``damage.UNDECODABLE`` for damaged columns.
    """
    if context is None:
        raise MissingContext
    mode, source, drafts, draft_tokens, accepted, generation, scrapes_ok, scrapes_failed, blob = (
        columns
    )
    data, shared = decode(blob), shared_of(context)
    ttft, tpot, inter_token, e2e, output_length, request_acceptance = [
        None if trimmed is None or layout.name in without else layout.dense(trimmed)
        for layout, trimmed in zip(shared.layouts, data.histograms, strict=True)
    ]
    requests, records, uncovered = map(
        decoded, (*data.mappings, *_NO_MAPPINGS[len(data.mappings) :])
    )
    return Window(
        series,
        start,
        length,
        MODES[mode],
        Tally(
            drafts,
            draft_tokens,
            accepted,
            data.accepted_per_position,
            data.prompt_tokens,
            generation,
            data.preemptions,
            data.prefix_cache_queries,
            data.prefix_cache_hits,
            requests,
            ttft,
            tpot,
            inter_token,
            e2e,
            output_length,
            request_acceptance,
            records,
            uncovered,
        ),
        Gauges(
            data.sampled_seconds,
            data.busy_seconds,
            data.running_seconds,
            data.waiting_seconds,
            data.running_max,
            data.waiting_max,
            data.kv_cache_usage_max,
            data.gpu_memory_used_max,
            shared.gpu_memory_total,
        ),
        shared.environment,
        SOURCES[source],
        data.server_drafts,
        data.source_drafts,
        data.observed_seconds,
        scrapes_ok,
        scrapes_failed,
        data.restarts,
        data.down_seconds,
    )


def pack_cursor(cursor: Cursor) -> PackedCursor:
    """Pack one cursor."""
    proxy = cursor.proxy
    own, of_proxy = tuple(cursor.samples), () if proxy is None else tuple(proxy.samples)
    size = sum(map(len, itertools.chain(*own, *of_proxy)))
    # Those of hostile servers would take gigabytes.
    make = _layout if size <= _LARGEST_REMEMBERED else _layout.__wrapped__
    layout = make(own, of_proxy)
    data = _CursorData(
        _values(cursor.samples, layout.own),
        None if proxy is None else _values(proxy.samples, layout.proxy),
        None if proxy is None else proxy.process_start,
    )
    return PackedCursor(
        storable(cursor.target),
        layout.context,
        _ENCODER.encode(data),
        cursor.process_start,
        cursor.wall,
        cursor.after,
    )


def unpack_cursor(packed: PackedCursor) -> Cursor:
    """The cursor that was packed."""
    own, of_proxy = _series_of(packed.layout.content)
    data = _CURSOR.decode(packed.counters)
    proxy = None
    if data.proxy_values is not None:
        samples = dict(zip(of_proxy, data.proxy_values, strict=True))
        proxy = Counters(samples, data.proxy_process_start)
    return Cursor(
        packed.target,
        dict(zip(own, data.values, strict=True)),
        packed.process_start,
        packed.wall,
        proxy,
    )


def pack_batch(batch: Batch) -> PackedBatch:
    """Pack the windows of a batch and its cursor. Raises ValueError as :func:`pack` does."""
    cursor = None if batch.cursor is None else pack_cursor(batch.cursor)
    return PackedBatch(tuple(map(pack, batch.windows)), cursor)


def storable(text: str) -> str:
    """The text as every database can store and index it: the same, but for hostile ones."""
    if len(text) <= _LONGEST_NAME // 4 and text.isascii() and "\0" not in text:
        return text
    encoded = re.sub("[\0\ud800-\udfff]", "\ufffd", text).encode()
    if len(encoded) > _LONGEST_NAME:
        digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
        encoded = encoded[: _LONGEST_NAME - len(digest)] + digest.encode()
    return encoded.decode(errors="replace")


def _shared_size(context: Context) -> int:
    """The bytes of a context that counts as a row's own: a usual one is that of many rows."""
    size = len(context.content)
    return size if size > _LARGEST_REMEMBERED else 0


@lru_cache(maxsize=8192)
def _series(series: SeriesId) -> SeriesId:
    return SeriesId(
        storable(series.daemon),
        storable(series.target),
        storable(series.model_name),
        storable(series.temperature),
    )


def _address(content: object) -> Context:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Context(context_id(text), text)


def context_id(content: str) -> int:
    """The id of a context, which tells whether its content is what was stored."""
    # 47 bits stay within six bytes of a SQLite integer; a thousand contexts collide with a
    # probability of 4e-9.
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _ID_BITS)


@lru_cache(maxsize=1024)
def _context(
    engine_version: str | None,
    fingerprint: str | None,
    gpu_memory_total: int | None,
    histograms: tuple[tuple[tuple[float, ...], bool] | None, ...],
) -> Context:
    known = {
        name: histogram
        for name, histogram in zip(HISTOGRAMS, histograms, strict=True)
        if histogram is not None
    }
    return _address(
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
    """Of its counts."""

    def dense(self, trimmed: tuple[int | float, ...]) -> Histogram:
        """The histogram of which a row has the sum, the first bucket in use, and the counts.

        Raises ValueError for buckets that there are not.
        """
        missing = self.size
        counts: tuple[Any, ...] = ()
        if len(trimmed) > 1:
            first = trimmed[1]
            missing -= len(trimmed) - 2
            if not 0 <= first <= missing or min(trimmed[2:], default=0) < 0:
                raise ValueError(f"{self.name} has counts of buckets that there are not")
            counts = (0,) * int(first) + trimmed[2:]
            missing -= int(first)
        counts += (0,) * missing
        return Histogram(self.bounds, counts, float(trimmed[0]), self.coarsened)


class Shared(NamedTuple):
    """What the windows of one context have in common; ``layouts`` are in storage order."""

    environment: Environment
    gpu_memory_total: int | None
    layouts: tuple[HistogramLayout, ...]


@lru_cache(maxsize=1024)
def shared_of(content: str) -> Shared:
    """The content of a context, read."""
    shared = msgspec.convert(json.loads(content), _Shared)
    bounds = [shared.bounds.get(name, ()) for name in HISTOGRAMS]
    return Shared(
        Environment(shared.engine_version, shared.fingerprint),
        shared.gpu_memory_total,
        tuple(
            HistogramLayout(name, edges, name in shared.coarsened, len(edges) + 1)
            for name, edges in zip(HISTOGRAMS, bounds, strict=True)
        ),
    )


class _Layout(NamedTuple):
    context: Context
    own: tuple[Series, ...]
    proxy: tuple[Series, ...]


@lru_cache(maxsize=512)
def _layout(own: tuple[Series, ...], proxy: tuple[Series, ...]) -> _Layout:
    # Sorted: a tap's series stand on the page as its first requests came, at each start otherwise.
    own, proxy = tuple(sorted(own, key=_family)), tuple(sorted(proxy, key=_family))
    return _Layout(_address([_families(own), _families(proxy)]), own, proxy)


def _family(series: Series) -> tuple[str, ...]:
    return (*series._replace(key=""), series.key)


def _families(series: tuple[Series, ...]) -> list[list[Any]]:
    """Siblings, which differ only in their key, as one entry."""
    groups = itertools.groupby(series, lambda counter: counter._replace(key=""))
    return [
        [family.quantity, family.part, family.model_name, family.engine, family.temperature,
         [sibling.key for sibling in siblings]]
        for family, siblings in groups
    ]  # fmt: skip


def _values(samples: Mapping[Series, float], order: tuple[Series, ...]) -> tuple[float, ...]:
    return tuple(_short(samples[series]) for series in order)


@lru_cache(maxsize=512)
def _series_of(content: str) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    own, proxy = (
        tuple(
            Series(quantity, part, model_name, engine, key, temperature)
            for quantity, part, model_name, engine, temperature, keys in families
            for key in keys
        )
        for families in json.loads(content)
    )
    return own, proxy


def _mappings(tally: Tally) -> tuple[dict[int | str, int], ...]:
    coded = [
        {_code(key): count for key, count in most_frequent(getattr(tally, name)).items()}
        for name in MAPPINGS
    ]
    while coded and not coded[-1]:
        coded.pop()
    return tuple(coded)


def decoded(coded: Mapping[int | str, int]) -> dict[str, int]:
    """A mapping with its keys as text."""
    return {code if isinstance(code, str) else KEYS[code]: count for code, count in coded.items()}


def _code(key: str) -> int | str:
    known = _CODES.get(key)
    return storable(key) if known is None else known


def _short(value: float) -> float:
    """The same number in as few bytes as msgpack can: whole floats as integers."""
    return int(value) if -_EXACT < value < _EXACT and value == int(value) else value


def _trimmed(histogram: Histogram) -> tuple[int | float, ...]:
    used = [index for index, count in enumerate(histogram.counts) if count]
    if not used:
        return (_short(histogram.sum),)
    first, last = used[0], used[-1]
    return _short(histogram.sum), first, *histogram.counts[first : last + 1]
