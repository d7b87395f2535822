"""Intervals cover what they say although minutes resemble those before them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from specwatch.domain.noise import Noise, inflation, noise_of, sequential_tail, spread_of, student
from specwatch.domain.speedup import STRETCHES

TRUTH = 1.4
Series = npt.NDArray[np.float64]


def correlated(
    generator: np.random.Generator, correlation: float, count: int, runs: int = 1
) -> Series:
    """Series of variance 1, a row for each run."""
    noise = np.empty((runs, count))
    noise[:, 0] = generator.normal(size=runs)
    fresh = math.sqrt(1 - correlation**2) * generator.normal(size=(runs, count))
    for n in range(1, count):
        noise[:, n] = correlation * noise[:, n - 1] + fresh[:, n]
    return noise


def covered(noise: Series, prior: list[Noise | None], loads: Series) -> float:
    """The share of the intervals of so many runs that have the truth in them."""
    hits = 0
    for own, before, under in zip(noise, prior, loads, strict=True):
        over = TRUTH * under * np.exp(0.1 * own)
        spread = spread_of(over.tolist(), under.tolist(), before)
        assert spread is not None
        apart = math.log(over.sum() / under.sum() / TRUTH)
        hits += abs(apart) <= spread.half_width(0.025)
    return hits / len(noise)


def share_covered(correlation: float, minutes: int, runs: int) -> float:
    """Of intervals of minutes with unlike traffic that resemble their neighbours."""
    generator = np.random.default_rng(11)
    noise = correlated(generator, correlation, minutes, runs)
    return covered(noise, [None] * runs, generator.uniform(20, 60, noise.shape))


def share_covered_by_earlier_noise(correlation: float, runs: int) -> float:
    """Of intervals of ten minutes, after three hours by which the noise is known."""
    generator = np.random.default_rng(12)
    noise = correlated(generator, correlation, 190, runs)
    known = [noise_of((0.1 * seconds[:180]).tolist()) for seconds in noise]
    return covered(noise[:, 180:], known, generator.uniform(20, 60, (runs, 10)))


def test_95_of_100_intervals_contain_the_truth():
    assert 0.93 <= share_covered(0.6, 30, 500) <= 0.97
    assert 0.92 <= share_covered_by_earlier_noise(0.3, 200) <= 0.98


@pytest.mark.parametrize(("correlation", "shift"), [(0.0, 5.0), (0.6, 0.0), (0.6, 5.0)])
def test_variance_and_correlation_are_found_in_spite_of_a_change_of_the_level(correlation, shift):
    """The level changes half way by five standard deviations: that is no noise."""
    values = 0.1 * correlated(np.random.default_rng(14), correlation, 2000, 20)
    values[:, 1000:] += 0.1 * shift
    estimates = [noise_of(value.tolist()) for value in values]
    mean = Noise(*(sum(column) / 20 for column in zip(*filter(None, estimates), strict=True)))
    assert None not in estimates
    assert mean.correlation == pytest.approx(correlation, abs=0.03)
    assert mean.variance == pytest.approx(0.01, rel=0.12)
    lost = (1 - correlation**2) / (1 + correlation**2)
    assert mean.freedom == pytest.approx(2000 * lost, rel=0.1)


def test_a_few_outliers_do_not_change_the_noise():
    values = 0.1 * correlated(np.random.default_rng(15), 0.3, 1000)[0]
    values[[100, 400, 700]] += 5.0
    noise = noise_of(values.tolist())
    assert noise is not None
    assert noise.variance == pytest.approx(0.01, rel=0.2)


def test_values_on_both_sides_of_a_gap_are_no_neighbours():
    """Each is unlike the one before it, and there is a gap between any two that are."""
    values = [value for n in range(60) for value in (float(n % 7), None)]
    assert noise_of(values) is None
    assert noise_of([0.5] * 30) == Noise(0.0, 0.0, 30.0)
    assert noise_of([0.5, 0.6] * 10) is None, "twenty differences are the least"


def test_earlier_noise_counts_beside_that_of_few_minutes_and_a_heavy_minute_for_more():
    """Ten minutes that agree by chance: forty degrees of freedom before them know better."""
    under = [1.0] * 9 + [11.0]
    over = [TRUTH * seconds for seconds in under]
    spread = spread_of(over, under, Noise(0.01, 0.0, 500.0))
    assert spread is not None
    weights = sum(seconds**2 for seconds in under) / sum(under) ** 2
    assert spread.variance == pytest.approx(0.01 * weights * 40 / 49)
    assert spread.freedom == 49
    assert spread_of(over, under) == (0.0, 9 * 0.91 / 1.09)


def test_differences_between_strata_are_not_noise():
    under, over = [1.0] * 40, [1.0, 3.0] * 20
    mixed, apart = spread_of(over, under), spread_of(over, under, strata=["low", "high"] * 20)
    assert mixed is not None
    assert apart is not None
    assert mixed.variance > 0.001
    assert (apart.variance, apart.half_width(0.025)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("over", "under"), [([1.0], [1.0]), ([], []), ([0.0, 0.0], [1.0, 1.0]), ([1.0, 1.0], [0.0, 0])]
)
def test_without_two_minutes_or_anything_to_divide_there_is_no_spread(over, under):
    assert spread_of(over, under) is None


@pytest.mark.parametrize(("count", "correlation"), [(1, 0.6), (2, 0.6), (10, 0.3), (500, 0.9)])
def test_the_variance_of_a_mean_is_that_of_the_sum_of_all_pairs(count, correlation):
    pairs = sum(correlation ** abs(a - b) for a in range(count) for b in range(count))
    assert inflation(count, correlation) == pytest.approx(pairs / count)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 5, 2.5706),
        (0.975, 10, 2.2281),
        (0.975, 30, 2.0423),
        (0.975, 120, 1.9799),
        (0.95, 3, 2.35336),
        (0.95, 7, 1.8946),
        (0.75, 3, 0.76489),
        (0.75, 4, 0.74070),
        (0.9, 4, 1.53321),
        (0.995, 1, 63.657),
        (0.995, 5, 4.0321),
        (0.9995, 4, 8.610),
        (0.9995, 10, 4.587),
        (0.975, 1e6, 1.95996),
    ],
)
def test_students_quantiles_are_those_of_the_tables(probability, freedom, quantile):
    assert student(probability, freedom) == pytest.approx(quantile, rel=1e-4)


def alarms_apart(between: float, minutes: int, stretches: Iterable[int]) -> float:
    """Mean minutes until somebody is wrong who looks every minute at stretches of noise alone, and
    begins anew then."""
    limit = NormalDist().inv_cdf(1 - sequential_tail(between))
    sums = np.concatenate([[0.0], np.cumsum(np.random.default_rng(16).normal(size=minutes))])
    beyond = np.zeros(minutes + 1, dtype=bool)
    for length in stretches:
        beyond[length:] |= (sums[length:] - sums[:-length]) / math.sqrt(length) > limit
    alarms, next_look = 0, 0
    for n in np.flatnonzero(beyond).tolist():
        if n >= next_look:
            alarms += 1
            next_look = n + max(STRETCHES)
    return minutes / alarms


def test_looking_every_minute_errs_as_rarely_as_was_asked_for():
    """And not so rarely that nothing would ever be found."""
    assert 300.0 <= alarms_apart(300.0, 150_000, STRETCHES) <= 6 * 300.0


def test_rarer_errors_have_a_smaller_tail():
    tails = [sequential_tail(10.0**power) for power in range(2, 8)]
    assert tails == sorted(tails, reverse=True)
    assert 1e-7 < sequential_tail(60_000.0) < 1e-5
