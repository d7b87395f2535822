"""``python -m tests.worlds.tuning``: schedules learned where the best arm depends on the load."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specwatch.domain.model import load_bin, load_bin_label
from specwatch.domain.switchback import LAUNCH
from specwatch.domain.tuning import advice
from tests.worlds.switchback import START, WORLDS, Simulation, World

SPEEDUPS = {LAUNCH: 1.0, "0": 0.9, "2": 1.06}
SLOPES = {"0": 0.3, "2": 0.1}
"""Against the launch at 8 requests, and by log load; 2 draft tokens are best from 5 requests on,
none from 17 on."""
DESIGN = {"tune": "observe", "launch_schedule": ((1, 4),)}


@dataclass
class Truth:
    """The log speedups of a world, times the share of the time, by load bin and arm."""

    world: World
    speedups: Mapping[str, float]
    slopes: Mapping[str, float]

    def __post_init__(self) -> None:
        chance = np.random.default_rng(1)
        times = START + 86400 * chance.random(20_000)
        loads = self.world.load(times, chance.random(20_000))
        labels = np.array([load_bin_label(load_bin(load) or 0) for load in loads])
        logs = {
            arm: math.log(speed) + (self.slopes[arm] + self.world.by_load) * np.log(loads / 8)
            for arm, speed in self.speedups.items()
            if arm != LAUNCH
        }
        self.by_load = {
            load: {LAUNCH: 0.0}
            | {
                arm: float(values[labels == load].sum()) / len(loads)
                for arm, values in logs.items()
            }
            for load in sorted(set(labels.tolist()))
        }
        self.oracle = {load: max(arms, key=arms.__getitem__) for load, arms in self.by_load.items()}

    def gain(self, arms: Mapping[str, str]) -> float:
        """Of a schedule by load, as a logarithm; the launch where it has no arm."""
        return sum(known[arms.get(load, LAUNCH)] for load, known in self.by_load.items())


@dataclass
class Learned:
    """How schedules did, over all runs."""

    exact: float
    """Share of the runs that have the best arm at all loads."""
    near: float
    """Share of the runs within 2 % of the gain of that."""
    oracle: float
    """That gain."""
    gain: float
    """The mean gain at the end."""
    held: float
    """Share of the schedules at the end whose interval has their gain."""
    slower: float
    """Share of the runs that had at any time a load with an arm slower than the launch."""
    changes: float
    """How often the arm of a load was left for another one, in the mean."""


def learned_schedules(simulation: Simulation, truth: Truth, episodes: int) -> Learned:
    """The schedules of all runs, after so many episodes."""
    runs, changes = simulation.runs, 0
    before = [state.tuned for state in simulation.states]
    slower = np.zeros(runs, bool)
    for _, _ in zip(range(episodes), simulation.episodes(), strict=False):
        now = [state.tuned for state in simulation.states]
        for run, (then, arms) in enumerate(zip(before, now, strict=True)):
            changes += sum(then[load] != arms.get(load) for load in then)
            slower[run] |= any(
                truth.by_load.get(load, {}).get(a, 0) < 0 for load, a in arms.items()
            )
        before = now
    gains = np.array([truth.gain(arms) for arms in before])
    best = truth.gain(truth.oracle)
    held = []
    for gain, state, design in zip(gains, simulation.states, simulation.designs, strict=True):
        advised = advice(state, design)
        if advised is not None and advised.gain is not None:
            held.append(advised.gain.lower <= math.exp(gain) <= advised.gain.upper)
    exact = [
        {load: arms.get(load, LAUNCH) for load in truth.oracle} == truth.oracle for arms in before
    ]
    return Learned(
        float(np.mean(exact)),
        float(np.mean(gains > best + math.log(0.98))),
        math.exp(best),
        math.exp(gains.mean()),
        float(np.mean(held)) if held else math.nan,
        float(slower.mean()),
        changes / runs,
    )


def main() -> None:
    """Print a line for each world."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.tuning", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="experiments for each line")
    parser.add_argument("--episodes", type=int, default=300, help="of each experiment")
    parser.add_argument("worlds", nargs="*", help=f"by default all: {', '.join(WORLDS)}")
    asked = parser.parse_args()
    print(f"{asked.runs} experiments of {asked.episodes} episodes, arms: launch, 0 and 2")
    print("world                     learned the  within 2 %  gain of     mean    interval", end="")
    print("  ever slower  arms left")
    print("                          oracle's     of it       the oracle  gain    holds it", end="")
    print("  at a load    a run")
    for name in asked.worlds or WORLDS:
        world = WORLDS[name]
        simulation = Simulation(world, SPEEDUPS, asked.runs, 4, design=DESIGN, slopes=SLOPES)
        known = learned_schedules(simulation, Truth(world, SPEEDUPS, SLOPES), asked.episodes)
        print(
            f"{name:26}{known.exact:11.0%}{known.near:12.0%}{known.oracle:12.3f}{known.gain:9.3f}"
            f"{known.held:12.0%}{known.slower:13.0%}{known.changes:11.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
