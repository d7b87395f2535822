"""Thousands of configurations of models with values that no publisher would write."""

from tests.advise.hostile_configurations import (
    advice_with_one_other_value,
    advise_with_several_other_values,
)


def test_any_key_of_any_model_may_be_anything() -> None:
    outcomes = advice_with_one_other_value(4000, seed=8)
    assert min(outcomes[True], outcomes[False]) > 400


def test_several_keys_at_once_and_inside_of_others() -> None:
    advise_with_several_other_values(1500, seed=9)
