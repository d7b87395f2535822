"""An actuator that sends its calls to the root helper of its unit, over the helper's socket."""

from __future__ import annotations

import socket
import time
from typing import Literal

from specwatch.actuators.helper_protocol import (
    LONGEST_ANSWER,
    SOCKET_FOLDER,
    HelperAnswer,
    HelperRequest,
    encode,
    parse_answer,
)
from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, Service

_LOOK_SECONDS = 60.0
_BEYOND_RESTART_SECONDS = 240.0
"""Reading units again may take minutes on a busy machine, and is done up to twice."""


class HelperClient:
    """One unit's helper; each call uses its own connection."""

    def __init__(self, unit: str, *, timeout: float, folder: str = SOCKET_FOLDER) -> None:
        """``timeout``: seconds that a restart may take."""
        self._unit = unit
        self._timeout = timeout
        self._instance = unit.removesuffix(".service")
        self._path = f"{folder}/{self._instance}.sock"

    def plan(self) -> Plan:
        """What :meth:`disable` would do."""
        plan = self._ask("plan", "").plan
        if plan is None:
            raise ActuatorError(f"{self._path} answered with something else than a plan")
        return plan

    def status(self) -> Service:
        """The unit now."""
        service = self._ask("status", "").service
        if service is None:
            raise ActuatorError(f"{self._path} answered with something else than a status")
        return service

    def disable(self, incident: str) -> None:
        """Have the drop-in written and the unit restarted."""
        self._ask("disable", incident)

    def enable(self, incident: str) -> None:
        """Have the drop-in removed and the unit restarted."""
        self._ask("enable", incident)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _ask(
        self, do: Literal["plan", "status", "disable", "enable"], incident: str
    ) -> HelperAnswer:
        acts = do in ("disable", "enable")
        wait = self._timeout + _BEYOND_RESTART_SECONDS if acts else _LOOK_SECONDS
        request = encode(HelperRequest(do=do, incident=incident, timeout=self._timeout))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_LOOK_SECONDS)
            try:
                sock.connect(self._path)
                sock.sendall(request)
            except OSError as error:
                raise self._unreachable(error) from error
            try:
                answer = parse_answer(_line(sock, time.monotonic() + wait))
            except (OSError, ValueError) as error:
                raise ActuatorError(
                    f"the helper at {self._path} gave no answer: {error}", changed=acts, retry=True
                ) from error
        if answer.failure is not None:
            raise answer.failure.error()
        return answer

    def _unreachable(self, error: OSError) -> ActuatorError:
        start = f"`systemctl enable --now specwatch-guard@{self._instance}.socket`"
        if isinstance(error, FileNotFoundError):
            return ActuatorError(f"the helper for {self._unit} is not installed: {start}")
        if isinstance(error, PermissionError):
            return ActuatorError(
                f"{self._path} may be used by root and the group specwatch only; run specwatch as"
                " a member of it"
            )
        return ActuatorError(
            f"the helper for {self._unit} cannot be reached at {self._path}: {error}; {start}",
            retry=True,
        )


def _line(sock: socket.socket, deadline: float) -> bytes:
    pieces = []
    left = LONGEST_ANSWER
    while left > 0:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        data = sock.recv(65536)
        if not data:
            raise ConnectionResetError("it closed the connection")
        pieces.append(data)
        if data.endswith(b"\n"):
            return b"".join(pieces)
        left -= len(data)
    raise ValueError(f"it is longer than {LONGEST_ANSWER >> 20} MiB")
