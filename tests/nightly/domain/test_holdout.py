"""Errors of a holdout and of an aged baseline, in many worlds that drift."""

from __future__ import annotations

import pytest

from tests.domain.test_holdout import DRIFTS, check_aged, check_holdout


@pytest.mark.parametrize("name", DRIFTS)
def test_the_error_with_a_holdout_does_not_depend_on_what_drifts(name: str) -> None:
    check_holdout(name, range(40))


@pytest.mark.parametrize(
    ("name", "adjusted", "factor"),
    [
        ("the baseline alone", True, 15),
        ("the baseline alone", False, 15),
        ("speculation alone", True, 15),
        ("the clock of the hardware", False, 15),
        ("the clock of the hardware", True, 1.3),
        ("the prompts", True, 1.8),
        ("the prompts", False, 1.3),
    ],
)
def test_an_aged_baseline_errs_more_where_something_drifts(
    name: str, adjusted: bool, factor: float
) -> None:
    """With and without the assumption that what slows steps slows plain ones too."""
    check_aged(name, adjusted, factor, range(40))
