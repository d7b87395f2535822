"""Intervals of changes of the acceptance, and of quantiles, hold as often as they say."""

from __future__ import annotations

from tests.domain import test_acceptance, test_quantile


def test_the_interval_contains_no_change_of_the_acceptance_95_times_of_100() -> None:
    assert 0.92 <= test_acceptance.share_covered(300) <= 0.98


def test_limits_contain_the_true_quantile_most_of_the_time() -> None:
    assert 0.93 <= test_quantile.share_covered(300) <= 0.995
