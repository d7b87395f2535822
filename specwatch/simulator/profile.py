"""A quantity that changes over time: the rate of a day, or acceptance that drifts."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from specwatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """Piecewise linear factor over virtual seconds; constant before the first and after the last.

    ``points`` are (seconds, factor) in ascending order of seconds. With ``period`` (seconds) the
    profile starts over.
    """

    points: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    period: float | None = None

    def __post_init__(self) -> None:
        times = [time for time, _ in self.points]
        if not times or times != sorted(times) or any(factor < 0 for _, factor in self.points):
            raise ConfigError(
                f"profile {self.points!r}: expected at least one point, times ascending and"
                " factors not negative, for example 0:1,60:0.4"
            )

    def at(self, time: float) -> float:
        """The factor at ``time`` (virtual seconds)."""
        points = self.points
        if len(points) == 1:
            return points[0][1]
        if self.period:
            time %= self.period
        index = bisect.bisect_right(points, (time, float("inf")))
        if index == 0:
            return points[0][1]
        if index == len(points):
            return points[-1][1]
        (before, low), (after, high) = points[index - 1], points[index]
        return low + (high - low) * (time - before) / (after - before)

    @property
    def maximum(self) -> float:
        """The largest factor at any time."""
        return max(factor for _, factor in self.points)


CONSTANT = SimulatedProfile()


def pairs(flag: str, text: str) -> tuple[tuple[float, float], ...]:
    """``0:0.4,0.7:0.6`` as ((0.0, 0.4), (0.7, 0.6)); ConfigError names ``flag``."""
    result = []
    for part in text.split(","):
        left, colon, right = part.partition(":")
        try:
            result.append((float(left), float(right) if colon else 1.0))
        except ValueError:
            raise ConfigError(
                f"{flag}: found {part!r}, expected NUMBER:NUMBER pairs separated by commas,"
                " for example 0:0.4,0.7:0.6"
            ) from None
    return tuple(result)
