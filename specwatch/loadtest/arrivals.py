"""When requests come that know nothing of each other."""

from __future__ import annotations

import random


def poisson(rate: float, seconds: float, seed: str | int) -> tuple[float, ...]:
    """Arrivals of a Poisson process with a mean of ``rate`` a second, in seconds from its start.

    The same for the same seed; a longer one begins with all of a shorter one.
    """
    generator, found, at = random.Random(seed), [], 0.0
    while (at := at + generator.expovariate(rate)) < seconds:
        found.append(at)
    return tuple(found)
