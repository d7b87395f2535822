"""Experiments in worlds unlike their assumptions: coverage, limits, washout, learned schedules."""

from __future__ import annotations

import pytest

from specwatch.domain.switchback import LAUNCH
from specwatch.domain.switchback_results import best_arm
from tests.domain.test_switchback_results import settled
from tests.worlds import tuning
from tests.worlds.switchback import WORLDS, Simulation, World, coverage


@pytest.mark.parametrize(
    ("world", "value"),
    [
        ("quiet", 1.3),
        ("tenfold within minutes", 1.0),
        ("noise of 30 %", 0.8),
        ("heavy tails", 1.3),
        ("carry-over of 4 s", 0.8),
        ("speedup by load", 1.3),
        ("speedup drifts", 1.0),
        ("bursts", 0.8),
        ("open loop", 0.8),
        ("everything", 1.3),
    ],
)
def test_95_of_100_intervals_hold_the_truth_after_every_episode(world, value):
    speedups = {"usual": 1.0, "other": value}
    held = coverage(Simulation(WORLDS[world], speedups, 60, seed=4, drops=False), 40)
    assert held.always >= 0.93
    assert held.stopped >= 0.93
    assert held.wrong <= 0.05


def test_four_arms_in_the_worst_world_end_with_the_best_one_within_all_limits():
    speedups = {"usual": 1.0, "standby": 0.8, "k=2": 1.15, "k=4": 1.3}
    simulation = Simulation(WORLDS["everything"], speedups, 3, seed=3)
    for _, _ in zip(range(150), simulation.episodes(), strict=False):
        pass
    chosen = [best_arm(s, d) for s, d in zip(simulation.states, simulation.designs, strict=True)]
    assert chosen == ["k=4"] * 3
    assert [state.dropped["usual"] for state in simulation.states] == [("standby",)] * 3
    assert simulation.most_share <= 1
    assert simulation.most_regret <= 1


def test_the_washout_is_measured():
    """0.5 % of the time per token are left of 0.26 after a few time constants."""
    assert settled(0.0, 0.02, 60) <= 5.0
    assert 7.5 <= settled(4.0, 0.02, 60) <= 17.5
    assert 15.0 <= settled(8.0, 0.02, 60) <= 30.0


def test_in_a_world_whose_best_arm_depends_on_the_load_it_is_found() -> None:
    world = World(by_hours=10, noise=0.05)
    simulation = Simulation(
        world, tuning.SPEEDUPS, 20, 7, design=tuning.DESIGN, slopes=tuning.SLOPES
    )
    truth = tuning.Truth(world, tuning.SPEEDUPS, tuning.SLOPES)
    assert truth.oracle == {"3-4": LAUNCH, "5-8": "2", "9-16": "2", "17-32": "0"}
    known = tuning.learned_schedules(simulation, truth, 150)
    assert known.near >= 0.9
    assert known.slower <= 0.05
    assert known.held >= 0.95
    assert known.changes <= 1.0
