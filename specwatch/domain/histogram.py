"""Merging histograms and taking quantiles of them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

from specwatch.domain.model import Histogram

_WIDE = 1.2
"""Largest ratio of a bucket's bounds at which a value interpolated between them is precise."""


class Quantile(NamedTuple):
    """A quantile read off a histogram.

    When it falls into the open-ended bucket, ``open_ended`` is true and ``value`` is the last
    finite bound: the real quantile is greater. ``value`` is None when there is no bound at all.
    Else it is interpolated: the real one is anywhere from ``lower`` to ``upper``, the bounds of its
    bucket.
    """

    value: float | None
    open_ended: bool
    lower: float = 0.0
    upper: float = math.inf


def wide(lower: float, upper: float) -> bool:
    """Whether a bucket is so wide that a quantile interpolated in it cannot be compared."""
    return upper > _WIDE * lower


def merge(first: Histogram, second: Histogram) -> Histogram:
    """Add two histograms.

    With unlike bounds the result has the bounds that both share, which keeps every count exact,
    and is marked ``coarsened``. The operation is commutative and associative (counts exactly,
    sums up to floating-point rounding).
    """
    if first.bounds == second.bounds:
        counts = tuple(map(int.__add__, first.counts, second.counts))
        coarse = first.coarsened or second.coarsened
        return Histogram(first.bounds, counts, first.sum + second.sum, coarse)
    shared = tuple(sorted(set(first.bounds) & set(second.bounds)))
    return merge(_coarsen(first, shared), _coarsen(second, shared))


def merge_all(histograms: Iterable[Histogram]) -> Histogram | None:
    """Add any number of histograms; None of none."""
    parts = list(histograms)
    if len(parts) < 2:
        return parts[0] if parts else None
    bounds = parts[0].bounds
    # Mostly they are the same object, and comparing identity is faster.
    if any(part.bounds is not bounds and part.bounds != bounds for part in parts):
        return reduce(merge, parts)
    counts = tuple(map(sum, zip(*[part.counts for part in parts], strict=True)))
    coarse = any(part.coarsened for part in parts)
    return Histogram(bounds, counts, sum(part.sum for part in parts), coarse)


def _coarsen(histogram: Histogram, bounds: tuple[float, ...]) -> Histogram:
    counts = [0] * (len(bounds) + 1)
    uppers = (*histogram.bounds, math.inf)
    for upper, count in zip(uppers, histogram.counts, strict=True):
        counts[bisect.bisect_left(bounds, upper)] += count
    return Histogram(bounds, tuple(counts), histogram.sum, coarsened=True)


def quantile(histogram: Histogram, q: float) -> Quantile | None:
    """The ``q``-quantile (0..1), interpolated linearly inside its bucket; None of no observations.

    The same estimate as Prometheus's ``histogram_quantile``: the lowest bucket starts at 0 when
    its bound is positive.
    """
    values = quantiles(histogram, (q,))
    return values[0] if values else None


def quantiles(histogram: Histogram, qs: Sequence[float]) -> list[Quantile]:
    """Several quantiles of one histogram, as :func:`quantile`; an empty list of no observations."""
    cumulative = list(itertools.accumulate(histogram.counts))
    total = cumulative[-1] if cumulative else 0
    return [_at(histogram, cumulative, q * total) for q in qs] if total else []


def _at(histogram: Histogram, cumulative: Sequence[int], rank: float) -> Quantile:
    # The bucket that holds the observation of that rank; the first that is not empty for rank 0.
    index = bisect.bisect_left(cumulative, rank) if rank > 0 else bisect.bisect(cumulative, 0)
    bounds = histogram.bounds
    if index == len(bounds):
        last = bounds[-1] if bounds else None
        return Quantile(last, True, last or 0.0)
    upper = bounds[index]
    if index:
        lower, below = bounds[index - 1], cumulative[index - 1]
    elif upper > 0:
        lower, below = 0.0, 0
    else:
        return Quantile(upper, False, upper, upper)
    inside = max(rank - below, 0.0) / histogram.counts[index]
    return Quantile(lower + (upper - lower) * inside, False, lower, upper)


def mean(histogram: Histogram) -> float | None:
    """Mean of the observations; None of none."""
    return histogram.sum / histogram.count if histogram.count else None


def from_cumulative(buckets: Mapping[float, float], total: float) -> Histogram | None:
    """Build a histogram from cumulative counts by upper bound, as a page has them.

    ``buckets`` may include ``+Inf``; ``total`` is the exposed sum. Returns None when the counts
    are not a histogram (falling, or not whole numbers), which is what a page caught in the middle
    of an update looks like.
    """
    bounds = sorted(buckets)
    if not bounds or bounds[-1] != math.inf or any(map(math.isnan, bounds)):
        return None
    cumulative = [0.0, *(float(buckets[bound]) for bound in bounds)]
    counts = [after - before for before, after in itertools.pairwise(cumulative)]
    if any(not (count >= 0 and count.is_integer()) for count in counts):
        return None
    return Histogram(_shared(tuple(bounds[:-1])), tuple(map(int, counts)), total)


@lru_cache(maxsize=1024)
def _shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One object for all equal bounds, which saves memory for fleets."""
    return bounds
