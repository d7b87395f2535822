"""The speedup of a group of servers that do the same work, and the servers that stand out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.domain.interval import Interval

_APART = 0.1
"""Share by which a server that stands out is faster or slower than the others, at least."""
LEAST_COMPARED = 3
"""Servers, or ranks of one, that have to be measured for one of them to stand out."""


class Member(NamedTuple):
    """One model of a server of a group; ``seconds`` is the work with speculation that its speedup
    is of. ``holdouts`` are the servers that it is compared with at the same time."""

    target: str
    speedup: Interval | None = None
    seconds: float = 0.0
    holdouts: frozenset[str] = frozenset()
    holdout: bool = False
    """Whether it serves without speculation as the baseline of the others."""
    group_size: int = 0
    """Members of its group over all daemons; 0 if that is not known."""
    prefills: bool = False
    """Whether it only prefills: then it is left out."""


class Outlier(NamedTuple):
    """A server that stands out, with its speedup."""

    target: str
    speedup: Interval


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """Whether speculation pays for a group, by the members that this daemon watches.

    ``watched`` and ``measured`` are their numbers, ``members`` is that of the whole group over all
    daemons on the database. ``speedup`` is None if none of them is measured; ``seconds`` is the
    work with speculation that it is of.
    """

    group: str
    model_name: str
    members: int
    watched: int
    measured: int = 0
    speedup: Interval | None = None
    seconds: float = 0.0
    losing: tuple[str, ...] = ()
    """Servers whose whole interval is below 1."""
    outliers: tuple[Outlier, ...] = ()
    holdouts: tuple[str, ...] = ()
    """Servers that serve without speculation as the baseline of the others."""
    prefilling: tuple[str, ...] = ()
    """Servers that only prefill, which are left out of all numbers."""


def verdict_of(group: str, model_name: str, members: Sequence[Member]) -> GroupVerdict:
    """The verdict of a group by those of its members that are watched here, at least one."""
    prefilling = tuple(one.target for one in members if one.prefills)
    known = [one for one in members if one.speedup is not None and one.seconds > 0]
    speedups = {one.target: one.speedup for one in known if one.speedup is not None}
    return GroupVerdict(
        group,
        model_name,
        max(len(members), *(one.group_size for one in members)) - len(prefilling),
        len(members) - len(prefilling),
        len(known),
        _pooled(known),
        math.fsum(one.seconds for one in known),
        tuple(one.target for one in known if one.speedup is not None and one.speedup.below(1)),
        tuple(Outlier(name, speedups[name]) for name in apart(speedups)),
        tuple(one.target for one in members if one.holdout),
        prefilling,
    )


def _pooled(members: Sequence[Member]) -> Interval | None:
    """The time of all their work without speculation over that with it.

    Errors of servers that each have their own baseline are independent, and their squares add up.
    Those that have a holdout in common err alike, and their errors themselves add up.
    """
    whole = math.fsum(one.seconds for one in members)
    known = [(one.seconds / whole, one.speedup, one.holdouts) for one in members if one.speedup]
    if not known:
        return None
    common = len(known) > 1 and any(holdouts for _, _, holdouts in known)
    value = math.fsum(share * speedup.value for share, speedup, _ in known)
    down, up = (
        [share * abs(getattr(speedup, end) - speedup.value) for share, speedup, _ in known]
        for end in ("lower", "upper")
    )
    lower, upper = (sum(down), sum(up)) if common else (math.hypot(*down), math.hypot(*up))
    samples = sum(speedup.samples for _, speedup, _ in known)
    return Interval(value, max(value - lower, 0.0), value + upper, samples)


def apart(known: Mapping[str, Interval]) -> list[str]:
    """Those that differ from the median one by a tenth or more, with intervals that do not meet, by
    value; none of fewer than three."""
    ordered = sorted(known, key=lambda name: known[name].value)
    if len(ordered) < LEAST_COMPARED:
        return []
    middle = known[ordered[len(ordered) // 2]]
    return [
        name
        for name in ordered
        if abs(known[name].value / middle.value - 1) >= _APART
        and (known[name].below(middle.lower) or known[name].above(middle.upper))
    ]
