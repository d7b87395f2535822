"""Noise of minutes that follow one another: its size, its correlation, and intervals despite it.

Minutes are correlated: a bootstrap over single minutes, or Student's interval, covers 70 % in
place of 95 % at a lag-1 correlation of 0.6. Here the variance of a mean is that of an
autoregressive process of order one (G. Box, G. Jenkins, *Time Series Analysis*, 1970, 2.1), whose
parameters come from differences between minutes one, two and three apart (the variogram: J.
von Neumann, *Annals of Mathematical Statistics* 12, 1941), so that a sudden change of the level,
which is what has to be found, is not taken for noise.

Looking every minute, one mistakes chance for a change in the end. :func:`sequential_tail` is the
error of a single look at which looking every minute, at every stretch that ends now, errs once in a
given time (D. Siegmund, E. Venkatraman, *Annals of Statistics* 23, 1995, theorem 1, for the
window-limited generalized likelihood ratio of T. Lai, *IEEE Transactions on Information Theory*
44, 1998).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

_MOST_CORRELATION = 0.95
_UNKNOWN_CORRELATION = 0.3
"""Assumed if there are too few minutes to estimate it."""
MOST_LAG = 3
"""Minutes between values that are compared, at most."""
_ENOUGH = 20
"""Differences from which on a correlation is estimated."""
_MOST_PRIOR = 40.0
"""Degrees of freedom that earlier noise counts for, at most: it may have changed since."""
MOST_DOUBT = 50.0
"""Largest distance of a bound from the estimate, as a logarithm: wider bounds say nothing."""
_ROUNDING = 1e-20


class Noise(NamedTuple):
    """Noise of the logarithm of a ratio, a minute: ``freedom`` says how well it is known."""

    variance: float
    correlation: float
    freedom: float


def noise_of(values: Sequence[float | None]) -> Noise | None:
    """The noise of consecutive values, None where one is missing; None for too few of them."""
    variances = []
    missing = values.count(None)
    for lag in range(1, MOST_LAG + 1):
        pairs: Iterable[Any] = zip(values, values[lag:], strict=False)
        if missing:
            pairs = [pair for pair in pairs if None not in pair]
        steps = [b - a for a, b in pairs]
        if len(steps) < _ENOUGH:
            return None
        variances.append(_typical(sorted([step * step / 2 for step in steps])))
    first, second, third = variances
    if first <= _ROUNDING:
        return Noise(0.0, 0.0, float(len(values)))
    # Of an AR(1): (1 - r^2) / (1 - r) = 1 + r, and (1 - r^3) / (1 - r) = 1 + r + r^2.
    by_second = second / first - 1
    by_third = (math.sqrt(max(4 * third / first - 3, 0.0)) - 1) / 2
    count = len(values) - missing
    correlation = (by_second + by_third) / 2
    correlation += (1 + 3 * max(correlation, 0.0)) / count  # M. Kendall, Biometrika 41, 1954
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    variance = first / (1 - correlation)
    return Noise(variance, correlation, count * (1 - correlation**2) / (1 + correlation**2))


def _typical(squares: Sequence[float]) -> float:
    """The mean of squares of normal values, in ascending order; a few outliers are cut."""
    count, half = len(squares), len(squares) // 2
    median = squares[half] if count % 2 else (squares[half - 1] + squares[half]) / 2
    cut = 9 * median / 0.4549
    kept = bisect_right(squares, cut)
    return math.fsum([*squares[:kept], *[cut] * (count - kept)]) / count


def inflation(count: float, correlation: float) -> float:
    """Variance of a mean of so many correlated values over that of independent ones."""
    if correlation <= 0 or count <= 1:
        return 1.0
    r = correlation
    faded: float = r**count
    return (1 + r) / (1 - r) - 2 * r * (1 - faded) / (count * (1 - r) ** 2)


class Spread(NamedTuple):
    """Variance of the logarithm of a ratio of sums, and the degrees of freedom behind it."""

    variance: float
    freedom: float

    def half_width(self, tail: float) -> float:
        """Distance, as a logarithm, of a bound that is wrong with probability ``tail``."""
        width = student(1 - tail, max(self.freedom, 1.0)) * math.sqrt(self.variance)
        return min(width, MOST_DOUBT)


def spread_of(
    over: Sequence[float],
    under: Sequence[float],
    prior: Noise | None = None,
    strata: Sequence[Hashable] = (),
) -> Spread | None:
    """The spread of ``sum(over) / sum(under)`` of consecutive minutes; None for fewer than two.

    ``prior`` is the noise of earlier minutes: of a few minutes neither the variance nor the
    correlation could be estimated. If ``strata`` has one for each minute, differences between
    strata do not count as noise.
    """
    count = len(over)
    whole, total = math.fsum(over), math.fsum(under)
    if count < 2 or whole <= 0 or total <= 0:
        return None
    paces, groups = _paces(over, under, strata) if strata else ([whole / total] * count, 1)
    apart = [a - b * pace for a, b, pace in zip(over, under, paces, strict=True)]
    left = max(count - groups, 1)
    own = math.fsum([residual * residual for residual in apart]) / left * (count / whole) ** 2
    known = prior
    if known is None:
        # Not of the residuals: weights that change from minute to minute hide the correlation.
        values = [
            a / b - pace if b > 0 else None for a, b, pace in zip(over, under, paces, strict=True)
        ]
        known = noise_of(values) or Noise(own, _UNKNOWN_CORRELATION, 0.0)
    factor = inflation(count, known.correlation)
    # Residuals around a mean of correlated values are smaller than their variance.
    own /= max(1 - (factor - 1) / (count - 1), 1 / count)
    free = left * (1 - known.correlation**2) / (1 + known.correlation**2)
    weight = min(known.freedom, _MOST_PRIOR) if prior else 0.0
    uneven = count * math.fsum([b * b for b in under]) / total**2
    variance = (weight * known.variance * uneven + free * own) / (weight + free)
    if variance <= _ROUNDING:
        return Spread(0.0, weight + free)
    return Spread(variance * factor / count, weight + free)


def _paces(
    over: Sequence[float], under: Sequence[float], strata: Sequence[Hashable]
) -> tuple[list[float], int]:
    """The ratio of the stratum of each minute, and how many strata there are."""
    sums: dict[Hashable, list[float]] = {}
    for a, b, stratum in zip(over, under, strata, strict=True):
        of_stratum = sums.setdefault(stratum, [0.0, 0.0])
        of_stratum[0] += a
        of_stratum[1] += b
    return [sums[of][0] / sums[of][1] for of in strata], len(sums)


@lru_cache(maxsize=64)
def sequential_tail(minutes_between_errors: float) -> float:
    """Error of a single look at which looks at all stretches that end now err so rarely.

    At a threshold z (in standard errors) the mean time to a false alarm of the generalized
    likelihood ratio is sqrt(2 pi) exp(z^2 / 2) / (K z), one-sided; K is the integral of
    x nu(x)^2, about 0.6 for the stretches from five minutes to an hour that are looked at.
    """
    low, high = 2.0, 9.0
    for _ in range(60):
        z = (low + high) / 2
        between = math.sqrt(2 * math.pi) * math.exp(z * z / 2) / (0.6 * z)
        low, high = (z, high) if between < minutes_between_errors else (low, z)
    return 1 - NormalDist().cdf(low)


_normal = lru_cache(maxsize=64)(NormalDist().inv_cdf)


def student(probability: float, freedom: float) -> float:
    """Quantile of Student's t (G. Hill, *Communications of the ACM* 13, 1970, algorithm 396)."""
    tail = 2 * (1 - probability)
    if freedom > 1000:
        return _normal(probability)
    if abs(freedom - 2) < 1e-9:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    if freedom <= 1:
        return 1 / math.tan(tail * math.pi / 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * tail) ** (2 / freedom)
    if y > 0.05 + a:
        x = _normal(tail / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (
                1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
                + 0.5 / (freedom + 4)
            )
            * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
