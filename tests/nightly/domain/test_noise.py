"""Intervals of minutes and looks at stretches err as often as they say."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from specwatch.domain.speedup import STRETCHES
from tests.domain.test_noise import (
    alarms_apart,
    share_covered,
    share_covered_by_earlier_noise,
)
from tests.domain.test_noise import (
    test_variance_and_correlation_are_found_in_spite_of_a_change_of_the_level as check_estimates,
)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("minutes", [30, 90])
def test_95_of_100_intervals_contain_the_truth(correlation: float, minutes: int) -> None:
    assert 0.93 <= share_covered(correlation, minutes, 500) <= 0.97


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_noise_of_few_minutes_is_that_of_earlier_ones(correlation: float) -> None:
    assert 0.93 <= share_covered_by_earlier_noise(correlation, 500) <= 0.975


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.85])
@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_variance_and_correlation_are_found(correlation: float, shift: float) -> None:
    check_estimates(correlation, shift)


@pytest.mark.parametrize("stretches", [STRETCHES, range(5, 61)], ids=["some", "all"])
@pytest.mark.parametrize("between", [300.0, 3000.0])
def test_looking_every_minute_errs_as_rarely_as_was_asked_for(
    between: float, stretches: Iterable[int]
) -> None:
    """And not so rarely that nothing would ever be found."""
    alarms = alarms_apart(between, round(500 * between), stretches)
    assert between <= alarms <= 6 * between
