"""The unit under a real systemd: it starts, reloads, stops, and is started again when it must be.

The unit file is used as it is. A drop-in shows it the checkout and the Python of this test run,
which lie where a service may not look, and makes its waits shorter.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import settled
from tests.e2e.processes import CHECKOUT, SimulatedVllm
from tests.e2e.unit_lab import DAEMON, DaemonUnit, exposure
from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts
from tests.lab.http_get import get
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.traffic import requests_at, send_all

UNIT_FILE = CHECKOUT / "systemd" / DAEMON
STATE = "/var/lib/private/specwatch"
HANG = "/etc/specwatch/hang"

# Waits become shorter, so that the tests do.
DROP_IN = """\
[Unit]
StartLimitIntervalSec=0
[Service]
Environment=PYTHONPATH=/opt/specwatch/hang:{checkout}
WatchdogSec=15
RestartSec=1
"""
# Python imports a module of this name when it starts: the loop stands still once a file is there.
SITE_CUSTOMIZE = f"""\
import os, time
import specwatch.daemon.scraper

turn = specwatch.daemon.scraper.Scraper._turn

async def hanging(self):
    if os.path.exists({HANG!r}):
        time.sleep(3600)
    await turn(self)

specwatch.daemon.scraper.Scraper._turn = hanging
"""
READ = """\
import json
from tests.e2e.processes import windows_of
from tests.e2e.witness import stored
print(json.dumps(stored(windows_of("sqlite:///{state}/specwatch.db", target="tiny"))))
"""


def targets(status: dict[str, Any]) -> list[str]:
    """The targets of a daemon's status."""
    return sorted(target["name"] for target in status["targets"])


class Service(DaemonUnit):
    """The unit in a machine; the simulated vLLM runs outside of it, on the same loopback."""

    def __init__(self, machine: SystemdMachine, server: SimulatedVllm) -> None:
        super().__init__(machine, DROP_IN.format(checkout=CHECKOUT))
        self.server = server
        machine.write_file("/opt/specwatch/hang/sitecustomize.py", SITE_CUSTOMIZE)
        self.watch("tiny")
        machine.run("systemctl", "daemon-reload")

    def watch(self, *names: str) -> None:
        """Write the configuration; all targets are the one server."""
        self.configure(
            targets=[{"name": name, "url": self.server.url, "interval": "1s"} for name in names]
        )

    def control(self, verb: str) -> None:
        """``systemctl VERB`` on the unit."""
        self.machine.run("systemctl", verb, DAEMON)

    def send(self, count: int = 8) -> None:
        """Let the server count something."""
        requests = requests_at([0.0, 0.7], count, stream=True, max_tokens=16)
        assert all(outcome.ok for outcome in send_all(self.server.url, requests))

    def settled(self) -> Counts:
        """What the server counted, once the daemon has seen it."""
        return settled(self.server.metrics, [self])

    def stored(self) -> Counts:
        """What the database says, read inside the machine."""
        read = READ.format(state=STATE)
        done = self.machine.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", read)
        found: Counts = json.loads(done.stdout)
        return found

    def stop_and_compare(self) -> None:
        """All that the server ever counted is in the database after an orderly stop."""
        counts = self.settled()
        self.control("stop")
        assert (self.show("ActiveState"), self.show("Result")) == ("inactive", "success")
        assert self.stored() == counts

    def wait_restarted(self, before: str) -> None:
        """Return once systemd runs the service as another process than ``before``."""
        eventually(
            lambda: (
                self.show("MainPID") not in ("0", before) and self.show("ActiveState") == "active"
            ),
            what="systemd starts the service again",
            within=240,
            every=0.5,
        )


