"""Limits of quantiles of histograms, ratios of them, and shares beyond a threshold.

A quantile is uncertain because there are few requests, and because it may lie anywhere in its
bucket: comparing two by interpolation alone sees a change where one has just crossed a bound.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specwatch.domain import histogram
from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.model import Histogram

NORMAL = 1.959963984540054
"""The normal quantile of :data:`specwatch.domain.interval.CONFIDENCE`, both tails."""
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL_FROM = 100.0
"""Variance from which a binomial is as good as normal."""
_RESOLUTION = 10**9


class QuantileEstimate(NamedTuple):
    """A quantile and the confidence interval of it, in the unit of the histogram.

    ``value`` is the last bound when the quantile lies beyond it: then ``open_ended`` is true.
    ``upper`` is infinite where the requests are too few, or the histogram ends too early, to tell.
    """

    value: float
    lower: float
    upper: float
    open_ended: bool


def above(observed: Histogram, threshold: float) -> float:
    """How many observations are above a threshold, interpolated linearly inside its bucket.

    The inverse of :func:`specwatch.domain.histogram.quantile`. What lies in the open-ended bucket
    counts as above.
    """
    return _above(observed.counts, *_place(observed.bounds, threshold))


def _place(bounds: Sequence[float], threshold: float) -> tuple[int, float]:
    """The bucket that a threshold falls into, and the share of it that is above."""
    index = bisect.bisect_right(bounds, threshold)
    if index == len(bounds):
        return index, 1.0
    upper = bounds[index]
    lower = min(bounds[index - 1] if index else 0.0, upper)
    share = (upper - max(threshold, lower)) / (upper - lower) if upper > lower else 1.0
    return index, min(share, 1.0)


def _above(counts: Sequence[int], index: int, share: float) -> float:
    return sum(counts[index + 1 :], counts[index] * share)


def estimate(observed: Histogram, q: float, effective: float) -> QuantileEstimate | None:
    """The ``q``-quantile with its confidence interval; None of nothing, or without bounds.

    ``effective`` is how many independent requests the histogram is worth. The limits are those of
    the buckets of two order statistics, whose ranks a binomial gives whatever the distribution is
    (H. A. David, H. N. Nagaraja, *Order Statistics*, 2003, ch. 7.1).
    """
    requests = max(math.floor(effective), 1)
    low, high = _ranks(q, requests)
    values = histogram.quantiles(observed, (q, low / requests, min(high / requests, 1.0)))
    if not values or (value := values[0]).value is None:
        return None
    lower = values[1].lower if low else 0.0
    upper = values[2].upper if high <= requests else math.inf
    return QuantileEstimate(value.value, lower, upper, value.open_ended)


def ratio_of(
    over: Sequence[QuantileEstimate], under: Sequence[QuantileEstimate], samples: int
) -> tuple[Interval, bool] | None:
    """The product of some estimates over that of others, and whether it has no upper limit.

    None if it is undefined: an estimate is 0, or a divisor lies beyond its last bound. The
    limits are those of each estimate, put together on the logarithm as the squares of what they
    are apart (G. Y. Zou, A. Donner, *Construction of confidence limits about effect measures: a
    general approach*, Statistics in Medicine 27, 2008), which takes the estimates as independent.
    """
    if any(estimate.value <= 0 for estimate in (*over, *under)) or any(e.open_ended for e in under):
        return None
    value = math.prod(e.value for e in over) / math.prod(e.value for e in under)
    down = [_apart(e.value, e.lower) for e in over] + [_apart(e.upper, e.value) for e in under]
    up = [_apart(e.upper, e.value) for e in over] + [_apart(e.value, e.lower) for e in under]
    lower = value * math.exp(-math.sqrt(math.fsum(error**2 for error in down)))
    open_ended = math.inf in up or any(e.open_ended for e in over)
    finite = math.sqrt(math.fsum(error**2 for error in up if error < math.inf))
    return Interval(value, lower, value * math.exp(finite), samples), open_ended


def mixture(parts: Iterable[tuple[Histogram, float]]) -> tuple[Histogram, float] | None:
    """Weighted mixture of histograms, and the number of requests that it is worth.

    With weights ``w`` and counts ``n`` the latter is ``sum(w)**2 / sum(w**2 / n)`` (L. Kish,
    *Survey Sampling*, 1965). None of nothing.
    """
    known = [(part, weight) for part, weight in parts if part.count and weight > 0]
    whole = math.fsum(weight for _, weight in known)
    if not known:
        return None
    scaled = [_scaled(part, weight / whole) for part, weight in known]
    mixed = histogram.merge_all(scaled)
    if mixed is None:
        return None
    return mixed, whole**2 / math.fsum(weight**2 / part.count for part, weight in known)


def design_effect(parts: Sequence[Histogram], q: float, value: float) -> float:
    """Number of requests that are worth one, as those of one minute are alike; at least 1.

    The variance of the number above the quantile ``value`` from minute to minute, over that of
    independent requests (L. Kish, *Survey Sampling*, 1965); 1 for too few minutes to tell.
    """
    if len(parts) < LEAST_SAMPLES:
        return 1.0
    share = 1 - q
    places: dict[int, tuple[int, float]] = {}
    whole, squares = 0, []
    for part in parts:
        count, bounds = part.count, part.bounds
        place = places.get(id(bounds)) or places.setdefault(id(bounds), _place(bounds, value))
        squares.append((_above(part.counts, *place) - count * share) ** 2)
        whole += count
    independent = whole * share * q
    if not independent:
        return 1.0
    return max(math.fsum(squares) / independent * len(parts) / (len(parts) - 1), 1.0)


def _ranks(q: float, requests: int) -> tuple[int, int]:
    """Ranks of the order statistics around the quantile: 0 or ``requests + 1`` if none exists."""
    mean, variance = requests * q, requests * q * (1 - q)
    if variance > _NORMAL_FROM:
        away = NORMAL * math.sqrt(variance)
        return max(math.floor(mean - away), 0), min(math.ceil(mean + away) + 1, requests + 1)
    # Counted from the top: how many of the requests are above the quantile.
    probability, below = q**requests, 0.0
    low = high = requests + 1
    for count in range(requests + 1):
        if below <= _TAIL:
            high = requests + 1 - count
        below += probability
        if below >= 1 - _TAIL:
            low = requests - count
            break
        probability *= (requests - count) / (count + 1) * (1 - q) / q
    return min(low, requests), high


def _apart(high: float, low: float) -> float:
    return math.log(high) - math.log(low) if low > 0 else math.inf


def _scaled(observed: Histogram, share: float) -> Histogram:
    factor = share * _RESOLUTION / observed.count
    counts = tuple(map(round, [count * factor for count in observed.counts]))
    return Histogram(observed.bounds, counts, observed.sum * factor, observed.coarsened)
