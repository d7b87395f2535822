"""Adding up thousands of stored rows without making a window of each.

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
from specwatch.edges.packing import (
    MODES,
    SOURCES,
    HistogramLayout,
    Shared,
    decode_many,
    decoded,
    shared_of,
)
from specwatch.model import (
    HISTOGRAMS,
    HOUR,
    LOAD_BINS,
    MAPPINGS,
    Gauges,
    Histogram,
    SeriesId,
    Tally,
    Window,
)

_Ints = npt.NDArray[np.int64]
_Sum = Callable[[Sequence[Any]], list[Any]]

_COUNTED = attrgetter(
    "accepted_per_position", "prompt_tokens", "preemptions", "prefix_cache_queries",
    "prefix_cache_hits", "mappings", "histograms",
)  # fmt: skip
_SAMPLED = attrgetter(
    "sampled_seconds", "busy_seconds", "running_seconds", "waiting_seconds", "running_max",
    "waiting_max", "kv_cache_usage_max", "gpu_memory_used_max", "server_drafts", "source_drafts",
    "observed_seconds", "restarts",
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
    counts = (drafts, draft_tokens, accepted, generation)
    data = _decoded(blobs)
    (
        sampled, busy, running, waiting, running_max, waiting_max, kv_cache, gpu_used, server, seen,
        observed, restarts,
    ) = zip(*map(_SAMPLED, data), strict=True)  # fmt: skip
    places, group = _places(start, context, mode, busy, running)
    count = len(places)
    total, seconds = _totals(group, count), _seconds(group, count)
    most = _most(group, count)
    contexts = [shared_of(contents[place.context]) for place in places]
    last = dict(zip(group.tolist(), source, strict=True))
    gauges = zip(
        *map(seconds, (sampled, busy, running, waiting)),
        *map(most, (running_max, waiting_max, kv_cache, gpu_used)),
        [shared.gpu_memory_total for shared in contexts],
        strict=True,
    )
    rest = zip(*map(total, (server, seen, good, bad, restarts)), seconds(observed), strict=True)
    tallies = _tallies(counts, data, group, contexts, without)
    for at, (place, shared, tally, sampling, others) in enumerate(
        zip(places, contexts, tallies, gauges, rest, strict=True)
    ):
        of_server, of_source, ok, failed, restarted, watched = others
        made = Window(
            series, place.start, HOUR, MODES[place.mode], tally,
            Gauges(*sampling), shared.environment, SOURCES[last[at]], of_server, of_source,
            watched, ok, failed, restarted,
        )  # fmt: skip
        yield place, made


def sum_rows(
    rows: Sequence[tuple[Any, ...]],
    group: Sequence[int],
    contexts: Sequence[str],
    without: Collection[str] = (),
) -> list[Tally]:
    """What the rows of each group count together.

    A row is the columns of a packed window; ``group`` has the index of the group of each, and
    ``contexts`` the content of the context that the rows of a group share.
    ``without`` names histograms that are not wanted.
    """
    _, _, drafts, draft_tokens, accepted, generation, _, _, blobs = zip(*rows, strict=True)
    counts = (drafts, draft_tokens, accepted, generation)
    shared = [shared_of(content) for content in contexts]
    return list(_tallies(counts, _decoded(blobs), np.array(group), shared, without))


def _decoded(blobs: Sequence[bytes]) -> list[Any]:
    return decode_many(b"\xdd" + len(blobs).to_bytes(4) + b"".join(blobs))


def _tallies(
    counts: Sequence[Sequence[int | None]],
    data: Sequence[Any],
    group: _Ints,
    contexts: Sequence[Shared],
    without: Collection[str],
) -> Iterator[Tally]:
    """Yield the tally of each group; ``counts`` are the four that have columns of their own."""
    drafts, draft_tokens, accepted, generation = counts
    positions, prompts, preemptions, queries, hits, mappings, histograms = zip(
        *map(_COUNTED, data), strict=True
    )
    count = len(contexts)
    total = _totals(group, count)
    for *counted, (requests, records, uncovered), latencies in zip(
        *map(total, (drafts, draft_tokens, accepted)),
        _positions(positions, group, count),
        *map(total, (prompts, generation, preemptions, queries, hits)),
        _mappings(mappings, group, count),
        _histograms(histograms, group, contexts, without),
        strict=True,
    ):
        values = (*counted, requests, *latencies, records, uncovered)
        yield Tally(*values)


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
    columns = (starts - starts % HOUR, np.fromiter(context, np.int64), np.fromiter(mode, int), bins)
    keys = np.stack(columns, axis=1)
    # Neighbours are mostly of one place, so that a comparison with the row before finds most.
    heads = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    found: dict[tuple[int, ...], int] = {}
    runs = [found.setdefault(tuple(key), len(found)) for key in keys[heads].tolist()]
    group = np.repeat(np.array(runs), np.diff(heads, append=len(keys)))
    return [Place(*key) for key in found], group


def _totals(group: _Ints, count: int) -> _Sum:
    """Adds up whole numbers by group; None where none is known."""

    def total(values: Sequence[int | None]) -> list[int | None]:
        if values[0] is not None and (whole := _whole(values, group, count)) is not None:
            return list(whole)
        known = [at for at, value in enumerate(values) if value is not None]
        if not known:
            return [None] * count
        some = group[known]
        sums = _whole([values[at] for at in known], some, count) or []
        present = np.bincount(some, minlength=count).tolist()
        return [each if here else None for each, here in zip(sums, present, strict=True)]

    return total


def _whole(values: Sequence[Any], group: _Ints, count: int) -> list[int] | None:
    """The sums; None where a value is not known."""
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except TypeError:
        return None
    except OverflowError:
        return None if None in values else _large(values, group, count)
    if int(numbers.max()) * len(values) < _EXACT:
        sums = np.bincount(group, weights=numbers, minlength=count)
        return list(map(int, sums.tolist()))
    return _large(values, group, count)


def _large(values: Sequence[int], group: _Ints, count: int) -> list[int]:
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
        if values[0] is None and values.count(None) == len(values):
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
        yield index, Histogram(layout.bounds, tuple(row), sums[index], layout.coarsened)


def _summed_one_by_one(
    packed: Sequence[tuple[int | float, ...]], group: _Ints, layouts: Sequence[HistogramLayout]
) -> Iterator[tuple[int, Histogram]]:
    """The same of numbers that are too large for floats."""
    found: dict[int, Histogram] = {}
    for at, each in zip(group.tolist(), packed, strict=True):
        one = layouts[at].dense(each)
        found[at] = histogram.merge(found[at], one) if at in found else one
    yield from found.items()
