"""Counters become increments, through restarts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.model import Series
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape.counters import CounterTracker

DRAFTS = Series("drafts", "", "m", "0", "")
TOKENS = Series("generation_tokens", "", "m", "0", "")
PROMPT = Series("prompt_tokens", "", "m", "0", "")
SUM = Series("ttft", "sum", "m", "0", "")
RUNNING = Series("running", "", "m", "0", "")
START = Series("process_start", "", "", "", "")


def test_the_first_page_ever_counts_nothing():
    """What happened before we looked belongs to no window."""
    assert CounterTracker().advance({DRAFTS: 5.0, START: 1.0}) == ({}, False)


def test_a_later_page_counts_the_difference_and_no_gauges():
    tracker = CounterTracker({DRAFTS: 5.0}, None)
    assert tracker.advance({DRAFTS: 7.0, RUNNING: 3.0}) == ({DRAFTS: 2.0}, False)


def test_another_start_time_is_a_restart_even_if_every_counter_grew():
    tracker = CounterTracker({DRAFTS: 5.0, TOKENS: 1.0}, 100.25)
    page = {DRAFTS: 6.0, TOKENS: 8.0, START: 200.5}
    assert tracker.advance(page) == ({DRAFTS: 6.0, TOKENS: 8.0}, True)
    assert tracker.process_start == 200.5


def test_one_counter_that_fell_makes_all_of_them_count_in_full():
    """In multi-process mode: the others had already overtaken what they were before."""
    tracker = CounterTracker({DRAFTS: 5.0, TOKENS: 10.0, PROMPT: 7.0}, None)
    page = {DRAFTS: 4.0, TOKENS: 30.0, PROMPT: 7.0}
    assert tracker.advance(page) == (page, True)
    assert tracker.advance(page) == ({DRAFTS: 0.0, TOKENS: 0.0, PROMPT: 0.0}, False)


def test_the_same_start_time_does_not_hide_counters_that_fell():
    tracker = CounterTracker({DRAFTS: 5.0}, 100.0)
    assert tracker.advance({DRAFTS: 3.0, START: 100.0}) == ({DRAFTS: 3.0}, True)


def test_series_missing_from_a_page_do_not_count_twice_when_they_come_back():
    tracker = CounterTracker({DRAFTS: 5.0, TOKENS: 10.0}, None)
    assert tracker.advance({TOKENS: 11.0}) == ({TOKENS: 1.0}, False)
    assert tracker.advance({DRAFTS: 6.0, TOKENS: 11.0}) == ({DRAFTS: 1.0, TOKENS: 0.0}, False)


def test_series_of_the_process_before_are_forgotten():
    """They count in full when the process after the restart gets them."""
    tracker = CounterTracker({DRAFTS: 5.0, TOKENS: 10.0}, 1.0)
    assert tracker.advance({TOKENS: 2.0, START: 2.0}).restarted
    assert tracker.advance({TOKENS: 2.0, DRAFTS: 9.0, START: 2.0}).values[DRAFTS] == 9.0


def test_a_page_without_any_counter_of_before_is_another_process():
    """Another model, then the first again, in multi-process mode: nothing is ever subtracted."""
    other = Series("drafts", "", "other", "0", "")
    tracker = CounterTracker({DRAFTS: 5.0}, None)
    assert tracker.advance({other: 2.0}) == ({other: 2.0}, True)
    assert tracker.advance({DRAFTS: 8.0}) == ({DRAFTS: 8.0}, True)


def test_a_start_time_that_is_missing_once_is_not_forgotten():
    tracker = CounterTracker({DRAFTS: 5.0}, 100.0)
    assert not tracker.advance({DRAFTS: 6.0}).restarted
    assert tracker.advance({DRAFTS: 7.0, START: 200.0}) == ({DRAFTS: 7.0}, True)


def test_a_start_time_from_a_process_that_has_none_any_more_is_forgotten():
    tracker = CounterTracker({DRAFTS: 5.0}, 100.0)
    assert tracker.advance({DRAFTS: 1.0}).restarted
    assert tracker.process_start is None


@pytest.mark.parametrize("start", [math.nan, math.inf])
def test_a_start_time_that_is_no_number_is_no_start_time(start):
    """NaN differs from itself: every page would be a restart."""
    tracker = CounterTracker({DRAFTS: 5.0}, 100.0)
    for _ in range(2):
        assert tracker.advance({DRAFTS: 5.0, START: start}) == ({DRAFTS: 0.0}, False)


def test_a_sum_that_falls_within_one_process_is_no_restart():
    """A latency across a clock step may be negative, and takes the sum down with it."""
    tracker = CounterTracker({DRAFTS: 5.0, SUM: 2.0}, 100.0)
    assert tracker.advance({DRAFTS: 6.0, SUM: -1.0, START: 100.0}) == (
        {DRAFTS: 1.0, SUM: -3.0},
        False,
    )


def test_a_sum_whose_last_digits_wander_is_no_restart():
    """Several processes' sums are added in any order."""
    tracker = CounterTracker({DRAFTS: 5.0, SUM: 0.1 + (0.2 + 0.3)}, None)
    increments, restarted = tracker.advance({DRAFTS: 5.0, SUM: (0.1 + 0.2) + 0.3 - 2e-16})
    assert not restarted
    assert increments[SUM] == pytest.approx(0, abs=1e-12)


