"""Units of the checkout in a machine with a real systemd."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.processes import CHECKOUT
from tests.lab.systemd_machine import SystemdMachine

UNITS = "/etc/systemd/system"
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