@pytest.fixture(scope="module")
def installed(
    systemd_machine: SystemdMachine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with SimulatedVllm(tmp_path_factory.mktemp("simulated") / "log") as server:
        server.wait_ready()
        yield Service(systemd_machine, server)


@pytest.fixture
def service(installed: Service) -> Service:
    """The service, active, with windows and a cursor in its database."""
    if installed.show("ActiveState") != "active":
        installed.control("start")
    installed.settled()
    return installed


SHIPPED = sorted(
    file.name
    for file in (CHECKOUT / "systemd").iterdir()
    if file.suffix in (".service", ".socket", ".timer")
)


@pytest.mark.parametrize("unit", SHIPPED)
def test_systemd_finds_nothing_wrong_with_the_units(installed: Service, unit: str) -> None:
    """As they are, without the drop-ins of tests."""
    for name in SHIPPED:
        text = (CHECKOUT / "systemd" / name).read_text()
        installed.machine.write_file(f"/tmp/verify/{name}", text)
    done = installed.machine.run("systemd-analyze", "verify", f"/tmp/verify/{unit}")
    assert done.stdout + done.stderr == ""
    if unit.endswith(".service"):
        assert exposure(installed.machine, f"/tmp/verify/{unit}") <= 2.0


def test_the_unit_asks_for_a_watchdog_and_for_restarts() -> None:
    """What the drop-in of these tests makes shorter is there in the unit itself."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT_FILE.read_text(), re.MULTILINE))
    assert settings["Type"] == "notify"
    assert settings["WatchdogSec"] == "30"
    assert settings["Restart"] in ("always", "on-failure")


def test_the_service_takes_over_a_database_that_root_created(
    installed: Service,
) -> None:
    """As by ``sudo specwatch calibrate``, which comes first in the README."""
    program = ("env", f"PYTHONPATH={CHECKOUT}", "/opt/specwatch/bin/specwatch")
    installed.machine.run(*program, "db", "upgrade")
    owned = "stat -c %U /var/lib/specwatch/specwatch.db"
    assert installed.machine.shell(owned).strip() == "root"
    installed.control("start")
    installed.settled()
    installed.send()
    installed.stop_and_compare()
    assert installed.machine.shell(owned).strip() != "root"


def test_it_becomes_active_with_a_status_text(service: Service) -> None:
    """With Type=notify it is active because it said that it is ready."""
    assert service.show("ActiveState") == "active"
    assert re.fullmatch(r"[A-Z]\w+ 1 target\b.*", service.show("StatusText"))
    assert get(service.url + "/readyz")[0] == 200


def test_it_runs_as_a_dynamic_user_without_capabilities(service: Service) -> None:
    text = service.machine.shell(f"cat /proc/{service.show('MainPID')}/status")
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert all(int(uid) >= 61184 for uid in status["Uid"].split())  # systemd's dynamic users
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


def test_it_writes_to_its_own_directories_only(service: Service) -> None:
    """All files of its user are there, and where it runs even root could not write elsewhere."""
    pid = service.show("MainPID")
    uid = service.machine.shell(f"stat -c %u /proc/{pid}").strip()
    found = service.machine.shell(f"find / /run /tmp /dev/shm -xdev -uid {uid} -print")
    files = found.splitlines()
    assert f"{STATE}/specwatch.db" in files
    assert [f for f in files if not f.startswith((STATE, "/run/specwatch"))] == []
    for folder in ("/", "/etc", "/usr", "/var", "/var/lib", "/opt", str(CHECKOUT)):
        done = service.machine.run(
            "nsenter", "-t", pid, "-m", "touch", f"{folder}/specwatch-was-here", check=False
        )
        assert "Read-only file system" in done.stderr, folder


def test_a_reload_takes_the_new_configuration_in_the_same_process(service: Service) -> None:
    pid = service.show("MainPID")
    for names in (("again", "tiny"), ("tiny",)):
        service.watch(*names)
        service.control("reload")
        service.wait(lambda status: targets(status) == list(names), what="it is taken")  # noqa: B023
    assert (service.show("MainPID"), service.show("ActiveState")) == (pid, "active")
    service.send()
    service.stop_and_compare()


def test_a_stop_writes_all_and_a_start_goes_on_from_there(service: Service) -> None:
    """In time, or systemd would kill it and the result be no success."""
    service.send()
    service.stop_and_compare()
    service.send()  # while nobody looks
    service.control("start")
    service.send()
    service.stop_and_compare()


def test_nothing_that_was_counted_is_lost_with_a_killed_process(service: Service) -> None:
    service.control("restart")  # writes where it stands
    service.settled()
    service.send()
    service.settled()
    pid = service.show("MainPID")
    service.machine.run("kill", "-KILL", pid)
    service.wait_restarted(pid)
    service.send()
    service.stop_and_compare()


def test_the_watchdog_restarts_a_process_whose_loop_hangs(service: Service) -> None:
    """The process lives and answers, and only its loop does not turn."""
    before = service.log_text().count("Watchdog timeout")
    pid = service.show("MainPID")
    service.machine.write_file(HANG, "")
    eventually(
        lambda: get(service.url + "/healthz")[0] == 503, what="it says that it hangs", within=60
    )
    eventually(
        lambda: "1 stuck" in service.show("StatusText"), what="its status says so", within=60
    )
    assert service.show("MainPID") == pid
    service.machine.run("rm", HANG)
    service.wait_restarted(pid)
    assert service.log_text().count("Watchdog timeout") > before
    service.send()
    service.stop_and_compare()
