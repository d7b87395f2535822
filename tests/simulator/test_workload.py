"""The traffic has the rate, the lengths and the temperatures that were asked for."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.simulator.workload import (
    SimulatedProfile,
    SimulatedTraffic,
    SimulatedWorkload,
    pairs,
)


def arrivals(traffic: SimulatedTraffic, until: float) -> list[float]:
    workload = SimulatedWorkload(traffic, seed=3, longest=4096)
    times = []
    while workload.next_arrival < until:
        times.append(workload.next_arrival)
        workload.arrive()
    return times


def test_arrivals_follow_the_rate() -> None:
    times = arrivals(SimulatedTraffic(rate=5.0), 1000.0)
    assert len(times) == pytest.approx(5000, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    variance = sum((gap - 0.2) ** 2 for gap in gaps) / len(gaps)
    assert math.sqrt(variance) == pytest.approx(0.2, rel=0.06)


def test_arrivals_follow_the_profile_of_the_rate() -> None:
    profile = SimulatedProfile(((0.0, 0.0), (500.0, 0.0), (500.1, 2.0), (600.0, 2.0)))
    times = arrivals(SimulatedTraffic(rate=5.0, rate_profile=profile), 1000.0)
    assert len(times) == pytest.approx(5000, rel=0.06)
    assert min(times) > 500


def test_arrivals_end_where_the_profile_ends_at_nothing() -> None:
    profile = SimulatedProfile(((0.0, 1.0), (10.0, 0.0)))
    workload = SimulatedWorkload(SimulatedTraffic(rate=5.0, rate_profile=profile), 0, 4096)
    while workload.next_arrival < math.inf:
        assert workload.next_arrival < 10.0
        workload.arrive()


def test_lengths_and_temperatures_have_the_distributions_asked_for() -> None:
    traffic = SimulatedTraffic(
        rate=1.0, prompt_tokens=150.0, output_tokens=80.0, temperatures=((0.0, 1.0), (0.7, 3.0))
    )
    workload = SimulatedWorkload(traffic, "x", 4096)
    drawn = [workload.draw() for _ in range(4000)]
    assert sum(request.prompt_tokens for request in drawn) / 4000 == pytest.approx(150, rel=0.06)
    assert sum(request.stop_after or 0 for request in drawn) / 4000 == pytest.approx(80, rel=0.06)
    mix = Counter(request.temperature for request in drawn)
    assert mix[0.7] / 4000 == pytest.approx(0.75, abs=0.03)
    assert set(mix) == {0.0, 0.7}


def test_a_profile_is_linear_between_its_points() -> None:
    profile = SimulatedProfile(pairs("0:1,60:0.4"))
    assert [profile.at(time) for time in (-5.0, 0.0, 30.0, 60.0, 90.0)] == pytest.approx(
        [1.0, 1.0, 0.7, 0.4, 0.4]
    )


@pytest.mark.parametrize("points", [(), ((1.0, 1.0), (0.0, 1.0)), ((0.0, -1.0),)])
def test_a_profile_that_makes_no_sense_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ConfigError, match=r"0:1,60:0\.4"):
        SimulatedProfile(points)


@pytest.mark.parametrize("mix", [(), ((0.0, 0.0),), ((-0.1, 1.0),)])
def test_a_mix_without_weight_is_refused(mix: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ConfigError, match="TEMPERATURE:WEIGHT"):
        SimulatedTraffic(temperatures=mix)
