"""Hands on the switch: how vLLM is restarted with and without speculation.

A method raises ActuatorError when it cannot do what it is for; ``changed`` then says whether the
server was, or may have been, touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from specwatch.config.service import CommandService, SystemdService
from specwatch.config.target import Target
from specwatch.guard.plan import Plan, Service

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor


class Actuator(Protocol):
    """One server's. Every method may take minutes, and may be called again after it failed.

    The same call made twice ends in the same state. None waits until vLLM is healthy: only until
    the manager of its process has done its part.
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
        """Let go of connections; the server stays as it is."""


def actuator_of(target: Target, supervisor: Supervisor | None = None) -> Actuator | None:
    """That which its ``service`` asks for.

    None for a target without a service, or one that another process supervises.
    """
    service = target.service
    if isinstance(service, SystemdService):
        from specwatch.actuators.systemd import SystemdActuator

        return SystemdActuator(service)
    if isinstance(service, CommandService):
        from specwatch.actuators.command import CommandActuator

        return CommandActuator(service, target.name)
    if service is None or supervisor is None:
        return None
    from specwatch.actuators.supervised import SupervisedActuator

    return SupervisedActuator(supervisor)
