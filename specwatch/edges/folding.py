"""Adding up thousands of stored minutes into hours without making a window of each.

The sums are those of :func:`specwatch.core.merge.merge_windows`, to the last digit. Importing this
imports numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, compress, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specwatch.core import histogram
from specwatch.edges import quick
from specwatch.edges.packing import (
    MODES,
    SOURCES,
    HistogramLayout,
    Shared,
    decode_many,
    decoded,
    shared_of,
)
from specwatch.model import HISTOGRAMS, HOUR, LOAD_BINS, MAPPINGS, Histogram, SeriesId, Window

_Ints = npt.NDArray[np.int64]
_Sum = Callable[[Sequence[Any]], list[Any]]

_DATA = attrgetter(
    "accepted_per_position", "prompt_tokens", "preemptions", "prefix_cache_queries",
    "prefix_cache_hits", "mappings", "histograms", "sampled_seconds", "busy_seconds",
    "running_seconds", "waiting_seconds", "running_max", "waiting_max", "kv_cache_usage_max",
    "gpu_memory_used_max", "server_drafts", "source_drafts", "observed_seconds", "restarts",
)  # fmt: skip
_LAST_OF_BINS = np.array([last for _, last in LOAD_BINS if last is not None])
_EXACT = 2**53
"""Up to which sums of whole numbers are exact as floats."""


class Place(NamedTuple):
    """What of a series is one row of the hours; ``load_bin`` is -1 while idle."""

    start: int
    context: int
    mode: int
    load_bin: int


def fold(
    series: SeriesId,
    rows: Sequence[tuple[Any, ...]],
    contents: Mapping[int, str],
    without: Collection[str] = (),
) -> Iterator[tuple[Place, Window]]:
    """Yield the hours that minutes of one series are, as rolling up would build them.

    A row is ``start, series_id, context_id`` and the columns of a packed window; rows come by
    start.
    ``without`` names histograms that are not wanted.
    """
    (
        start, _, context, mode, source, drafts, draft_tokens, accepted, generation, good, bad,
        blobs,
    ) = zip(*rows, strict=True)  # fmt: skip
    size = b"\xdd" + len(blobs).to_bytes(4)
    data = zip(*map(_DATA, decode_many(size + b"".join(blobs))), strict=True)
    (
        positions, prompts, preemptions, queries, hits, mappings, histograms, sampled, busy,
        running, waiting, running_max, waiting_max, kv_cache, gpu_used, server, seen, observed,
        restarts,
    ) = data  # fmt: skip
    places, group = _places(start, context, mode, busy, running)
    count = len(places)
    total, seconds = _totals(group, count), _seconds(group, count)
    most = _most(group, count)
    contexts = [shared_of(contents[place.context]) for place in places]
    last = dict(zip(group.tolist(), source, strict=True))
    tallies = zip(
        *map(total, (drafts, draft_tokens, accepted)),
        _positions(positions, group, count),
        *map(total, (prompts, generation, preemptions, queries, hits)),
        _mappings(mappings, group, count),
        _histograms(histograms, group, contexts, without),
        strict=True,
    )
    gauges = zip(
        *map(seconds, (sampled, busy, running, waiting)),
        *map(most, (running_max, waiting_max, kv_cache, gpu_used)),
        strict=True,
    )
    rest = zip(*map(total, (server, seen, good, bad, restarts)), seconds(observed), strict=True)
    for at, (place, shared, counted, sampling, others) in enumerate(
        zip(places, contexts, tallies, gauges, rest, strict=True)
    ):
        *counts, mapped, latencies = counted
        requests, records, uncovered = mapped
        of_server, of_source, ok, failed, restarted, watched = others
        made = quick.window(
            series, place.start, HOUR, MODES[place.mode],
            quick.tally(*counts, requests, *latencies, records, uncovered),
            quick.gauges(*sampling, shared.gpu_memory_total),
            shared.environment, SOURCES[last[at]], of_server, of_source, watched, ok, failed,
            restarted,
        )  # fmt: skip
        yield place, made


def _places(
    start: Sequence[int],
    context: Sequence[int],
    mode: Sequence[int],
    busy: Sequence[float],
    running: Sequence[float],
) -> tuple[list[Place], _Ints]:
    """The places in the order in which they come, and the index of each row's."""
    starts = np.fromiter(start, np.int64)
    seconds, integral = np.fromiter(busy, float), np.fromiter(running, float)
    mean = np.divide(integral, seconds, out=np.zeros(len(starts)), where=seconds != 0)
    bins = np.where(mean > 0, np.searchsorted(_LAST_OF_BINS, np.rint(mean)), -1)
    found: dict[tuple[int, int, int, int], int] = {}
    keys = zip((starts - starts % HOUR).tolist(), context, mode, bins.tolist(), strict=True)
    group = [found.setdefault(key, len(found)) for key in keys]
    return [Place(*key) for key in found], np.array(group)


def _totals(group: _Ints, count: int) -> _Sum:
    """Adds up whole numbers by group; None where none is known."""

    def total(values: Sequence[int | None]) -> list[int | None]:
        unknown = values.count(None)
        if unknown == len(values):
            return [None] * count
        if not unknown:
            return list(_whole(values, group, count))
        known = [at for at, value in enumerate(values) if value is not None]
        some = group[known]
        sums = _whole([values[at] for at in known], some, count)
        present = np.bincount(some, minlength=count).tolist()
        return [each if here else None for each, here in zip(sums, present, strict=True)]

    return total


