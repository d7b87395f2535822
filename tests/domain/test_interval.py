"""Intervals, and those of ratios over minutes that follow one another."""

from __future__ import annotations

import numpy as np
import pytest

from specwatch.domain.interval import Interval, ratio_interval

TRUTH = 0.8


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_an_hour_of_correlated_minutes_holds_the_truth_as_often_as_it_says(correlation):
    """A bootstrap over single minutes does so in 68 of 100 hours."""
    generator = np.random.default_rng(3)
    runs, missed = 400, 0
    for _ in range(runs):
        noise = [generator.normal()]
        for step in generator.normal(0, np.sqrt(1 - correlation**2), 59):
            noise.append(correlation * noise[-1] + step)
        tokens = generator.uniform(500, 1500, 60)
        seconds = tokens * np.exp(0.1 * np.array(noise) - 0.005) / TRUTH
        interval = ratio_interval(tokens.tolist(), seconds.tolist())
        assert interval is not None
        missed += interval.below(TRUTH) or interval.above(TRUTH)
    assert 0.92 <= 1 - missed / runs <= 0.99


def test_too_few_minutes_or_nothing_to_divide_give_no_interval():
    assert ratio_interval([1.0] * 4, [1.0] * 4) is None
    assert ratio_interval([1.0] * 5, [0.0] * 5) is None
    assert ratio_interval([0.0] * 5, [1.0] * 5) is None
    assert ratio_interval([2.0] * 5, [1.0] * 5) == Interval(2.0, 2.0, 2.0, 5)


def test_a_line_inside_is_neither_below_nor_above():
    interval = Interval(1.0, 0.9, 1.1, 10)
    assert (interval.below(1.2), interval.below(1.1), interval.above(0.8), interval.above(0.9)) == (
        True, False, True, False,
    )  # fmt: skip
    assert not interval.below(1.0)
    assert not interval.above(1.0)


def test_the_inverse_turns_the_ends_around():
    interval = Interval(0.8, 0.5, 2.0, 7, 0.9).inverse()
    assert interval == Interval(1.25, 0.5, 2.0, 7, 0.9)
