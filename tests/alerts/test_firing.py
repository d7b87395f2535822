"""What the daemon itself tells Alertmanager of a target."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from specwatch.alerts.alert import Alert, Links, runbook_anchor
from specwatch.alerts.firing import (
    BLOCKED,
    DOWN_AFTER,
    FAILED,
    IMPLIED,
    RULE,
    SERVER_DOWN,
    SLO_BURN,
    SWITCHED_OFF,
    alerts_of,
)
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
from specwatch.config.rules import DEFAULT_RULES, Rule
from specwatch.config.rules.metrics import MEASURES
from specwatch.domain.model import Mode
from specwatch.errors import ScrapeReason
from specwatch.generate.alerts import runbook_sections
from specwatch.guard.groups import QUEUED
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.rules.attribution import ChangeCause, Factor
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.objectives import SloStatus
from specwatch.status import Failure
from specwatch.wording.rules import metric_words
from tests.alerts.receiver import Receiver
from tests.web.decided import BREACHED, SLO, decided
from tests.web.statuses import NOW, target

LINKS = Links("https://wiki.example/runbook", "https://watch.example")
INPUTS = {
    "leading": {
        "metric": "speedup_ratio", "above": None, "below": 1.0, "clear": None, "window": 3600.0,
        "value": 0.8, "lower": 0.7, "upper": 0.9, "drafts": 900, "requests": 70,
        "basis": "measured", "missing": None,
    }
}  # fmt: skip
INCIDENT = Incident("i", Cause.RULE, NOW - 60, "too-slow", "llama", "all", inputs=INPUTS)
STATE = GuardState("chat", since=NOW, incident=INCIDENT)
LIKELY = ChangeCause(Factor.ACCEPTANCE, -0.5, -0.6, 0.97, "acceptance fell from 70% to 20%")


def told(phase: Phase = Phase.OBSERVING, waiting: str = "", **changes: Any) -> list[Alert]:
    state = replace(STATE, phase=phase, waiting=waiting, goal=Mode.OFF, why=changes.pop("why", ""))
    return alerts_of(target(guard=GuardStatus("act", state), **changes), LINKS, NOW)


def in_breach(*rules: Rule) -> TargetDecision:
    """These rules in breach, with the numbers of one that is."""
    decision = decided((BREACHED,))
    (finding,) = decision.findings
    return replace(decision, findings=tuple(replace(finding, rule=rule) for rule in rules))


def burning(rate: float, **changes: Any) -> TargetDecision:
    """An objective whose budget burns at a rate over every window."""
    spans = (300, 1800, 3600, 7200, 21600, 86400, 259200)
    known: dict[str, Any] = {
        "error_ratio": 0.4, "budget_left": -65.24,
        "burn_rates": dict.fromkeys(spans, rate), "requests": dict.fromkeys(spans, 500.0),
        "watched": {span: float(span) for span in spans},
    }  # fmt: skip
    return TargetDecision(slos=(SloStatus(SLO, "llama", 60.0, 100.0, 0.0, **{**known, **changes}),))


DOWN = Failure(ScrapeReason.REFUSED, "nothing listens at http://gpu:8000; is vLLM up?", NOW - 720)


@pytest.mark.parametrize(
    ("name", "alerts"),
    [
        (SLO_BURN, told(decision=burning(20))),
        (SERVER_DOWN, told(failure=DOWN)),
        (SWITCHED_OFF, told(Phase.DISABLED)),
        (BLOCKED, told(Phase.CONFIRMED, "cooling down")),
        (FAILED, told(Phase.HELD)),
    ],
)
def test_each_alert_links_to_its_section_and_to_the_measurements(
    name: str, alerts: list[Alert]
) -> None:
    (alert,) = alerts
    assert alert.labels["alertname"] == name
    assert alert.annotations["dashboard_url"] == "https://watch.example/"
    assert section_of(alert) == name


def test_a_guard_whose_group_comes_first_is_no_alert() -> None:
    assert told(Phase.CONFIRMED, f"{QUEUED} (a goes first, and is not verified yet)") == []


def section_of(alert: Alert) -> str:
    url, _, fragment = alert.annotations["runbook_url"].partition("#")
    assert url == LINKS.runbook
    (name,) = (s.name for s in runbook_sections() if runbook_anchor(s.name) == fragment)
    return name


@pytest.mark.parametrize("rule", [*DEFAULT_RULES, BREACHED], ids=lambda rule: rule.name)
def test_a_breach_links_to_the_section_of_its_rule(rule: Rule) -> None:
    (alert,) = told(decision=in_breach(rule))
    assert alert.labels["alertname"] == RULE
    words = section_of(alert).removeprefix("Speculation")
    own = re.sub("(?<!^)(?=[A-Z])", "-", words).lower()
    assert own == ("custom-rule" if rule is BREACHED else rule.name)


def test_with_grafana_an_alert_links_to_its_dashboard() -> None:
    links = LINKS._replace(grafana="https://grafana.example")
    (alert,) = alerts_of(target("a b", decision=decided((BREACHED,))), links, NOW)
    assert alert.annotations["dashboard_url"] == (
        "https://grafana.example/d/specwatch-overview?var-target=a+b&var-model_name=llama"
    )


def test_a_breach_says_the_reading_its_threshold_since_when_and_why() -> None:
    decision = in_breach(DEFAULT_RULES[0])
    decision = replace(decision, causes={("net-negative", "llama", "all"): LIKELY})
    (alert,) = told(decision=decision)
    assert NOW - decision.findings[0].since == 180
    assert alert.annotations["summary"] == "chat: speedup 2, below 2.5 for 3 min"
    assert re.fullmatch(
        r"Speculation makes this server slower than it is without\. llama: speedup 2 \(.* to .*\)"
        r" (over 10m|of the last \d+ minutes of traffic), below 2\.5; \d+ drafts, \d+ requests\."
        r" Likely cause \(97% of the change\): acceptance fell from 70% to 20%\.",
        alert.annotations["description"],
    )


def test_every_metric_has_words() -> None:
    assert [name for name in MEASURES if "_" in metric_words(name)] == []
    assert metric_words("of_a_newer_daemon") == "of a newer daemon"


def test_one_cause_is_one_alert() -> None:
    """What follows from a loss is not sent beside it."""
    by_name = {rule.name: rule for rule in DEFAULT_RULES}
    for cause, implied in IMPLIED.items():
        rules = [by_name[name] for name in implied if name in by_name]
        sent = [alert.labels["rule"] for alert in told(decision=in_breach(by_name[cause], *rules))]
        assert sent == [cause]
        assert len(told(decision=in_breach(*rules))) == len(rules)


def test_a_bucket_does_not_explain_another_one() -> None:
    decision = in_breach(DEFAULT_RULES[-1], DEFAULT_RULES[2])
    garbage, low = decision.findings
    apart = replace(decision, findings=(replace(garbage, temperature=">1"), low))
    assert len(told(decision=apart)) == 2


def test_an_alert_about_a_segment_names_it() -> None:
    decision = in_breach(DEFAULT_RULES[2])
    (low,) = decision.findings
    of_segment = replace(decision, findings=(replace(low, temperature="output=tool_call"),))
    (alert,) = told(decision=of_segment)
    assert alert.labels["segment"] == "output=tool_call"
    assert "temperature" not in alert.labels
    assert "for tool calls" in alert.annotations["description"]


def test_a_server_that_is_down_is_the_only_alert_and_pages() -> None:
    decision = replace(burning(20), findings=in_breach(*DEFAULT_RULES).findings)
    (alert,) = told(Phase.HELD, failure=DOWN, decision=decision, why="vLLM refused --foo")
    assert alert.labels == {
        "alertname": SERVER_DOWN, "severity": "critical", "target": "chat", "group": "llama",
    }  # fmt: skip
    assert alert.annotations["summary"] == "chat: vLLM has not answered for 12 min"
    assert alert.annotations["description"] == (
        "nothing listens at http://gpu:8000; is vLLM up? It counts as down after 5 min. Likely"
        " cause: the guard could not switch speculation: vLLM refused --foo."
    )
    assert "cause" not in told(failure=DOWN)[0].annotations["description"]


@pytest.mark.parametrize(
    ("failure", "phase"),
    [
        (replace(DOWN, since=NOW - DOWN_AFTER + 1), Phase.OBSERVING),
        (replace(DOWN, reason=ScrapeReason.CREDENTIALS), Phase.OBSERVING),
        (DOWN, Phase.RESTARTING),
    ],
)
def test_a_server_that_answers_or_is_restarted_is_not_down(failure: Failure, phase: Phase) -> None:
    assert told(phase, failure=failure) == []


@pytest.mark.parametrize(("rate", "severity"), [(20, "critical"), (7, "critical"), (2, "warning")])
def test_a_budget_that_burns_fast_pages(rate: float, severity: str) -> None:
    (alert,) = told(decision=burning(rate))
    assert alert.labels["severity"] == severity


def test_a_burn_says_the_share_the_threshold_the_budget_and_the_rules_in_breach() -> None:
    slos, findings = burning(20).slos, in_breach(DEFAULT_RULES[0]).findings
    alerts = told(decision=TargetDecision(findings=findings, slos=slos))
    (alert,) = (alert for alert in alerts if alert.labels["alertname"] == SLO_BURN)
    assert alert.annotations["summary"] == (
        "chat: the error budget of first-token burns 20 times too fast"
    )
    assert alert.annotations["description"] == (
        "llama: 20.0% of the requests of the last 1h had a TTFT above 100 ms; 1% is allowed, and"
        " 14.4 times that fires. The error budget spent 66 times over. Rules in breach:"
        " net-negative."
    )
    assert "No rule is in breach." in told(decision=burning(20))[0].annotations["description"]


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": {3600: 99.0}}, {"requests": {300: 9.0}}, {"watched": {3600: 2000.0}},
        {"burn_rates": {300: 0.5}}, {"burn_rates": {3600: None}},
    ],
)  # fmt: skip
def test_a_burn_of_too_little_or_that_is_over_is_not_sent(changes: dict[str, Any]) -> None:
    """Neither over an hour, nor over longer windows: those burn slowly here."""
    status = burning(0.5).slos[0]
    fast = replace(status, burn_rates={**status.burn_rates, 300: 20.0, 3600: 20.0})
    assert fast.burning is not None
    changed = {name: {**getattr(fast, name), **values} for name, values in changes.items()}
    assert replace(fast, **changed).burning is None


def test_what_the_guard_did_has_the_reading_that_led_to_it() -> None:
    causes = {("too-slow", "llama", "all"): LIKELY}
    (alert,) = told(Phase.CONFIRMED, "cooling down", decision=TargetDecision(causes=causes))
    assert alert.annotations["description"] == (
        "By the rule too-slow: speedup 0.8 (0.7 to 0.9), below 1. It waits: cooling down. Likely"
        " cause (97% of the change): acceptance fell from 70% to 20%."
    )
    (alert,) = told(Phase.DISABLED)
    assert alert.annotations["description"] == (
        "By the rule too-slow: speedup 0.8 (0.7 to 0.9), below 1. The numbers:"
        " `specwatch guard explain i`"
    )


@pytest.mark.parametrize("phase", [Phase.VERIFYING, Phase.DISABLED])
def test_a_holdout_causes_no_alert(phase: Phase) -> None:
    state = replace(
        STATE, phase=phase, goal=Mode.OFF, incident=Incident("i", Cause.HOLDOUT, NOW - 60)
    )
    assert alerts_of(target(guard=GuardStatus("act", state)), LINKS, NOW) == []


def test_only_a_dead_server_and_a_fast_burn_are_critical() -> None:
    assert {rule.severity for rule in DEFAULT_RULES} == {"warning", "info"}
    for phase, waiting in ((Phase.HELD, ""), (Phase.DISABLED, ""), (Phase.CONFIRMED, "x")):
        assert {alert.labels["severity"] for alert in told(phase, waiting)} == {"warning"}


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
            {"grafana_url": "http://g"}, "http://watch:9469/runbook",
            "http://g/d/specwatch-overview?var-target=chat&var-model_name=llama",
        ),
    ],
)  # fmt: skip
def test_the_configured_addresses_are_sent(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], runbook: str, dashboard: str
) -> None:
    sent: list[Alert] = []
    monkeypatch.setattr(Alertmanagers, "set", lambda _, alerts, elsewhere: sent.extend(alerts))
    with Receiver() as receiver:
        section = Alertmanager(urls=[receiver.url], **options)
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
