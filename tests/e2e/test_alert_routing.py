"""From a server that its draft slows down to the page: a real Prometheus, a real Alertmanager.

A real vLLM with a draft that is never right, measured against one without. That it loses takes
minutes to tell, and alerts wait longer still. So the daemon finds a past in its store: what the
loaded server counted in some seconds, stamped as minutes; and in this test's copy of the rule files
every ``for`` and ``interval`` is a second, and 20 requests are enough (:func:`at_once`). The
configuration of Alertmanager is the sample, but for the address of its receivers.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from specwatch.domain.model import Batch, Environment, Moment
from specwatch.generate.alerts import alert_files
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.e2e.clients import Clients
from tests.e2e.monitoring import RunningAlertmanager, RunningPrometheus
from tests.e2e.processes import DaemonProcess, measurements_of, specwatch
from tests.e2e.waiting import eventually
from tests.lab.vllm_server import VllmServer

PAST_MINUTES, PAGES_A_MINUTE = 16, 2
GROUP_WAIT = 35.0
"""Seconds, and some more, after which Alertmanager sends what is new in a group."""
TELLS_WITHIN = 420.0
"""Seconds until the daemon has closed a minute, and all who wait for it have heard."""
RULE_FILES = ("specwatch.rules.yml", "vllm.rules.yml")
PAGE = "page"
BREACH, NET_NEGATIVE, LOW_ACCEPTANCE, STOCK, SLO, DOWN = (
    "SpeculationRuleBreach",
    "SpeculationNetNegative",
    "SpeculationLowAcceptance",
    "VllmSpeculationLowAcceptance",
    "LatencySloBurn",
    "SpecwatchDown",
)
FIRE = {NET_NEGATIVE, LOW_ACCEPTANCE, STOCK, SLO}
CONFIG = {
    "rules": {
        "use_defaults": False,
        "extra": [
            {
                "name": "net-negative",
                "metric": "speedup_ratio",
                "below": 1,
                "window": "30m",
                "for": "0s",
                "min_drafts": 100,
                "severity": "critical",
            },
            {
                "name": "low-acceptance",
                "metric": "acceptance_ratio",
                "below": 0.5,
                "window": "10m",
                "for": "0s",
                "min_drafts": 100,
            },
        ],
    },
    "slos": [{"name": "first-token", "metric": "ttft", "threshold": "1ms", "objective": "99%"}],
}


def at_once(rules: str) -> str:
    """A rule file whose alerts wait for nothing, and an objective's neither for a hundred requests
    nor until its window was watched."""
    hasty = re.sub(r"^( +(?:for|interval): )\w+$", r"\g<1>1s", rules, flags=re.MULTILINE)
    young = re.sub(r">= 0\.75$", ">= 0", hasty, flags=re.MULTILINE)
    return re.sub(r">= 100$", ">= 20", young, flags=re.MULTILINE)


class Message(NamedTuple):
    """What Alertmanager sent to a receiver."""

    receiver: str
    body: dict[str, Any]
    at: float
    """By the monotonic clock."""

    def has(self, **labels: str) -> bool:
        """Whether an alert with these labels fires in it."""
        return any(
            alert["status"] == "firing" and labels.items() <= alert["labels"].items()
            for alert in self.body["alerts"]
        )


class Receivers:
    """The placeholders of the sample: keep each message by the receiver it is for."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        messages = self.messages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                messages.append(Message(self.path.strip("/"), body, time.monotonic()))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def groups(self, receiver: str) -> dict[str, dict[str, str]]:
        """By the names of the alerts that came to a receiver: what their group had in common."""
        return {
            alert["labels"]["alertname"]: message.body["groupLabels"]
            for message in list(self.messages)
            if message.receiver == receiver
            for alert in message.body["alerts"]
        }

    def paged_after_the_breach(self, name: str) -> bool:
        """Whether an alert came to the pager once the daemon's own had: before, nobody knew."""
        pages = [each for each in list(self.messages) if each.receiver == PAGE]
        at = next(page.at for page in pages if page.has(alertname=BREACH))
        return any(page.has(alertname=name) for page in pages if page.at > at)


