"""Queries get their variables and intervals as Grafana would give them."""

from __future__ import annotations

import pytest

from tests.dashboards.asking import Span, UnknownVariable, Value, substituted

FIFTEEN_MINUTES = Span(0.0, 900.0)


def test_several_values_become_a_regular_expression() -> None:
    values = {"target": Value(("a.b", "c"), ("a.b", "c"), several=True)}
    assert substituted('x{target=~"$target"}', values, {}) == r'x{target=~"(a\\.b|c)"}'
    assert substituted('x{target=~"${target:regex}"}', values, {}).startswith("x{")


def test_one_value_stands_as_it_is() -> None:
    values = {"model_name": Value(("tiny/a+b", "c"), ("tiny/a+b",), several=False)}
    assert substituted('x{m="$model_name"}', values, {}) == 'x{m="tiny/a+b"}'


def test_all_of_them_may_have_words_of_their_own() -> None:
    values = {"target": Value(("a", "b"), ("a", "b"), several=True, everything=".*")}
    assert substituted("$target", values, {}) == ".*"


def test_a_rate_spans_four_scrapes_at_least() -> None:
    assert FIFTEEN_MINUTES.macros(900)["__interval"] == "15s"
    assert FIFTEEN_MINUTES.macros(900)["__rate_interval"] == "60s"
    day = Span(0.0, 86400.0).macros(600)
    assert (day["__interval"], day["__rate_interval"], day["__range"]) == ("120s", "135s", "86400s")


def test_a_variable_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnknownVariable, match="targte"):
        substituted("x{t='$targte'}", {}, {})
