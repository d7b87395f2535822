"""The loads at which speculation begins and ceases to pay.

Only a level whose whole interval lies beyond 1 shows that something changes: values on both sides
of it may be noise. And it is a load from which on it stays so, not one of several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specwatch.domain.experiments import ComparedLevel, Estimate

_Point = tuple[float, Estimate]


def falling(levels: Sequence[ComparedLevel]) -> float | None:
    """The load at which the speedup falls to 1 for good, between two measured ones on the
    logarithm: all later ones are below, at least one of them surely."""
    points = _points(levels)
    index = max((i for i, (_, speedup) in enumerate(points) if speedup.value >= 1), default=None)
    if index is None or not any(_loses(speedup) for _, speedup in points[index + 1 :]):
        return None
    return _between(*points[index : index + 2])


def rising(levels: Sequence[ComparedLevel]) -> float | None:
    """The load at which it rises to 1: all earlier ones are below, one of them surely, and all
    later ones are not, one of them surely."""
    points = _points(levels)
    index = next((i for i, (_, speedup) in enumerate(points) if speedup.value >= 1), 0)
    before, after = points[:index], points[index:]
    if not any(_loses(speedup) for _, speedup in before) or any(
        speedup.value < 1 for _, speedup in after
    ):
        return None
    if not any(speedup.lower is not None and speedup.lower > 1 for _, speedup in after):
        return None
    return _between(*points[index - 1 : index + 1])


def _points(levels: Sequence[ComparedLevel]) -> list[_Point]:
    known = [
        (float(level.concurrency or level.rate or 0), level.speedup)
        for level in levels
        if level.speedup is not None and level.speedup.value > 0
    ]
    return sorted(known, key=lambda point: point[0])


def _loses(speedup: Estimate) -> bool:
    return speedup.upper is not None and speedup.upper < 1


def _between(one: _Point, other: _Point) -> float:
    (low, first), (high, second) = one, other
    share = math.log(first.value) / (math.log(first.value) - math.log(second.value))
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
