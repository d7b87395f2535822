"""What the guard takes from the rules, and when a baseline does not tell enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.config.rules import Condition, Rule
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import Assessment
from specwatch.domain.interval import Interval
from specwatch.domain.model import UNJUDGED
from specwatch.domain.speedup import PresentSpeedup, Unjudged
from specwatch.guard.observation import guarded_rules, unmeasured
from specwatch.rules.decisions import ModelDecision, TargetDecision
from specwatch.rules.reading import Reading
from specwatch.rules.verdicts import Finding, Verdict
from tests.domain import minutes

B, P, N = Verdict.BREACH, Verdict.PASS, Verdict.NO_DATA
SLOW = Condition(metric="speedup_ratio", below=1.0)
LOW = Condition(metric="acceptance_ratio", below=0.5)
RULE = Rule(name="loses", conditions=(SLOW, LOW), action="disable")
WHOLE, LATELY = Interval(0.8, 0.7, 0.9, 60), Interval(0.6, 0.5, 0.7, 10)
UNSURE = Interval(0.9, 0.7, 1.1, 5)


def finding(verdict: Verdict, seen: Verdict | None = None, **changes: Any) -> Finding:
    speedup = Reading(0.8, WHOLE, stretches=(UNSURE, LATELY))
    readings = ((SLOW, speedup), (LOW, Reading(0.4, Interval(0.4, 0.3, 0.5, 60))))
    made = Finding(RULE, "chat", "tiny", "all", verdict, seen or verdict, 0.0, None, readings, 60.0)
    return replace(made, **changes)


def test_a_breach_has_the_shortest_stretch_that_is_certain_or_the_whole_window() -> None:
    (breach,) = guarded_rules([finding(B)]).breaches
    assert (breach.rule, breach.model_name, breach.segment) == ("loses", "tiny", "all")
    assert breach.speedups == (LATELY,)
    whole = finding(B, readings=((SLOW, Reading(0.8, WHOLE, stretches=(UNSURE,))),))
    assert guarded_rules([whole]).breaches[0].speedups == (WHOLE,)
    assert guarded_rules([finding(B, readings=((SLOW, Reading(0.8)),))]).breaches[0].speedups == ()


def test_only_rules_that_disable_count_and_only_once_they_were_judged() -> None:
    alert = finding(B, rule=RULE.model_copy(update={"action": "alert"}))
    restored = finding(B, at=0.0)
    assert guarded_rules([alert]) == ((), (), False, False)
    assert guarded_rules([restored, alert]) == ((), (), False, True)
    assert guarded_rules([]) == ((), (), False, True)


@pytest.mark.parametrize(
    ("verdict", "seen", "suspects", "passing"),
    [
        (P, P, (), True),
        (P, B, ("loses",), False),
        (N, B, ("loses",), False),
        (B, B, (), False),
        (B, P, (), False),
        (N, P, (), False),
        (N, N, (), False),
    ],
)
def test_a_breach_that_is_not_confirmed_is_suspected(
    verdict: Verdict, seen: Verdict, suspects: tuple[str, ...], passing: bool
) -> None:
    found = guarded_rules([finding(verdict, seen)])
    assert (found.suspects, found.passing) == (suspects, passing)
    assert bool(found.breaches) is (verdict is B)


def measured(unjudged: Unjudged | None = None, tokens: float = 1000.0) -> TargetDecision:
    """A decision by a baseline whose newest point is of the second 300."""
    known = minutes.baseline([minutes.off(n) for n in range(5)])
    present = PresentSpeedup(unjudged=unjudged)
    one = ModelDecision(Assessment(tokens=tokens), known, present=present)
    return TargetDecision(models={"tiny": one})


def test_what_is_unjudged_for_half_an_hour_is_explored_before_what_was_measured_long_ago() -> None:
    assert unmeasured(measured(), 400.0, 100.0) == ("", "")
    assert unmeasured(measured(), 421.0, 100.0) == ("", "tiny: the baseline is 2m old")
    unjudged = measured(Unjudged(421.0 - UNJUDGED, "no baseline at this load"))
    assert unmeasured(unjudged, 421.0, 100.0) == ("tiny: no baseline at this load", "")
    assert unmeasured(unjudged, 420.0, 999.0) == ("", "")
    assert unmeasured(measured(tokens=0.0), 9999.0, 100.0) == ("", "")
    no_baseline = TargetDecision({"tiny": ModelDecision(Assessment(tokens=9.0), Baseline())})
    assert unmeasured(no_baseline, 9999.0, 100.0) == ("", "")
    nothing = TargetDecision(models={"tiny": ModelDecision(Assessment(), Baseline())})
    assert unmeasured(nothing, 9999.0, 100.0) == ("", "")
