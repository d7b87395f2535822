"""What findings of rules that disable say to the guard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from specwatch.domain.speedup import LEAST_SHARE
from specwatch.domain.units import format_duration
from specwatch.guard.observation import Breach
from specwatch.rules.decision_view import finding_view
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Finding, Verdict


class Found(NamedTuple):
    """As in :class:`specwatch.guard.observation.Seen`."""

    breaches: tuple[Breach, ...]
    suspects: tuple[str, ...]
    passing: bool


def found_by(findings: Iterable[Finding]) -> Found:
    """Of the rules that disable; what an earlier process found counts once it is found again."""
    ours = [finding for finding in findings if finding.rule.action == "disable"]
    breach = Verdict.BREACH
    suspects = [
        finding for finding in ours if finding.verdict is not breach and finding.seen is breach
    ]
    judged = [finding for finding in ours if finding.at > 0]
    return Found(
        tuple(_breach(finding) for finding in judged if finding.verdict is breach),
        tuple(sorted({suspect.rule.name for suspect in suspects})),
        any(finding.verdict is finding.seen is Verdict.PASS for finding in judged),
    )


def unmeasured(decision: TargetDecision, now: float, max_age: float) -> tuple[str, str]:
    """Why it is not known what the present traffic takes without speculation; else how old what is
    known is, where that is older than ``max_age`` seconds. ``now`` is a Unix time."""
    aged = ""
    for name, one in decision.models.items():
        assessment = one.assessment
        if assessment.tokens and assessment.covered < LEAST_SHARE:
            return f"{name}: {assessment.missing}", ""
        age = now - one.baseline.measured_at
        if assessment.tokens and age > max_age:
            aged = f"{name}: the baseline is {format_duration(age // 60 * 60)} old"
    return "", aged


def _breach(finding: Finding) -> Breach:
    speedups = tuple(
        deciding
        for condition, reading in finding.readings
        if condition.metric in ("speedup_ratio", "speedup_ratio_unadjusted")
        and (deciding := reading.deciding(condition.threshold)) is not None
    )
    return Breach(
        finding.rule.name,
        finding.model_name,
        finding.temperature,
        speedups,
        msgspec.to_builtins(finding_view(finding)),
    )
