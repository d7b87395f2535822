"""Socket server of the privileged helper of one unit; systemd opens the socket."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from specwatch.actuators import Actuator
from specwatch.actuators.helper_protocol import (
    LONGEST_REQUEST,
    HelperAnswer,
    HelperFailure,
    HelperRequest,
    encode,
    parse_request,
)
from specwatch.errors import ActuatorError, ConfigError

_log = structlog.get_logger("specwatch.guard_helper")
_FIRST_DESCRIPTOR = 3
_REQUEST_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_MOST_CONNECTIONS = 32
_CREDENTIALS = struct.Struct("3i")


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
        while select.select([self._listening], [], [], self._idle)[0] or self._busy():
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the client is gone again
                continue
            with self._slots:
                self._slots.wait_for(lambda: self._free > 0)
                self._free -= 1
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _busy(self) -> bool:
        return self._free < _MOST_CONNECTIONS

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                answer = self._answer(connection)
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(encode(answer))
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
            request = parse_request(_line(connection))
        except (ValueError, TimeoutError) as error:
            log.warning("request_refused", detail=str(error))
            return _failed(str(error))
        log = log.bind(do=request.do, incident=request.incident)
        try:
            answer = self._do(request)
        except ActuatorError as error:
            log.warning("request_failed", detail=str(error), changed=error.changed)
            return HelperAnswer(failure=HelperFailure.of(error))
        except Exception:
            log.exception("request_broke")
            return _failed("the helper failed by a defect; see its journal", changed=True)
        if request.do in ("disable", "enable"):
            log.info("request_done")
        return answer

    def _do(self, request: HelperRequest) -> HelperAnswer:
        actuator = self._actuator(request.timeout)
        try:
            if request.do == "plan":
                return HelperAnswer(plan=actuator.plan())
            if request.do == "status":
                return HelperAnswer(service=actuator.status())
            self._change(actuator, request)
            return HelperAnswer()
        finally:
            actuator.close()

    def _change(self, actuator: Actuator, request: HelperRequest) -> None:
        if not self._changing.acquire(blocking=False):
            raise ActuatorError("another request changes the unit now", retry=True)
        try:
            if request.do == "disable":
                actuator.disable(request.incident)
            else:
                actuator.enable(request.incident)
        finally:
            self._changing.release()


def _failed(message: str, *, changed: bool = False) -> HelperAnswer:
    return HelperAnswer(failure=HelperFailure(message, changed=changed, retry=False))


def _line(connection: socket.socket) -> bytes:
    """The one line that was sent; ValueError if it is too long, TimeoutError if it has no end."""
    deadline = time.monotonic() + _REQUEST_SECONDS
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        data = connection.recv(LONGEST_REQUEST)
        line += data
        if not data:
            raise ValueError("no request: the line has no end")
        if len(line) > LONGEST_REQUEST or b"\n" in line[:-1]:
            raise ValueError(f"no request: expected one line of at most {LONGEST_REQUEST} bytes")
    return line
