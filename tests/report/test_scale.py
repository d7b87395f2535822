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


def test_a_scale_maps_values_and_holds_those_beyond_it() -> None:
    plain, downward = Scale(0, 10, 100, 200), Scale(0, 10, 200, 100)
    assert [plain.at(value) for value in (2.5, -5, 99)] == [125, 100, 200]
    assert downward.at(2.5) == 175
    assert Scale(3, 3, 0, 10).at(3) == 5
    assert Scale(0.01, 1, 0, 100, logarithmic=True).at(0.1) == pytest.approx(50)


def test_steps_are_1_2_or_5() -> None:
    spans = [(1, 5), (7, 5), (100, 4), (0.03, 5), (5, 5)]
    steps = [nice_step(span, most) for span, most in spans]
    assert steps == pytest.approx([0.2, 2, 50, 0.01, 1])


def test_ticks_enclose_the_values_and_are_few() -> None:
    for high in (0.001, 0.7, 1.0, 3.14, 97, 12_345.6):
        result = ticks(0, high, 5)
        assert result[0] == 0
        assert result[-1] >= high * (1 - 1e-6)
        assert result[-2] < high
        assert len(result) <= 7
    assert len(ticks(0, 0)) > 1
    assert len(ticks(4, 4)) > 1


def test_logarithmic_ticks_are_few_and_near_the_ends() -> None:
    for low, high in ((0.002, 30), (1, 40), (1e-9, 1e9), (0.011, 0.3)):
        result = logarithmic_ticks(low, high)
        assert 2 <= len(result) <= 8
        assert result == sorted(set(result))
        assert result[0] <= low * 10
        assert result[-1] >= high / 1000


def test_moments_are_days_of_utc_of_a_week_and_otherwise_fit_the_length() -> None:
    result = moments(SINCE, UNTIL)
    assert [label for _, label in result][:3] == ["Mon 2", "Tue 3", "Wed 4"]
    assert result[1][0] == SINCE + 86400
    for length, first in ((86400, "00:00"), (3600, "00:00"), (30 * 86400, "2 Nov")):
        result = moments(SINCE, SINCE + length)
        assert result[0][1] == first
        assert 2 <= len(result) <= 8
    for since, until in ((0, 0), (math.nan, 5), (0, 1e300), (5, 4)):
        assert len(moments(since, until)) <= 8
