"""Shares of counts, and how uncertain they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.noise import student


class Share(NamedTuple):
    """A share of ``of`` counts over some minutes (``parts``).

    ``effect`` is how many times the variance is that of independent counts; at least 1.
    """

    value: float
    variance: float
    of: int
    parts: int
    effect: float

    def interval(self) -> Interval | None:
        """The share with its confidence interval; None of too few minutes."""
        if self.parts < LEAST_SAMPLES:
            return None
        away = student((1 + CONFIDENCE) / 2, self.parts - 1) * math.sqrt(self.variance)
        lower, upper = max(self.value - away, 0.0), min(self.value + away, 1.0)
        return Interval(self.value, lower, upper, self.parts)


def share_of(parts: Sequence[tuple[int, int]]) -> Share | None:
    """The share that (count, of all) of each minute have together; None of nothing.

    The variance is that of a ratio over minutes (W. G. Cochran, *Sampling Techniques*, 1977,
    ch. 6.3), at least the binomial one.
    """
    parts = [part for part in parts if part[1]]
    if not parts:
        return None
    count, whole = (sum(column) for column in zip(*parts, strict=True))
    value, number = count / whole, len(parts)
    squares = math.fsum([(part - value * of) ** 2 for part, of in parts])
    spread = squares / whole**2 * number / (number - 1) if number > 1 else 0.0
    binomial = binomial_variance(count, whole)
    effect = max(spread / binomial, 1.0)
    return Share(value, effect * binomial, whole, number, effect)


def binomial_variance(count: int, of: int) -> float:
    """Variance of a share of independent counts; it is never 0, as one of either kind is added."""
    rate = (count + 1) / (of + 2)
    return rate * (1 - rate) / (of + 2)
