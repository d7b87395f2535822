"""What every actuator can do; the kinds are in :data:`specwatch.actuators.ACTUATORS`."""

from __future__ import annotations

from typing import Protocol

from specwatch.guard.plan import Plan, Service


class Actuator(Protocol):
    """Restarts one server. Every method may take minutes, and may be called again after a failure.

    The same call made twice ends in the same state. No method waits until vLLM is healthy, only
    until the manager of its process has finished. A method raises ActuatorError when it fails;
    ``changed`` then says whether the server was, or may have been, touched.
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