@dataclass
class Alerting:
    prometheus: RunningPrometheus
    alertmanager: RunningAlertmanager
    daemon: DaemonProcess
    receivers: Receivers

    def active(self) -> dict[str, list[dict[str, str]]]:
        """The labels of the alerts that are not inhibited, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self.alertmanager.alerts():
            if alert["status"]["state"] == "active":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def inhibited(self) -> dict[str, set[str]]:
        """Names of the alerts that are inhibited, with the names of those that do it."""
        alerts = self.alertmanager.alerts()
        names = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in alerts}
        found: dict[str, set[str]] = {}
        for alert in alerts:
            if by := alert["status"]["inhibitedBy"]:
                sources = found.setdefault(alert["labels"]["alertname"], set())
                sources.update(names[fingerprint] for fingerprint in by)
        return found


def calibrated(off: VllmServer, on: VllmServer, database: str) -> None:
    """At either load at which two users may be seen, so that each minute can be compared."""
    ran = specwatch(
        "calibrate",
        "--off",
        off.url,
        "--on",
        on.url,
        "--target",
        "tiny",
        "--database",
        database,
        "--concurrency",
        "1,2",
        "--duration",
        "2400ms",
        "--warm-up",
        "500ms",
        "--max-tokens",
        "16",
        "--unsteady",
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr


def give_a_past(server: VllmServer, database: str) -> None:
    """Minutes before this one, of two seconds each: shorter ones differ so much on a busy machine
    that the daemon needs many more to be sure."""
    key = measurements_of(database)[0].key
    watch = WindowBuilder("past", "tiny", max_gap=60)
    watch.environment = Environment(engine_version=key.engine_version)
    pages, batches = PageReader(), list[Batch]()
    start = int(time.time()) // 60 * 60 - PAST_MINUTES * 60
    every = 60 // PAGES_A_MINUTE
    for second in range(0, PAST_MINUTES * 60 + every, every):
        observed = watch.observe(
            pages.read(server.metrics().encode()), Moment(start + second, second)
        )
        assert observed.error is None, observed.error
        batches += [Batch(observed.batch.windows, None)] if observed.batch else []
        time.sleep(1.0)
    store = Store(database, daemon="past")
    store.open(time.time())
    store.write([pack_batch(batch) for batch in batches], time.time())
    store.close(time.time())


@pytest.fixture(scope="module")
def alerting(
    plain_server: VllmServer, bad_server: VllmServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Alerting]:
    """All servers, once the daemon has sent its breach and Prometheus has evaluated its rules."""
    folder = tmp_path_factory.mktemp("alerting")
    database = f"sqlite:///{folder}/specwatch.db"
    on = bad_server
    with ExitStack() as stack:
        calibrated(plain_server, on, database)
        stack.enter_context(Clients(on.url, pause=1.0))
        give_a_past(on, database)
        receivers = Receivers()
        stack.callback(receivers.close)
        files = alert_files()
        sample = files["alertmanager.yml"].replace("127.0.0.1:9095", receivers.address)
        alertmanager = stack.enter_context(RunningAlertmanager(folder / "alertmanager", sample))
        section = {"urls": [alertmanager.url], "resend": "10s"}
        targets = [{"name": "tiny", "url": on.url, "interval": "1s"}]
        daemon = stack.enter_context(
            DaemonProcess.configured(
                folder / "daemon", database, CONFIG | {"targets": targets, "alertmanager": section}
            )
        )
        prometheus = stack.enter_context(
            RunningPrometheus(
                folder / "prometheus",
                {"specwatch": [daemon.url], "vllm": [on.url]},
                rule_files={name: at_once(files[name]) for name in RULE_FILES},
                alertmanagers=[alertmanager.url],
            )
        )
        found = Alerting(prometheus, alertmanager, daemon, receivers)
        eventually(
            lambda: prometheus.firing() >= FIRE, what="all fire", within=TELLS_WITHIN, every=0.5
        )
        eventually(
            lambda: {BREACH, SLO} <= receivers.groups(PAGE).keys(),
            what="both pages are there",
            within=TELLS_WITHIN,
            evidence=lambda: (receivers.groups(PAGE), daemon.status()["targets"][0]["decision"]),
        )
        yield found


def test_the_alert_of_prometheus_has_the_numbers_of_the_loss(alerting: Alerting) -> None:
    (alert,) = (
        each for each in alerting.prometheus.alerts() if each["labels"]["alertname"] == NET_NEGATIVE
    )
    labels, annotations = alert["labels"], alert["annotations"]
    assert (labels["severity"], labels["target"]) == ("warning", "tiny")
    numbers = re.search(
        r"ran at ([\d.]+) times .* at ([\d.]+) times at most .* reads ([\d.]+), and its"
        r" threshold is 1[.]00",
        annotations["description"],
    )
    assert numbers, annotations["description"]
    speed, upper, reading = map(float, numbers.groups())
    assert 0 < speed < upper < 1
    assert 0 < reading < 1
    assert annotations["runbook_url"].endswith("#" + NET_NEGATIVE.lower())


def test_no_rule_fails(alerting: Alerting) -> None:
    assert {rule["health"] for rule in alerting.prometheus.rules()} == {"ok"}


def test_the_loss_pages_once_with_the_alert_of_the_daemon(alerting: Alerting) -> None:
    paged = alerting.receivers.groups(PAGE)
    assert paged[BREACH] == {"alertname": BREACH, "group": "tiny"}
    eventually(
        lambda: BREACH in alerting.inhibited().get(NET_NEGATIVE, set()),
        what="what the daemon tells inhibits what Prometheus does",
        within=TELLS_WITHIN,
    )
    assert NET_NEGATIVE not in alerting.active()
    assert not alerting.receivers.paged_after_the_breach(NET_NEGATIVE)


def test_net_negative_inhibits_low_acceptance(alerting: Alerting) -> None:
    """Whether the daemon sends the alert or Prometheus. Before the loss is known, low acceptance
    may be sent."""

    def only_the_loss_is_left() -> bool:
        active = alerting.active()
        breaches = [labels["rule"] for labels in active.get(BREACH, ())]
        by = alerting.inhibited().get(LOW_ACCEPTANCE, set())
        return LOW_ACCEPTANCE not in active and breaches == ["net-negative"] and bool(by)

    # Alerts are sent again and again, and for a moment one may exist without the other.
    eventually(only_the_loss_is_left, what="only the loss is left", within=TELLS_WITHIN)
    assert alerting.inhibited()[LOW_ACCEPTANCE] <= {BREACH, NET_NEGATIVE}
    messages = alerting.receivers.messages
    at = next(each.at for each in messages if each.receiver == PAGE and each.has(alertname=BREACH))
    eventually(
        lambda: time.monotonic() > at + GROUP_WAIT, what="it would have been sent", within=60
    )
    late = [each for each in messages if each.receiver == "chat" and each.at > at]
    assert [each.body for each in late if each.has(rule="low-acceptance")] == []


def test_stock_rules_are_not_inhibited_by_alerts_of_specwatch(alerting: Alerting) -> None:
    """All that they have in common is the name of a model, which other servers may have."""
    assert alerting.inhibited().get(STOCK, set()) <= {"VllmSpeculationGarbage"}


def test_a_fast_burn_is_one_message_and_inhibits_the_slow_burn(
    alerting: Alerting,
) -> None:
    burning = [
        alert for alert in alerting.alertmanager.alerts() if alert["labels"]["alertname"] == SLO
    ]
    assert len(burning) == 4
    assert {labels["long"] for labels in alerting.active()[SLO]} == {"1h"}
    messages = [
        each.body
        for each in alerting.receivers.messages
        if each.receiver == PAGE
        and each.body["groupLabels"] == {"alertname": SLO, "target": "tiny"}
    ]
    assert "1h" in {alert["labels"]["long"] for alert in messages[-1]["alerts"]}
    assert SLO not in alerting.receivers.groups("chat")


def test_specwatch_down_inhibits_the_rest_of_the_targets_it_watched(alerting: Alerting) -> None:
    """Of its alerts those are left that outlast a gap."""
    alerting.daemon.stop()
    eventually(
        lambda: DOWN in alerting.receivers.groups("chat"),
        what=f"{DOWN} is sent",
        within=TELLS_WITHIN,
    )
    assert alerting.receivers.groups("chat")[DOWN].keys() == {"alertname", "job", "instance"}
    assert NET_NEGATIVE in alerting.prometheus.firing()

    def by_it_alone() -> bool:
        by = alerting.inhibited()
        return by.get(NET_NEGATIVE) == by.get(LOW_ACCEPTANCE) == {DOWN}

    eventually(by_it_alone, what=f"{DOWN} alone inhibits the rest", within=TELLS_WITHIN)
    inhibited = alerting.inhibited()
    assert DOWN not in inhibited.get(BREACH, set()) | inhibited.get(STOCK, set())
    assert DOWN in alerting.active()
    assert NET_NEGATIVE not in alerting.active()
    assert not alerting.receivers.paged_after_the_breach(NET_NEGATIVE)
