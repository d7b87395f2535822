"""How many draft tokens the simulated target keeps, by temperature."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

_REFERENCE_K = (4, 5)
_CEILING, _STEEPNESS, _MIDPOINT = 0.85, 3.2, 0.934


def acceptance_rate(probability: float, k: int) -> float:
    """Accepted over draft tokens when each of ``k`` tokens is kept with ``probability``."""
    return sum(probability**j for j in range(1, k + 1)) / k


@functools.lru_cache(maxsize=4096)
def _probability_for(rate: float) -> float:
    low, high = 0.0, 1.0
    if rate >= 1.0:
        return 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if sum(acceptance_rate(middle, k) for k in _REFERENCE_K) / len(_REFERENCE_K) < rate:
            low = middle
        else:
            high = middle
    return low if rate > 0 else 0.0


@dataclass(frozen=True, slots=True)
class SimulatedAcceptance:
    """Acceptance rate as a logistic function of the temperature T.

    ``rate(T) = scale * ceiling / (1 + exp(steepness * (T - midpoint)))``. The constants come within
    0.01 of the rates reported by the field: 0.81 at 0, 0.71 at 0.4, 0.52 at 0.8, 0.38 at 1.0. The
    rate is that of 4 to 5 draft tokens; other k follow from the probability per token.
    """

    scale: float = 1.0

    def rate(self, temperature: float, factor: float = 1.0) -> float:
        """Acceptance rate at k of 4 to 5; ``factor`` is a drift on top of ``scale``."""
        exponent = min(700.0, _STEEPNESS * (temperature - _MIDPOINT))
        rate = self.scale * factor * _CEILING / (1.0 + math.exp(exponent))
        return min(1.0, max(0.0, rate))

    def probability(self, temperature: float, factor: float = 1.0) -> float:
        """Probability that one draft token is kept, given that all before it were."""
        return _probability_for(self.rate(temperature, factor))

    def thresholds(self, temperature: float, k: int, factor: float = 1.0) -> tuple[float, ...]:
        """Probability that at least 1, 2, ... ``k`` draft tokens are kept."""
        probability = self.probability(temperature, factor)
        return tuple(probability**j for j in range(1, k + 1))

    def length(self, temperature: float, k: int, factor: float = 1.0) -> float:
        """Mean acceptance length tau: tokens per speculative step, the bonus token included."""
        return 1.0 + sum(self.thresholds(temperature, k, factor))
