"""Rules can fire and clear, and apply to whom they say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specwatch.config.rules import DEFAULT_RULES, Condition, Rule, Rules, Scope
from specwatch.config.rules.metrics import MEASURES
from specwatch.domain.units import format_amount, parse_amount
from specwatch_tap.temperature import bucket_labels
from tests.segments import segment

BUCKETS = (*bucket_labels((0.0, 0.3, 1.0)), "unknown")
PLAIN = [name for name, measure in MEASURES.items() if measure.unit != "seconds"]


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.name)
def test_a_default_passes_the_checks_of_a_user_rule(rule: Rule) -> None:
    """As a file would have it, with a context as files have one."""
    written = rule.model_dump(mode="json")
    assert "conditions" not in written
    assert Rule.model_validate(written, context="file") == rule


def test_default_rules_that_disable_need_traffic_and_an_interval() -> None:
    """One slow request at night must not switch anything off: what a speedup is judged by is
    certain for somebody who looks every minute."""
    for rule in DEFAULT_RULES:
        if rule.action == "disable":
            assert rule.min_requests >= 10
            assert not rule.min_drafts, "a drafter that finds nothing may slow every step"
            metrics = {condition.metric for condition in rule.conditions}
            assert metrics <= {"speedup_ratio", "speedup_ratio_unadjusted"}


def test_defaults_can_be_left_out_replaced_and_switched_off() -> None:
    mine = Rule(name="garbage", conditions=(Condition(metric="running", above=3),))
    other = mine.model_copy(update={"name": "other"})
    rules = Rules(without=("kv-squeeze",), extra=(other, mine)).effective()
    names = [rule.name for rule in DEFAULT_RULES if rule.name != "kv-squeeze"]
    assert [rule.name for rule in rules] == [*names, "other"]
    assert mine in rules
    assert Rules(use_defaults=False, extra=(other,)).effective() == (other,)
    assert Rules(use_defaults=False).effective() == ()
    assert Rules().effective() == DEFAULT_RULES


numbers = st.integers(-8, 12).map(lambda n: n / 4)


@given(st.sampled_from(PLAIN), st.sampled_from(["above", "below"]), numbers, st.none() | numbers)
def test_a_condition_is_refused_just_if_it_can_never_fire_or_clear(
    metric: str, side: str, threshold: float, clear: float | None
) -> None:
    """Tried with every quarter that the metric can be, and the ends of its range."""
    measure = MEASURES[metric]
    values = {n / 8 for n in range(-24, 33)} | {measure.lowest, measure.highest}
    values = {v for v in values if measure.lowest <= v <= measure.highest and math.isfinite(v)}
    sign = 1 if side == "above" else -1
    back = threshold if clear is None else clear
    fires = any(sign * value > sign * threshold for value in values)
    clears = any(sign * value <= sign * back for value in values)
    sensible = sign * back <= sign * threshold
    try:
        Condition(metric=metric, **{side: threshold, "clear": clear})
    except ValidationError:
        assert not (fires and clears and sensible)
    else:
        assert fires
        assert clears
        assert sensible


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["all", "any"]))
def test_a_pair_is_refused_just_if_it_can_never_fire_or_clear(
    above: int, below: int, combine: str
) -> None:
    """In tenths, and tried with every twentieth."""
    pair = (
        Condition(metric="kv_cache_usage", above=above / 10),
        Condition(metric="kv_cache_usage", below=below / 10),
    )
    both = all if combine == "all" else any
    held = {both((value > 2 * above, value < 2 * below)) for value in range(21)}
    try:
        Rule(name="pair", conditions=pair, combine=combine)
    except ValidationError:
        assert held != {True, False}
    else:
        assert held == {True, False}


SEGMENTS = [
    segment(text)
    for text in (
        "all",
        *BUCKETS,
        "output=schema",
        "output=text",
        "output=unknown",
        "header:x-tenant=ab",
    )
]


@pytest.mark.parametrize(
    ("scope", "judged"),
    [
        ({}, ["all"]),
        ({"dimension": "temperature"}, ["0", "(0,0.3]", "(0.3,1]", ">1"]),
        ({"dimension": "temperature", "value": "positive"}, ["(0,0.3]", "(0.3,1]", ">1"]),
        ({"dimension": "temperature", "value": "unknown"}, ["unknown"]),
        ({"dimension": "temperature", "value": ">1"}, [">1"]),
        ({"dimension": "temperature", "value": "(0.3,0.7]"}, []),
        ({"dimension": "output", "value": "text"}, ["text"]),
        ({"dimension": "output"}, ["schema", "text"]),
        ({"dimension": "header:x-tenant", "value": "a?"}, ["ab"]),
        ({"dimension": "stream", "value": "yes"}, []),
    ],
)
def test_a_scope_is_all_or_segments_of_a_dimension(
    scope: dict[str, str], judged: list[str]
) -> None:
    assert [one.value for one in Scope(**scope).segments(SEGMENTS)] == judged


@pytest.mark.parametrize(
    ("scope", "problem"),
    [
        ({"dimension": "tools"}, "'tools' is not a kind of segment; use prompt_length"),
        ({"value": "0"}, "has no effect without a dimension; give one"),
    ],
)
def test_a_scope_that_cannot_be_is_refused(scope: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Scope(**scope)
    assert problem in str(refused.value).replace('"', "'")


def test_a_metric_that_no_segment_has_is_refused() -> None:
    with pytest.raises(ValidationError, match="ttft_p99 is not known by output; use all"):
        Rule(
            name="slow",
            conditions=(Condition(metric="ttft_p99", above="1s"),),
            scope=Scope(dimension="output"),
        )


def test_a_first_bucket_with_greedy_requests_is_not_positive() -> None:
    known = map(segment, bucket_labels((0.5, 1.0)))
    positive = Scope(dimension="temperature", value="positive").segments(known)
    assert positive == [segment("(0.5,1]"), segment(">1")]


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "anything", True),
        ("chat", "chat", True),
        ("chat", "chat-2", False),
        ("chat*", "chat-2", True),
        ("chat-?", "chat-2", True),
        ("chat-?", "chat-12", False),
        ("[::1]:8000", "[::1]:8000", True),
        ("[::1]:*", "[::1]:8000", True),
        ("c.at", "chat", False),
        ("*/tiny", "org/tiny", True),
        ("Chat", "chat", False),
    ],
)
def test_names_fit_with_stars_and_question_marks_only(pattern: str, name: str, fits: bool) -> None:
    assert Scope(target=pattern).takes_in(name, "tiny") is fits
    assert Scope(model_name=pattern).takes_in("chat", name) is fits


@given(
    st.integers(0, 10**9).map(lambda n: n / 10**6), st.sampled_from(["seconds", "ratio", "count"])
)
def test_amounts_are_written_as_they_are_read(amount: float, unit: str) -> None:
    assert parse_amount(format_amount(amount, unit), unit) == pytest.approx(amount, abs=1e-12)
