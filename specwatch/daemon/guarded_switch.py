"""The switch of a target in the hands of its guard: orders, their renewal, and those of others."""

from __future__ import annotations

import math
from typing import Any

import structlog

from specwatch.actuators.switch import SwitchClient
from specwatch.domain.model import Mode
from specwatch.engines.switch import SwitchState
from specwatch.errors import ActuatorError, ConfigError
from specwatch.guard.state import GuardState, Phase
from specwatch.guard.switch_phases import LEASE

_log = structlog.get_logger("specwatch.guard")
_BY = "specwatch guard"
"""Begins who gave an order, if it was a guard."""
_RENEWED_AFTER = LEASE / 4
_AGAIN_SECONDS = 30.0
"""Seconds until a renewal that failed is tried again."""


class GuardedSwitch:
    """One switch; for one thread at a time. Times are those of the guard, in seconds."""

    def __init__(self, target: str, client: SwitchClient) -> None:
        self._target = target
        self._client = client
        self._number, self._server = 0, ""
        """Of our last order, and the process that it was for."""
        self._due = -math.inf
        """When the order has to be renewed."""

    def order(self, goal: Mode, incident: str, now: float) -> None:
        """Order standby, or the launch mode. Raises ActuatorError."""
        try:
            state = self._client.order(
                0 if goal is Mode.OFF else None, lease=LEASE, by=f"{_BY} ({incident})"
            )
        except ConfigError as error:  # the file of the token has gone
            raise ActuatorError(str(error), changed=False) from None
        self._number, self._server = state.number, state.server
        self._due = now + _RENEWED_AFTER

    def renew(self, incident: str, now: float) -> None:
        """Order standby again when that is due; a failure is logged, and tried again later."""
        if now < self._due:
            return
        try:
            if not _of_others(self._client.state()):
                self.order(Mode.OFF, incident, now)
        except (ActuatorError, ConfigError) as error:
            _log.error("switch_not_renewed", target=self._target, detail=str(error))
            self._due = now + _AGAIN_SECONDS

    def query(self, state: GuardState) -> dict[str, Any]:
        """What the server says of its switch; the keys are fields of a situation."""
        try:
            seen = self._client.state()
        except (ActuatorError, ConfigError) as error:
            return {"switch_error": str(error)}
        if seen.unavailable:
            return {"switch_error": seen.unavailable}
        answer: dict[str, Any] = {"switchable": True}
        if not state.standby or state.phase not in (Phase.VERIFYING, Phase.DISABLED):
            return answer
        if _of_others(seen):
            answer["overridden"] = f"{seen.by or 'somebody'} to {seen.draft_tokens}"
        elif seen.server != self._server:
            self._due = -math.inf  # vLLM was restarted, or we were
        elif seen.draft_tokens is None and seen.number > self._number:
            answer["overridden"] = "somebody to the launch"
        elif seen.draft_tokens is None:
            self._due = -math.inf  # the lease has ended
        return answer

    def close(self) -> None:
        """Close connections; the order holds until its lease ends."""
        self._client.close()


def _of_others(state: SwitchState) -> bool:
    return state.draft_tokens is not None and not state.by.startswith(_BY)
