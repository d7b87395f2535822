"""The interval of a ratio of sums, by resampling its windows and its references.

Windows are drawn with replacement, and so are those of each reference; the interval is studentized
(*bootstrap-t*: B. Efron, R. Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 12.5), on the
logarithm of the ratio, because it stays honest with as few as a handful of windows, where
percentiles are too narrow. It is never narrower than Student's, whatever chance made of the
resamples. The same seed gives the same interval, in whatever order the windows come.

Importing this imports numpy: :mod:`specwatch.core.interval` does so when it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specwatch.core.interval import Interval, Reference

_ROUNDING = 1e-20
_LEAST = 0.25
"""The error of a resample is at least this part of the whole's: one that by chance lacks the only
odd window would otherwise count as infinitely sure."""
_MOST = 50.0
"""How many times e a bound may lie from the estimate: what is wider says nothing either."""

_FEW = 32
"""Samples up to which what was drawn of a reference is kept."""
_ROWS = 50
"""Resamples that are drawn at once: all of them take megabytes for a moment."""

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint16]
Singles = npt.NDArray[np.float32]


class Resampled(NamedTuple):
    """Rates of resamples, and the variances of their logarithms; in single precision, as every
    target keeps some."""

    rates: Singles
    variances: Singles
    whole: float
    """The variance of the logarithm of the rate itself."""


def interval_of(
    rows: Sequence[Sequence[float]],
    sums: Sequence[float],
    references: Sequence[tuple[int, Reference]],
    seed: int,
    confidence: float,
    resamples: int,
) -> Interval | None:
    """As :func:`specwatch.core.interval.interval_of`, of what is known to be enough.

    The references come with the number that keeps apart what is drawn of them.
    """
    parts, under = _in_order(np.array(rows, np.float64), np.array(sums, np.float64))
    count = len(under)
    rates = np.array([each.rate for _, each in references])
    over = parts @ rates
    if over.sum() <= 0:
        return None
    estimate = math.log(over.sum() / under.sum())
    shares = parts.sum(axis=0) * rates / over.sum()
    own = float(_variance(np.ones((1, count)), over, under)[0])
    known = [_resampled(each, seed, at, resamples) for at, each in references]
    variances = [own, *(shares**2 * [each.whole for each in known]).tolist()]
    error = math.sqrt(sum(variances))
    weights = _alone(seed, count, resamples)
    pivots = _pivots(weights, parts, over, under, known, estimate, error)
    if error == 0 or not len(pivots):  # windows that are all alike
        value = math.exp(estimate)
        return Interval(value, value, value, count, confidence)
    tail = (1 - confidence) / 2
    low, high = _quantiles(pivots, tail)
    counts = [count, *(len(each) for _, each in references)]
    least = _student(1 - tail, _freedom(variances, counts))
    down, up = (min(max(x, least) * error, _MOST) for x in (high, -low))
    return Interval(
        math.exp(estimate),
        math.exp(estimate - down),
        math.exp(estimate + up),
        count,
        confidence,
    )


def paired_interval(
    rows: Sequence[tuple[float, float, float, float]],
    seed: int,
    confidence: float,
    resamples: int,
) -> Interval:
    """As :func:`specwatch.core.interval.paired_interval`, of what is known to be enough: each row
    has what is over and under in one ratio, and then in the other."""
    columns = np.array(rows, np.float64)
    count = len(columns)
    estimate, variance = (float(each[0]) for each in _paired(np.ones((1, count)), columns))
    error = math.sqrt(variance)
    if error == 0:
        value = math.exp(estimate)
        return Interval(value, value, value, count, confidence)
    drawn = _alone(seed, count, resamples).astype(np.float64)
    estimates, variances = _paired(drawn, columns)
    pivots = (estimates - estimate) / np.maximum(np.sqrt(variances), _LEAST * error)
    tail = (1 - confidence) / 2
    low, high = _quantiles(pivots, tail)
    least = _student(1 - tail, count - 1)
    down, up = (min(max(x, least) * error, _MOST) for x in (high, -low))
    return Interval(
        math.exp(estimate), math.exp(estimate - down), math.exp(estimate + up), count, confidence
    )


def _paired(weights: Matrix, columns: Matrix) -> tuple[Vector, Vector]:
    """The log of one ratio of weighted sums by another, and its variance, linearized, for each row
    of weights."""
    count = len(columns)
    sums = weights @ columns
    estimates = np.log(sums[:, 0] / sums[:, 1]) - np.log(sums[:, 2] / sums[:, 3])
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    apart = (columns[None, :, :] * (signs / sums)[:, None, :]).sum(axis=2)
    squares = (weights * apart**2).sum(axis=1)
    squares[~(squares > _ROUNDING)] = 0.0
    return estimates, squares * count / (count - 1)


def _resampled(reference: Reference, seed: int, stream: int, resamples: int) -> Resampled:
    """Of samples drawn with replacement; ``stream`` keeps references apart."""
    key = (seed, stream, resamples)
    if key not in reference.resampled:
        over, under = (np.array(each, np.float64) for each in (reference.over, reference.under))
        draw = _draw_few if len(reference) <= _FEW else _draw
        weights = draw(f"{seed}/{stream}", len(reference), resamples).astype(np.float64)
        reference.resampled[key] = Resampled(
            ((weights @ over) / (weights @ under)).astype(np.float32),
            _variance(weights, over, under).astype(np.float32),
            float(_variance(np.ones((1, len(reference))), over, under)[0]),
        )
    return reference.resampled[key]


def _pivots(
    counts: Counts,
    parts: Matrix,
    over: Vector,
    under: Vector,
    known: Sequence[Resampled],
    estimate: float,
    error: float,
) -> Vector:
    """How far resamples lie from the estimate, each in errors of its own."""
    weights = counts.astype(np.float64)
    drawn = np.array([each.rates for each in known]).T
    varied = np.array([each.variances for each in known]).T
    own = _variance(weights, over, under)
    pieces = (weights @ parts) * drawn
    overs, unders = pieces.sum(axis=1), weights @ under
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(own + ((pieces / overs[:, None]) ** 2 * varied).sum(axis=1))
        pivots = (np.log(overs / unders) - estimate) / np.maximum(errors, _LEAST * error)
    return np.asarray(pivots[np.isfinite(pivots)], dtype=np.float64)


def _quantiles(values: Vector, tail: float) -> tuple[float, float]:
    """What so large a share lies below, and above, interpolated between neighbours."""
    ordered = np.sort(values)
    last = len(ordered) - 1
    found = np.interp([tail * last, (1 - tail) * last], np.arange(last + 1), ordered)
    return float(found[0]), float(found[1])


def _freedom(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Degrees of freedom of a sum of variances (B. L. Welch, *Biometrika* 34, 1947)."""
    parts = (v**2 / (count - 1) for v, count in zip(variances, counts, strict=True) if v)
    return float(sum(variances) ** 2 / sum(parts))


