"""How often and how long rules were in breach."""

from __future__ import annotations

import random

from specwatch.report.incidents import breaches
from specwatch.report.model import ReportBreach
from specwatch.rules.decisions import Decision


def change(
    when, verdict, *, rule="slow", temperature="all", model="m", daemon="d", severity="warning"
):
    return Decision(daemon, "chat", model, temperature, rule, when, verdict, severity, "alert", {})


def spans(*times, **others):
    """Breaches that begin and end, in turn, at those times."""
    return [
        change(float(at), "pass" if number % 2 else "breach", **others)
        for number, at in enumerate(times)
    ]


def test_begin_and_end_are_paired_by_rule_and_temperature():
    changes = [
        *spans(110, 120, 130, 150),
        *spans(115, 118, temperature=">1"),
        *spans(140, 141, rule="x"),
    ]
    random.Random(1).shuffle(changes)
    assert breaches(changes, "m", 100, 200) == (
        ReportBreach(
            rule="slow", temperature="all", severity="warning", count=2, seconds=30, last=130
        ),
        ReportBreach(
            rule="slow", temperature=">1", severity="warning", count=1, seconds=3, last=115
        ),
        ReportBreach(rule="x", temperature="all", severity="warning", count=1, seconds=1, last=140),
    )


def test_a_breach_that_reaches_in_counts_from_the_beginning_of_the_period():
    (found,) = breaches(spans(50, 120), "m", 100, 200)
    assert (found.count, found.seconds, found.last) == (1, 20, 50)


def test_a_breach_that_lasts_on_counts_to_the_end():
    (found,) = breaches(spans(190), "m", 100, 200)
    assert (found.count, found.seconds, found.last) == (1, 10, 190)
    (found,) = breaches(spans(190, 250), "m", 100, 200)
    assert (found.seconds, found.last) == (10, 190)


def test_what_was_over_before_or_begins_after_is_not_told():
    assert breaches([*spans(50, 100), *spans(200, 210)], "m", 100, 200) == ()


def test_another_model_is_another_matter():
    assert breaches(spans(110, 120, model="other"), "m", 100, 200) == ()


def test_no_data_after_a_breach_ends_it_and_without_one_says_nothing():
    changes = [
        change(105, "no_data"),
        change(110, "breach"),
        change(120, "no_data"),
        change(130, "pass"),
    ]
    (found,) = breaches(changes, "m", 100, 200)
    assert (found.count, found.seconds) == (1, 10)


def test_what_two_daemons_find_at_once_counts_once():
    changes = [
        *spans(110, 130, daemon="a"),
        *spans(112, 131, daemon="b"),
        *spans(150, 160, daemon="b"),
    ]
    (found,) = breaches(changes, "m", 100, 200)
    assert (found.count, found.seconds, found.last) == (2, 31, 150)


def test_a_breach_told_twice_is_one():
    """As by a daemon that was restarted."""
    (found,) = breaches(
        [change(110, "breach"), change(120, "breach"), change(130, "pass")], "m", 100, 200
    )
    assert (found.count, found.seconds, found.last) == (1, 20, 110)


def test_the_severity_is_that_of_the_last():
    changes = [*spans(110, 120, severity="info"), *spans(130, 131, severity="critical")]
    (found,) = breaches(changes, "m", 100, 200)
    assert found.severity == "critical"
