"""The level of a holdout, and its noise from one minute to the next."""

from __future__ import annotations

import math
import random

import pytest

from specwatch.domain.model import MINUTE
from specwatch.domain.simultaneous import Level, Levels


def levels(gap: float) -> list[Level]:
    """25 runs of four minutes with independent noise, each followed by a gap; every other one
    takes twice as long."""
    chance = random.Random(1)
    made, at = [], 0.0
    for number in range(100):
        noise = math.exp(chance.gauss(0, 0.05))
        made.append(Level(at, 2, noise * 2.0 ** (number // 4 % 2), 1.0))
        at += gap if number % 4 == 3 else MINUTE
    return made


def test_the_noise_is_that_of_minutes_in_succession() -> None:
    """Changes while the holdout was not watched are not noise."""
    with_gaps = Levels.of(levels(10.0 * MINUTE), 0.0).noise
    without = Levels.of(levels(float(MINUTE)), 0.0).noise
    assert without.variance > 0.05
    assert with_gaps.variance == pytest.approx(0.05**2, rel=0.5)
