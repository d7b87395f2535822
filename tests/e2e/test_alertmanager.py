"""A real Alertmanager hears of alerts, keeps them while they fire, and of their end."""

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

from specwatch.alerts.alert import Alert
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
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


def wait_for_end(server: RunningAlertmanager, name: str = "SpecwatchIncident") -> None:
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