def test_a_sum_that_really_falls_is_a_restart_where_the_page_names_no_process():
    tracker = CounterTracker({DRAFTS: 5.0, SUM: 2.0}, None)
    assert tracker.advance({DRAFTS: 5.0, SUM: 1.5}) == ({DRAFTS: 5.0, SUM: 1.5}, True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("last", [None, {DRAFTS: 5.0, TOKENS: 1.0}])
@pytest.mark.parametrize("start", [1.0, 2.0])
def test_what_no_counter_can_be_is_refused_and_changes_nothing(value, last, start):
    tracker = CounterTracker(last, 1.0)
    with pytest.raises(PageError, match=r"drafts of model 'm' is .* expected a finite") as caught:
        tracker.advance({TOKENS: 2.0, DRAFTS: value, START: start})
    assert caught.value.reason is ScrapeReason.NOT_A_NUMBER
    assert (tracker.last, tracker.process_start) == (last, 1.0)


@given(
    st.lists(
        st.lists(
            st.dictionaries(st.sampled_from([DRAFTS, TOKENS, PROMPT]), st.integers(0, 20)),
            min_size=1,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_increments_add_up_over_any_number_of_processes(lives):
    """Each life is a list of steps: what each counter grows by before the next page."""
    tracker = CounterTracker()
    tracker.advance({DRAFTS: 0.0, TOKENS: 0.0, PROMPT: 0.0, START: 0.5})
    counted = dict.fromkeys((DRAFTS, TOKENS, PROMPT), 0.0)
    restarts = 0
    for number, life in enumerate(lives):
        value = dict.fromkeys(counted, 0.0)
        for step in life:
            for series, growth in step.items():
                value[series] += growth
            increments, restarted = tracker.advance({**value, START: float(number)})
            restarts += restarted
            for series, increment in increments.items():
                assert increment >= 0
                counted[series] += increment
    assert restarts == len(lives)
    assert counted == {
        series: sum(step.get(series, 0) for life in lives for step in life) for series in counted
    }


def test_other_bounds_without_a_process_start_are_a_restart_though_nothing_fell():
    """An idle server in multi-process mode was replaced by one of another version."""

    def buckets(*bounds: str) -> dict[Series, float]:
        return {Series("ttft", "bucket", "m", "0", le): 0.0 for le in (*bounds, "+Inf")}

    tracker = CounterTracker()
    tracker.advance(buckets("0.1", "1.0"))
    assert tracker.advance(buckets("0.2", "1.0")).restarted
    assert tracker.last == buckets("0.2", "1.0")


def test_more_bounds_or_a_bucket_missing_from_one_page_are_no_restart():
    def buckets(*bounds: str) -> dict[Series, float]:
        return {Series("ttft", "bucket", "m", "0", le): 0.0 for le in (*bounds, "+Inf")}

    tracker = CounterTracker()
    tracker.advance(buckets("0.1"))
    assert not tracker.advance(buckets("0.1", "1.0")).restarted
    assert not tracker.advance(buckets("1.0")).restarted


def test_a_single_bucket_that_fell_is_a_restart_where_the_page_names_no_process() -> None:
    """Faster requests than before hide the fall from every cumulative count."""

    def buckets(*cumulative: float) -> dict[Series, float]:
        bounds = ("0.5", "1", "inf")
        return {
            Series("ttft", "bucket", "m", "0", bound): count
            for bound, count in zip(bounds, cumulative, strict=True)
        }

    tracker = CounterTracker()
    tracker.advance(buckets(0, 1, 1))
    assert tracker.advance(buckets(3, 3, 3)) == (buckets(3, 3, 3), True)
    assert tracker.advance(buckets(4, 5, 5)) == (buckets(1, 2, 2), False)
