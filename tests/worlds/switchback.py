"""``python -m tests.worlds.switchback``: experiments on live traffic in worlds of known truth.

The worlds do not share the assumptions of :mod:`specwatch.domain.switchback_results`. The truth
of an episode is what its arms would have shown, had each been in force throughout. Many
experiments are simulated at once, second by second.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    ArmBlock,
    Episode,
    SubInterval,
    SwitchbackDesign,
    new_state,
)
from specwatch.domain.switchback_results import best_arm, observe, speedup, washout_of
from specwatch.domain.switchback_schedule import next_step
from specwatch.domain.tuning import learned

Numbers = npt.NDArray[np.float64]
START = 1_795_003_200.0
LEAD_IN, SCRAPE, MOST_LATE = 60, 5, 3
"""Seconds that are simulated before an episode, between scrapes, and by which a switch is late."""
PACE, CROWDING, REQUEST = 0.03, 0.03, 200
"""Seconds per token of one request alone, growth for each other one, and tokens of a request."""


@dataclass(frozen=True)
class World:
    """How traffic and pace change. Standard deviations are of the logarithm."""

    by_hours: float = 1.0
    """Load at the busiest time of day over that at the quietest."""
    by_minutes: float = 1.0
    """The same of loads that last for two minutes in the mean."""
    noise: float = 0.1
    """Of the pace; correlation 0.6 from one minute to the next."""
    tails: float = 0.0
    """Scale of errors of whole blocks, of Student's t with 2.5 degrees of freedom."""
    stalls: float = 0.0
    """Probability that a block is slower by a factor of a Pareto distribution (exponent 1.5)."""
    carry_over: float = 0.0
    """Seconds in which the difference from the arm before fades to 37 %."""
    by_load: float = 0.0
    """Change of the log speedup for each unit of log load."""
    drift: float = 0.0
    """Of the log speedup between episodes, with correlation 0.6 from one to the next."""
    open_loop: bool = False
    """Requests arrive whether others are done or not, so that a slow arm has more running."""
    bursts: bool = False
    """Traffic is on for 20 s and off for 10 s in the mean."""

    def load(self, times: Numbers, chance: Numbers) -> Numbers:
        """Running requests at Unix times, and with chances from 0 to 1, while traffic is on."""
        by_hours = self.by_hours ** (0.5 * np.sin(times * 2 * math.pi / 86400))
        return 8 * by_hours * self.by_minutes ** (chance - 0.5)


WORLDS: Mapping[str, World] = {
    "quiet": World(),
    "tenfold within hours": World(by_hours=10),
    "tenfold within minutes": World(by_hours=10, by_minutes=10),
    "noise of 30 %": World(noise=0.3),
    "heavy tails": World(tails=0.15, stalls=0.05),
    "carry-over of 4 s": World(carry_over=4.0),
    "speedup by load": World(by_hours=10, by_load=0.1),
    "speedup drifts": World(drift=0.15),
    "bursts": World(by_minutes=3, bursts=True),
    "open loop": World(by_hours=10, by_minutes=2, open_loop=True),
    "everything": World(10, 5, 0.2, 0.08, 0.02, 4.0, 0.05, 0.05, True),
}


