"""Intervals contain the truth as often as they say, and depend on nothing but the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.core.interval import LEAST_SAMPLES, Interval, Ratio, Reference, interval_of

TRUTH = 0.8
amounts = st.floats(0.1, 10.0)


def ratio(tokens, seconds) -> Ratio:
    """Of tokens that all belong to the one reference."""
    return Ratio([(each,) for each in tokens], seconds)


def reference(seconds, tokens) -> Reference:
    return Reference(seconds, tokens)


@st.composite
def data(draw: st.DrawFn):
    """Windows under comparison, and those of the baseline: pairs of tokens and seconds."""
    pairs = st.lists(st.tuples(amounts, amounts), min_size=LEAST_SAMPLES, max_size=9)
    return draw(pairs), draw(pairs)


def interval(windows, plain, **more) -> Interval:
    found = interval_of(
        ratio(*zip(*windows, strict=True)),
        [reference([s for _, s in plain], [t for t, _ in plain])],
        **more,
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("windows", "runs"), [(5, 1000), (10, 1000), (30, 500)])
def test_95_of_100_intervals_contain_the_truth(windows, runs):
    """Of minutes with unlike traffic and skewed noise, however few."""
    generator = np.random.default_rng(7)
    missed = 0
    for run in range(runs):
        tokens, known = generator.uniform(500, 1500, (2, windows))
        noise = np.exp(generator.normal(-0.02, 0.2, (2, windows)))
        found = interval_of(
            ratio(tokens, tokens * noise[0]),
            [reference(known * TRUTH * noise[1], known)],
            seed=run,
        )
        assert found is not None
        missed += found.below(TRUTH) or found.above(TRUTH)
    assert 0.93 <= 1 - missed / runs <= 0.97


@given(data(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_the_order_of_windows_does_not_matter(given_data, random):
    windows, plain = given_data
    found = interval(windows, plain)
    random.shuffle(windows)
    random.shuffle(plain)
    assert interval(windows, plain) == found


@given(data(), st.floats(0.01, 100.0))
@settings(max_examples=40)
def test_the_unit_of_time_does_not_matter(given_data, factor):
    windows, plain = given_data
    scaled = [[(tokens, seconds * factor) for tokens, seconds in group] for group in given_data]
    found, other = interval(windows, plain), interval(*scaled)
    assert (other.value, other.lower, other.upper) == pytest.approx(
        (found.value, found.lower, found.upper), rel=1e-6
    )


@given(data())
@settings(max_examples=40)
def test_the_estimate_is_the_ratio_of_sums_and_lies_inside(given_data):
    windows, plain = given_data
    found = interval(windows, plain)
    rate = sum(s for _, s in plain) / sum(t for t, _ in plain)
    value = sum(t for t, _ in windows) * rate / sum(s for _, s in windows)
    assert found.value == pytest.approx(value)
    assert 0 < found.lower <= found.value <= found.upper < math.inf
    assert found.samples == len(windows)


def test_the_seed_decides_what_is_drawn():
    windows, plain = [(n, 10 / n) for n in range(1, 9)], [(n, 2 * n + 1 / n) for n in range(1, 9)]
    assert interval(windows, plain, seed=1) == interval(windows, plain, seed=1)
    assert interval(windows, plain, seed=1) != interval(windows, plain, seed=2)


def test_more_windows_and_less_confidence_make_it_narrower():
    generator = np.random.default_rng(1)
    windows = [(1000.0, float(s)) for s in generator.uniform(40, 60, 64)]
    few, many = interval(windows[:8], windows[:8]), interval(windows, windows)
    assert many.upper - many.lower < few.upper - few.lower
    loose = interval(windows, windows, confidence=0.5)
    assert many.lower < loose.lower < loose.upper < many.upper
    assert loose.confidence == 0.5


def test_windows_that_are_all_alike_leave_no_doubt():
    found = interval([(1000, 50)] * 5, [(100, 4)] * 5)
    assert (found.value, found.lower, found.upper) == pytest.approx((0.8, 0.8, 0.8), rel=1e-6)


@pytest.mark.parametrize(("windows", "plain"), [(0, 9), (4, 9), (9, 4), (9, 0)])
def test_too_few_windows_on_either_side_give_no_interval(windows, plain):
    found = interval_of(ratio([1] * windows, [1] * windows), [reference([1] * plain, [1] * plain)])
    assert found is None


def test_nothing_to_divide_by_gives_no_interval():
    alike = reference([1] * 5, [1] * 5)
    assert interval_of(ratio([1] * 5, [0] * 5), [alike]) is None
    assert interval_of(ratio([0] * 5, [1] * 5), [alike]) is None
    assert interval_of(ratio([1] * 5, [1] * 5), [reference([0] * 5, [1] * 5)]) is None


def test_a_reference_that_no_window_needs_is_not_waited_for():
    """Too few of them say nothing, but about what they are not asked."""
    rows = [[10.0, 0.0] for _ in range(6)]
    enough, scant = reference([1] * 5, [2] * 5), reference([9], [1])
    found = interval_of(Ratio(rows, [5.0] * 6), [enough, scant])
    assert found is not None
    assert found.value == pytest.approx(1.0)
    rows[0][1] = 1.0
    assert interval_of(Ratio(rows, [5.0] * 6), [enough, scant]) is None


def test_doubt_about_the_baseline_counts_too():
    windows = [(1000.0, 50.0)] * 8
    sure, unsure = [(100.0, 4.0)] * 8, [(100.0, s) for s in (2.0, 6.0) * 4]
    wide = interval(windows, unsure)
    assert wide.value == pytest.approx(interval(windows, sure).value)
    assert wide.lower < 0.75
    assert wide.upper > 0.85


def test_the_shape_must_fit_the_references():
    with pytest.raises(ValueError, match=r"parts of shape \(5, 1\) for 5 samples and 2 references"):
        interval_of(ratio([1] * 5, [1] * 5), [reference([1], [1])] * 2)


def test_a_line_inside_is_neither_below_nor_above():
    found = Interval(1.0, 0.9, 1.1, 10)
    assert (found.below(1.2), found.below(1.1), found.above(0.8), found.above(0.9)) == (
        True, False, True, False,
    )  # fmt: skip
    assert not found.below(1.0)
    assert not found.above(1.0)


def test_the_inverse_turns_the_ends_around():
    found = Interval(0.8, 0.5, 2.0, 7, 0.9).inverse()
    assert found == Interval(1.25, 0.5, 2.0, 7, 0.9)
