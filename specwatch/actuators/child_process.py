"""Runs a command to its end, with limits on its time and its output.

It runs without a shell and without input, in its own session, which a small process holds: the
command ends with us, and in its time also while we are stopped. What it leaves running in the
background is left alone, unless the command was ended; such a process should not keep the command's
output open, because nobody reads it any more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from specwatch.actuators import process_holder
from specwatch.actuators.base import ANYTIME, Claim, lease_ended
from specwatch.config.masking import masked
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError

_log = structlog.get_logger("specwatch.commands")
KEPT = 4096
"""Bytes of a command's output that are kept: the last ones."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command that is ended."""
OUTLIVES = GRACE + 5.0
"""Seconds beyond its time after which nothing of a command is left, whatever became of us."""
_REAPED_WITHIN = 5.0
_LOOK_EVERY = 0.05
_FOREVER = 1e12
_LONGEST_LINE = 300
_OURS = ("SPECWATCH_", "LISTEN_", "NOTIFY_", "WATCHDOG_", "CREDENTIALS_DIRECTORY")
"""Prefixes of variables that are not passed on: settings, secrets, those of the service manager."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended.

    ``status`` is its exit status, negative for the signal that ended it, and None when it took
    longer than allowed. ``output`` is the end of all its output; ``answer`` is that of its
    standard output, without its standard error if they were kept apart.
    """

    words: tuple[str, ...]
    status: int | None
    output: str
    answer: str
    timeout: float

    @property
    def failure(self) -> str | None:
        """What went wrong, as a sentence with its last line of output; None for success."""
        if self.status == 0:
            return None
        if self.status is None:
            what = f"took longer than {format_duration(self.timeout)} and was ended"
        elif self.status < 0:
            what = f"was ended by {signal_name(-self.status)}"
        else:
            what = f"exited with status {self.status}"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        last = f"its last output: {printable(lines[-1])}" if lines else "it wrote nothing"
        return f"`{shlex.join(masked(self.words))}` {what}; {last}"


def printable(text: str) -> str:
    """Output of a command, short and safe to show."""
    plain = "".join(char if char.isprintable() else "?" for char in text[: _LONGEST_LINE + 1])
    return plain if len(plain) <= _LONGEST_LINE else plain[: _LONGEST_LINE - 3] + "..."


def environment_for(target: str, action: str, claim: Claim = ANYTIME) -> dict[str, str]:
    """The variables that say why a command or a hook runs."""
    return {
        "SPECWATCH_TARGET": target,
        "SPECWATCH_ACTION": action,
        "SPECWATCH_INCIDENT": claim.incident,
        "SPECWATCH_VERSION": str(claim.version),
    }


def run_command(
    words: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str],
    grace: float = GRACE,
    apart: bool = False,
    claim: Claim = ANYTIME,
    monotonic: Callable[[], float] = time.monotonic,
) -> Finished:
    """Run a command; after ``timeout`` seconds its whole session is ended.

    It gets SIGTERM, and SIGKILL ``grace`` seconds later. ``environment`` is added to the
    inherited one, without our own variables. ``apart`` keeps standard error out of the answer, at
    the price of the order in which the two were written. Raises ActuatorError, unchanged, for a
    command that cannot be started, and where the lease of ``claim`` has ended.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    begun = monotonic()
    with _Held(words, {**inherited, **environment}, apart, grace, timeout, claim) as held:
        in_time = held.until_its_end(monotonic, begun + timeout)
        held.finish()
    told = held.told
    if "late" in told:
        raise lease_ended()
    if "failed" in told:
        raise ActuatorError(
            f"cannot run {words[0]}: {os.strerror(told['failed'])}; it must be an executable file"
            " on this machine"
        )
    ended = told.get("ended", int(signal.SIGKILL))  # the holder was killed, and it with it
    status = os.waitstatus_to_exitcode(ended) if in_time else None
    output, answer = (text.decode("utf-8", "replace") for text in (held.output, held.answer))
    finished = Finished(tuple(words), status, output, answer, timeout)
    log = _log.info if status == 0 else _log.warning
    log(
        "command_ended",
        command=shlex.join(masked(words)),
        status=status,
        seconds=round(monotonic() - begun, 3),
        output=output,
        **{key.removeprefix("SPECWATCH_").lower(): value for key, value in environment.items()},
    )
    return finished


class _Held:
    """A command that a holder runs: reads its output, and waits for its end."""

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        apart: bool,
        grace: float,
        limit: float,
        claim: Claim,
    ) -> None:
        self.output = self.answer = b""
        """The end of all that it wrote, and of what it wrote to its standard output."""
        self._grace = grace
        self._told = b""
        self._ended = False
        self._socket, theirs = socket.socketpair()
        limits = (grace, min(claim.until(), _FOREVER), limit)
        try:
            self._holder = subprocess.Popen(  # noqa: S603
                [
                    sys.executable,
                    "-I",
                    "-S",
                    process_holder.__file__,
                    "command",
                    str(theirs.fileno()),
                    *map(str, limits),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if apart else subprocess.STDOUT,
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:  # too many processes
            self._socket.close()
            raise ActuatorError(f"cannot run {words[0]}: {error.strerror}", retry=True) from error
        finally:
            theirs.close()
        text = b"\0".join(map(os.fsencode, words))
        with contextlib.suppress(OSError):  # it has ended, which is seen below
            self._socket.sendall(len(text).to_bytes(4, "big") + text)
        self._selector = selectors.DefaultSelector()
        self._streams = [each for each in (self._holder.stdout, self._holder.stderr) if each]
        for stream in self._streams:
            self._selector.register(stream, selectors.EVENT_READ)
        self._selector.register(self._socket, selectors.EVENT_READ)

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()  # the holder then ends what still runs
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that even SIGKILL cannot end
            self._holder.wait(_REAPED_WITHIN)
        self._selector.close()
        for stream in self._streams:
            stream.close()

    def until_its_end(self, monotonic: Callable[[], float], deadline: float) -> bool:
        """Whether the command ends by itself before that moment of the monotonic clock."""
        while not self._ended and monotonic() < deadline:
            self._read(_LOOK_EVERY)
        return self._ended and "over" not in self.told

    def finish(self) -> None:
        """Have what still runs ended, and read what it says last."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + self._grace + _REAPED_WITHIN
        while not self._ended and time.monotonic() < deadline:
            self._read(_LOOK_EVERY)
        self._read(0.0)

    @property
    def told(self) -> dict[str, int]:
        """What the holder has said: its words, and the number after each."""
        lines = (line.partition(" ") for line in self._told.decode().splitlines())
        return {verb: int(number or 0) for verb, _, number in lines}

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            piece = _piece(key.fd)
            if key.fileobj is self._socket:
                self._told += piece
                self._ended = self._ended or not piece
            else:
                self.output = (self.output + piece)[-KEPT:]
            if key.fileobj is self._holder.stdout:
                self.answer = (self.answer + piece)[-KEPT:]
            if not piece:
                self._selector.unregister(key.fileobj)


def _piece(descriptor: int) -> bytes:
    """What can be read now; empty at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except ConnectionError:
        return b""


def signal_name(number: int) -> str:
    """``SIGKILL`` and the like, or the number of a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
