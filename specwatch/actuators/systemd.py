"""The actuator of a systemd unit: directly where this process may, else through the root helper."""

from __future__ import annotations

import os
from pathlib import Path

from specwatch.actuators import Actuator
from specwatch.actuators.helper_client import HelperClient
from specwatch.actuators.helper_protocol import SOCKET_FOLDER
from specwatch.actuators.switch_limit import SwitchLimit
from specwatch.actuators.systemd_bus import SystemdBus
from specwatch.actuators.systemd_files import UnitFiles
from specwatch.actuators.systemd_unit import SystemdUnit
from specwatch.config.service import SystemdService

_SYSTEM_UNITS = Path("/etc/systemd/system")


def systemd_actuator(service: SystemdService) -> Actuator:
    """The actuator of one unit of the system's or the user's manager; does not connect yet."""
    if service.scope == "user":
        return _user_unit(service.unit, timeout=service.timeout)
    if os.geteuid() == 0:
        return system_unit(service.unit, timeout=service.timeout)
    return HelperClient(service.unit, timeout=service.timeout)


def system_unit(name: str, *, timeout: float, limit: SwitchLimit | None = None) -> SystemdUnit:
    """A unit of the system's manager, for root; ``timeout``: seconds a restart may take."""
    files = UnitFiles(name, units=_SYSTEM_UNITS, records=Path(SOCKET_FOLDER))
    return SystemdUnit(name, SystemdBus(), files, timeout=timeout, limit=limit)


def _user_unit(name: str, *, timeout: float) -> SystemdUnit:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    files = UnitFiles(
        name, units=Path(config) / "systemd/user", records=Path(runtime) / "specwatch-guard"
    )
    return SystemdUnit(name, SystemdBus(user=True), files, timeout=timeout, user=True)
