"""What the daemon itself tells Alertmanager of a target: ``tests/golden/alerts/sent.yml``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import pytest
import yaml

from specwatch.alerts.alert import Alert, Links, runbook_anchor
from specwatch.alerts.firing import DOWN_AFTER, IMPLIED, RULE, alerts_of
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
from specwatch.config.rules import DEFAULT_RULES, Rule
from specwatch.config.rules.metrics import MEASURES
from specwatch.domain.model import ALL, Mode
from specwatch.errors import ScrapeReason
from specwatch.generate.alerts import runbook_sections
from specwatch.guard.groups import QUEUED
from specwatch.guard.state import HIDDEN_CHANGE, Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.rules.attribution import ChangeCause, Factor
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.objectives import SloStatus
from specwatch.rules.reading import Reading
from specwatch.status import Failure
from specwatch.wording.rules import metric_words
from tests.plugins.golden import Golden
from tests.segments import segment
from tests.web.decided import BREACHED, SLO, decided
from tests.web.statuses import NOW, target

LINKS = Links("https://wiki.example/runbook", "https://watch.example")
INPUTS = {
    "leading": {
        "metric": "speedup_ratio",
        "above": None,
        "below": 1.0,
        "clear": None,
        "window": 3600.0,
        "value": 0.8,
        "lower": 0.7,
        "upper": 0.9,
        "drafts": 900,
        "requests": 70,
        "basis": "measured",
        "missing": None,
    }
}
INCIDENT = Incident("i", Cause.RULE, NOW - 60, "too-slow", "llama", ALL, inputs=INPUTS)
LIKELY = ChangeCause(Factor.ACCEPTANCE, -0.5, -0.6, 0.97, "acceptance fell from 70% to 20%")
RULES = {rule.name: rule for rule in DEFAULT_RULES}
NET_NEGATIVE, LOW, GARBAGE = (RULES[name] for name in ("net-negative", "low-acceptance", "garbage"))
DOWN = Failure(ScrapeReason.REFUSED, "nothing listens at http://gpu:8000; is vLLM up?", NOW - 720)


def told(
    phase: Phase = Phase.OBSERVING,
    waiting: str = "",
    *,
    mode: str = "act",
    why: str = "",
    incident: Incident = INCIDENT,
    healthy_at: float | None = None,
    **changes: Any,
) -> list[Alert]:
    """The alerts of a target whose guard is in this phase."""
    state = GuardState(
        "chat",
        phase,
        since=NOW - 30,
        goal=Mode.OFF,
        incident=incident,
        waiting=waiting,
        why=why,
        healthy_at=healthy_at,
    )
    return alerts_of(target(guard=GuardStatus(mode, state), **changes), LINKS, NOW)


def in_breach(*rules: Rule, **changes: Any) -> TargetDecision:
    """These rules in breach, with the numbers of one that is."""
    decision = decided((BREACHED,))
    (finding,) = decision.findings
    findings = tuple(replace(finding, rule=rule, **changes) for rule in rules)
    return replace(decision, findings=findings)


def unjudged() -> TargetDecision:
    """The default rule about it in breach."""
    rule = RULES["unjudged"]
    reading = Reading(
        1860.0, drafts=4000, requests=90, note="no baseline at the load that there was"
    )
    return in_breach(rule, readings=((rule.conditions[0], reading),))


def burning(rate: float, **changes: Any) -> TargetDecision:
    """An objective whose budget burns at a rate over every window."""
    spans = (300, 1800, 3600, 7200, 21600, 86400, 259200)
    known: dict[str, Any] = {
        "error_ratio": 0.4,
        "budget_left": -65.24,
        "burn_rates": dict.fromkeys(spans, rate),
        "requests": dict.fromkeys(spans, 500.0),
        "watched": {span: float(span) for span in spans},
    }
    return TargetDecision(slos=(SloStatus(SLO, "llama", 60.0, 100.0, 0.0, **{**known, **changes}),))


def by(cause: Cause) -> Incident:
    return replace(INCIDENT, cause=cause)


def situations() -> dict[str, Sequence[Alert]]:
    """What is sent, by what is the matter."""
    causes = {(name, "llama", ALL): LIKELY for name in ("too-slow", "net-negative")}
    explained = TargetDecision(causes=causes)
    breached = replace(in_breach(NET_NEGATIVE), causes=causes)
    everything = replace(burning(20), findings=in_breach(*DEFAULT_RULES).findings)
    grafana = LINKS._replace(grafana="https://grafana.example")
    return {
        "a rule is in breach": told(decision=in_breach(NET_NEGATIVE)),
        "its cause is likely": told(decision=breached),
        "at a temperature": told(decision=in_breach(LOW, segment=segment(">1"))),
        "of a segment": told(decision=in_breach(LOW, segment=segment("output=tool_call"))),
        "a rule of the configuration's own": told(decision=in_breach(BREACHED)),
        "it is unjudged": told(decision=unjudged()),
        "it is unjudged, and the guard explores": alerts_of(
            target(guard=GuardStatus("act", explores=True), decision=unjudged()), LINKS, NOW
        ),
        "with Grafana": alerts_of(target("a b", decision=in_breach(BREACHED)), grafana, NOW),
        "an objective burns fast": told(decision=burning(20)),
        "an objective burns, rules are in breach": told(
            decision=replace(burning(20), findings=in_breach(NET_NEGATIVE).findings)
        ),
        "an objective burns for six hours": told(decision=burning(7)),
        "an objective burns slowly": told(decision=burning(2)),
        "the server is down": told(failure=DOWN),
        "the server is down, and the guard holds": told(
            Phase.HELD, failure=DOWN, decision=everything, why="vLLM refused --foo"
        ),
        "the server has been down for less than that": told(
            failure=replace(DOWN, since=NOW - DOWN_AFTER + 1)
        ),
        "the server answers": told(failure=replace(DOWN, reason=ScrapeReason.CREDENTIALS)),
        "the guard restarts the server": told(Phase.RESTARTING, failure=DOWN),
        "the server dies while the guard verifies": told(
            Phase.VERIFYING, healthy_at=NOW - 900, failure=DOWN
        ),
        "the guard waits": told(Phase.CONFIRMED, "cooling down", decision=explained),
        "the guard waits, and only observes": told(Phase.CONFIRMED, "cooling", mode="observe"),
        "the group comes first": told(Phase.CONFIRMED, f"{QUEUED} (a goes first)"),
        "the guard verifies": told(Phase.VERIFYING),
        "the guard switched off": told(Phase.DISABLED, decision=explained),
        "the guard lost a trial": told(Phase.DISABLED, incident=by(Cause.TRIAL_LOST)),
        "a change is hidden": told(Phase.DISABLED, HIDDEN_CHANGE, incident=by(Cause.PERSON)),
        "an exploration found it": told(Phase.DISABLED, incident=by(Cause.EXPLORATION)),
        "an exploration goes on": told(Phase.VERIFYING, incident=by(Cause.EXPLORATION)),
        "a person switched off": told(Phase.DISABLED, incident=by(Cause.PERSON)),
        "a holdout begins": told(Phase.VERIFYING, incident=by(Cause.HOLDOUT)),
        "a holdout": told(Phase.DISABLED, incident=by(Cause.HOLDOUT)),
        "the guard rolls back": told(Phase.ROLLING_BACK, why="vLLM did not start"),
        "the guard failed": told(Phase.HELD, why="vLLM did not start."),
    }


def written(alert: Alert) -> dict[str, Any]:
    """Its fields that are not as usual; the time is that before now."""
    fields = {**asdict(alert), "starts_at": f"now - {NOW - alert.starts_at:g}"}
    return {name: value for name, value in fields.items() if value}


@pytest.mark.golden
def test_each_alert_says_what_is_the_matter_and_links_to_more(golden: Golden) -> None:
    sent = {title: list(map(written, alerts)) for title, alerts in situations().items()}
    golden("alerts/sent.yml", yaml.safe_dump(sent, sort_keys=False, width=96, allow_unicode=True))


@cache
def section_names() -> dict[str, str]:
    """Names of the runbook's sections by their anchors."""
    return {runbook_anchor(section.name): section.name for section in runbook_sections()}