@dataclass
class Simulation:
    """So many experiments of one design in a world, episode by episode."""

    world: World
    speedups: Mapping[str, float]
    """By arm; the first is the usual one, of speedup 1."""
    runs: int
    seed: int
    drops: bool = True
    """Whether arms may be dropped."""
    design: Mapping[str, Any] = field(default_factory=dict)
    slopes: Mapping[str, float] = field(default_factory=dict)
    """By arm the change of its log speedup for each unit of log load, above that of the world."""
    most_share: float = 0.0
    """Largest time in other arms at any moment, over what the design allows; then that of the
    true regret."""
    most_regret: float = 0.0

    def __post_init__(self) -> None:
        self.arms = tuple(self.speedups)
        self.chance = np.random.default_rng(self.seed)
        self.designs = [
            SwitchbackDesign(arms=self.arms, usual=self.arms[0], seed=run, **self.design)
            for run in range(1000 * self.seed, 1000 * self.seed + self.runs)
        ]
        self.states = [new_state(design, "", START) for design in self.designs]
        self.block = round(self.designs[0].block)
        self.other, self.lost = np.zeros(self.runs), np.zeros(self.runs)
        self.drifts = np.zeros((self.runs, len(self.arms)))
        self.truths: list[list[Numbers]] = [[] for _ in range(self.runs)]
        """Of each counted episode the log speedups of all arms against the usual one."""

    def episodes(self) -> Iterator[None]:
        """Runs one more episode in all that go on, each time."""
        while True:
            orders, starts = {}, np.full(self.runs, START)
            for run in range(self.runs):
                until = self.states[run].counted
                for _ in range(100):
                    step = self.step(run, until)
                    if step.state.order:
                        orders[run], starts[run] = step.state.order, until
                        break
                    until = step.until
            if not orders:
                return
            self.simulate(orders, starts)
            yield

    def step(self, run: int, now: float):
        """The product's step; beside it the time and the loss are counted here."""
        state, speeds = self.states[run], self.speedups
        elapsed = now - state.counted
        if state.arm != self.arms[0]:
            self.other[run] += elapsed
            self.lost[run] += elapsed * (1 - speeds[state.arm] / max(speeds.values()))
        step = next_step(state, self.designs[run], now)
        if now > START:
            design = self.designs[run]
            share = self.other[run] / (now - START) / design.share
            self.most_share = max(self.most_share, share)
            self.most_regret = max(self.most_regret, self.lost[run] / (now - START) / design.regret)
        self.states[run] = step.state
        return step

    def simulate(self, orders: dict[int, tuple[str, ...]], starts: Numbers) -> None:
        """One episode in all runs at once."""
        count, block = len(self.arms), self.block
        length = LEAD_IN + count * block + MOST_LATE + 1
        late = self.chance.integers(0, MOST_LATE + 1, (self.runs, count + 1))
        late[:, 0] = 0
        switches = LEAD_IN + block * np.arange(count + 1) + late
        chosen = np.zeros((self.runs, length), dtype=int)
        for run, order in orders.items():
            for number, arm in enumerate(order):
                chosen[run, switches[run, number] : switches[run, number + 1]] = self.arms.index(
                    arm
                )
        throughout = [np.full_like(chosen, arm) for arm in range(count)]
        seconds, tokens = self.serve(np.stack([chosen, *throughout]), starts)
        before = ((0, 0), (0, 0), (1, 0))
        sums = np.stack([np.pad(counts.cumsum(2), before) for counts in (seconds, tokens)])
        ends = LEAD_IN + block * np.arange(count + 1)
        true = np.diff(sums[:, 1:][..., ends], axis=3)
        with np.errstate(invalid="ignore", divide="ignore"):
            paces = np.log(true[0] / true[1])  # not a number without traffic
        for run, order in orders.items():
            state, blocks = self.states[run], []
            counts = sums[:, 0, run].tolist()
            for number, arm in enumerate(order):
                first, last = switches[run, number], switches[run, number + 1]
                edges = [*range(first, last - 1, SCRAPE), last]
                parts = [
                    SubInterval(
                        float(b - first),
                        {ALL_TRAFFIC: (counts[0][b] - counts[0][a], counts[1][b] - counts[1][a])},
                    )
                    for a, b in pairwise(edges)
                ]
                running = (counts[0][last] - counts[0][first]) / (last - first)
                blocks.append(ArmBlock(arm, running, parts))
                now = starts[run] + float(last - LEAD_IN)
                step = self.step(run, now)
            assert step.finished
            assert step.arm == self.arms[0]
            episode = Episode(self.arms[0], tuple(blocks))
            after = observe(self.states[run], self.designs[run], episode)
            after = learned(after, self.designs[run])
            self.states[run] = after if self.drops else replace(after, dropped={})
            if after.episodes > state.episodes:
                used = paces[:, run, : len(order)]
                used = used[:, np.isfinite(used).all(axis=0)]
                self.truths[run].append((used[0] - used).mean(axis=1))

    def serve(self, chosen: npt.NDArray[np.int64], starts: Numbers) -> tuple[Numbers, Numbers]:
        """Seconds of decoding and tokens in each second, for each choice of arms and each run."""
        world, chance = self.world, self.chance
        _, runs, length = chosen.shape
        times = starts[:, None] + np.arange(length)
        load = world.load(times, held(chance, runs, length, 120))
        if world.bursts:
            load *= held(chance, runs, length, 10) < 2 / 3
        noise = world.noise * correlated(chance, 0.6 ** (1 / 60), runs, length)
        # Of whole blocks.
        blocks = chance.standard_t(2.5, (runs, length // self.block + 1)) * world.tails
        stalled = chance.random(blocks.shape) < world.stalls
        blocks += stalled * chance.exponential(1 / 1.5, blocks.shape)
        noise += np.repeat(blocks, self.block, axis=1)[:, :length]
        self.drifts = 0.6 * self.drifts + 0.8 * world.drift * chance.normal(size=self.drifts.shape)
        self.drifts[:, 0] = 0
        slopes = np.array(
            [0.0] + [world.by_load + self.slopes.get(arm, 0.0) for arm in self.arms[1:]]
        )
        speeds = np.log(list(self.speedups.values())) + self.drifts
        row = np.arange(runs)[None, :]
        faded = math.exp(-1 / world.carry_over) if world.carry_over else 0.0
        running = np.tile(load[:, 0], (len(chosen), 1))
        speed = speeds[row, chosen[:, :, 0]]
        slope = slopes[chosen[:, :, 0]]
        seconds, tokens = np.empty(chosen.shape), np.empty(chosen.shape)
        for n in range(length):
            arm = chosen[:, :, n]
            speed = faded * speed + (1 - faded) * speeds[row, arm]
            slope = faded * slope + (1 - faded) * slopes[arm]
            if not world.open_loop:
                running = np.broadcast_to(load[:, n], running.shape)
            shift = slope * np.log(np.maximum(load[:, n], 0.1) / 8)
            pace = PACE * (1 + CROWDING * running) * np.exp(noise[:, n] - speed - shift)
            seconds[:, :, n], tokens[:, :, n] = running, running / pace
            if world.open_loop:
                # So that the usual arm has this load in the end.
                arriving = load[:, n] / (REQUEST * PACE * (1 + CROWDING * load[:, n]))
                leaving = np.minimum(running / (REQUEST * pace), running)
                running = np.minimum(running + arriving - leaving, 200)
        return seconds, tokens


def held(chance: np.random.Generator, runs: int, length: int, mean: float) -> Numbers:
    """Uniform values that stay for an exponential time."""
    changes = chance.random((runs, length)) < 1 / mean
    values = chance.random((runs, length))
    last = np.maximum.accumulate(np.where(changes, np.arange(length), 0), axis=1)
    return np.take_along_axis(values, last, axis=1)


def correlated(chance: np.random.Generator, lag: float, runs: int, length: int) -> Numbers:
    """Normal values of variance 1 with so much correlation from one second to the next."""
    fresh = chance.normal(size=(length, runs))
    fresh[1:] *= math.sqrt(1 - lag**2)
    for n in range(1, length):
        fresh[n] += lag * fresh[n - 1]
    return fresh.T


@dataclass
class Coverage:
    """How an interval did, over all runs."""

    always: float
    """Share of the runs whose interval held the truth after each episode."""
    stopped: float
    """The same when it first excluded 1, or at the end."""
    recognised: Numbers
    """Episodes, and hours, until it excluded 1 on the right side; infinite where it did not."""
    wrong: float
    """Share of the runs in which it ever excluded 1 on the side on which the truth was not."""
    width: float
    """Mean half-width at the end, as a logarithm."""
    washout: float
    """Mean at the end, in seconds."""


def coverage(simulation: Simulation, episodes: int) -> Coverage:
    """Of the second arm's speedup against the first."""
    usual, arm = simulation.arms
    nominal, runs = simulation.speedups[arm], simulation.runs
    always, stopped = np.ones(runs, bool), np.zeros(runs, bool)
    decided, wrong = np.zeros(runs, bool), np.zeros(runs, bool)
    recognised = np.full((2, runs), math.inf)
    for _, _ in zip(range(episodes), simulation.episodes(), strict=False):
        for run, truths in enumerate(simulation.truths):
            interval = speedup(simulation.states[run], arm, usual)
            if interval is None:
                continue
            true = math.exp(np.mean(truths, axis=0)[1])
            holds = interval.lower <= true <= interval.upper
            always[run] &= holds
            if not decided[run]:
                stopped[run] = holds
            decided[run] |= interval.above(1.0) or interval.below(1.0)
            wrong[run] |= interval.above(1.0) and true < 1 + 1e-6
            wrong[run] |= interval.below(1.0) and true > 1 - 1e-6
            if interval.above(1.0) if nominal > 1 else interval.below(1.0):
                hours = (simulation.states[run].counted - START) / 3600
                recognised[:, run] = np.minimum(recognised[:, run], (interval.samples, hours))
    intervals = [speedup(state, arm, usual) for state in simulation.states]
    washouts = map(washout_of, simulation.states, simulation.designs)
    return Coverage(
        float(always.mean()),
        float(stopped.mean()),
        recognised,
        float(wrong.mean()),
        float(np.mean([i.up for i in intervals if i is not None])),
        float(np.mean([*washouts])),
    )


def print_coverage(worlds: Mapping[str, World], runs: int, episodes: int) -> None:
    """One line for each world and speedup."""
    print(
        f"{runs} experiments of {episodes} episodes, two arms; 95 % intervals that hold the truth"
    )
    print("world                     speedup  always  at stop  wrong  width  washout", end="")
    print("  episodes (hours) until recognised: median, 90 %")
    for name, world in worlds.items():
        for value in (0.8, 0.9, 1.0, 1.3):
            simulation = Simulation(world, {"usual": 1.0, "other": value}, runs, 1, drops=False)
            c = coverage(simulation, episodes)
            ends = np.quantile(c.recognised, (0.5, 0.9), axis=1, method="higher")
            until = ", ".join(f"{count:4.0f} ({hours:5.1f})" for count, hours in ends)
            print(
                f"{name:26}{value:7.1f}{c.always:8.1%}{c.stopped:9.1%}{c.wrong:7.1%}{c.width:7.3f}"
                f"{c.washout:7.1f} s  {until if value != 1 else '-'}",
                flush=True,
            )


def print_choices(worlds: Mapping[str, World], runs: int, episodes: int) -> None:
    """Four arms, of which those that lose are dropped."""
    print(f"\n{runs} experiments of at most {episodes} episodes, four arms")
    print("world                     largest share  largest regret  chosen    gain below the best")
    print("                          (1: as allowed at that moment) the best  mean    largest")
    speedups = {"usual": 1.0, "standby": 0.8, "k=2": 1.15, "k=4": 1.3}
    for name, world in worlds.items():
        simulation = Simulation(world, speedups, runs, 3)
        for _, _ in zip(range(episodes), simulation.episodes(), strict=False):
            pass
        choices = map(best_arm, simulation.states, simulation.designs)
        gains = np.array([1 - speedups[arm] / 1.3 for arm in choices])
        print(
            f"{name:26}{simulation.most_share:13.3f}{simulation.most_regret:16.3f}"
            f"{np.mean(gains == 0):10.0%}{gains.mean():9.1%}{gains.max():11.1%}",
            flush=True,
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.switchback", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="experiments for each line")
    parser.add_argument("--episodes", type=int, default=150, help="of each experiment")
    parser.add_argument("worlds", nargs="*", help=f"by default all: {', '.join(WORLDS)}")
    asked = parser.parse_args()
    worlds = {name: WORLDS[name] for name in asked.worlds or WORLDS}
    print_coverage(worlds, asked.runs, asked.episodes)
    print_choices(worlds, asked.runs // 10, 2 * asked.episodes)


if __name__ == "__main__":
    main()
