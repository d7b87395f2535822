"""How often and how long rules were in breach."""

from __future__ import annotations

import random

import pytest

from specwatch.domain.model import ALL
from specwatch.report.incidents import breaches
from specwatch.report.model import ReportBreach
from specwatch.rules.decisions import Decision
from tests.segments import segment


def change(when, verdict, *, rule="slow", at=ALL, model="m", daemon="d", severity="warning"):
    return Decision(daemon, "chat", model, at, rule, when, verdict, severity, "alert", {})


def spans(*times, **others):
    """Breaches that begin and end, in turn, at those times."""
    return [
        change(float(at), "pass" if number % 2 else "breach", **others)
        for number, at in enumerate(times)
    ]


def test_begin_and_end_are_paired_by_rule_and_temperature():
    changes = [
        *spans(110, 120, 130, 150),
        *spans(115, 118, at=segment(">1")),
        *spans(140, 141, rule="x"),
    ]
    random.Random(1).shuffle(changes)
    assert breaches(changes, "m", 100, 200) == (
        ReportBreach(rule="slow", segment=ALL, severity="warning", count=2, seconds=30, last=130),
        ReportBreach(
            rule="slow", segment=segment(">1"), severity="warning", count=1, seconds=3, last=115
        ),
        ReportBreach(rule="x", segment=ALL, severity="warning", count=1, seconds=1, last=140),
    )


CASES = {
    "one that reaches in counts from the beginning": (spans(50, 120), [(1, 20, 50)]),
    "one that lasts counts to the end": (spans(190), [(1, 10, 190)]),
    "one that ends after the period counts to its end": (spans(190, 250), [(1, 10, 190)]),
    "one before and one after do not count": ([*spans(50, 100), *spans(200, 210)], []),
    "one of another model does not count": (spans(110, 120, model="other"), []),
    "no data ends a breach": (
        [
            change(105, "no_data"),
            change(110, "breach"),
            change(120, "no_data"),
            change(130, "pass"),
        ],
        [(1, 10, 110)],
    ),
    "what two daemons find at once counts once": (
        [*spans(110, 130, daemon="a"), *spans(112, 131, daemon="b"), *spans(150, 160, daemon="b")],
        [(2, 31, 150)],
    ),
    "a breach told again by a daemon that was restarted is one": (
        [change(110, "breach"), change(120, "breach"), change(130, "pass")],
        [(1, 20, 110)],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES)
def test_count_and_seconds_are_of_the_period(changes, expected):
    counted = breaches(changes, "m", 100, 200)
    assert [(breach.count, breach.seconds, breach.last) for breach in counted] == expected


def test_the_severity_is_that_of_the_last():
    changes = [*spans(110, 120, severity="info"), *spans(130, 131, severity="critical")]
    (breach,) = breaches(changes, "m", 100, 200)
    assert breach.severity == "critical"
