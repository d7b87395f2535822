"""The alerts that fire now for one target, with their numbers: one for each cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from specwatch.alerts.alert import Alert, Links, runbook_address
from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.model import ALL
from specwatch.domain.units import format_duration, parse_duration
from specwatch.errors import NO_ANSWER
from specwatch.guard.groups import QUEUED
from specwatch.guard.state import HIDDEN_CHANGE, RESTARTS, Cause, GuardState, Incident, Phase
from specwatch.rules.attribution import ChangeCause
from specwatch.rules.decision_view import finding_view
from specwatch.rules.objectives import Burn, SloStatus
from specwatch.rules.verdicts import Finding
from specwatch.status import TargetStatus
from specwatch.wording import figures, speculation
from specwatch.wording.rules import amount, metric_words
from specwatch.wording.segments import where
from specwatch.wording.text import LONGEST_SENTENCE, shown

RULE, SLO_BURN, SERVER_DOWN, SWITCHED_OFF, BLOCKED, FAILED = (
    "SpeculationRuleBreach",
    "SpeculationSloBurn",
    "SpeculationServerDown",
    "SpeculationSwitchedOff",
    "SpeculationGuardBlocked",
    "SpeculationGuardFailed",
)
DOWN_AFTER = 300.0
"""Seconds without an answer after which a server is down: most restarts take less."""
_BURN_KEEPS = 300.0
"""Seconds: a burn rate of few requests in five minutes goes up and down."""
IMPLIED: Mapping[str, tuple[str, ...]] = {
    "net-negative": (
        "net-negative-unexplained",
        "low-acceptance",
        "losing-bucket",
        "bucket-loses",
        "not-worth-it",
        "ttft-regression",
        "tpot-regression",
        "tail-widening",
        "acceptance-shift",
    ),
    "garbage": ("low-acceptance", "losing-bucket", "bucket-loses", "acceptance-shift"),
}
"""By a rule in breach: rules that have the same cause, and so cause no alert beside it."""


def alerts_of(
    target: TargetStatus, links: Links, now: float, workload: TargetStatus | None = None
) -> list[Alert]:
    """All that fire at ``now`` (Unix seconds), with links to their section and dashboard.

    Their labels stay the same while they fire. While a server is down, that is the only alert: the
    others follow from it, or are about the time before. What fires for the ``workload`` of a pod is
    not said of the pod, too.
    """
    guard = target.guard
    state = None if guard is None else guard.state
    down = _server_down(target, state, now)
    alerts = [down] if down else [*_of_findings(target, now), *_of_slos(target, now)]
    # Every daemon sends the same: an alert must not end when another takes over the guard.
    if down is None and guard is not None and state is not None and not target.workload:
        alerts += _of_guard(target, state, acts=guard.mode == "act")
    if workload is not None:
        said = [_about(alert) for alert in alerts_of(workload, links, now)]
        alerts = [alert for alert in alerts if _about(alert) not in said]
    # As the guard has stored it: a server that was down at the start shows no model.
    group = (state and state.group) or target.group
    if group:
        alerts = [replace(alert, labels={**alert.labels, "group": group}) for alert in alerts]
    for alert in alerts:
        labels = alert.labels
        section = _section_of(labels["rule"]) if "rule" in labels else labels["alertname"]
        dashboard = links.dashboard(labels["target"], labels.get("model_name", ""))
        alert.annotations["runbook_url"] = runbook_address(links.runbook, section)
        alert.annotations["dashboard_url"] = dashboard
    return alerts


def _about(alert: Alert) -> dict[str, str]:
    """Its labels but for those that say of which target it is."""
    return {name: text for name, text in alert.labels.items() if name not in ("target", "group")}


def _section_of(rule: str) -> str:
    """The alert of Prometheus whose section of the runbook is about a rule."""
    if rule not in {default.name for default in DEFAULT_RULES}:
        return "SpeculationCustomRule"
    return "Speculation" + rule.replace("-", " ").title().replace(" ", "")


def _server_down(target: TargetStatus, state: GuardState | None, now: float) -> Alert | None:
    failure, phase = target.failure, state and state.phase
    # While the guard restarts it, a server does not answer until it is healthy.
    restarting = state is not None and phase in RESTARTS and state.healthy_at is None
    if failure is None or failure.reason not in NO_ANSWER or restarting:
        return None
    if now - failure.since < DOWN_AFTER:
        return None
    cause = ""
    if state is not None and phase is Phase.HELD:
        cause = f" Likely cause: the guard could not switch speculation: {_sentence(state.why)}"
    return Alert(
        {"alertname": SERVER_DOWN, "severity": "critical", "target": target.name},
        {
            "summary": f"{target.name}: vLLM has not answered for"
            f" {figures.span(now - failure.since)}",
            "description": f"{_sentence(failure.detail)} It counts as down after"
            f" {figures.span(DOWN_AFTER)}.{cause}",
        },
        failure.since,
        found_after=DOWN_AFTER,
    )


def _of_findings(target: TargetStatus, now: float) -> Iterator[Alert]:
    breaches = target.breaches
    for finding in breaches:
        if not any(_implies(other, finding) for other in breaches):
            scope = (finding.rule.name, finding.model_name, finding.segment)
            yield _of_finding(target, finding, target.decision.causes.get(scope), now)


def _implies(cause: Finding, finding: Finding) -> bool:
    return (
        finding.rule.name in IMPLIED.get(cause.rule.name, ())
        and finding.model_name == cause.model_name
        and cause.segment in (ALL, finding.segment)
    )


def _of_finding(
    target: TargetStatus, finding: Finding, cause: ChangeCause | None, now: float
) -> Alert:
    rule = finding.rule
    labels = {
        "alertname": RULE,
        "rule": rule.name,
        "severity": rule.severity,
        "target": target.name,
        "model_name": finding.model_name,
        "dimension": finding.segment.dimension,
        "value": finding.segment.value,
    }
    lasting = figures.span(now - finding.since)
    headline = f"{rule.name} in breach"
    numbers = "this minute has no numbers"
    remedy = ""
    leading = finding_view(finding).leading
    if leading is not None and leading.value is not None:
        words, line = metric_words(leading.metric), speculation.threshold(leading)
        headline = f"{words} {amount(leading.metric, leading.value)}, {line}"
        # What a stretch decided is of less than the window: its note says of how much.
        window = leading.note or f"over {format_duration(leading.window)}"
        if leading.metric in speculation.SAID_BY_NOTE:
            window = f"({window})"
        if leading.metric == "unjudged":
            remedy = f" {speculation.measured_by(target.means, target.guarded)}"
        traffic = f"{leading.drafts} drafts, {leading.requests} requests"
        numbers = f"{words} {speculation.value(leading)} {window}, {line}; {traffic}"
    summary = rule.summary.rstrip(".") or f"The rule {rule.name} is in breach"
    return Alert(
        labels,
        {
            "summary": f"{target.name}: {headline} for {lasting}",
            "description": f"{summary}. {shown(finding.model_name)}{where(finding.segment)}:"
            f" {numbers}.{_likely(cause)}{remedy}",
        },
        finding.since,
    )


def _likely(cause: ChangeCause | None) -> str:
    if cause is None:
        return ""
    return f" Likely cause ({cause.share:.0%} of the change): {_sentence(cause.sentence)}"


def _of_slos(target: TargetStatus, now: float) -> Iterator[Alert]:
    for status in target.decision.slos:
        burn = status.burning
        if burn is not None:
            yield _of_slo(target, status, burn, now)


def _of_slo(target: TargetStatus, status: SloStatus, burn: Burn, now: float) -> Alert:
    slo, model = status.slo, status.model_name
    rate = status.burn_rates[int(parse_duration(burn.long))] or 0.0
    rules = dict.fromkeys(
        finding.rule.name
        for finding in target.decision.findings
        if finding.in_breach and finding.model_name == model
    )
    cause = f"Rules in breach: {', '.join(rules)}" if rules else "No rule is in breach"
    allowed = 1 - slo.objective
    return Alert(
        {
            "alertname": SLO_BURN,
            "slo": slo.name,
            "severity": burn.severity,
            "target": target.name,
            "model_name": model,
        },
        {
            "summary": f"{target.name}: the error budget of {slo.name} burns {rate:.3g} times too"
            " fast",
            "description": f"{shown(model)}: {rate * allowed:.1%} of the requests of the last"
            f" {burn.long} had a {slo.metric.upper()} above {figures.seconds(slo.threshold)};"
            f" {100 * allowed:.4g}% is allowed, and {burn.factor:g} times that fires."
            f" {figures.budget_left(status.budget_left).capitalize()}. {cause}.",
        },
        now,
        keep_firing_for=_BURN_KEEPS,
    )


def _of_guard(target: TargetStatus, state: GuardState, *, acts: bool) -> Iterator[Alert]:
    name, cause = state.target, _cause_of(target, state.incident)
    if state.phase in (Phase.ROLLING_BACK, Phase.HELD):
        yield _alert(
            state,
            FAILED,
            state.since,
            f"{name}: switching speculation failed, and the guard holds",
            f"{_sentence(state.why)} Nothing more is done until `specwatch guard resume {name}`",
        )
    blocked = state.waiting and not state.waiting.startswith(QUEUED)
    if state.phase is Phase.CONFIRMED and acts and blocked:
        yield _alert(
            state,
            BLOCKED,
            state.since,
            f"{name}: speculation should be switched off, and is not",
            f"{_by(state.incident)}. It waits: {_sentence(state.waiting)}{cause}",
        )
    if state.phase is Phase.DISABLED and state.waiting == HIDDEN_CHANGE:
        yield _alert(
            state,
            BLOCKED,
            state.since,
            f"{name}: a change of its owner is hidden while speculation is off",
            f"{state.waiting}. `specwatch guard enable {name}` puts it in force",
        )
    off = state.phase in (Phase.VERIFYING, Phase.DISABLED) and state.goal == "off"
    incident = state.incident
    if off and incident is not None and incident.cause not in _NO_ALERT.get(state.phase, ()):
        lost = " A trial was lost since." if incident.cause is Cause.TRIAL_LOST else ""
        yield _alert(
            state,
            SWITCHED_OFF,
            incident.began,
            f"{name}: speculation was switched off",
            f"{_by(incident)}.{lost}{cause} The numbers: `specwatch guard explain {incident.id}`",
        )


_NO_ALERT = {
    Phase.VERIFYING: (Cause.PERSON, Cause.EXPLORATION, Cause.HOLDOUT),
    Phase.DISABLED: (Cause.PERSON, Cause.HOLDOUT),
}
"""Causes without an alert: the operator who gave the order knows, explorations end, and nothing is
wrong with a holdout."""


def _cause_of(target: TargetStatus, incident: Incident | None) -> str:
    if incident is None:
        return ""
    scope = (incident.what, incident.model_name, incident.segment)
    return _likely(target.decision.causes.get(scope))


def _by(incident: Incident | None) -> str:
    """What began an incident, with the reading and its threshold."""
    if incident is None:
        return "A breach is confirmed"
    if incident.cause is Cause.EXPLORATION:
        return "An exploration found that it loses"
    reading = speculation.stored_reading(incident.inputs.get("leading"))
    numbers = ""
    if reading is not None and reading.value is not None:
        value, line = speculation.value(reading), speculation.threshold(reading)
        numbers = f": {metric_words(reading.metric)} {value}, {line}"
    return f"By the rule {incident.what or 'of a trial'}{numbers}"


def _alert(state: GuardState, name: str, since: float, summary: str, description: str) -> Alert:
    labels = {"alertname": name, "severity": "warning", "target": state.target}
    incident = state.incident
    if incident is not None and incident.model_name:
        labels["model_name"] = incident.model_name
    annotations = {"summary": summary, "description": description}
    if incident is not None:
        annotations["incident"] = incident.id
    return Alert(labels, annotations, since)


def _sentence(text: str) -> str:
    text = shown(text, LONGEST_SENTENCE)
    return text if text.endswith((".", "?")) else f"{text}."
