"""Runs a command to its end, with limits on its time and its output.

It runs without a shell and without input, in its own session and process group. What it leaves
running in the background is left alone, unless the command ran out of time; such a process should
not keep the command's output open, because nobody reads it any more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from specwatch.config.masking import masked
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError

_log = structlog.get_logger("specwatch.commands")
KEPT = 4096
"""Bytes of a command's output that are kept: the last ones."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command that ran out of time."""
_REAPED_WITHIN = 5.0
_LOOK_EVERY = 0.05
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


def environment_for(target: str, action: str, incident: str = "") -> dict[str, str]:
    """The variables that say why a command or a hook runs; ``incident`` may be empty."""
    return {"SPECWATCH_TARGET": target, "SPECWATCH_ACTION": action, "SPECWATCH_INCIDENT": incident}


def run_command(
    words: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str],
    grace: float = GRACE,
    apart: bool = False,
    monotonic: Callable[[], float] = time.monotonic,
) -> Finished:
    """Run a command; after ``timeout`` seconds its whole process group is ended.

    The group gets SIGTERM, and SIGKILL ``grace`` seconds later. ``environment`` is added to the
    inherited one, without our own variables. ``apart`` keeps standard error out of the answer, at
    the price of the order in which the two were written. Raises ActuatorError, unchanged, for a
    command that cannot be started.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    begun = monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own words, and no shell
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
            env={**inherited, **environment},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ActuatorError(
            f"cannot run {words[0]}: {reason}; it must be an executable file on this machine"
        ) from error
    with _Watched(process, monotonic) as watched:
        in_time = watched.until_its_end(begun + timeout)
        if not in_time:
            watched.end_group(grace)
    status = process.returncode if in_time else None
    output, answer = (text.decode("utf-8", "replace") for text in (watched.output, watched.answer))
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


class _Watched:
    """A started child: reads its output, and notices its end without reaping it.

    Until it is reaped, no other process gets its process id, which is that of the group.
    """

    def __init__(self, process: subprocess.Popen[bytes], monotonic: Callable[[], float]) -> None:
        self._process = process
        self._monotonic = monotonic
        self.output = self.answer = b""
        """The end of all that it wrote, and of what it wrote to its standard output."""
        self._selector = selectors.DefaultSelector()
        self._streams = [stream for stream in (process.stdout, process.stderr) if stream]
        for stream in self._streams:
            self._selector.register(stream, selectors.EVENT_READ)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self._has_ended():  # an interruption: nothing of it may go on unwatched
            self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that even SIGKILL cannot end
            self._process.wait(_REAPED_WITHIN)
        self._selector.close()
        for stream in self._streams:
            stream.close()

    def until_its_end(self, deadline: float) -> bool:
        """Whether the child itself ends before that moment of the monotonic clock."""
        while not (ended := self._has_ended()) and self._monotonic() < deadline:
            self._step()
        if ended:
            self._read()  # what it said last
        return ended

    def end_group(self, grace: float) -> None:
        """SIGTERM to all of the group, and SIGKILL after ``grace`` seconds, or once it is over."""
        self._signal(signal.SIGTERM)
        deadline = self._monotonic() + grace
        # An open stream is held by somebody of the group who is not done yet.
        while self._selector.get_map() or not self._has_ended():
            if self._monotonic() >= deadline:
                break
            self._step()
        self._signal(signal.SIGKILL)
        self._read()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def _step(self) -> None:
        if self._selector.get_map():
            self._read(_LOOK_EVERY)
        else:
            time.sleep(_LOOK_EVERY)

    def _read(self, seconds: float = 0.0) -> None:
        for key, _ in self._selector.select(seconds):
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                self._selector.unregister(key.fileobj)
                continue
            self.output = (self.output + piece)[-KEPT:]
            if key.fileobj is self._process.stdout:
                self.answer = (self.answer + piece)[-KEPT:]


def signal_name(number: int) -> str:
    """``SIGKILL`` and the like, or the number of a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
