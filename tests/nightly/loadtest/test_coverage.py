"""Intervals of load tests contain the truth as often as they say, over many runs."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from tests.loadtest.test_closed_loops import even, speedup, unlike
from tests.loadtest.test_probe import share_inside
from tests.loadtest.test_resampling import covered, disturbed


@pytest.mark.parametrize(("batches", "runs"), [(5, 1000), (10, 1000), (30, 500)])
def test_95_of_100_intervals_contain_the_truth(batches: int, runs: int) -> None:
    """However few batches there are."""
    assert 0.93 <= covered(batches, runs) <= 0.97


def test_a_common_disturbance_of_paired_turns_does_not_widen_the_interval() -> None:
    contain, narrower = disturbed(400)
    assert 0.92 <= contain <= 0.98
    assert narrower == 1.0


@pytest.mark.parametrize("seconds", [2.5, 6.0], ids=["short turns", "turns as they should be"])
def test_servers_with_equal_mean_latency_have_a_speedup_of_1(seconds: float) -> None:
    """The mean speedup is 1, and about 95 % of the intervals have 1 in them."""
    results = [speedup(f"{seconds} {time}", seconds, even, unlike) for time in range(80)]
    assert fmean(math.log(one.value) for one in results) == pytest.approx(0.0, abs=0.035)
    covered = sum((one.lower or 9) <= 1 <= (one.upper or 0) for one in results)
    assert covered >= 0.88 * len(results)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_the_interval_of_an_acceptance_covers_the_rate_that_requests_have(chance: float) -> None:
    """In at least nine of ten draws of twenty requests."""
    assert share_inside(chance, 60) >= 0.9
