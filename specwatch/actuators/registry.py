"""The actuator that a target's ``service`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specwatch.actuators import Actuator
from specwatch.config.service import CommandService, SystemdService
from specwatch.config.target import Target

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor


def actuator_of(target: Target, supervisor: Supervisor | None = None) -> Actuator | None:
    """None for a target without a service, or one that another process supervises."""
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