def section_of(alert: Alert) -> str:
    url, _, fragment = alert.annotations["runbook_url"].partition("#")
    assert url == LINKS.runbook
    return section_names()[fragment]


def test_every_link_leads_to_a_section_of_the_runbook() -> None:
    for alerts in situations().values():
        for alert in alerts:
            name = alert.labels["alertname"]
            assert name in (section_of(alert), RULE)
    for rule in DEFAULT_RULES:
        (alert,) = told(decision=in_breach(rule))
        words = section_of(alert).removeprefix("Speculation")
        assert re.sub("(?<!^)(?=[A-Z])", "-", words).lower() == rule.name


def test_every_metric_has_words() -> None:
    assert [name for name in MEASURES if "_" in metric_words(name)] == []
    assert metric_words("of_a_newer_daemon") == "of a newer daemon"


def test_one_cause_is_one_alert() -> None:
    """What follows from a loss is not sent beside it."""
    for cause, implied in IMPLIED.items():
        rules = [RULES[name] for name in implied if name in RULES]
        sent = [alert.labels["rule"] for alert in told(decision=in_breach(RULES[cause], *rules))]
        assert sent == [cause]
        assert len(told(decision=in_breach(*rules))) == len(rules)


def test_what_fires_for_a_workload_is_not_said_of_its_pods_too() -> None:
    """What one pod has alone is; what is done to the guard is said of the workload."""
    name = "serving/deployment/vllm"
    guard = GuardStatus("act", GuardState(name, Phase.HELD, NOW - 30, why="it did not start"))
    whole = target(name, guard=guard, pods=("serving/a",), decision=in_breach(NET_NEGATIVE))
    both = in_breach(NET_NEGATIVE, GARBAGE)
    pod = target("serving/a", guard=guard, workload=name, decision=both)
    said = [alert.labels["alertname"] for alert in alerts_of(whole, LINKS, NOW)]
    assert said == [RULE, "SpeculationGuardFailed"]
    (alone,) = alerts_of(pod, LINKS, NOW, whole)
    assert (alone.labels["rule"], alone.labels["target"]) == ("garbage", "serving/a")
    assert len(alerts_of(pod, LINKS, NOW)) == 2


