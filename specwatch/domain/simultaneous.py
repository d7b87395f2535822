"""How fast a server without speculation was at the very time: the level of a baseline.

A cost model says what work costs at its conditions, fitted to hours or days. What it holds constant
changes: prompts, the clock of the hardware, a neighbour. A holdout of a group serves the same
traffic without speculation at the same time. Its time over that of the cost model, in the minutes
around a minute and at like loads, is the level of that minute. Both servers drift alike, so drift
cancels, as in a paired comparison.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.domain.interval import Interval
from specwatch.domain.model import MINUTE
from specwatch.domain.noise import MOST_LAG, Noise, inflation, noise_of

_NEAR = 2 * MINUTE
"""Seconds before and after the middle of a minute in which those lie that give its level."""
_LEAST = 3
"""Minutes of a holdout that a level needs, at least."""
_LIKE = 1
"""Load bins by which a holdout may be busier, or less busy."""


_NONE = Noise(0.0, 0.0, 0.0)


class Level(NamedTuple):
    """A minute of a holdout with its middle at ``at`` (Unix seconds): the seconds that it took, and
    those that the cost model predicts, for tokens and for first tokens; 0 where not known."""

    at: float
    load_bin: int
    took: float
    expected: float
    first_took: float = 0.0
    first_expected: float = 0.0


class Pace(NamedTuple):
    """The time that a holdout takes over that of another server at the same conditions, while both
    speculated; ``variance`` is of its logarithm."""

    ratio: Interval
    variance: float


class Factors(NamedTuple):
    """Time at a moment over the predicted time; above 1 the server is slower than it says."""

    decoding: float
    first: float


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels in order of time, with the noise of their logarithms, a minute.

    ``variance`` is that of the logarithm of what the holdout takes over what another would take.
    """

    levels: tuple[Level, ...] = ()
    noise: Noise = _NONE
    variance: float = 0.0

    @classmethod
    def of(cls, levels: Iterable[Level], variance: float) -> Levels:
        """Those in any order; none as long as their noise is not known, about 25 minutes."""
        ordered = sorted(levels)
        sums: dict[float, list[float]] = {}
        for level in ordered:
            minute = sums.setdefault(level.at, [0.0, 0.0])
            minute[0] += level.took + level.first_took
            minute[1] += level.expected + level.first_expected
        values: list[float | None] = []
        before = min(sums, default=0.0)
        for middle, (took, expected) in sums.items():
            # As many as keep apart what noise_of compares.
            values += [None] * min(round((middle - before) / MINUTE) - 1, MOST_LAG)
            values.append(math.log(took / expected))
            before = middle
        noise = noise_of(values)
        return cls() if noise is None else cls(tuple(ordered), noise, variance)

    def at(self, middle: float, load_bin: int) -> Factors | None:
        """The level of a minute, or of a block of five, from holdouts at like loads; None if there
        are too few. Times are Unix seconds."""
        near = [
            level
            for level in self._within(middle - _NEAR, middle + _NEAR)
            if abs(level.load_bin - load_bin) <= _LIKE
        ]
        if len(near) < _LEAST:
            return None
        decoding = math.fsum(level.took for level in near)
        decoding /= math.fsum(level.expected for level in near)
        first = math.fsum(level.first_expected for level in near)
        if not first:
            return Factors(decoding, decoding)
        return Factors(decoding, math.fsum(level.first_took for level in near) / first)

    def variance_within(self, since: float, until: float) -> float:
        """Variance of the logarithm of the mean level of minutes in a span."""
        count = len(self._within(since - _NEAR, until + _NEAR))
        if not count:
            return 0.0
        noise = self.noise
        return self.variance + noise.variance * inflation(count, noise.correlation) / count

    def _within(self, since: float, until: float) -> tuple[Level, ...]:
        first = bisect.bisect_left(self.levels, since, key=lambda level: level.at)
        last = bisect.bisect_right(self.levels, until, key=lambda level: level.at)
        return self.levels[first:last]
