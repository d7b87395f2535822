from __future__ import annotations

import math

import pytest

from specwatch.report.charts.drawing import (
    Scale,
    logarithmic_ticks,
    moments,
    nice_step,
    ticks,
)
from tests.report.sample import SINCE, UNTIL


@pytest.mark.parametrize(
    ("scale", "value", "place"),
    [
        (Scale(0, 10, 100, 200), 2.5, 125),
        (Scale(0, 10, 100, 200), -5, 100),
        (Scale(0, 10, 100, 200), 99, 200),
        (Scale(0, 10, 200, 100), 2.5, 175),
        (Scale(3, 3, 0, 10), 3, 5),
        (Scale(0.01, 1, 0, 100, logarithmic=True), 0.1, 50),
    ],
    ids=["inside", "below", "above", "downward", "without extent", "logarithmic"],
)
def test_a_scale_maps_values_and_holds_those_beyond_it(
    scale: Scale, value: float, place: float
) -> None:
    assert scale.at(value) == pytest.approx(place)


@pytest.mark.parametrize(
    ("span", "most", "step"), [(1, 5, 0.2), (7, 5, 2), (100, 4, 50), (0.03, 5, 0.01), (5, 5, 1)]
)
def test_steps_are_1_2_or_5(span: float, most: int, step: float) -> None:
    assert nice_step(span, most) == pytest.approx(step)


@pytest.mark.parametrize("high", [0.001, 0.7, 1.0, 3.14, 97, 12_345.6])
def test_ticks_enclose_the_values_and_are_few(high: float) -> None:
    result = ticks(0, high, 5)
    assert result[0] == 0
    assert result[-1] >= high * (1 - 1e-6)
    assert result[-2] < high
    assert len(result) <= 7


def test_ticks_of_one_value_are_some() -> None:
    assert len(ticks(0, 0)) > 1
    assert len(ticks(4, 4)) > 1


@pytest.mark.parametrize(("low", "high"), [(0.002, 30), (1, 40), (1e-9, 1e9), (0.011, 0.3)])
def test_logarithmic_ticks_are_few_and_near_the_ends(low: float, high: float) -> None:
    result = logarithmic_ticks(low, high)
    assert 2 <= len(result) <= 8
    assert result == sorted(set(result))
    assert result[0] <= low * 10
    assert result[-1] >= high / 1000


def test_a_week_is_told_in_days_of_utc() -> None:
    result = moments(SINCE, UNTIL)
    assert [label for _, label in result][:3] == ["Mon 2", "Tue 3", "Wed 4"]
    assert result[1][0] == SINCE + 86400


@pytest.mark.parametrize(
    ("length", "first"), [(86400, "00:00"), (3600, "00:00"), (30 * 86400, "2 Nov")]
)
def test_moments_fit_the_length(length: int, first: str) -> None:
    result = moments(SINCE, SINCE + length)
    assert result[0][1] == first
    assert 2 <= len(result) <= 8


@pytest.mark.parametrize(("since", "until"), [(0, 0), (math.nan, 5), (0, 1e300), (5, 4)])
def test_moments_of_no_span_are_none_or_few(since: float, until: float) -> None:
    assert len(moments(since, until)) <= 8
