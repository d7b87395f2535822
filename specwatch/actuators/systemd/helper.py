"""The privileged helper of one unit, and the actuator that sends its calls to it.

A connection to the helper's socket carries one request and one answer, each a line of JSON. A
request names no unit and carries no file contents: the helper has its unit, and determines by
itself what to write. systemd opens the socket and starts the helper as root.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import structlog

from specwatch.actuators.base import ANYTIME, Actuator, Claim
from specwatch.errors import ActuatorError, ConfigError
from specwatch.guard.plan import Plan, Service

_log = structlog.get_logger("specwatch.guard_helper")

SOCKET_FOLDER = "/run/specwatch-guard"
_LONGEST_REQUEST = 1024
_LONGEST_ANSWER = 8 << 20
_LOOK_SECONDS = 60.0
_BEYOND_RESTART_SECONDS = 240.0
"""Reading units again may take minutes on a busy machine, and is done up to twice."""
_FIRST_DESCRIPTOR = 3
_REQUEST_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_MOST_CONNECTIONS = 32
_CREDENTIALS = struct.Struct("3i")

Call = Literal["plan", "status", "disable", "enable"]
_CHANGES = ("disable", "enable")


class HelperRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to do; ``timeout`` is the seconds that a restart may take."""

    do: Call
    incident: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{0,64}\Z")] = ""
    version: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the guard that asks: one that is older than the last is refused."""
    timeout: Annotated[float, msgspec.Meta(ge=1, le=7200)] = 180.0

    def __post_init__(self) -> None:
        """Raises ValueError for a change without an incident, or an incident without a change."""
        if (self.do in _CHANGES) != bool(self.incident):
            raise ValueError("incident belongs to disable and enable, and only to them")


@dataclass(frozen=True, slots=True)
class HelperFailure:
    """An ActuatorError in an answer."""

    message: str
    changed: bool = False
    retry: bool = False


class HelperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``plan`` or ``service``, whichever was requested; ``failure`` if that failed."""

    plan: Plan | None = None
    service: Service | None = None
    failure: HelperFailure | None = None


class HelperClient:
    """The actuator of a unit that has a helper; each call uses its own connection."""

    def __init__(self, unit: str, *, timeout: float, folder: str = SOCKET_FOLDER) -> None:
        """``timeout``: seconds that a restart may take."""
        self._unit = unit
        self._timeout = timeout
        self._instance = unit.removesuffix(".service")
        self._path = f"{folder}/{self._instance}.sock"

    def plan(self) -> Plan:
        """What :meth:`disable` would do."""
        plan = self._ask("plan").plan
        if plan is None:
            raise ActuatorError(f"{self._path} answered with something else than a plan")
        return plan

    def status(self) -> Service:
        """The unit now."""
        service = self._ask("status").service
        if service is None:
            raise ActuatorError(f"{self._path} answered with something else than a status")
        return service

    handover = 0.0
    """The helper makes one change at a time, and refuses an outdated one."""

    def disable(self, claim: Claim) -> None:
        """Have the drop-in written and the unit restarted."""
        self._ask("disable", claim)

    def enable(self, claim: Claim) -> None:
        """Have the drop-in removed and the unit restarted."""
        self._ask("enable", claim)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _ask(self, do: Call, claim: Claim = ANYTIME) -> HelperAnswer:
        changes = do in _CHANGES
        wait = self._timeout + _BEYOND_RESTART_SECONDS if changes else _LOOK_SECONDS
        request = _encoded(HelperRequest(do, claim.incident, claim.version, self._timeout))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_LOOK_SECONDS)
            try:
                sock.connect(self._path)
                claim.require()
                sock.sendall(request)
            except OSError as error:
                raise self._unreachable(error) from error
            try:
                line = _line(sock, wait, _LONGEST_ANSWER)
                answer = msgspec.json.decode(line, type=HelperAnswer)
            except (OSError, ValueError) as error:
                raise ActuatorError(
                    f"the helper at {self._path} gave no answer: {error}",
                    changed=changes,
                    retry=True,
                ) from error
        failure = answer.failure
        if failure is not None:
            raise ActuatorError(failure.message, changed=failure.changed, retry=failure.retry)
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


