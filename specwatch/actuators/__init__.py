"""How vLLM is restarted with and without speculation.

A method raises ActuatorError when it fails; ``changed`` then says whether the server was, or may
have been, touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
        """What :meth:`disable` would do; changes nothing."""

    def status(self) -> Service:
        """The server now; does not ask vLLM itself."""

    def disable(self, incident: str) -> None:
        """Set it to start without speculation, and restart it."""

    def enable(self, incident: str) -> None:
        """Set it to start as its owner wrote it, and restart it."""

    def close(self) -> None:
        """Close connections; the server stays as it is."""


def actuator_of(target: Target, supervisor: Supervisor | None = None) -> Actuator | None:
    """The actuator that the target's ``service`` asks for.

    None for a target without a service, or one that another process supervises.
    """
    service = target.service
    if isinstance(service, SystemdService):
        from specwatch.actuators.systemd import systemd_actuator

        return systemd_actuator(service)
    if isinstance(service, CommandService):
        from specwatch.actuators.command import CommandActuator

        return CommandActuator(service, target.name)
    return supervisor if service is not None else None
