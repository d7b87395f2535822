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


@pytest.mark.parametrize(
    ("last", "start", "page", "increments", "restarted"),
    [
        pytest.param(
            {DRAFTS: 5.0}, None, {DRAFTS: 7.0, RUNNING: 3.0}, {DRAFTS: 2.0}, False, id="no gauges"
        ),
        pytest.param(
            {DRAFTS: 5.0}, 100.25, {DRAFTS: 6.0, START: 200.5}, {DRAFTS: 6.0}, True,
            id="another start time, though every counter grew",
        ),
        pytest.param(
            {DRAFTS: 5.0}, 100.0, {DRAFTS: 3.0, START: 100.0}, {DRAFTS: 3.0}, True,
            id="counters that fell, though the start time is the same",
        ),
        pytest.param(
            {SUM: 2.0, DRAFTS: 5.0}, 100.0, {SUM: -1.0, DRAFTS: 6.0, START: 100.0},
            {SUM: -3.0, DRAFTS: 1.0}, False,
            id="a sum fell within one process, as for a latency across a clock step",
        ),
        pytest.param(
            {SUM: 2.0, DRAFTS: 5.0}, None, {SUM: 1.5, DRAFTS: 5.0}, {SUM: 1.5, DRAFTS: 5.0}, True,
            id="a sum fell on a page that names no process",
        ),
    ],
)  # fmt: skip
def test_a_page_counts_beyond_the_last_one_or_from_zero(last, start, page, increments, restarted):
    tracker = CounterTracker(last, start)
    assert tracker.advance(page) == (increments, restarted)
    assert tracker.process_start == page.get(START, start if not restarted else None)


def test_one_counter_that_fell_makes_all_of_them_count_in_full():
    """In multi-process mode: the others had already overtaken what they were before."""
    tracker = CounterTracker({DRAFTS: 5.0, TOKENS: 10.0, PROMPT: 7.0}, None)
    page = {DRAFTS: 4.0, TOKENS: 30.0, PROMPT: 7.0}
    assert tracker.advance(page) == (page, True)
    assert tracker.advance(page) == ({DRAFTS: 0.0, TOKENS: 0.0, PROMPT: 0.0}, False)


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


def test_a_sum_whose_last_digits_wander_is_no_restart():
    """Several processes' sums are added in any order."""
    tracker = CounterTracker({DRAFTS: 5.0, SUM: 0.1 + (0.2 + 0.3)}, None)
    increments, restarted = tracker.advance({DRAFTS: 5.0, SUM: (0.1 + 0.2) + 0.3 - 2e-16})
    assert not restarted
    assert increments[SUM] == pytest.approx(0, abs=1e-12)


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


def buckets(**cumulative: float) -> dict[Series, float]:
    """Buckets of a histogram by bound, like ``le_0_5`` for 0.5."""
    bounds = {name.removeprefix("le_").replace("_", "."): n for name, n in cumulative.items()}
    return {Series("ttft", "bucket", "m", "0", le): n for le, n in bounds.items()}


def test_other_bounds_without_a_process_start_are_a_restart_though_nothing_fell():
    """An idle server in multi-process mode was replaced by one of another version."""
    tracker = CounterTracker()
    tracker.advance(buckets(le_0_1=0, le_1=0, le_inf=0))
    other = buckets(le_0_2=0, le_1=0, le_inf=0)
    assert tracker.advance(other).restarted
    assert tracker.last == other


def test_more_bounds_or_a_bucket_missing_from_one_page_are_no_restart():
    tracker = CounterTracker()
    tracker.advance(buckets(le_0_1=0, le_inf=0))
    assert not tracker.advance(buckets(le_0_1=0, le_1=0, le_inf=0)).restarted
    assert not tracker.advance(buckets(le_1=0, le_inf=0)).restarted


def test_a_single_bucket_that_fell_is_a_restart_where_the_page_names_no_process() -> None:
    """Faster requests than before hide the fall from every cumulative count."""
    tracker = CounterTracker()
    tracker.advance(buckets(le_0_5=0, le_1=1, le_inf=1))
    faster = buckets(le_0_5=3, le_1=3, le_inf=3)
    assert tracker.advance(faster) == (faster, True)
    later = buckets(le_0_5=4, le_1=5, le_inf=5)
    assert tracker.advance(later) == (buckets(le_0_5=1, le_1=2, le_inf=2), False)
