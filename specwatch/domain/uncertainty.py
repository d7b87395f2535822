"""How uncertain a speedup is: by the noise of its minutes, and by the doubt of the baselines."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from specwatch.domain.cost import Doubt
from specwatch.domain.counterfactual import Timed
from specwatch.domain.interval import CONFIDENCE, Interval
from specwatch.domain.noise import MOST_DOUBT, Spread, student

TAIL = (1 - CONFIDENCE) / 2
"""Error of either bound of an interval."""
_REFERENCE_TAIL = 0.005


class Figures(NamedTuple):
    """A speedup with the uncertainty of its minutes and that of the baselines."""

    value: float
    own: Spread
    reference: Spread
    samples: int

    def interval(self, tail: float) -> Interval:
        """``tail`` is the error of either bound."""
        half = _half_width(self.own, self.reference, tail)
        return Interval.around(self.value, half, self.samples, 1 - 2 * tail)


class NewestDoubt:
    """The doubt of the newest minutes, to which earlier ones are added."""

    def __init__(self) -> None:
        self.doubt, self.count = Doubt(), 0

    def add(self, times: Sequence[Timed]) -> None:
        """Add those of the times that came before the ones that were added."""
        earlier = reversed(times[: len(times) - self.count])
        self.doubt.add([(one.over, one.rests_on) for one in earlier if one.over > 0 < one.under])
        self.count = len(times)


def _half_width(own: Spread, reference: Spread, tail: float) -> float:
    """Half-width of a logarithm. Looking every minute makes errors of the minutes more frequent,
    but not errors of the baseline, which is the same at every look."""
    if tail >= _REFERENCE_TAIL:
        variance = own.variance + reference.variance
        if variance <= 0:
            return 0.0
        freedom = variance**2 / (
            own.variance**2 / max(own.freedom, 1.0)
            + reference.variance**2 / max(reference.freedom, 1.0)
        )  # B. L. Welch, Biometrika 34, 1947
        return min(student(1 - tail, freedom) * math.sqrt(variance), MOST_DOUBT)
    return min(own.half_width(tail) + reference.half_width(_REFERENCE_TAIL), MOST_DOUBT)


def within(values: Sequence[float | None], strata: Sequence[Hashable]) -> list[float | None]:
    """Values less the mean of their stratum: differences between strata do not count as noise."""
    grouped: dict[Hashable, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        if value is not None:
            grouped.setdefault(stratum, []).append(value)
    means = {stratum: math.fsum(group) / len(group) for stratum, group in grouped.items()}
    return [
        None if value is None else value - means[stratum]
        for value, stratum in zip(values, strata, strict=True)
    ]
