"""Estimates with their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specwatch.domain.noise import spread_of

LEAST_SAMPLES = 5
"""Windows needed for an interval."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval; ``samples`` is the number of windows behind it."""

    value: float
    lower: float
    upper: float
    samples: int
    confidence: float = CONFIDENCE

    @classmethod
    def around(
        cls, value: float, half: float, samples: int, confidence: float = CONFIDENCE
    ) -> Interval:
        """That with both ends ``half`` away from the value, as a logarithm."""
        return cls(value, value * math.exp(-half), value * math.exp(half), samples, confidence)

    def below(self, line: float) -> bool:
        """Whether the whole interval is below a line."""
        return self.upper < line

    def above(self, line: float) -> bool:
        """Whether the whole interval is above a line."""
        return self.lower > line

    def inverse(self) -> Interval:
        """The interval of the reciprocal."""
        return Interval(
            1 / self.value, 1 / self.upper, 1 / self.lower, self.samples, self.confidence
        )

    def over(self, other: Interval) -> Interval:
        """The quotient of two independent estimates: squares of relative errors add up."""
        value = self.value / other.value
        return Interval(
            value,
            value * math.exp(-math.hypot(self.down, other.up)),
            value * math.exp(math.hypot(self.up, other.down)),
            min(self.samples, other.samples),
            self.confidence,
        )

    @property
    def down(self) -> float:
        """How far the lower end lies below the value, as a logarithm."""
        return math.log(self.value / self.lower) if self.lower > 0 else math.inf

    @property
    def up(self) -> float:
        """How far the upper end lies above the value, as a logarithm."""
        return math.log(self.upper / self.value)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval | None:
    """The sum of ``over`` divided by that of ``under``, over consecutive minutes, which are
    correlated; None with too few of them, or if a sum is 0."""
    spread = spread_of(over, under) if len(over) >= LEAST_SAMPLES else None
    if spread is None:
        return None
    value = math.fsum(over) / math.fsum(under)
    return Interval.around(value, spread.half_width((1 - CONFIDENCE) / 2), len(over))
