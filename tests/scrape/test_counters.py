"""Increments of counters, through restarts."""

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


def buckets(**cumulative: float) -> dict[Series, float]:
    """Buckets of a histogram by bound, like ``le_0_5`` for 0.5."""
    bounds = {name.removeprefix("le_").replace("_", "."): n for name, n in cumulative.items()}
    return {Series("ttft", "bucket", "m", "0", le): n for le, n in bounds.items()}


OTHER = Series("drafts", "", "other", "0", "")


@pytest.mark.parametrize(
    ("last", "start", "pages"),
    [
        pytest.param(
            None,
            None,
            [({DRAFTS: 5.0, START: 1.0}, {}, False)],
            id="the first page counts nothing: what was before belongs to no window",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            None,
            [({DRAFTS: 7.0, RUNNING: 3.0}, {DRAFTS: 2.0}, False)],
            id="gauges are not counted",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            100.25,
            [({DRAFTS: 6.0, START: 200.5}, {DRAFTS: 6.0}, True)],
            id="another start time is a restart, though every counter grew",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            100.0,
            [({DRAFTS: 3.0, START: 100.0}, {DRAFTS: 3.0}, True)],
            id="a counter that fell is a restart, though the start time is the same",
        ),
        pytest.param(
            {SUM: 2.0, DRAFTS: 5.0},
            100.0,
            [({SUM: -1.0, DRAFTS: 6.0, START: 100.0}, {SUM: -3.0, DRAFTS: 1.0}, False)],
            id="a sum may fall within one process, as for a latency across a clock step",
        ),
        pytest.param(
            {SUM: 2.0, DRAFTS: 5.0},
            None,
            [({SUM: 1.5, DRAFTS: 5.0}, {SUM: 1.5, DRAFTS: 5.0}, True)],
            id="a sum that fell is a restart on a page that names no process",
        ),
        pytest.param(
            {DRAFTS: 5.0, TOKENS: 10.0},
            None,
            [
                ({DRAFTS: 4.0, TOKENS: 30.0}, {DRAFTS: 4.0, TOKENS: 30.0}, True),
                ({DRAFTS: 4.0, TOKENS: 30.0}, {DRAFTS: 0.0, TOKENS: 0.0}, False),
            ],
            id="one counter that fell makes all of them count in full",
        ),
        pytest.param(
            {DRAFTS: 5.0, TOKENS: 10.0},
            None,
            [
                ({TOKENS: 11.0}, {TOKENS: 1.0}, False),
                ({DRAFTS: 6.0, TOKENS: 11.0}, {DRAFTS: 1.0, TOKENS: 0.0}, False),
            ],
            id="a series missing from a page does not count twice when it comes back",
        ),
        pytest.param(
            {DRAFTS: 5.0, TOKENS: 10.0},
            1.0,
            [
                ({TOKENS: 2.0, START: 2.0}, {TOKENS: 2.0}, True),
                ({TOKENS: 2.0, DRAFTS: 9.0, START: 2.0}, {TOKENS: 0.0, DRAFTS: 9.0}, False),
            ],
            id="series of the process before a restart are forgotten",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            None,
            [({OTHER: 2.0}, {OTHER: 2.0}, True), ({DRAFTS: 8.0}, {DRAFTS: 8.0}, True)],
            id="a page without any earlier counter is of another process",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            100.0,
            [
                ({DRAFTS: 6.0}, {DRAFTS: 1.0}, False),
                ({DRAFTS: 7.0, START: 200.0}, {DRAFTS: 7.0}, True),
            ],
            id="a start time that is missing once is remembered",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            100.0,
            [({DRAFTS: 5.0, START: math.nan}, {DRAFTS: 0.0}, False)] * 2,
            id="NaN is not a start time, though it differs from itself",
        ),
        pytest.param(
            {DRAFTS: 5.0},
            100.0,
            [({DRAFTS: 5.0, START: math.inf}, {DRAFTS: 0.0}, False)] * 2,
            id="infinity is not a start time",
        ),
        pytest.param(
            {DRAFTS: 5.0, SUM: 0.1 + (0.2 + 0.3)},
            None,
            [
                (
                    {DRAFTS: 5.0, SUM: (0.1 + 0.2) + 0.3 - 2e-16},
                    {DRAFTS: 0.0, SUM: pytest.approx(0, abs=1e-12)},
                    False,
                )
            ],
            id="the last digits of a sum of several processes may change",
        ),
        pytest.param(
            buckets(le_0_1=0, le_1=0, le_inf=0),
            None,
            [(buckets(le_0_2=0, le_1=0, le_inf=0), buckets(le_0_2=0, le_1=0, le_inf=0), True)],
            id="other bounds on a page that names no process are a restart, though nothing fell",
        ),
        pytest.param(
            buckets(le_0_1=0, le_inf=0),
            None,
            [
                (buckets(le_0_1=0, le_1=0, le_inf=0), buckets(le_0_1=0, le_1=0, le_inf=0), False),
                (buckets(le_1=0, le_inf=0), buckets(le_1=0, le_inf=0), False),
            ],
            id="more bounds, or a bucket missing from one page, are no restart",
        ),
        pytest.param(
            buckets(le_0_5=0, le_1=1, le_inf=1),
            None,
            [
                (buckets(le_0_5=3, le_1=3, le_inf=3), buckets(le_0_5=3, le_1=3, le_inf=3), True),
                (buckets(le_0_5=4, le_1=5, le_inf=5), buckets(le_0_5=1, le_1=2, le_inf=2), False),
            ],
            id="a single bucket that fell is a restart on a page that names no process",
        ),
    ],
)
def test_a_page_counts_beyond_the_last_one_or_from_zero(last, start, pages):
    tracker = CounterTracker(last, start)
    for page, increments, restarted in pages:
        assert tracker.advance(page) == (increments, restarted)


def test_a_start_time_is_forgotten_after_a_restart_without_one():
    tracker = CounterTracker({DRAFTS: 5.0}, 100.0)
    assert tracker.advance({DRAFTS: 1.0}).restarted
    assert tracker.process_start is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("last", [None, {DRAFTS: 5.0, TOKENS: 1.0}])
@pytest.mark.parametrize("start", [1.0, 2.0])
def test_impossible_counters_are_refused_and_change_nothing(value, last, start):
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
