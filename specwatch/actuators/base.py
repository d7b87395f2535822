"""What every actuator can do; the kinds are in :data:`specwatch.actuators.ACTUATORS`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, Service


def boottime() -> float:
    """Seconds since this machine was started, also those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry out one action of a guard, for as long as its lease lasts.

    Whoever was stopped and goes on later finds that it has ended, and that another daemon may have
    acted meanwhile.
    """

    incident: str
    version: int = 0
    """Of the stored guard: an action that is claimed later has a greater one, also where another
    guard or database claims it."""
    until: Callable[[], float] = lambda: float("inf")
    """When the lease ends, by :func:`boottime`; it may be renewed meanwhile."""

    def require(self) -> None:
        """Raise ActuatorError once the lease has ended: to be called directly before what cannot be
        undone."""
        if boottime() >= self.until():
            raise lease_ended()


ANYTIME = Claim("")
"""For what nobody else may do at the same time, and what changes nothing."""


def lease_ended() -> ActuatorError:
    """Why nothing is done after the end of a lease."""
    return ActuatorError(
        "the lease of the guard has ended, and another daemon may act: nothing more is done until"
        " it is renewed",
        retry=True,
    )


class Actuator(Protocol):
    """Restarts one server. Every method may take minutes, and may be called again after a failure.

    The same call made twice ends in the same state. No method waits until vLLM is healthy, only
    until the manager of its process has finished. A method raises ActuatorError when it fails;
    ``changed`` then says whether the server was, or may have been, touched.
    """

    @property
    def handover(self) -> float:
        """Seconds for which a call may go on after its daemon has lost the lease.

        0 where an outdated call is refused, or its effect is seen in :meth:`status`.
        """

    def plan(self) -> Plan:
        """What :meth:`disable` would do; changes nothing. Fails where that cannot be done."""

    def status(self) -> Service:
        """The server now; does not ask vLLM itself."""

    def disable(self, claim: Claim) -> None:
        """Set it to start without speculation, and restart it."""

    def enable(self, claim: Claim) -> None:
        """Set it to start as its owner wrote it, and restart it."""

    def close(self) -> None:
        """Close connections; the server stays as it is."""
