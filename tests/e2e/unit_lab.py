"""Units of the checkout in a machine with a real systemd."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.e2e.api import DaemonApi
from tests.e2e.processes import CHECKOUT
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.vllm_server import free_port

UNITS = "/etc/systemd/system"
DAEMON = "specwatch.service"
LAUNCHER = f"""\
#!/bin/sh
exec {sys.executable} -m specwatch "$@"
"""
_HOMES = ("/root/", "/home/")
_HIDDEN = (*_HOMES, "/run/", "/tmp/", "/var/tmp/")
"""What hardened units do not let a service see."""


def seen_by_services() -> str:
    """Settings that let a service see what a test run consists of."""
    needed = {Path(folder).resolve() for folder in (CHECKOUT, sys.prefix, sys.base_prefix)}
    hidden = [str(folder) for folder in sorted(needed) if str(folder).startswith(_HIDDEN)]
    lines = [f"BindReadOnlyPaths={folder}\n" for folder in hidden]
    if any(folder.startswith(_HOMES) for folder in hidden):
        lines.append("ProtectHome=tmpfs\n")
    return "".join(lines)


def install(machine: SystemdMachine, unit: str, drop_in: str) -> None:
    """Put a unit of the checkout, its drop-in for tests and the program in their places."""
    machine.write_file(f"{UNITS}/{unit}", (CHECKOUT / "systemd" / unit).read_text())
    machine.write_file(f"{UNITS}/{unit}.d/lab.conf", drop_in + seen_by_services())
    machine.write_file("/opt/specwatch/bin/specwatch", LAUNCHER, mode=0o755)


def install_helper(machine: SystemdMachine) -> None:
    """Install the units of the privileged helper, and the users that the packages add."""
    environment = (
        f"[Service]\nEnvironment=PYTHONPATH={CHECKOUT}\n"
        "Environment=SPECWATCH_GUARD_MAX_SWITCHES=100 SPECWATCH_GUARD_COOLDOWN=1ms\n"
    )
    install(machine, "specwatch-guard@.service", environment)
    install(machine, "specwatch-guard@.socket", "[Socket]\n")
    sysusers = (CHECKOUT / "systemd" / "specwatch.sysusers").read_text()
    machine.write_file("/usr/lib/sysusers.d/specwatch.conf", sysusers)
    machine.run("systemd-sysusers")


def exposure(machine: SystemdMachine, unit_file: str) -> float:
    """How exposed systemd calls a service: 0 to 10."""
    done = machine.run("systemd-analyze", "security", "--no-pager", "--offline=true", unit_file)
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout
    return float(level[1])


class DaemonUnit(DaemonApi):
    """``specwatch.service`` of the checkout in a machine, with a drop-in and a configuration."""

    def __init__(self, machine: SystemdMachine, drop_in: str) -> None:
        self.machine = machine
        self._port = free_port()
        install(machine, DAEMON, drop_in)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def log_text(self) -> str:
        return self.machine.journal(DAEMON)

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.machine.show(name, DAEMON)

    def configure(self, **sections: Any) -> None:
        """Write the configuration."""
        # JSON is YAML.
        document = json.dumps({"listen": f"127.0.0.1:{self._port}", **sections}, indent=1)
        self.machine.write_file("/etc/specwatch/specwatch.yml", document)
