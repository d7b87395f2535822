"""Histograms merge exactly, and their quantiles are those of the merged counts."""

from __future__ import annotations

import bisect
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain import histogram
from specwatch.domain.histogram import Quantile, quantile
from specwatch.domain.model import Histogram

QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
grids = st.lists(
    st.sampled_from([0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]), unique=True, max_size=6
).map(lambda bounds: tuple(sorted(bounds)))
observations = st.lists(st.integers(0, 1600).map(lambda n: n / 128), max_size=60)


def observe(bounds: tuple[float, ...], values: list[float]) -> Histogram:
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect.bisect_left(bounds, value)] += 1
    return Histogram(bounds, tuple(counts), sum(values))


histograms = st.builds(observe, grids, observations)


@given(grids, observations.filter(bool), st.sampled_from(QUANTILES) | st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_quantile(bounds, values, q):
    """Brute force: sort the observations and take the one of that rank."""
    rank = math.ceil(q * len(values))
    true = sorted(values)[max(rank - 1, 0)]
    estimate = quantile(observe(bounds, values), q)
    assert estimate is not None
    index = bisect.bisect_left(bounds, true)
    if index == len(bounds):
        assert estimate[:2] == (bounds[-1] if bounds else None, True)
    else:
        assert not estimate.open_ended
        assert estimate.value is not None
        assert (estimate.lower, estimate.upper) == (
            bounds[index - 1] if index else 0.0,
            bounds[index],
        )
        assert estimate.lower <= estimate.value <= estimate.upper


def prometheus_quantile(q: float, bounds: tuple[float, ...], counts: tuple[int, ...]) -> float:
    """``histogram_quantile`` as its documentation states it, without its special cases."""
    cumulative = [sum(counts[: i + 1]) for i in range(len(counts))]
    rank = q * cumulative[-1]
    index = next(i for i, count in enumerate(cumulative) if count >= rank)
    if index == len(bounds):
        return bounds[-1]
    low, before = (bounds[index - 1], cumulative[index - 1]) if index else (0.0, 0)
    return low + (bounds[index] - low) * (rank - before) / (cumulative[index] - before)


@given(grids.filter(bool), observations.filter(bool), st.floats(0.001, 1))
def test_a_quantile_is_what_prometheus_says(bounds, values, q):
    counts = observe(bounds, values)
    estimate = quantile(counts, q)
    assert estimate is not None
    assert estimate.value == pytest.approx(prometheus_quantile(q, bounds, counts.counts))


@pytest.mark.parametrize(
    ("bounds", "counts", "q", "expected"),
    [
        ((1.0, 2.0), (4, 4, 0), 0.5, Quantile(1.0, False, 0.0, 1.0)),
        ((1.0, 2.0), (4, 4, 0), 0.75, Quantile(1.5, False, 1.0, 2.0)),
        ((1.0, 2.0), (4, 4, 0), 0.25, Quantile(0.5, False, 0.0, 1.0)),
        ((1.0, 2.0), (0, 0, 3), 0.5, Quantile(2.0, True, 2.0, math.inf)),
        ((1.0, 2.0), (9, 0, 1), 0.9, Quantile(1.0, False, 0.0, 1.0)),
        ((1.0, 2.0), (9, 0, 1), 0.91, Quantile(2.0, True, 2.0, math.inf)),
        ((1.0, 2.0, 4.0), (0, 2, 0, 0), 0.0, Quantile(1.0, False, 1.0, 2.0)),
        ((1.0, 2.0, 4.0), (0, 2, 0, 0), 1.0, Quantile(2.0, False, 1.0, 2.0)),
        ((0.0, 1.0), (3, 1, 0), 0.5, Quantile(0.0, False, 0.0, 0.0)),
        ((-1.0, 1.0), (3, 1, 0), 0.5, Quantile(-1.0, False, -1.0, -1.0)),
        ((), (5,), 0.5, Quantile(None, True)),
    ],
)
def test_quantiles_worked_out_by_hand(bounds, counts, q, expected):
    assert quantile(Histogram(bounds, counts, 1.0), q) == expected


def test_nothing_observed_has_neither_quantile_nor_mean():
    assert quantile(Histogram((1.0,), (0, 0), 0.0), 0.5) is None
    assert histogram.mean(Histogram((1.0,), (0, 0), 0.0)) is None
    assert histogram.merge_all([]) is None


def test_the_mean_is_exact_whatever_the_bounds():
    assert histogram.mean(Histogram((), (4,), 10.0)) == 2.5


@given(st.lists(histograms, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_merging_in_any_order_and_grouping_gives_the_same(parts, rng):
    """Counts, bounds, quantiles and the mark alike; with unlike bounds too."""
    expected = histogram.merge_all(parts)
    assert expected is not None
    pile = list(parts)
    while len(pile) > 1:
        rng.shuffle(pile)
        pile.append(histogram.merge(pile.pop(), pile.pop()))
    assert pile[0] == expected  # the sums are of 128ths: exact too
    assert [quantile(pile[0], q) for q in QUANTILES] == [quantile(expected, q) for q in QUANTILES]


@given(grids, st.lists(observations, min_size=1, max_size=6))
def test_merging_like_bounds_is_observing_everything_in_one_histogram(bounds, parts):
    together = observe(bounds, [value for part in parts for value in part])
    assert histogram.merge_all(observe(bounds, part) for part in parts) == together


@given(st.lists(st.tuples(grids, observations), min_size=2, max_size=5))
def test_unlike_bounds_merge_to_the_shared_ones_and_say_so(parts):
    merged = histogram.merge_all(observe(bounds, values) for bounds, values in parts)
    assert merged is not None
    shared = set.intersection(*(set(bounds) for bounds, _ in parts))
    assert set(merged.bounds) == shared
    everything = observe(merged.bounds, [value for _, values in parts for value in values])
    assert (merged.counts, merged.sum) == (everything.counts, everything.sum)
    assert merged.coarsened == (len({bounds for bounds, _ in parts}) > 1)


def test_a_coarsened_histogram_stays_marked():
    coarse = Histogram((1.0,), (1, 0), 0.5, coarsened=True)
    assert histogram.merge(Histogram((1.0,), (1, 0), 0.5), coarse).coarsened


@given(grids, observations)
def test_cumulative_counts_of_a_page_become_counts_per_bucket(bounds, values):
    buckets = {bound: float(sum(v <= bound for v in values)) for bound in (*bounds, math.inf)}
    shuffled = list(buckets.items())
    random.Random(3).shuffle(shuffled)
    assert histogram.from_cumulative(dict(shuffled), sum(values)) == observe(bounds, values)


@pytest.mark.parametrize(
    "buckets",
    [
        {1.0: 3.0, 2.0: 2.0, math.inf: 4.0},
        {1.0: -1.0, math.inf: 4.0},
        {1.0: 1.5, math.inf: 4.0},
        {1.0: math.nan, math.inf: 4.0},
        {1.0: 1.0, math.inf: math.inf},
        {math.nan: 1.0, math.inf: 4.0},
        {1.0: 3.0},
        {},
    ],
    ids=["falling", "negative", "half", "nan", "infinite", "no bound", "no +Inf", "none"],
)
def test_invalid_cumulative_counts_are_refused(buckets):
    assert histogram.from_cumulative(buckets, 1.0) is None


def test_whole_numbers_of_any_type_are_counts():
    assert histogram.from_cumulative({1: 1, math.inf: 3}, 2) == Histogram((1,), (1, 2), 2)
