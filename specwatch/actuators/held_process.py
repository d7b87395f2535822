"""A running program that a process holder keeps, as specwatch handles it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specwatch.actuators import process_holder

MARK = "SPECWATCH_LEASH"
"""Environment variable by which the program and its children are found without the holder."""
_TO_SPECWATCH_ONLY = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
_LOOK_SECONDS = 0.1


class ProcessEvent(NamedTuple):
    """``started`` with a process id, ``failed`` with an errno, ``ended`` with an exit status that
    is negative for a signal, or ``""`` if nothing happened within a tick."""

    verb: str
    number: int = 0


class HeldProcess:
    """A program in its own session that ends with all its descendants when this process ends.

    It has our environment, standard output and standard error, and no standard input.
    """

    def __init__(
        self, words: Sequence[str], *, environ: Mapping[str, str], grace: float, sweep: float = 5.0
    ) -> None:
        """``grace`` is how many seconds it has to end when we are killed, or the holder is;
        ``sweep`` how many what it leaves behind has, from SIGTERM to SIGKILL.

        Raises OSError when the holder cannot be started. Whether the program starts is an event.
        """
        self._token = secrets.token_hex(8)
        self._grace = grace
        self._session: int | None = None
        self._socket, theirs = socket.socketpair()
        given = {name: value for name, value in environ.items() if name not in _TO_SPECWATCH_ONLY}
        numbers = map(str, ("program", theirs.fileno(), grace, sweep))
        try:
            self._holder = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", process_holder.__file__, *numbers],
                env={**given, MARK: self._token},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # specwatch passes on a Ctrl-C in a terminal
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        text = b"\0".join(map(os.fsencode, words))
        self._send(len(text).to_bytes(4, "big") + text)

    @property
    def instance(self) -> str | None:
        """The process id of the program and a random token; None until it runs."""
        return None if self._session is None else f"{self._session}-{self._token}"

    def stop(self, timeout: float) -> None:
        """Ask the program to end, by SIGTERM; whatever is left after ``timeout`` seconds is killed.

        Returns at once.
        """
        self._send(f"stop {timeout}\n".encode())

    def kill(self) -> None:
        """SIGKILL to all of it; returns at once."""
        self._send(b"kill\n")

    def abandon(self) -> None:
        """Kill a holder that does not end its program: :meth:`finish` then does that at once."""
        self._grace = 0.0
        self._holder.kill()

    def events(self, tick: float) -> Iterator[ProcessEvent]:
        """What happens, until the holder has ended; an empty event after each ``tick`` seconds."""
        self._socket.settimeout(tick)
        unread = b""
        while True:
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                yield ProcessEvent("")
                continue
            except ConnectionError:
                return
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            yield from map(self._event, lines)

    def finish(self) -> bool:
        """Close the connection after the last event; False when the holder was killed.

        In that case this ends what it held.
        """
        self._socket.close()
        if self._holder.wait() == 0:
            return True
        self._sweep()
        return False

    def _event(self, line: bytes) -> ProcessEvent:
        verb, _, number = line.decode().partition(" ")
        if verb == "started":
            self._session = int(number)
        if verb == "ended":
            return ProcessEvent(verb, os.waitstatus_to_exitcode(int(number)))
        return ProcessEvent(verb, int(number))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is an event
            self._socket.sendall(data)

    def _sweep(self) -> None:
        """End what a killed holder left behind; the kernel has sent its program SIGTERM."""
        kill_at = time.monotonic() + self._grace
        asked: set[tuple[int, int]] = set()
        while held := self._held():
            late = time.monotonic() >= kill_at
            ours = [process for process in held if late or process.pid != self._session]
            process_holder.end(ours, asked, kill=late)
            time.sleep(_LOOK_SECONDS)

    def _held(self) -> list[process_holder.Process]:
        """All in the program's session, or with our mark, and their descendants."""
        alive = process_holder.processes()
        roots = {process.pid for process in alive.values() if self._is_ours(process)}
        family = [alive[pid] for pid in roots] + process_holder.descendants(roots, alive)
        return [process for process in family if not process.gone]

    def _is_ours(self, process: process_holder.Process) -> bool:
        if process.session == self._session:
            return True
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                return f"{MARK}={self._token}".encode() in file.read().split(b"\0")
        except OSError:
            return False  # it ended, or is not ours to look at
