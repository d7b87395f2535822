"""Speedups: how often intervals hold, how soon a drop is found, and false alarms."""

from __future__ import annotations

import pytest

from tests.domain.test_speedup import check_stretches, lost_after, share_covered


def test_95_of_100_intervals_contain_the_truth_although_the_baseline_is_short() -> None:
    """Twelve minutes of each: the uncertainty of the baseline counts as much."""
    assert 0.92 <= share_covered(300) <= 0.97


@pytest.mark.parametrize("seed", range(4))
def test_a_sudden_drop_is_found_within_minutes(seed: int) -> None:
    assert (lost_after(0.6, seed) or 99) <= 6
    assert (lost_after(0.85, seed) or 99) <= 15


@pytest.mark.parametrize("seed", [7, 8])
def test_no_stretch_is_certain_where_speculation_changes_nothing(seed: int) -> None:
    """At any of four hours' minutes."""
    check_stretches(seed, range(60, 241, 3))
