"""The hand on a vLLM that is specwatch's own child."""

from __future__ import annotations

from specwatch.actuators.supervisor import Supervisor
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, Service


class SupervisedActuator:
    """Restarts the child with and without speculation; nothing is written anywhere."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def plan(self) -> Plan:
        """See :class:`specwatch.actuators.Actuator`. Raises CannotStrip."""
        stripped = self._supervisor.stripped()
        if not stripped.removed:
            raise ActuatorError("the command after -- has no speculation to switch off")
        timeout = format_duration(self._supervisor.stop_timeout)
        return Plan(
            before=self._supervisor.command,
            after=stripped.command,
            files=(),
            steps=(
                f"end vLLM by SIGTERM, and all that is left of it after {timeout} by SIGKILL",
                "start it with the new command",
            ),
            notes=stripped.notes,
        )

    def status(self) -> Service:
        """See :class:`specwatch.actuators.Actuator`."""
        return self._supervisor.status()

    def disable(self, incident: str) -> None:
        """See :class:`specwatch.actuators.Actuator`."""
        self.plan()  # what cannot be switched off is not restarted
        self._supervisor.start(Mode.OFF)

    def enable(self, incident: str) -> None:
        """See :class:`specwatch.actuators.Actuator`."""
        self._supervisor.start(Mode.ON)

    def close(self) -> None:
        """See :class:`specwatch.actuators.Actuator`."""
