"""Queries get their variables and intervals as Grafana would give them."""

from __future__ import annotations

import pytest

from tests.dashboards.asking import Span, UnknownVariable, Value, substituted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value(("a.b", "c"), several=True), r"(a\\.b|c)"),
        (Value(("tiny/a+b",), several=False), "tiny/a+b"),
        (Value(("a", "b"), several=True, everything=".*"), ".*"),
        (Value((), several=False), ""),
    ],
)
def test_several_values_become_a_regular_expression_and_one_stays_as_it_is(
    value: Value, text: str
) -> None:
    assert value.query_text() == text


def test_a_rate_spans_four_scrapes_at_least() -> None:
    assert Span(0.0, 900.0).macros(900) == {"__rate_interval": "60s", "__range": "900s"}
    assert Span(0.0, 86400.0).macros(600) == {"__rate_interval": "135s", "__range": "86400s"}


def test_names_are_replaced_and_an_unknown_one_is_an_error() -> None:
    assert substituted('x{m="$model_name"}', {"model_name": "a"}) == 'x{m="a"}'
    assert substituted('x{m=~"${of:regex}|all"}', {"of": "a.b"}) == r'x{m=~"a\\.b|all"}'
    with pytest.raises(UnknownVariable, match="targte"):
        substituted("x{t='$targte'}", {})
