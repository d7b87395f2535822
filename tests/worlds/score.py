"""A policy's life in a world, and what it lost against an oracle that always knows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specwatch.model import MINUTE, Mode
from tests.worlds.seen import Policy, Seen
from tests.worlds.trace import Columns, Trace
from tests.worlds.world import World

RESTART_SECONDS = 60.0
"""Without service at each switch, counted as lost."""
MARGIN = 0.02
"""Speculation truly helps, or hurts, where its speedup is so far from 1."""


@dataclass(frozen=True)
class Truth:
    """What is so in each minute.

    ``speedup`` is TPOT without speculation over TPOT with it, each at the load that it leads to,
    over all minutes of the same grain of the period. ``best`` is the GPU time in seconds that a
    minute's traffic takes in the better mode; ``on`` and ``off`` what it takes in these.
    """

    speedup: Columns
    best: Columns
    on: Columns
    off: Columns


def truth_of(world: World, on: Trace, off: Trace) -> Truth:
    """From both traces, averaged over all periods."""
    groups = np.array([world.group(minute) for minute in range(len(on))])
    sums = {
        mode: [np.bincount(groups, each, world.groups) for each in (t.seconds, t.tokens, t.busy)]
        for mode, t in ((Mode.ON, on), (Mode.OFF, off))
    }
    minutes = np.maximum(np.bincount(groups, minlength=world.groups), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = {mode: seconds / tokens for mode, (seconds, tokens, _) in sums.items()}
        speedup = np.nan_to_num(pace[Mode.OFF] / pace[Mode.ON], nan=1.0)
    busy = {mode: columns[2] / minutes for mode, columns in sums.items()}
    best = np.where(speedup >= 1, busy[Mode.ON], busy[Mode.OFF])
    as_on = best * np.maximum(1 / speedup, 1)
    as_off = best * np.maximum(speedup, 1)
    return Truth(speedup[groups], best[groups], as_on[groups], as_off[groups])


@dataclass(frozen=True, slots=True)
class Score:
    """How a policy did. Delays are in minutes, from when speculation hurts to when it is off."""

    world: str
    policy: str
    hours: float
    speedup: tuple[float, float]
    """The least and the greatest true speedup."""
    false_disables: int
    delays: tuple[int, ...]
    missed: int
    """Stretches of hurting that ended before it was off."""
    regret: float
    """GPU time lost, over that of the oracle."""
    switches: int
    share_on: float

    @property
    def false_per_1000_hours(self) -> float:
        """Switched off while speculation truly helped."""
        return 1000 * self.false_disables / self.hours

    @property
    def median_delay(self) -> float | None:
        """None where nothing had to be found."""
        return statistics.median(self.delays) if self.delays else None


@dataclass(frozen=True)
class Life:
    """What a policy did, minute by minute; ``down`` are minutes of restarts."""

    on: Columns
    down: Columns
    deployed: frozenset[int]

    @property
    def switched_off(self) -> list[int]:
        """Minutes at the end of which it was decided to be off."""
        return [
            int(at)
            for at in np.flatnonzero(self.on[:-1] & ~self.on[1:])
            if int(at) + 1 not in self.deployed
        ]


def live(
    world: World,
    policy: Policy,
    on: Trace,
    off: Trace,
    progress: Callable[[int], object] = lambda minutes: None,
) -> Life:
    """Let a policy choose the mode of each minute of a world, speculation being on at first."""
    minutes = len(on)
    modes, down = np.ones(minutes, dtype=bool), np.zeros(minutes, dtype=bool)
    deployed = set()
    now_on = policy.starts_on
    for minute in range(minutes):
        if world.deploys and minute and minute * MINUTE % world.period == 0:
            policy.deployed()
            deployed.add(minute)
            now_on = policy.starts_on
        else:
            down[minute] = minute > 0 and now_on != modes[minute - 1]
        modes[minute] = now_on
        now_on = policy.decide(Seen(minute, on if now_on else off, bool(down[minute])))
        if minute % 60 == 59:
            progress(minute + 1)
    return Life(modes, down, frozenset(deployed))


def score_of(world: World, policy: str, life: Life, truth: Truth) -> Score:
    """What a life was worth."""
    taken = np.where(life.on, truth.on, truth.off) + RESTART_SECONDS * life.down
    helping = truth.speedup > 1 + MARGIN
    delays, missed = _delays(life, truth.speedup < 1 - MARGIN)
    return Score(
        world=world.name,
        policy=policy,
        hours=len(life.on) / 60,
        speedup=(float(truth.speedup.min()), float(truth.speedup.max())),
        false_disables=sum(bool(helping[at]) for at in life.switched_off),
        delays=tuple(delays),
        missed=missed,
        regret=float(taken.sum() / truth.best.sum() - 1),
        switches=int(life.down.sum()),
        share_on=float(life.on.mean()),
    )


def _delays(life: Life, hurting: Columns) -> tuple[list[int], int]:
    """Of each stretch in which speculation hurts, if it is on when the stretch begins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], hurting.astype(int), [0]])))
    delays, missed = [], 0
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if not life.on[begin]:
            continue
        off = np.flatnonzero(~life.on[begin:end])
        if len(off):
            delays.append(int(off[0]))
        elif end < len(hurting):
            missed += 1
    return delays, missed
