"""The actuator of a unit of systemd: by its own hand where it may, else by the root helper's."""

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
from specwatch.guard.plan import Plan, Service

_SYSTEM_UNITS = Path("/etc/systemd/system")


class SystemdActuator:
    """One unit, of the system's manager or of the user's."""

    def __init__(self, service: SystemdService) -> None:
        """Reaches for nothing yet."""
        self._hand = _hand(service)

    def plan(self) -> Plan:
        """What :meth:`disable` would do."""
        return self._hand.plan()

    def status(self) -> Service:
        """The unit now, as systemd knows it."""
        return self._hand.status()

    def disable(self, incident: str) -> None:
        """Set it to start without speculation, and restart it."""
        self._hand.disable(incident)

    def enable(self, incident: str) -> None:
        """Set it to start as its owner wrote it, and restart it."""
        self._hand.enable(incident)

    def close(self) -> None:
        """Let go of connections."""
        self._hand.close()


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


def _hand(service: SystemdService) -> Actuator:
    if service.scope == "user":
        return _user_unit(service.unit, timeout=service.timeout)
    if os.geteuid() == 0:
        return system_unit(service.unit, timeout=service.timeout)
    return HelperClient(service.unit, timeout=service.timeout)
