"""Intervals contain the truth as often as they say, and depend on nothing but the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.lab.loadtest.resampling import (
    Pair,
    paired_interval,
    quotient_interval,
    ratio_interval,
)

TRUTH = 0.8
amounts = st.floats(0.1, 10.0)
pairs = st.lists(st.builds(Pair, amounts, amounts), min_size=LEAST_SAMPLES, max_size=9)
apart = st.integers(10, 1000).map(lambda hundredths: hundredths / 100)
"""No two so close that they become the same number, or change places, in another unit."""
pairs_apart = st.lists(st.builds(Pair, apart, apart), min_size=LEAST_SAMPLES, max_size=9)


def alike(count: int, over: float = 1.0, under: float = 1.0) -> list[Pair]:
    return [Pair(over, under)] * count


def covered(batches: int, runs: int) -> float:
    """The share of intervals that contain the truth, of batches with unlike traffic and skewed
    noise."""
    generator = np.random.default_rng(7)
    missed = 0
    for _ in range(runs):
        tokens, known = generator.uniform(500, 1500, (2, batches))
        noise = np.exp(generator.normal(-0.02, 0.2, (2, batches)))
        interval = quotient_interval(
            list(map(Pair, known * TRUTH * noise[0], known)),
            list(map(Pair, tokens * noise[1], tokens)),
        )
        missed += interval.below(TRUTH) or interval.above(TRUTH)
    return 1 - missed / runs


def test_95_of_100_intervals_contain_the_truth() -> None:
    """Of how many batches ever: more of them at night."""
    assert 0.91 <= covered(8, 100) <= 0.99


def disturbed(runs: int) -> tuple[float, float]:
    """The share of intervals of disturbed pairs of turns that contain the truth, and of those that
    are narrower than if turns were not paired."""
    generator = np.random.default_rng(7)
    missed = narrower = 0
    for _ in range(runs):
        trouble, first, second = np.exp(generator.normal(0, [[0.3], [0.02], [0.02]], (3, 10)))
        over = list(map(Pair, 100 * TRUTH * trouble * first, [100.0] * 10))
        under = list(map(Pair, 100 * trouble * second, [100.0] * 10))
        together, apart = paired_interval(over, under), quotient_interval(over, under)
        missed += together.below(TRUTH) or together.above(TRUTH)
        narrower += together.upper / together.lower < apart.upper / apart.lower
    return 1 - missed / runs, narrower / runs


def test_a_common_disturbance_of_paired_turns_does_not_widen_the_interval() -> None:
    contain, narrower = disturbed(50)
    assert contain >= 0.88
    assert narrower == 1.0


@given(pairs, pairs, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(over, under, random):
    one, quotient = ratio_interval(over), quotient_interval(over, under)
    random.shuffle(over)
    random.shuffle(under)
    assert ratio_interval(over) == one
    assert quotient_interval(over, under) == quotient


@given(pairs_apart, pairs_apart, st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(over, under, factor):
    interval = quotient_interval(over, under)
    scaled = [[Pair(s * factor, t) for s, t in one] for one in (over, under)]
    other = quotient_interval(*scaled)
    assert (other.value, other.lower, other.upper) == pytest.approx(
        (interval.value, interval.lower, interval.upper), rel=1e-6
    )


@given(pairs, pairs)
def test_the_estimate_is_the_ratio_of_sums_and_lies_inside(over, under):
    def rate(samples: list[Pair]) -> float:
        return sum(s for s, _ in samples) / sum(t for _, t in samples)

    ratio, quotient = ratio_interval(over), quotient_interval(over, under)
    assert ratio.value == pytest.approx(rate(over))
    assert quotient.value == pytest.approx(rate(over) / rate(under))
    for interval in (ratio, quotient):
        assert 0 < interval.lower <= interval.value <= interval.upper < math.inf
    assert (ratio.samples, quotient.samples) == (len(over), min(len(over), len(under)))


def test_the_seed_decides_what_is_drawn() -> None:
    samples = [Pair(n, 10 / n) for n in range(1, 9)]
    assert ratio_interval(samples, seed=1) == ratio_interval(samples, seed=1)
    assert ratio_interval(samples, seed=1) != ratio_interval(samples, seed=2)


def test_equal_samples_have_an_interval_without_width() -> None:
    interval = quotient_interval(alike(5, 4, 100), alike(5, 50, 1000))
    assert (interval.value, interval.lower, interval.upper) == pytest.approx(
        (0.8, 0.8, 0.8), rel=1e-6
    )


def test_variance_of_either_side_widens_the_interval() -> None:
    sure, unsure = alike(8, 4, 100), [Pair(s, 100) for s in (2.0, 6.0) * 4]
    for sides in ((sure, unsure), (unsure, sure)):
        wide = quotient_interval(*sides)
        assert wide.value == pytest.approx(1.0)
        assert wide.lower < 0.9
        assert wide.upper > 1.1


@pytest.mark.parametrize(("over", "under"), [(0, 9), (4, 9), (9, 4), (9, 0)])
def test_too_few_samples_on_either_side_give_no_interval(over: int, under: int) -> None:
    assert quotient_interval(alike(over), alike(under)) is None
    assert ratio_interval(alike(min(over, under))) is None


def test_nothing_to_divide_gives_no_interval() -> None:
    for nothing in (alike(5, 0), alike(5, under=0)):
        assert ratio_interval(nothing) is None
        assert quotient_interval(alike(5), nothing) is None
        assert paired_interval(alike(5), nothing) is None


def test_turns_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_interval(alike(6), alike(5))
