"""The alerts that fire now for one target, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.alerts.alert import Alert, runbook_address
from specwatch.domain.model import ALL_TEMPERATURES
from specwatch.domain.units import format_duration
from specwatch.guard.state import HIDDEN_CHANGE, Cause, GuardState, Incident, Phase
from specwatch.rules.decisions import leading as leading_reading
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.status import TargetStatus

RULE, SWITCHED_OFF, BLOCKED, FAILED = (
    "SpeculationRuleBreach", "SpeculationSwitchedOff", "SpeculationGuardBlocked",
    "SpeculationGuardFailed",
)  # fmt: skip


def alerts_of(target: TargetStatus, runbook_url: str) -> list[Alert]:
    """All that fire, each with the address of its section of the runbook.

    Their labels stay the same while they fire.
    """
    alerts = [
        _of_finding(target.name, finding)
        for finding in target.decision.findings
        if finding.verdict is Verdict.BREACH
    ]
    guard = target.guard
    # Every daemon sends the same: an alert must not end when another takes over the guard.
    if guard is not None and guard.state is not None:
        alerts += _of_guard(guard.state, acts=guard.mode == "act")
    for alert in alerts:
        alert.annotations["runbook_url"] = runbook_address(runbook_url, alert.labels["alertname"])
    return alerts


def _of_finding(target: str, finding: Finding) -> Alert:
    rule = finding.rule
    labels = {
        "alertname": RULE,
        "rule": rule.name,
        "severity": rule.severity,
        "target": target,
        "model_name": finding.model_name,
    }
    where = ""
    if finding.temperature != ALL_TEMPERATURES:
        labels["temperature"] = finding.temperature
        where = f" at temperature {finding.temperature}"
    return Alert(
        labels,
        {
            "summary": f"{target}: {rule.summary[:1].lower()}{rule.summary[1:]}",
            "description": f"{finding.model_name}{where}: {_numbers(finding)}",
        },
        finding.since,
    )


def _numbers(finding: Finding) -> str:
    """``speedup_ratio is 0.71 (0.65 to 0.77) over 30m, below 1``."""
    leading = leading_reading(finding)
    if leading is None or leading[1].value is None:
        return f"{finding.rule.name} is in breach; this minute has no numbers"
    condition, reading = leading
    sentence = f"{condition.metric} is {reading.value:.3g}"
    if reading.interval is not None:
        sentence += f" ({reading.interval.lower:.3g} to {reading.interval.upper:.3g})"
    line = "below" if condition.above is None else "above"
    # What a stretch decided is of less than the window: its note says of how much.
    window = reading.note or f"over {format_duration(finding.rule.window_of(condition))}"
    sentence += f" {window}, {line} {condition.threshold:g}"
    return f"{sentence}; {reading.drafts} drafts, {reading.requests} requests"


def _of_guard(state: GuardState, *, acts: bool) -> Iterator[Alert]:
    if state.phase in (Phase.ROLLING_BACK, Phase.HELD):
        yield _alert(
            state, FAILED, "critical", state.since,
            f"{state.target}: switching speculation failed, and the guard holds",
            f"{state.why}. Nothing more is done until `specwatch guard resume {state.target}`",
        )  # fmt: skip
    if state.phase is Phase.CONFIRMED and acts and state.waiting:
        yield _alert(
            state, BLOCKED, "warning", state.since,
            f"{state.target}: speculation should be switched off, and is not",
            state.waiting,
        )  # fmt: skip
    if state.phase is Phase.DISABLED and state.waiting == HIDDEN_CHANGE:
        yield _alert(
            state, BLOCKED, "warning", state.since,
            f"{state.target}: a change of its owner is hidden while speculation is off",
            f"{state.waiting}. `specwatch guard enable {state.target}` puts it in force",
        )  # fmt: skip
    off = state.phase in (Phase.VERIFYING, Phase.DISABLED) and state.goal == "off"
    incident = state.incident
    if off and incident is not None and incident.cause not in _NO_ALERT.get(state.phase, ()):
        lost = " A trial was lost since." if incident.cause is Cause.TRIAL_LOST else ""
        yield _alert(
            state, SWITCHED_OFF, "warning", incident.began,
            f"{state.target}: speculation was switched off",
            f"{_by(incident)}.{lost} The numbers:"
            f" `specwatch guard explain {incident.id}`",
        )  # fmt: skip


_NO_ALERT = {
    Phase.VERIFYING: (Cause.PERSON, Cause.EXPLORATION), Phase.DISABLED: (Cause.PERSON,),
}  # fmt: skip
"""Causes without an alert: the operator who gave the order knows, and explorations end."""


def _by(incident: Incident) -> str:
    if incident.cause is Cause.EXPLORATION:
        return "An exploration found that it loses"
    return f"By the rule {incident.what or 'of a trial'}"


def _alert(
    state: GuardState, name: str, severity: str, since: float, summary: str, description: str
) -> Alert:
    labels = {"alertname": name, "severity": severity, "target": state.target}
    incident = state.incident
    if incident is not None and incident.model_name:
        labels["model_name"] = incident.model_name
    annotations = {"summary": summary, "description": description}
    if incident is not None:
        annotations["incident"] = incident.id
        annotations["numbers"] = _leading(incident.inputs)
    return Alert(labels, annotations, since)


def _leading(inputs: object) -> str:
    """The reading that an incident began with."""
    leading = inputs.get("leading") if isinstance(inputs, dict) else None
    if not isinstance(leading, dict) or leading.get("value") is None:
        return ""
    sentence = f"{leading['metric']} {leading['value']:.3g}"
    if leading.get("lower") is not None and leading.get("upper") is not None:
        sentence += f" ({leading['lower']:.3g} to {leading['upper']:.3g})"
    return sentence
