"""Quantiles come with limits that hold, and shares beyond a threshold are their inverse."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain import histogram, quantile
from specwatch.domain.model import Histogram
from specwatch.domain.quantile import QuantileEstimate
from tests.domain.samples import TPOT_BOUNDS, observed, spread

BOUNDS = (1.0, 2.0, 4.0)
FINE_BOUNDS = tuple(step / 5000 for step in range(1, 501))
sure = QuantileEstimate(2.0, 2.0, 2.0, open_ended=False)


@pytest.mark.parametrize(
    ("threshold", "above"),
    [(0.0, 100), (0.5, 95), (1.0, 90), (3.0, 55), (4.0, 40), (9.0, 40)],
)
def test_a_threshold_inside_a_bucket_divides_it_evenly(threshold, above):
    """Beyond the last bound nothing is known: all that is there counts as above."""
    share = quantile.above(Histogram(BOUNDS, (10, 20, 30, 40), 0.0), threshold)
    assert share == pytest.approx(above)


@given(counts=st.lists(st.integers(1, 1000), min_size=4, max_size=4), q=st.floats(0.01, 0.99))
def test_the_share_above_a_quantile_is_what_it_leaves(counts, q):
    whole = Histogram(BOUNDS, tuple(counts), 0.0)
    value = histogram.quantile(whole, q)
    assert value is not None
    if not value.open_ended:
        left = quantile.above(whole, value.value or 0.0) / whole.count
        assert left == pytest.approx(1 - q)


def _cumulated(below: int, requests: int, q: float) -> float:
    return math.fsum(
        math.comb(requests, n) * q**n * (1 - q) ** (requests - n) for n in range(below)
    )


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("requests", [1, 10, 60, 300, 399])
def test_the_ranks_enclose_the_quantile_in_95_of_100(q, requests):
    """Each tail has at most 2.5 %, and would have more one rank further in."""
    low, high = quantile._ranks(q, requests)
    assert _cumulated(low, requests, q) <= 0.025 or low == 0
    assert _cumulated(low + 1, requests, q) > 0.025
    assert 1 - _cumulated(high, requests, q) <= 0.025 + 1e-12
    assert 1 - _cumulated(high - 1, requests, q) > 0.025


def share_covered(runs: int) -> float:
    chance = random.Random(4)
    hits = 0
    for _ in range(runs):
        drawn = observed([chance.uniform(0.0, 0.1) for _ in range(500)], FINE_BOUNDS)
        estimate = quantile.estimate(drawn, 0.9, drawn.count)
        assert estimate is not None
        hits += estimate.lower <= 0.09 <= estimate.upper
    return hits / runs


def test_limits_contain_the_true_quantile_most_of_the_time():
    assert 0.9 <= share_covered(60) <= 1.0


def test_fewer_independent_requests_widen_the_limits():
    drawn = observed(spread(0.02, 1000), FINE_BOUNDS)
    many, few = (quantile.estimate(drawn, 0.9, count) for count in (1000, 100))
    assert many is not None
    assert few is not None
    assert few.lower < many.lower < many.value < many.upper < few.upper


def test_a_quantile_may_lie_anywhere_in_its_bucket():
    estimate = quantile.estimate(Histogram(BOUNDS, (0, 10_000, 0, 0), 1.0), 0.9, 10_000)
    assert estimate == (pytest.approx(1.9), 1.0, 2.0, False)
    estimate = quantile.estimate(Histogram(BOUNDS, (0, 0, 0, 10_000), 1.0), 0.9, 10_000)
    assert estimate == (4.0, 4.0, math.inf, True)


def test_too_few_requests_have_no_upper_limit():
    drawn = observed(spread(0.02, 200), TPOT_BOUNDS)
    estimate = quantile.estimate(drawn, 0.99, 200)
    assert estimate is not None
    assert estimate.upper == math.inf


def within(value: float, factor: float) -> QuantileEstimate:
    return QuantileEstimate(value, value / factor, value * factor, open_ended=False)


@pytest.mark.parametrize(
    ("over", "under", "ends", "open_ended"),
    [
        pytest.param(sure, within(4.0, 1.0), (0.5, 0.5, 0.5), False, id="both are certain"),
        pytest.param(
            within(2.0, math.e**3),
            within(2.0, math.e**4),
            (math.exp(-5), 1.0, math.exp(5)),
            False,
            id="errors add up as squares",
        ),
        pytest.param(
            sure,
            sure._replace(upper=math.inf),
            (0.0, 1.0, 1.0),
            False,
            id="the divisor has no upper limit",
        ),
        pytest.param(
            sure._replace(upper=math.inf), sure, (1.0, 1.0, 1.0), True, id="it has no upper limit"
        ),
    ],
)
def test_a_ratio_is_as_uncertain_as_both_sides_together(over, under, ends, open_ended):
    interval, really_greater = quantile.ratio_of([over], [under], 9)
    assert (interval.lower, interval.value, interval.upper) == pytest.approx(ends)
    assert really_greater is open_ended


@pytest.mark.parametrize(
    "under", [sure._replace(open_ended=True), QuantileEstimate(0.0, 0.0, 0.0, False)]
)
def test_there_is_no_ratio_to_what_is_not_known(under):
    assert quantile.ratio_of([sure], [under], 9) is None


def test_a_mixture_has_the_weights_that_it_is_given():
    """However many requests each part has."""
    fast, slow = Histogram(BOUNDS, (10, 0, 0, 0), 5.0), Histogram(BOUNDS, (0, 0, 2000, 0), 6000.0)
    mixed, effective = quantile.mixture([(fast, 3.0), (slow, 1.0)])
    assert quantile.above(mixed, 1.0) / mixed.count == pytest.approx(0.25)
    assert effective == pytest.approx(16 / (9 / 10 + 1 / 2000))
    assert quantile.mixture([]) is None


def test_minutes_that_differ_more_than_chance_are_worth_fewer_requests():
    even = [observed(spread(0.02, 100), TPOT_BOUNDS)] * 10
    slow, fast = observed([0.2] * 100, TPOT_BOUNDS), observed([0.01] * 100, TPOT_BOUNDS)
    assert quantile.design_effect(even, 0.9, 0.028) == 1.0
    assert quantile.design_effect([slow, *[fast] * 9], 0.9, 0.01) == pytest.approx(100, rel=0.2)
    assert quantile.design_effect([slow, fast], 0.5, 0.01) == 1.0
