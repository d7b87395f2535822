"""The report under a real systemd: the timer starts it, and what did not arrive is sent later.

The unit files are used as they are; a drop-in shows the service the checkout and makes its waits
shorter, those between the attempts of one run too. Its mail goes to a real mail server outside of
the machine, on the same loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS, install
from tests.e2e.waiting import eventually
from tests.lab.systemd_machine import SystemdMachine
from tests.report.smtp import MailServer

UNIT, TIMER = "specwatch-report.service", "specwatch-report.timer"
CONFIG_FILE = "/etc/specwatch/specwatch.yml"
REPORTS = "/var/lib/private/specwatch/reports"
HASTY = "/opt/specwatch/hasty"
DROP_IN = f"""\
[Service]
Environment=PYTHONPATH={HASTY}:{CHECKOUT}
RestartSec=1
"""
# Python imports a module of this name when it starts.
SITE_CUSTOMIZE = """\
from specwatch.report import deliveries

deliveries.DELAYS = tuple(delay / 20 for delay in deliveries.DELAYS)
"""
NOW = """\
[Timer]
OnCalendar=
OnActiveSec=1
AccuracySec=1s
RandomizedDelaySec=0
"""


class Reporting:
    """The units in a machine."""

    def __init__(self, machine: SystemdMachine, mail: MailServer) -> None:
        self.machine = machine
        self.mail = mail
        install(machine, UNIT, DROP_IN)
        machine.write_file(f"{HASTY}/sitecustomize.py", SITE_CUSTOMIZE)
        machine.write_file(f"{UNITS}/{TIMER}", (CHECKOUT / "systemd" / TIMER).read_text())
        email = {"smtp": mail.url, "from": "specwatch@gpu.example", "to": ["ops@example.com"]}
        document = {
            "database": "sqlite:////var/lib/specwatch/specwatch.db",
            "targets": [{"url": "http://127.0.0.1:1", "name": "chat"}],
            "report": {"email": email},
        }
        machine.write_file(CONFIG_FILE, json.dumps(document))
        machine.run("systemctl", "daemon-reload")

    def show(self, name: str) -> str:
        return self.machine.show(name, UNIT)


@pytest.fixture(scope="module")
def reporting(systemd_machine: SystemdMachine) -> Iterator[Reporting]:
    with MailServer() as mail:
        reporting = Reporting(systemd_machine, mail)
        environment = ("env", f"PYTHONPATH={CHECKOUT}")
        systemd_machine.run(*environment, "/opt/specwatch/bin/specwatch", "db", "upgrade")
        yield reporting


def test_the_timer_is_for_monday_morning() -> None:
    text = (CHECKOUT / "systemd" / TIMER).read_text()
    assert "OnCalendar=Mon *-*-* 07:00\n" in text
    assert "Persistent=true\n" in text


def test_the_report_is_delivered_after_the_mail_server_failed(
    reporting: Reporting,
) -> None:
    """The service fails, is started again by systemd, and delivers once; as the daemon's user."""
    machine, box = reporting.machine, reporting.mail.box
    box.refused = {"ops@example.com": "450 not today"}
    machine.write_file(f"{UNITS}/{TIMER}.d/lab.conf", NOW)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", TIMER)
    eventually(
        lambda: "NOT DELIVERED after" in machine.journal(UNIT),
        what="it says that it failed",
        within=200,
    )
    box.refused = {}
    eventually(lambda: len(box.sent) == 1, what="the report arrives", within=60)
    eventually(
        lambda: reporting.show("ActiveState") == "inactive", what="the service ends", within=60
    )
    assert reporting.show("Result") == "success"
    assert int(reporting.show("NRestarts")) >= 1
    assert "ops@example.com (450 not today)" in machine.journal(UNIT)
    (_, _, message) = box.sent[0]
    assert message["Subject"].startswith("specwatch: nothing was watched, ")
    owner = machine.shell(f"stat -c %u {REPORTS}/../specwatch.db").strip()
    listed = machine.shell(f"stat -c '%u %a' {REPORTS}/*").splitlines()
    assert listed == [f"{owner} 600"] * 3
    machine.run("systemctl", "start", UNIT)
    assert len(box.sent) == 1


def test_a_refused_configuration_is_not_tried_again(reporting: Reporting) -> None:
    machine = reporting.machine
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.write_file(CONFIG_FILE, "targets: [{url: 'http://127.0.0.1:1'}]\n")
    before = reporting.show("NRestarts")
    done = machine.run("systemctl", "start", UNIT, check=False)
    assert done.returncode != 0
    assert (reporting.show("ActiveState"), reporting.show("ExecMainStatus")) == ("failed", "2")
    assert reporting.show("NRestarts") == before
    assert "add the section report" in machine.journal(UNIT)
