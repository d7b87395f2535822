"""The switch of a target in the hands of its guard: orders, their renewal, and those of others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from specwatch.actuators.base import ANYTIME, Claim
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, ConfigError
from specwatch.guard.state import GuardState, Phase
from specwatch.guard.switch_phases import LEASE
from specwatch_tap.orders import SwitchState

if TYPE_CHECKING:
    from specwatch.actuators.switch import SwitchClient

_log = structlog.get_logger("specwatch.guard")
_OURS = "specwatch "
"""Begins who gave an order, if it was the guard or an experiment."""
_RENEWED_AFTER = LEASE / 4
_AGAIN_SECONDS = 30.0
"""Seconds until a renewal that failed is tried again."""
_NOT_SHOWN = (
    "its metrics page does not show the switch: start vLLM with all that `specwatch tap flags"
    " --switch` prints"
)


class GuardedSwitch:
    """One switch; for one thread at a time."""

    def __init__(
        self,
        target: str,
        client: SwitchClient,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._client = client
        # Steps of the clock must not delay a renewal.
        self._monotonic = monotonic
        self._due = -math.inf
        """When the order has to be renewed."""
        self._server = ""
        """The process that our last order was for."""
        self._lost_at: float | None = None
        """Since when the switch cannot be reached."""

    def order(self, goal: Mode, claim: Claim) -> None:
        """Order standby, or the launch mode. Raises ActuatorError."""
        k = 0 if goal is Mode.OFF else None
        try:
            state = self._client.order(k, lease=LEASE, by=_by(claim), claim=claim)
        except ConfigError as error:  # the file of the token has gone
            raise ActuatorError(str(error), changed=False) from None
        self._server = state.server
        self._due = self._monotonic() + _RENEWED_AFTER

    def renew(self, claim: Claim) -> None:
        """Order standby again when that is due, unless an operator's order is in force. A failure
        is logged, and tried again later."""
        if self._monotonic() < self._due:
            return
        try:
            state = self._client.state()
            if (state.by, state.draft_tokens) == (_by(claim), 0):
                claim = replace(claim, until=ANYTIME.until)  # it only goes on
            if not _of_others(state):
                self.order(Mode.OFF, claim)
        except (ActuatorError, ConfigError) as error:
            _log.error("switch_not_renewed", target=self._target, detail=str(error))
            self._due = self._monotonic() + _AGAIN_SECONDS

    def query(self, state: GuardState, *, shown: bool) -> dict[str, Any]:
        """What the server says of its switch; the keys are fields of a situation.

        A switch that is not ``shown`` by the metrics page is not used: its minutes without drafts
        could not be distinguished from others.
        """
        problem = ""
        try:
            seen = self._client.state()
            problem = seen.unavailable or ("" if shown else _NOT_SHOWN)
        except (ActuatorError, ConfigError) as error:
            problem = str(error)
        if problem:
            self._lost_at = self._monotonic() if self._lost_at is None else self._lost_at
            return {"switch_error": problem, "switch_lost": self._monotonic() - self._lost_at}
        self._lost_at = None
        answer: dict[str, Any] = {"switchable": True}
        in_standby = state.standby and state.phase in (Phase.VERIFYING, Phase.DISABLED)
        if _of_others(seen) and (in_standby or seen.ordered is not None):
            ordered = "a schedule" if seen.schedule else seen.draft_tokens
            answer["overridden"] = f"{seen.by} to {'the launch' if ordered is None else ordered}"
        elif in_standby and (seen.server != self._server or seen.draft_tokens is None):
            self._due = -math.inf  # a restart of vLLM, or of ours, or the lease has ended
        return answer

    def close(self) -> None:
        """Close connections; the order holds until its lease ends."""
        self._client.close()


def _by(claim: Claim) -> str:
    """Who gives the orders of an incident."""
    return f"{_OURS}guard ({claim.incident})"


def _of_others(state: SwitchState) -> bool:
    """Whether an order of a person is in force, also one to return to the launch."""
    return bool(state.by) and not state.by.startswith(_OURS)
