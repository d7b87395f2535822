"""The points of the plots."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.domain import histogram
from specwatch.domain.merge import merge_tallies
from specwatch.domain.model import ALL, HOUR, MINUTE, Mode, Objective, Window
from specwatch.report.series import step_of
from tests.domain.samples import TTFT_BOUNDS, observed
from tests.report.history import SINCE, bucket, counted, flat, hour, measurement, report

DAY = 86400


STEPS = {
    "a week of hours": (7 * DAY, HOUR, HOUR),
    "eight days": (8 * DAY, HOUR, HOUR),
    "a month": (30 * DAY, HOUR, 4 * HOUR),
    "a year": (365 * DAY, HOUR, 44 * HOUR),
    "one hour of hours": (HOUR, HOUR, HOUR),
    "an hour of minutes": (HOUR, MINUTE, MINUTE),
    "four hours of minutes": (4 * HOUR, MINUTE, 2 * MINUTE),
    "a day of minutes": (DAY, MINUTE, 10 * MINUTE),
    "a week of minutes": (7 * DAY, MINUTE, HOUR),
}


@pytest.mark.parametrize(("span", "length", "step"), STEPS.values(), ids=STEPS.keys())
def test_the_step_keeps_to_some_two_hundred_points(span, length, step):
    assert step_of(SINCE, SINCE + span, length) == step


def test_a_point_an_hour_from_its_own_counts():
    windows = flat(
        [
            hour(0, running=2.0, buckets={"0": bucket(rate=0.9)}),
            hour(0, counted(rate=0.3), running=12.0, buckets={"0": bucket(rate=0.5)}),
            hour(3, buckets={">1": bucket(rate=0.2)}),
            hour(-1),
        ]
    )
    series = report(windows).series
    first, last = series.acceptance["all"]
    assert (first.start, last.start) == (SINCE, SINCE + 3 * HOUR)
    one, other = (window.tally for window in windows if window.start == SINCE and _whole(window))
    assert first.drafts == one.drafts + other.drafts
    accepted = one.accepted_tokens + other.accepted_tokens
    assert first.rate == accepted / (4 * first.drafts)
    assert list(series.acceptance) == ["all", "0", ">1"]
    assert [item.start for item in series.acceptance["0"]] == [SINCE]
    assert [entry.start for entry in series.acceptance[">1"]] == [SINCE + 3 * HOUR]


def test_the_speedup_over_time_is_that_of_each_stretch():
    """Tokens take 30 ms without speculation: 20 ms in the first half of a day, then 40 ms."""
    windows = flat(
        hour(number, counted(tpot=0.02 if number < 12 else 0.04), buckets={})
        for number in range(24)
    )
    series = report(windows, measurement(tpot=0.03), objective=Objective.TPOT).series
    assert series.speedup_step == HOUR
    assert [point.start for point in series.speedup] == [SINCE + n * HOUR for n in range(24)]
    for number, point in enumerate(series.speedup):
        assert point.value == pytest.approx(1.5 if number < 12 else 0.75, rel=0.05)
    assert report(windows).series.speedup == ()


def test_a_week_of_speedups_is_in_stretches_of_three_hours():
    windows = flat(hour(number) for number in range(7 * 24))
    series = report(windows, measurement(), hours=7 * 24).series
    assert (series.speedup_step, len(series.speedup)) == (3 * HOUR, 56)


def test_times_without_speculation_are_one_where_they_touch():
    modes = {3: Mode.OFF, 4: Mode.STANDBY, 5: Mode.STOPPED, 9: Mode.OFF}
    windows = flat(hour(number, mode=modes.get(number, Mode.ON)) for number in range(12))
    spans = [(gap.start, gap.end) for gap in report(windows).series.off]
    assert spans == [
        (SINCE + 3 * HOUR, SINCE + 6 * HOUR),
        (SINCE + 9 * HOUR, SINCE + 10 * HOUR),
    ]


def _whole(window: Window) -> bool:
    return window.series.segment == ALL


def test_latencies_are_told_apart_by_mode_and_quantiles_are_of_merged_counts():
    slow = replace(counted(requests=10), ttft=observed([2.0] * 10, TTFT_BOUNDS))
    windows = flat(
        [
            hour(0, running=2.0),
            hour(0, slow, running=12.0),
            hour(0, mode=Mode.OFF),
            hour(1, mode=Mode.MIXED),
            hour(2, mode=Mode.OFF),
        ]
    )
    points = report(windows).series.latency
    assert [(item.start - SINCE, item.mode) for item in points] == [
        (0, "on"),
        (0, "off"),
        (2 * HOUR, "off"),
    ]
    merged = merge_tallies(counted(), slow)
    assert points[0].requests == 110
    assert points[0].ttft_p99 == histogram.quantile(merged.ttft, 0.99).value
    assert points[0].tpot_p50 == histogram.quantile(merged.tpot, 0.5).value


def test_of_no_traffic_there_is_no_point():
    nothing = counted(tokens=0, requests=0, rate=None, drafts=0, draft_tokens=0, accepted_tokens=0)
    series = report(flat(hour(at, nothing, busy=0.0) for at in range(24))).series
    assert (series.acceptance, series.latency) == ({}, ())
    assert series.step == HOUR


def test_points_of_a_month_hold_several_hours():
    windows = flat(hour(at) for at in range(30 * 24))
    series = report(windows, hours=30 * 24).series
    points = series.acceptance["all"]
    assert len(points) == 180
    assert {point.drafts for point in points} == {4 * windows[0].tally.drafts}
    assert [point.start for point in points[:2]] == [SINCE, SINCE + 4 * HOUR]
    assert {item.requests for item in series.latency} == {400}
