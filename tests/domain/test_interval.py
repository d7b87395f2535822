"""Intervals, and those of ratios over minutes that follow one another."""

from __future__ import annotations

from specwatch.domain.interval import Interval, ratio_interval


def test_too_few_minutes_or_nothing_to_divide_give_no_interval():
    assert ratio_interval([1.0] * 4, [1.0] * 4) is None
    assert ratio_interval([1.0] * 5, [0.0] * 5) is None
    assert ratio_interval([0.0] * 5, [1.0] * 5) is None
    assert ratio_interval([2.0] * 5, [1.0] * 5) == Interval(2.0, 2.0, 2.0, 5)


def test_a_line_inside_is_neither_below_nor_above():
    interval = Interval(1.0, 0.9, 1.1, 10)
    assert (interval.below(1.2), interval.below(1.1), interval.above(0.8), interval.above(0.9)) == (
        True,
        False,
        True,
        False,
    )
    assert not interval.below(1.0)
    assert not interval.above(1.0)


def test_the_inverse_of_an_interval_swaps_its_ends():
    interval = Interval(0.8, 0.5, 2.0, 7, 0.9).inverse()
    assert interval == Interval(1.25, 0.5, 2.0, 7, 0.9)
