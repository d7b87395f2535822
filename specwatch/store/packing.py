"""Windows and cursors as packed bytes, in the write queue and in the database.

The numbers of a row that operators query are columns; the rest of a window is one msgpack array.
What many windows share (environment, histogram bounds, the series of a cursor) is a
:class:`Context` whose id is a hash of its content, so that packing needs no database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from specwatch.domain.model import (
    HISTOGRAMS,
    MAPPINGS,
    Batch,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.scrape.tally import most_frequent
from specwatch.store.contexts import (
    Context,
    Finite,
    context_of,
    shared_of,
    shared_size,
    short,
    storable,
)
from specwatch.store.cursor_rows import PackedCursor, pack_cursor
from specwatch.store.damage import MissingContext

MODES = {mode.code: mode for mode in Mode}
"""By the number that is stored."""
SOURCES = (Source.SERVER, Source.TAP, Source.PROXY, Source.PROBE)
"""A source is stored as its index in here: append only."""

KEYS = (
    "stop", "length", "abort", "error", "repetition", "tool_calls", "end_turn", "max_tokens",
    "tool_use", "completed", "incomplete",
    "record", "timings", "derived",
    "several", "beam_search", "refused", "failed", "aborted", "disconnected", "no_record",
    "unreadable", "endpoint", "stop_string",
    "loop", "usual",
)  # fmt: skip
"""A key of a mapping (a finish reason, a method, a reason of no coverage, an ending) that is in
here is stored as its index, any other as text: append only."""
_CODES = {key: code for code, key in enumerate(KEYS)}

COLUMNS = (
    "mode", "source", "drafts", "draft_tokens", "accepted_tokens", "generation_tokens",
    "scrapes_ok", "scrapes_failed", "data",
)  # fmt: skip
"""Columns that a packed window fills beside its key and context, in this order."""

_LARGEST = 2**63 - 1


_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class PackedWindow(msgspec.Struct, frozen=True, gc=False):
    """One window, about 400 bytes: series and context are shared between windows."""

    series: SeriesId
    start: int
    length: int
    context: Context
    row: bytes

    def columns(self) -> tuple[Any, ...]:
        """Values of :data:`COLUMNS`."""
        return _ROW.decode(self.row)


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
        """Its bytes in memory, without what the batches of usual servers share."""
        size = sum(len(window.row) + shared_size(window.context) for window in self.windows)
        if self.cursor is not None:
            size += len(self.cursor.counters) + shared_size(self.cursor.layout)
        return size


class RowData(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A window without its key, context and columns; new fields go to the end."""

    accepted_per_position: tuple[_Count, ...] | None
    prompt_tokens: _Count | None
    preemptions: _Count | None
    prefix_cache_queries: _Count | None
    prefix_cache_hits: _Count | None
    mappings: tuple[dict[int | str, _Count], ...]
    """Empty ones at the end are left out."""
    histograms: tuple[tuple[int | Finite, ...] | None, ...]
    """For each the sum, the first bucket that is not empty, and the counts up to the last one."""
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


_ENCODER = msgspec.msgpack.Encoder()
_NO_MAPPINGS: tuple[dict[int | str, int], ...] = ({},) * len(MAPPINGS)

decode = msgspec.msgpack.Decoder(RowData).decode
"""Decodes the column ``data``."""
_ROW = msgspec.msgpack.Decoder(tuple[Any, ...])


def pack(window: Window) -> PackedWindow:
    """Pack one window. Raises ValueError for a number that a counter cannot have.

    Names that Postgres cannot store (NUL, lone surrogates, over 600 bytes) are replaced.
    """
    tally, gauges = window.tally, window.gauges
    histograms = [getattr(tally, name) for name in HISTOGRAMS]
    data = RowData(
        tally.accepted_per_position,
        tally.prompt_tokens,
        tally.preemptions,
        tally.prefix_cache_queries,
        tally.prefix_cache_hits,
        _mappings(tally),
        tuple(None if histogram is None else _trimmed(histogram) for histogram in histograms),
        short(gauges.sampled_seconds),
        short(gauges.busy_seconds),
        short(gauges.running_seconds),
        short(gauges.waiting_seconds),
        gauges.running_max,
        gauges.waiting_max,
        None if gauges.kv_cache_usage_max is None else short(gauges.kv_cache_usage_max),
        gauges.gpu_memory_used_max,
        window.server_drafts,
        window.source_drafts,
        short(window.observed_seconds),
        window.restarts,
        short(window.down_seconds),
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
                window.mode.code,
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
    context = context_of(
        environment.engine_version,
        environment.fingerprint,
        gauges.gpu_memory_total,
        tuple(
            None if histogram is None else (histogram.bounds, histogram.coarsened)
            for histogram in histograms
        ),
    )
    return PackedWindow(_series(window.series), window.start, window.length, context, row)


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

    ``without`` names histograms to leave out: they take half of the time. Raises MissingContext
    without content, and one of ``damage.UNDECODABLE`` for damaged columns.
    """
    if context is None:
        raise MissingContext
    mode, source, drafts, draft_tokens, accepted, generated, scrapes_ok, scrapes_failed, data = (
        columns
    )
    (
        per_position, prompt_tokens, preemptions, prefix_queries, prefix_hits, mappings, histograms,
        *gauges, server_drafts, source_drafts, observed_seconds, restarts, down_seconds,
    ) = msgspec.structs.astuple(decode(data))  # fmt: skip
    shared = shared_of(context)
    latencies = [
        None if trimmed is None or layout.name in without else layout.dense(trimmed)
        for layout, trimmed in zip(shared.layouts, histograms, strict=True)
    ]
    requests, *of_tap = map(decoded, (*mappings, *_NO_MAPPINGS[len(mappings) :]))
    counted: tuple[Any, ...] = (
        drafts, draft_tokens, accepted, per_position, prompt_tokens, generated, preemptions,
        prefix_queries, prefix_hits, requests, *latencies, *of_tap,
    )  # fmt: skip
    gauges.append(shared.gpu_memory_total)
    return Window(
        series, start, length, MODES[mode], Tally(*counted), Gauges(*gauges), shared.environment,
        SOURCES[source], server_drafts, source_drafts, observed_seconds, scrapes_ok,
        scrapes_failed, restarts, down_seconds,
    )  # fmt: skip


def pack_batch(batch: Batch) -> PackedBatch:
    """Pack the windows of a batch and its cursor. Raises ValueError as :func:`pack` does."""
    cursor = None if batch.cursor is None else pack_cursor(batch.cursor)
    return PackedBatch(tuple(map(pack, batch.windows)), cursor)


@lru_cache(maxsize=8192)
def _series(series: SeriesId) -> SeriesId:
    return SeriesId(
        storable(series.daemon),
        storable(series.target),
        storable(series.model_name),
        storable(series.temperature),
    )


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


def _trimmed(histogram: Histogram) -> tuple[int | float, ...]:
    used = [index for index, count in enumerate(histogram.counts) if count]
    if not used:
        return (short(histogram.sum),)
    first, last = used[0], used[-1]
    return short(histogram.sum), first, *histogram.counts[first : last + 1]
