"""A real Alertmanager gets alerts, keeps them while they fire, resolves and inhibits them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from specwatch.alerts.alert import Alert
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
from specwatch.generate.alerts import alertmanager_sample
from tests.e2e.monitoring import RunningAlertmanager
from tests.e2e.processes import CHECKOUT
from tests.e2e.waiting import eventually

RESEND = 2.0
LIFETIME = 4 * RESEND
"""Seconds after which an alert ends that nobody repeats; no machine stops for so long."""
SELDOM = {"resend": "200s", "timeout": "30s"}
"""Alerts then live longer than any test waits, unless their end is sent."""
HEARD_WITHIN = 120.0

Senders = Callable[..., Alertmanagers]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningAlertmanager]:
    with RunningAlertmanager(tmp_path / "first") as running:
        yield running


@pytest.fixture
def senders() -> Iterator[Senders]:
    """``tell(*urls, ahead, **section)``: a sender whose clock is ahead by seconds."""
    with contextlib.ExitStack() as closing:

        def sender(*urls: str, ahead: float = 0.0, **section: Any) -> Alertmanagers:
            options = {"resend": f"{RESEND:g}s", **section}
            made = Alertmanagers(
                Alertmanager(urls=urls, **options),
                now=lambda: time.time() + ahead,
            )
            closing.callback(made.close, 2.0)
            return made

        yield sender


def incident(name: str = "SpecwatchIncident", **labels: str) -> Alert:
    annotations = {"summary": "α is 0.12, below 0.5 ❱ 10 min", "runbook-url": "http://h/runbook"}
    return Alert({"alertname": name, "target": "chat-70b", **labels}, annotations, time.time() - 60)


def alerts(server: RunningAlertmanager) -> dict[str, dict[str, Any]]:
    """By their names."""
    return {alert["labels"]["alertname"]: alert for alert in server.alerts()}


def wait_for_alert(server: RunningAlertmanager, name: str = "SpecwatchIncident") -> dict[str, Any]:
    return eventually(
        lambda: alerts(server).get(name), what=f"{name} is heard", within=HEARD_WITHIN
    )


def wait_for_end(server: RunningAlertmanager) -> None:
    name = "SpecwatchIncident"
    eventually(lambda: name not in alerts(server), what=f"{name} is over", within=HEARD_WITHIN)


def test_an_alert_appears_is_kept_and_resolves(
    server: RunningAlertmanager, senders: Senders
) -> None:
    alertmanagers = senders(server.url, labels={"team": "ml"})
    alertmanagers.set([incident(model="tiny/target")])
    alert = wait_for_alert(server)
    assert alert["labels"] == {
        "alertname": "SpecwatchIncident",
        "target": "chat-70b",
        "model": "tiny/target",
        "team": "ml",
    }
    assert alert["annotations"] == {
        "summary": "α is 0.12, below 0.5 ❱ 10 min",
        "runbook_url": "http://h/runbook",
    }
    assert alert["status"]["state"] == "active"

    # Kept for longer than it lives by itself, as one alert that began when it began.
    kept_until = time.monotonic() + LIFETIME + 2 * RESEND
    while time.monotonic() < kept_until:
        again = alerts(server)["SpecwatchIncident"]
        assert again["startsAt"] == alert["startsAt"]
        time.sleep(0.2)
    assert again["endsAt"] > alert["endsAt"]

    alertmanagers.set([])
    wait_for_end(server)
    (delivery,) = alertmanagers.status()
    assert (delivery.firing, delivery.error) == (0, None)


def test_alerts_of_one_request_resolve_separately(
    server: RunningAlertmanager, senders: Senders
) -> None:
    alertmanagers = senders(server.url, **SELDOM)
    odd = Alert({"alertname": "Odd", "model-name": "m\ud800", "0": ""}, {"a b": ""}, 9e9)
    alertmanagers.set([incident(), odd])
    wait_for_alert(server)
    assert wait_for_alert(server, "Odd")["labels"] == {"alertname": "Odd", "model_name": "m?"}
    alertmanagers.set([odd])
    wait_for_end(server)
    assert "Odd" in alerts(server)
    alertmanagers.set([odd, incident()])
    wait_for_alert(server)
    assert alertmanagers.status()[0].failures == {}


def test_an_alert_ends_by_itself_when_its_sender_was_killed(
    server: RunningAlertmanager,
) -> None:
    program = f"""
        import time
        from specwatch.alerts.sender import Alertmanagers
        from specwatch.alerts.alert import Alert
        from specwatch.config.guard import Alertmanager
        section = Alertmanager(urls=["{server.url}"], resend="2s")
        Alertmanagers(section).set([Alert({{"alertname": "SpecwatchIncident"}}, {{}}, time.time())])
        time.sleep(600)
    """
    sender = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_for_alert(server)
        os.kill(sender.pid, signal.SIGKILL)
        sender.wait(60)
        assert alerts(server)  # not at once: a daemon that restarts keeps its alerts
        wait_for_end(server)
    finally:
        sender.kill()
        sender.wait(60)


def test_a_daemon_that_takes_over_keeps_the_alert_going(
    server: RunningAlertmanager, senders: Senders
) -> None:
    alert = incident()
    first = senders(server.url)
    first.set([alert])
    begun = wait_for_alert(server)["startsAt"]
    first.close(2.0)
    second = senders(server.url)
    second.set([alert])
    assert wait_for_alert(server)["startsAt"] == begun
    second.set([])
    wait_for_end(server)


def test_an_alertmanager_with_a_slow_clock_resolves_the_alert(
    server: RunningAlertmanager, senders: Senders
) -> None:
    """The first end lies in its future, so that it keeps the alert; the second does not."""
    ahead, resend = 6.0, 7.0
    alertmanagers = senders(server.url, ahead=ahead, resend=f"{resend:g}s")
    alertmanagers.set([incident()])
    wait_for_alert(server)
    alertmanagers.set([])
    eventually(
        lambda: not alertmanagers.status()[0].behind, what="the end is sent", within=HEARD_WITHIN
    )
    assert alerts(server)
    lives_on_for = 4 * resend + ahead
    eventually(lambda: not alerts(server), what="the end is believed", within=lives_on_for - 2.0)


def test_an_alertmanager_that_was_down_gets_the_alert_when_it_is_back(
    server: RunningAlertmanager, tmp_path: Path, senders: Senders
) -> None:
    other = RunningAlertmanager(tmp_path / "second")
    alertmanagers = senders(other.url, server.url, **SELDOM)
    alertmanagers.set([incident()])
    wait_for_alert(server)
    eventually(
        lambda: alertmanagers.status()[0].error, what="the failure shows", within=HEARD_WITHIN
    )
    assert set(alertmanagers.status()[0].failures) == {"refused"}
    with other:
        assert wait_for_alert(other)["startsAt"] == wait_for_alert(server)["startsAt"]
        eventually(
            lambda: alertmanagers.status()[0].error is None,
            what="the failure is over",
            within=HEARD_WITHIN,
        )
    assert alertmanagers.status()[1].failures == {}


BREACH, STOCK, SLO, DOWN = (
    "SpeculationRuleBreach",
    "VllmSpeculationLowAcceptance",
    "LatencySloBurn",
    "SpecwatchDown",
)
SERVER_DOWN, OWN_SLO = ("SpeculationServerDown", "SpecwatchTargetDown"), "SpeculationSloBurn"
Labels = dict[str, str]
SLO_OF_ONE = {"alertname": SLO, "servers": "one"}
STOCK_SLO_OF_ONE = {"alertname": "VllmLatencySloBurn", "servers": "one"}
HELD = {"alertname": "SpeculationGuardHeld"}
COLD, HOT = ({"dimension": "temperature", "value": value} for value in "01")
INHIBITIONS: list[tuple[Labels, Labels]] = [
    ({"alertname": DOWN}, {"alertname": SLO, "severity": "warning"}),
    *(({"alertname": down}, {"alertname": name}) for down in SERVER_DOWN for name in (BREACH, SLO)),
    ({"alertname": SERVER_DOWN[0]}, {"alertname": SERVER_DOWN[1]}),
    ({"alertname": SERVER_DOWN[1]}, {"alertname": "SpecwatchScrapeFailing"}),
    ({"alertname": OWN_SLO, "severity": "critical"}, {"alertname": SLO, "severity": "critical"}),
    ({"alertname": OWN_SLO, "severity": "warning"}, {"alertname": SLO, "severity": "warning"}),
    ({"alertname": SLO, "long": "1h"}, {"alertname": SLO, "long": "6h"}),
    ({"alertname": DOWN}, {"alertname": "SpecwatchCoverageLow"}),
    ({"alertname": DOWN}, HELD),
    ({"alertname": DOWN}, {"alertname": "SpecwatchStoreBehind", "target": ""}),
    ({"rule": "net-negative"}, {"rule": "low-acceptance", **COLD}),
    ({"rule": "net-negative"}, {"rule": "losing-bucket"}),
    ({"rule": "net-negative"}, {"rule": "bucket-loses", **COLD}),
    ({"rule": "net-negative"}, {"rule": "not-worth-it"}),
    ({"rule": "garbage", **HOT}, {"rule": "low-acceptance", **HOT}),
    ({"alertname": SLO, "severity": "critical"}, {"alertname": SLO, "severity": "warning"}),
    ({"alertname": BREACH, "rule": "short-outputs"}, {"rule": "short-outputs"}),
    ({"alertname": BREACH, "rule": "garbage", **HOT}, {"rule": "garbage", **HOT}),
    ({"alertname": "SpeculationSwitchedOff"}, {"alertname": "SpeculationGuardActed"}),
    ({"alertname": "SpeculationGuardBlocked"}, {"alertname": "SpeculationGuardWaiting"}),
    ({"alertname": "SpeculationGuardFailed"}, HELD),
    ({"alertname": "VllmSpeculationGarbage"}, {"alertname": STOCK}),
]
"""What inhibits what, of the same server only."""
OVERRULED: list[tuple[Labels, Labels]] = [
    ({"rule": "net-negative"}, {"alertname": STOCK}),
    ({"rule": "tail-widening"}, {"alertname": "VllmTailWidening"}),
    ({"rule": "kv-squeeze"}, {"alertname": "VllmKvSqueeze"}),
    *(
        ({**SLO_OF_ONE, "severity": own}, {**STOCK_SLO_OF_ONE, "severity": to})
        for own, to in (("critical", "critical"), ("critical", "warning"), ("warning", "warning"))
    ),
]
"""What inhibits what of the same model: the objectives' always, the others once the marks of these
rules are taken away."""
SPARED: list[tuple[Labels, Labels]] = [
    ({"alertname": DOWN}, {"alertname": BREACH}),
    ({"alertname": DOWN}, {"alertname": SLO, "severity": "critical"}),
    ({"alertname": DOWN}, {"alertname": SERVER_DOWN[1], "severity": "critical", "instance": ""}),
    ({"alertname": SERVER_DOWN[1]}, {"alertname": SERVER_DOWN[0]}),
    ({"alertname": SERVER_DOWN[1]}, {"alertname": DOWN}),
    ({"alertname": OWN_SLO, "severity": "warning"}, {"alertname": SLO, "severity": "critical"}),
    ({"alertname": DOWN}, {"alertname": "SpeculationGuardFailed"}),
    ({"alertname": DOWN}, {"alertname": STOCK}),
    (
        {"alertname": DOWN, "target": "", "instance": ""},
        {"alertname": "SpecwatchStoreBehind", "target": "", "instance": ""},
    ),
    ({"alertname": DOWN, "target": ""}, HELD),
    ({"alertname": DOWN, "target": "", "instance": ""}, {"alertname": "SpecwatchStoreBehind"}),
    ({"alertname": "SpeculationGuardBlocked"}, {"alertname": "SpeculationGuardBudgetExhausted"}),
    ({"alertname": BREACH, "rule": "garbage", **COLD}, {"rule": "garbage", **HOT}),
    ({"rule": "garbage", **HOT}, {"rule": "low-acceptance", **COLD}),
    ({"alertname": BREACH, "rule": "losing-bucket"}, {"rule": "bucket-loses"}),
    ({"rule": "garbage"}, {"alertname": "VllmSpeculationGarbage", "severity": "critical"}),
    ({**SLO_OF_ONE, "severity": "warning"}, {**STOCK_SLO_OF_ONE, "severity": "critical"}),
    (
        {**SLO_OF_ONE, "severity": "critical", "slo": "a"},
        {**STOCK_SLO_OF_ONE, "severity": "critical", "slo": "b"},
    ),
    *(
        (
            {**SLO_OF_ONE, "severity": "critical", "servers": own},
            {**STOCK_SLO_OF_ONE, "severity": "critical", "servers": to},
        )
        for own, to in (("one", "several"), ("several", "one"), ("several", "several"), ("", ""))
    ),
    ({"alertname": BREACH, "rule": "short-outputs"}, {"rule": "my-own"}),
    ({"alertname": BREACH, "rule": "kv-squeeze"}, {"rule": "kv-squeeze", "model_name": "another"}),
    ({"rule": "net-negative"}, {"rule": "garbage"}),
    ({"rule": "low-acceptance"}, {"rule": "net-negative"}),
    ({"alertname": SLO, "severity": "warning"}, {"alertname": SLO, "severity": "critical"}),
    (
        {"alertname": SLO, "severity": "critical"},
        {"alertname": SLO, "severity": "warning", "slo": "another"},
    ),
]
"""What does not inhibit what."""


def of_server(labels: Labels, model: int, server: str) -> Labels:
    """An alert of a server of a model, under all the names that it has."""
    named = dict.fromkeys(("target", "instance", "job"), f"{server}-{model}")
    found = {"alertname": "Some", "model_name": f"model-{model}", **named, **labels}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("across_servers", [False, True])
def test_the_sample_inhibits_alerts_of_the_same_server_only(
    tmp_path: Path, across_servers: bool
) -> None:
    posted, expected = [], {}
    for model, (source, target) in enumerate([*INHIBITIONS, *OVERRULED, *SPARED]):
        posted.append(of_server(source, model, "own"))
        for server in ("own", "other"):
            case = f"{source} and {target} of {server}"
            posted.append({**of_server(target, model, server), "case": case})
            always = source.get("alertname") == SLO
            across = (across_servers or always) and (source, target) in OVERRULED
            reaches = across or (server == "own" and (source, target) in INHIBITIONS)
            expected[case] = "suppressed" if reaches else "active"
        posted.append({**of_server(target, 100 + model, "third"), "case": f"{target} alone"})
        expected[f"{target} alone"] = "active"
    sample = alertmanager_sample(across_servers=across_servers)
    with RunningAlertmanager(tmp_path, sample) as alertmanager:
        url, alerts = f"{alertmanager.url}/api/v2/alerts", [{"labels": each} for each in posted]
        assert requests.post(url, json=alerts, timeout=60).status_code == 200
        deadline = time.monotonic() + HEARD_WITHIN
        # Alertmanager applies inhibitions a moment after it has taken the alerts.
        while (found := states(alertmanager)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
    assert found == expected


def states(alertmanager: RunningAlertmanager) -> dict[str, str]:
    """By their label ``case``, what became of the alerts that Alertmanager has."""
    return {
        alert["labels"]["case"]: alert["status"]["state"]
        for alert in alertmanager.alerts()
        if "case" in alert["labels"]
    }
