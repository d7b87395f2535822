"""How vLLM is restarted with and without speculation: one actuator for each kind of service.

A new kind has its settings in :mod:`specwatch.config.service`, a class with the methods of
:class:`specwatch.actuators.base.Actuator`, and an entry in :data:`ACTUATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specwatch.actuators.base import Actuator
from specwatch.config.service import CommandService, KubernetesService, SystemdService
from specwatch.config.target import Target

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor
    from specwatch.actuators.switch import SwitchClient


# Each imports its own module: the D-Bus client, for one, takes memory.
def _systemd(service: SystemdService, _target: str, _supervisor: Supervisor | None) -> Actuator:
    from specwatch.actuators.systemd.unit import systemd_actuator

    return systemd_actuator(service)


def _command(service: CommandService, target: str, _supervisor: Supervisor | None) -> Actuator:
    from specwatch.actuators.command import CommandActuator

    return CommandActuator(service, target)


def _kubernetes(service: KubernetesService, _target: str, _: Supervisor | None) -> Actuator:
    from specwatch.actuators.kubernetes.workload import KubernetesWorkload

    return KubernetesWorkload(service)


ACTUATORS: Mapping[str, Callable[[Any, str, Supervisor | None], Actuator | None]] = {
    "systemd": _systemd,
    "command": _command,
    "kubernetes": _kubernetes,
    "supervised": lambda _service, _target, supervisor: supervisor,
}
"""By the ``kind`` of a service: makes its actuator from its settings and the target's name."""


def actuator_of(target: Target, supervisor: Supervisor | None = None) -> Actuator | None:
    """The actuator that the target's ``service`` asks for.

    None for a target without a service, or one that another process supervises.
    """
    service = target.service
    return None if service is None else ACTUATORS[service.kind](service, target.name, supervisor)


def switch_of(target: Target) -> SwitchClient:
    """The client of the target's ``switch``."""
    from specwatch.actuators.switch import SwitchClient  # its HTTP client takes memory

    return SwitchClient(target)
