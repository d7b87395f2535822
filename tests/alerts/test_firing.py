"""What the daemon itself tells Alertmanager of a target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.alerts.alert import Alert, runbook_anchor
from specwatch.alerts.firing import BLOCKED, FAILED, RULE, SWITCHED_OFF, alerts_of
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
from specwatch.domain.model import Mode
from specwatch.generate.alerts import runbook_sections
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from tests.alerts.receiver import Receiver
from tests.web.decided import BREACHED, decided
from tests.web.statuses import NOW, target

BOOK = "https://wiki.example/runbook"
INCIDENT = Incident("i", Cause.RULE, NOW - 60, "too-slow", "llama")
STATE = GuardState("chat", since=NOW, incident=INCIDENT)


def told(phase: Phase = Phase.OBSERVING, waiting: str = "", **changes: Any) -> list[Alert]:
    state = replace(STATE, phase=phase, waiting=waiting, goal=Mode.OFF)
    return alerts_of(target(guard=GuardStatus("act", state), **changes), BOOK)


@pytest.mark.parametrize(
    ("name", "alerts"),
    [
        (RULE, told(decision=decided((BREACHED,)))),
        (SWITCHED_OFF, told(Phase.DISABLED)),
        (BLOCKED, told(Phase.CONFIRMED, "cooling down")),
        (FAILED, told(Phase.HELD)),
    ],
)
def test_each_alert_links_to_its_section(name: str, alerts: list[Alert]) -> None:
    (alert,) = alerts
    assert alert.labels["alertname"] == name
    url, _, fragment = alert.annotations["runbook_url"].partition("#")
    assert url == BOOK
    assert [fragment] == [
        runbook_anchor(section.name) for section in runbook_sections() if section.name == name
    ]


def test_where_the_runbook_is_makes_no_other_alert() -> None:
    """Its address may change while an alert fires."""
    one = target(decision=decided((BREACHED,)))
    assert [alert.key for alert in alerts_of(one, BOOK)] == [
        alert.key for alert in alerts_of(one, "http://elsewhere")
    ]


def test_the_configured_address_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Alert] = []
    monkeypatch.setattr(Alertmanagers, "set", lambda _, alerts: sent.extend(alerts))
    with Receiver() as receiver:
        section = Alertmanager(urls=[receiver.url], runbook_url=BOOK)
        alertmanagers = Alertmanagers(section)
        alertmanagers.send([target(decision=decided((BREACHED,)))])
        alertmanagers.close()
    (alert,) = sent
    assert alert.annotations["runbook_url"].startswith(f"{BOOK}#")


def test_without_alertmanagers_nothing_is_sent() -> None:
    alertmanagers = Alertmanagers(None)
    alertmanagers.send([target(decision=decided((BREACHED,)))])
    assert not alertmanagers.active
    assert alertmanagers.status() == ()
    alertmanagers.close()