def activated_socket(environ: Mapping[str, str], pid: int) -> socket.socket:
    """The one socket that systemd passed on: sd_listen_fds(3). Raises ConfigError."""
    if environ.get("LISTEN_PID") != str(pid) or environ.get("LISTEN_FDS") != "1":
        raise ConfigError(
            "found no socket of systemd's; expected to be started by specwatch-guard@UNIT.socket"
        )
    listening = socket.socket(fileno=_FIRST_DESCRIPTOR)
    if listening.family != socket.AF_UNIX or not listening.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        raise ConfigError("the socket that systemd passed is not a listening Unix socket")
    return listening


class GuardHelper:
    """Answers requests about one unit, each on its own connection.

    Only one at a time changes anything; read-only requests are not delayed by it.
    """

    def __init__(
        self, listening: socket.socket, actuator: Callable[[float], Actuator], *, idle: float
    ) -> None:
        """``actuator`` makes the actuator of the unit, for restarts of so many seconds at most.

        ``idle``: seconds without a request after which :meth:`serve` returns.
        """
        self._listening = listening
        self._actuator = actuator
        self._idle = idle
        self._changing = threading.Lock()
        self._free = _MOST_CONNECTIONS
        self._slots = threading.Condition()

    def serve(self) -> None:
        """Answer until there was no request for a while, and all are answered."""
        self._listening.setblocking(False)
        while (
            select.select([self._listening], [], [], self._idle)[0]
            or self._free < _MOST_CONNECTIONS
        ):
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the client is gone again
                continue
            with self._slots:
                self._slots.wait_for(lambda: self._free > 0)
                self._free -= 1
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                answer = self._answer(connection)
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(_encoded(answer))
        except OSError as error:
            _log.warning("not_answered", detail=str(error))
        finally:
            with self._slots:
                self._free += 1
                self._slots.notify()

    def _answer(self, connection: socket.socket) -> HelperAnswer:
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        log = _log.bind(pid=pid, uid=uid)
        try:
            line = _line(connection, _REQUEST_SECONDS, _LONGEST_REQUEST)
            request = msgspec.json.decode(line, type=HelperRequest)
        except (ValueError, TimeoutError) as error:
            log.warning("request_refused", detail=str(error))
            return HelperAnswer(failure=HelperFailure(f"no request: {error}"))
        log = log.bind(do=request.do, incident=request.incident)
        try:
            answer = self._do(request)
        except ActuatorError as error:
            log.warning("request_failed", detail=str(error), changed=error.changed)
            return HelperAnswer(failure=HelperFailure(str(error), error.changed, error.retry))
        except Exception:
            log.exception("request_broke")
            message = "the helper failed by a defect; see its journal"
            return HelperAnswer(failure=HelperFailure(message, changed=True))
        if request.do in _CHANGES:
            log.info("request_done")
        return answer

    def _do(self, request: HelperRequest) -> HelperAnswer:
        actuator = self._actuator(request.timeout)
        try:
            if request.do == "plan":
                return HelperAnswer(plan=actuator.plan())
            if request.do == "status":
                return HelperAnswer(service=actuator.status())
            if not self._changing.acquire(blocking=False):
                raise ActuatorError("another request changes the unit now", retry=True)
            try:
                act = actuator.disable if request.do == "disable" else actuator.enable
                act(Claim(request.incident, request.version))
            finally:
                self._changing.release()
            return HelperAnswer()
        finally:
            actuator.close()


def _encoded(message: HelperRequest | HelperAnswer) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def _line(sock: socket.socket, seconds: float, longest: int) -> bytes:
    """The one line that comes within so many seconds.

    Raises ValueError for more than ``longest`` bytes, for more than one line, and for a line
    without an end; TimeoutError.
    """
    deadline = time.monotonic() + seconds
    line = bytearray()
    while not line.endswith(b"\n"):
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        data = sock.recv(65536)
        line += data
        if not data:
            raise ValueError("the line has no end")
        if len(line) > longest or b"\n" in data[:-1]:
            raise ValueError(f"expected one line of at most {longest} bytes")
    return bytes(line)
