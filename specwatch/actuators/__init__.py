"""How vLLM is restarted with and without speculation: one actuator for each kind of service.

A new kind has its settings in :mod:`specwatch.config.service`, a class with the methods of
:class:`Actuator`, and an entry in :data:`ACTUATORS`. A method raises ActuatorError when it fails;
``changed`` then says whether the server was, or may have been, touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from specwatch.config.service import CommandService, SystemdService
from specwatch.config.target import Target
from specwatch.guard.plan import Plan, Service

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor


class Actuator(Protocol):
    """Restarts one server. Every method may take minutes, and may be called again after a failure.

    The same call made twice ends in the same state. No method waits until vLLM is healthy, only
    until the manager of its process has finished.
    """

    def plan(self) -> Plan:
        """What :meth:`disable` would do; changes nothing. Fails where that cannot be done."""

    def status(self) -> Service:
        """The server now; does not ask vLLM itself."""

    def disable(self, incident: str) -> None:
        """Set it to start without speculation, and restart it."""

    def enable(self, incident: str) -> None:
        """Set it to start as its owner wrote it, and restart it."""

    def close(self) -> None:
        """Close connections; the server stays as it is."""


# Each imports its own module: the D-Bus client, for one, takes memory.
def _systemd(service: SystemdService, _target: str, _supervisor: Supervisor | None) -> Actuator:
    from specwatch.actuators.systemd.unit import systemd_actuator

    return systemd_actuator(service)


def _command(service: CommandService, target: str, _supervisor: Supervisor | None) -> Actuator:
    from specwatch.actuators.command import CommandActuator

    return CommandActuator(service, target)


ACTUATORS: Mapping[str, Callable[[Any, str, Supervisor | None], Actuator | None]] = {
    "systemd": _systemd,
    "command": _command,
    "supervised": lambda _service, _target, supervisor: supervisor,
}
"""By the ``kind`` of a service: makes its actuator from its settings and the target's name."""


def actuator_of(target: Target, supervisor: Supervisor | None = None) -> Actuator | None:
    """The actuator that the target's ``service`` asks for.

    None for a target without a service, or one that another process supervises.
    """
    service = target.service
    return None if service is None else ACTUATORS[service.kind](service, target.name, supervisor)