def _student(probability: float, freedom: float) -> float:
    """Quantile of Student's t, to a hundredth from 4 degrees of freedom on.

    M. Abramowitz, I. Stegun, *Handbook of Mathematical Functions*, 1964, 26.7.5.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)))


def _in_order(parts: Matrix, under: Vector) -> tuple[Matrix, Vector]:
    """By content, so that the order of windows does not matter."""
    order = np.lexsort([*parts.T, under])
    return parts[order], under[order]


@lru_cache(maxsize=16)
def _alone(seed: int, count: int, resamples: int) -> Counts:
    """How often each of ``count`` windows is drawn: the same for all that have so many."""
    return _draw(f"{seed}", count, resamples)


@lru_cache(maxsize=64)
def _draw_few(seed: str, count: int, resamples: int) -> Counts:
    """As :func:`_draw`, kept."""
    return _draw(seed, count, resamples)


def _draw(seed: str, count: int, resamples: int) -> Counts:
    """How often each sample was drawn, a row for each resample.

    By Python's generator: that of numpy costs seven megabytes, and may change with its version.
    """
    generator = Random(seed)
    found = np.empty((resamples, count), np.uint16)
    for first in range(0, resamples, _ROWS):
        rows = min(_ROWS, resamples - first)
        drawn = np.frombuffer(generator.randbytes(8 * count * rows), dtype="<u8") % count
        places = np.repeat(np.arange(rows, dtype=np.int64), count) * count + drawn.astype(np.int64)
        counts = np.bincount(places, minlength=rows * count)
        found[first : first + rows] = counts.reshape(rows, count)
    return found


def _variance(weights: Matrix, over: Vector, under: Vector) -> Vector:
    """Variance of the log of a ratio of weighted sums, linearized, for each row of weights."""
    count = len(under)
    if count < 2:
        return np.zeros(len(weights))
    a, b = weights @ over, weights @ under
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (
            (weights @ over**2) / a**2
            - 2 * (weights @ (over * under)) / (a * b)
            + (weights @ under**2) / b**2
        )
    # What is left of equal windows is rounding, and would be taken for great certainty.
    squares[~(squares > _ROUNDING)] = 0.0
    return squares * count / (count - 1)
