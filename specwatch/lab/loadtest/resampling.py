"""Intervals of ratios of sums over requests, or batches of them, by resampling.

Samples are drawn with replacement; the interval is studentized (*bootstrap-t*: B. Efron,
R. Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 12.5), on the logarithm of the ratio,
because it has the right coverage even for few samples, where percentiles are too narrow. It is
never narrower than Student's. The same seed gives the same interval, in any order of the samples.
Samples must be independent; for consecutive minutes, which are not, use
:func:`specwatch.domain.interval.ratio_interval`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.noise import MOST_DOUBT, student

_RESAMPLES = 600
_ROUNDING = 1e-20
_LEAST = 0.25
"""Lowest error of a resample, as a share of that of all samples: a resample without the only
outlier would otherwise have no error."""
_TAIL = (1 - CONFIDENCE) / 2
_ROWS = 50
"""Resamples that are drawn at once, to limit memory."""

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Pair(NamedTuple):
    """Numerator and denominator of one sample."""

    over: float
    under: float


class _Logs(NamedTuple):
    """Logarithms of a ratio and their variances: the first is of all samples, the others are of
    resamples."""

    values: Vector
    variances: Vector


def ratio_interval(pairs: Sequence[Pair], *, seed: int = 0) -> Interval | None:
    """One ratio of sums; None for too few samples, or if a sum is 0."""
    if len(pairs) < LEAST_SAMPLES or min(map(sum, zip(*pairs, strict=True))) <= 0:
        return None
    return _interval(_of_ratio(pairs, f"{seed}"), len(pairs) - 1, len(pairs))


def quotient_interval(over: Sequence[Pair], under: Sequence[Pair]) -> Interval | None:
    """One ratio of sums divided by another, of independent samples; None as in
    :func:`ratio_interval`."""
    ratios = []
    for index, pairs in enumerate((over, under)):
        if len(pairs) < LEAST_SAMPLES or min(map(sum, zip(*pairs, strict=True))) <= 0:
            return None
        ratios.append(_of_ratio(pairs, f"0/{index}"))
    (a, b), counts = ratios, (len(over), len(under))
    own = [float(ratio.variances[0]) for ratio in ratios]
    # B. L. Welch, Biometrika 34, 1947
    parts = sum(v**2 / (count - 1) for v, count in zip(own, counts, strict=True))
    freedom = sum(own) ** 2 / parts if parts else math.inf
    logs = _Logs(a.values - b.values, a.variances + b.variances)
    return _interval(logs, freedom, min(counts))


def paired_interval(over: Sequence[Pair], under: Sequence[Pair]) -> Interval | None:
    """One ratio of sums divided by another, of paired samples, which are resampled together.

    A disturbance of both samples of a pair then has no effect. None for too few pairs, or if a sum
    is 0. Raises ValueError for sequences of different lengths.
    """
    pairs = zip(over, under, strict=True)
    rows = sorted((*a, *b) for a, b in pairs if min(*a, *b) > 0)
    if len(rows) < LEAST_SAMPLES:
        return None
    columns = np.array(rows, np.float64)
    weights = _weights("0", len(rows))
    sums = weights @ columns
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    apart = (columns[None, :, :] * (signs / sums)[:, None, :]).sum(axis=2)
    values = np.log(sums[:, 0] / sums[:, 1]) - np.log(sums[:, 2] / sums[:, 3])
    logs = _Logs(values, _variances((weights * apart**2).sum(axis=1), len(rows)))
    return _interval(logs, len(rows) - 1, len(rows))


def _of_ratio(pairs: Sequence[Pair], seed: str) -> _Logs:
    # Sorted, so that the order of samples does not matter.
    over, under = np.array(sorted(pairs), np.float64).T
    weights = _weights(seed, len(pairs))
    a, b = weights @ over, weights @ under
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (
            (weights @ over**2) / a**2
            - 2 * (weights @ (over * under)) / (a * b)
            + (weights @ under**2) / b**2
        )
        return _Logs(np.log(a / b), _variances(squares, len(pairs)))


def _variances(squares: Vector, count: int) -> Vector:
    """Variances of logarithms, linearized, from sums of squared deviations."""
    # For equal samples the sums are rounding errors only.
    return np.where(squares > _ROUNDING, squares, 0.0) * count / (count - 1)


def _interval(logs: _Logs, freedom: float, count: int) -> Interval:
    estimate, error = float(logs.values[0]), math.sqrt(logs.variances[0])
    value = math.exp(estimate)
    if error == 0:  # equal samples
        return Interval(value, value, value, count)
    errors = np.maximum(np.sqrt(logs.variances[1:]), _LEAST * error)
    pivots = (logs.values[1:] - estimate) / errors
    low, high = np.quantile(pivots[np.isfinite(pivots)], [_TAIL, 1 - _TAIL])
    least = student(1 - _TAIL, freedom)
    down, up = (min(max(float(limit), least) * error, MOST_DOUBT) for limit in (high, -low))
    return Interval(value, math.exp(estimate - down), math.exp(estimate + up), count)


def _weights(seed: str, count: int) -> Matrix:
    """How often each sample counts: once in the first row, as often as drawn in the others."""
    return np.vstack([np.ones(count), _draw(seed, count)])


@lru_cache(maxsize=16)
def _draw(seed: str, count: int) -> npt.NDArray[np.uint16]:
    """How often each sample was drawn, a row for each resample.

    With Python's generator, as that of numpy may change with its version.
    """
    generator = Random(seed)
    times = np.empty((_RESAMPLES, count), np.uint16)
    for first in range(0, _RESAMPLES, _ROWS):
        drawn = np.frombuffer(generator.randbytes(8 * count * _ROWS), dtype="<u8") % count
        places = np.repeat(np.arange(_ROWS, dtype=np.int64), count) * count + drawn.astype(np.int64)
        counts = np.bincount(places, minlength=_ROWS * count)
        times[first : first + _ROWS] = counts.reshape(_ROWS, count)
    return times