def test_a_bucket_does_not_explain_another_one() -> None:
    decision = in_breach(GARBAGE, LOW)
    garbage, low = decision.findings
    apart = replace(decision, findings=(replace(garbage, segment=segment(">1")), low))
    assert len(told(decision=apart)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": {3600: 99.0}},
        {"requests": {300: 9.0}},
        {"watched": {3600: 2000.0}},
        {"burn_rates": {300: 0.5}},
        {"burn_rates": {3600: None}},
    ],
)
def test_a_burn_of_too_little_or_that_is_over_is_not_sent(changes: dict[str, Any]) -> None:
    """Neither over an hour, nor over longer windows: those burn slowly here."""
    status = burning(0.5).slos[0]
    fast = replace(status, burn_rates={**status.burn_rates, 300: 20.0, 3600: 20.0})
    assert fast.burning is not None
    changed = {name: {**getattr(fast, name), **values} for name, values in changes.items()}
    assert replace(fast, **changed).burning is None


def test_where_the_runbook_is_makes_no_other_alert() -> None:
    """Its address may change while an alert fires."""
    one = target(decision=decided((BREACHED,)))
    assert [alert.key for alert in alerts_of(one, LINKS, NOW)] == [
        alert.key for alert in alerts_of(one, Links(), NOW + 600)
    ]


@pytest.mark.parametrize(
    ("options", "runbook", "dashboard"),
    [
        ({}, "http://watch:9469/runbook", "http://watch:9469/"),
        ({"runbook_url": LINKS.runbook}, LINKS.runbook, "http://watch:9469/"),
        (
            {"grafana_url": "http://g"},
            "http://watch:9469/runbook",
            "http://g/d/specwatch-overview?var-target=chat&var-model_name=llama",
        ),
    ],
)
def test_the_configured_addresses_are_sent(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], runbook: str, dashboard: str
) -> None:
    sent: list[Alert] = []
    monkeypatch.setattr(Alertmanagers, "set", lambda _, alerts: sent.extend(alerts))
    section = Alertmanager(urls=["http://127.0.0.1:1"], **options)
    alertmanagers = Alertmanagers(section, "http://watch:9469")
    alertmanagers.send([target(decision=decided((BREACHED,)))])
    alertmanagers.close()
    (alert,) = sent
    assert alert.annotations["runbook_url"].partition("#")[0] == runbook
    assert alert.annotations["dashboard_url"] == dashboard


def test_without_alertmanagers_nothing_is_sent() -> None:
    alertmanagers = Alertmanagers(None)
    alertmanagers.send([target(decision=decided((BREACHED,)))])
    assert alertmanagers.status() == ()
    alertmanagers.close()