def _whole(values: Sequence[Any], group: _Ints, count: int) -> list[int]:
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        numbers = None
    if numbers is not None and int(numbers.max()) * len(values) < _EXACT:
        sums = np.bincount(group, weights=numbers, minlength=count)
        return list(map(int, sums.tolist()))
    exact = [0] * count
    for at, value in zip(group.tolist(), values, strict=True):
        exact[at] += value
    return exact


def _seconds(group: _Ints, count: int) -> _Sum:
    """Adds up floats by group, in their order."""

    def total(values: Sequence[float]) -> list[float]:
        weights = np.fromiter(values, float, len(values))
        return list(np.bincount(group, weights=weights, minlength=count).tolist())

    return total


def _most(group: _Ints, count: int) -> _Sum:
    """The greatest of each group; None where none is known."""
    places = group.tolist()

    def greatest(values: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * count
        if values.count(None) == len(values):
            return found
        for at, value in zip(places, values, strict=True):
            if value is not None and (found[at] is None or value > found[at]):
                found[at] = value
        return found

    return greatest


def _positions(
    values: Sequence[tuple[int, ...] | None], group: _Ints, count: int
) -> list[tuple[int, ...] | None]:
    """Counts by position, as many as the longest of a group has; missing ones are none."""
    total = _totals(group, count)
    if None not in values and len(set(map(len, values))) == 1:  # type: ignore[arg-type]
        return list(zip(*map(total, zip(*values, strict=True)), strict=True)) or [()] * count
    most = _most(group, count)([None if each is None else len(each) for each in values])
    filled = (() if each is None else each for each in values)
    sums = list(map(total, zip_longest(*filled, fillvalue=0)))
    return [
        None if length is None else tuple(column[at] for column in sums[:length])
        for at, length in enumerate(most)
    ]


def _mappings(
    values: Sequence[tuple[dict[int | str, int], ...]], group: _Ints, count: int
) -> list[list[dict[str, int]]]:
    """Counts by key, in storage order."""
    total = _totals(group, count)
    found: list[list[dict[str, int]]] = [[{} for _ in MAPPINGS] for _ in range(count)]
    for field in range(max(map(len, values))):
        column = [row[field] if len(row) > field else {} for row in values]
        shapes = set(map(tuple, column))
        for keys in shapes:
            # All of one shape, as those of a server mostly are, are added up by key.
            rows = None if len(shapes) == 1 else [tuple(each) == keys for each in column]
            alike = column if rows is None else list(compress(column, rows))
            summed = total if rows is None else _totals(group[rows], count)
            sums = map(summed, zip(*(each.values() for each in alike), strict=True))
            for key, of_groups in zip(decoded(dict.fromkeys(keys, 0)), sums, strict=True):
                _add(found, field, key, of_groups, group if rows is None else group[rows])
    return found


def _add(
    found: list[list[dict[str, int]]], field: int, key: str, sums: list[int], group: _Ints
) -> None:
    for at in np.unique(group).tolist():
        counts = found[at][field]
        counts[key] = counts.get(key, 0) + sums[at]


def _histograms(
    values: Sequence[tuple[tuple[int | float, ...] | None, ...]],
    group: _Ints,
    contexts: Sequence[Shared],
    without: Collection[str],
) -> list[list[Histogram | None]]:
    """Histograms in storage order."""
    found: list[list[Histogram | None]] = [[None] * len(HISTOGRAMS) for _ in contexts]
    for at, column in enumerate(zip(*values, strict=True)):
        if HISTOGRAMS[at] in without or column.count(None) == len(column):
            continue
        layouts = [shared.layouts[at] for shared in contexts]
        known = [row for row, packed in enumerate(column) if packed is not None]
        some = group if len(known) == len(column) else group[known]
        for index, merged in _summed([column[row] for row in known], some, layouts):
            found[index][at] = merged
    return found


def _summed(
    packed: Sequence[tuple[int | float, ...]], group: _Ints, layouts: Sequence[HistogramLayout]
) -> Iterator[tuple[int, Histogram]]:
    """Add up histograms: each is its sum, its first bucket in use, and the counts from there."""
    lengths = np.fromiter(map(len, packed), np.int64, len(packed))
    flat = np.fromiter(chain.from_iterable(packed), float, int(lengths.sum()))
    heads = np.cumsum(lengths) - lengths
    used = lengths > 1
    firsts = np.zeros(len(packed), np.int64)
    firsts[used] = flat[heads[used] + 1].astype(np.int64)
    size = max(layout.size for layout in layouts)
    inside = np.arange(len(flat)) - np.repeat(heads, lengths)
    cells = np.repeat(group * size + firsts, lengths) + inside - 2
    counted = inside > 1
    counts = np.bincount(
        cells[counted], weights=flat[counted], minlength=len(layouts) * size
    ).reshape(len(layouts), size)
    if counts.max() >= _EXACT:
        yield from _summed_one_by_one(packed, group, layouts)
        return
    sums = np.bincount(group, weights=flat[heads], minlength=len(layouts)).tolist()
    for index in np.unique(group).tolist():
        layout = layouts[index]
        row = counts[index, : layout.size].astype(np.int64).tolist()
        yield index, quick.histogram(layout.bounds, tuple(row), sums[index], layout.coarsened)


def _summed_one_by_one(
    packed: Sequence[tuple[int | float, ...]], group: _Ints, layouts: Sequence[HistogramLayout]
) -> Iterator[tuple[int, Histogram]]:
    """The same of numbers that are too large for floats."""
    found: dict[int, Histogram] = {}
    for at, each in zip(group.tolist(), packed, strict=True):
        one = layouts[at].dense(each)
        found[at] = histogram.merge(found[at], one) if at in found else one
    yield from found.items()
