"""Runs vLLM as a child: starts it, watches it, and starts it again when it ends by itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from specwatch.actuators.base import Claim
from specwatch.actuators.child_process import signal_name
from specwatch.actuators.held_process import HeldProcess, ProcessEvent
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.guard.plan import Plan, ProcessState, Service, left_over_totals
from specwatch.runtime.text_file import read_text
from specwatch.vllm_cli import Stripped, strip

_log = structlog.get_logger("specwatch.supervisor")

_KILL_SECONDS = 10.0
"""How long a process may take to end after SIGKILL: one that waits for a device takes a while."""
_START_SECONDS = 30.0
"""How long the start of a program is waited for."""
_GRACE_SECONDS = 10.0
"""How long vLLM has to end after this process was killed."""
_LONG_SECONDS = 600.0
"""A process that ran for so long has not failed to start."""
_TICK_SECONDS = 1.0


class Backoff:
    """How long to wait before the next start; seconds."""

    def __init__(self, first: float = 1.0, most: float = 60.0) -> None:
        """``first`` doubles with each failure up to ``most``; a long run resets it."""
        self._first = self._next = first
        self._most = most

    def after(self, ran: float) -> float:
        """The wait after a process that ran for ``ran`` seconds."""
        wait = self._first if ran >= _LONG_SECONDS else self._next
        self._next = min(self._most, 2 * wait)
        return wait

    def reset(self) -> None:
        """Forget earlier failures: it is started on purpose."""
        self._next = self._first


class Supervisor:
    """Owns one vLLM, and is its actuator; nothing of it outlives this process, however that ends.

    Its standard output and standard error are ours. Its methods can be called from any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        stop_timeout: float = 60.0,
        backoff: Backoff | None = None,
    ) -> None:
        """``environ`` is vLLM's; ``stop_timeout`` is the seconds that it has to end before it is
        killed."""
        self.command = tuple(command)
        self.stop_timeout = stop_timeout
        self._environ = dict(environ)
        self._backoff = backoff or Backoff()
        self._operation = threading.Lock()
        # All below is read and written under it; it is reentrant, for signal handlers.
        self._changed = threading.Condition()
        self._words = self.command
        self._mode = Mode.ON
        self._wanted = False
        self._ending = False
        self._then: Callable[[], None] = lambda: None
        self._give_up_at: float | None = None
        self._thread: threading.Thread | None = None
        self._process: HeldProcess | None = None
        self._running = False
        self._has_run = False
        """Whether a process has run since it was last wanted: one may end as soon as it runs."""
        self._problem: str | None = None
        self._last_end = ""
        self._detail = "not started"

    handover = 0.0
    """See :class:`specwatch.actuators.Actuator`: another daemon has another child."""

    @property
    def draft_lengths(self) -> DraftLengths | None:
        """Why drafts vary in length with the command as it was given; None if that is not known."""
        try:
            return self._stripped().draft_lengths
        except CannotStrip:
            return None

    def plan(self) -> Plan:
        """See :class:`specwatch.actuators.Actuator`. Raises CannotStrip."""
        stripped = self._stripped()
        if not stripped.removed:
            raise ActuatorError("the command after -- has no speculation to switch off")
        timeout = format_duration(self.stop_timeout)
        return Plan(
            before=self.command,
            after=stripped.command,
            files=(),
            steps=(
                f"end vLLM by SIGTERM, and all that is left of it after {timeout} by SIGKILL",
                "start it with the new command",
            ),
            notes=(*stripped.notes, *left_over_totals(self._environ)),
        )

    def disable(self, claim: Claim) -> None:
        """See :class:`specwatch.actuators.Actuator`."""
        self.plan()  # a command without speculation is not restarted
        claim.require()
        self.start(Mode.OFF)

    def enable(self, claim: Claim) -> None:
        """See :class:`specwatch.actuators.Actuator`."""
        claim.require()
        self.start(Mode.ON)

    def close(self) -> None:
        """See :class:`specwatch.actuators.Actuator`; vLLM goes on until :meth:`stop`."""

    def start(self, mode: Mode) -> None:
        """Have vLLM run in this mode: nothing happens when it does, else it is (re)started.

        ON is the command as it was given, OFF without its speculation. Raises CannotStrip, and
        ActuatorError when it cannot be stopped or started; it is then tried again and again.
        """
        words = self.command if mode is Mode.ON else self._stripped().command
        with self._operation:
            if not (self._running and self._wanted and self._mode is mode):
                self._end(self.stop_timeout)
                self._begin(words, mode)

    def stop(self, timeout: float | None = None) -> None:
        """End vLLM, by SIGKILL after ``timeout`` seconds; returns when all of it is gone.

        Raises ActuatorError when something of it survives SIGKILL.
        """
        with self._operation:
            self._end(self.stop_timeout if timeout is None else timeout)

    def ask_to_stop(self, then: Callable[[], None]) -> None:
        """Begin to end vLLM permanently; a second call kills it. Safe in a signal handler.

        ``then`` is called once it has ended, or was given up, and at once by a second call.
        """
        with self._changed:
            again, self._ending = self._ending, True
            self._wanted, self._then = False, then
            self._ask(0.0 if again else self.stop_timeout)
            idle = self._thread is None
        if idle or again:
            then()

    def status(self) -> Service:
        """vLLM's process now; does not wait."""
        with self._changed:
            process = self._process
            if self._running and self._wanted and process is not None:
                return Service(ProcessState.UP, self._mode, process.instance, self._detail)
            changing = process is not None or self._operation.locked()
            instance = None if process is None else process.instance
            state = ProcessState.CHANGING if changing else ProcessState.DOWN
            return Service(state, self._mode, instance, self._detail)

    def _stripped(self) -> Stripped:
        """The command without speculation. Raises CannotStrip."""
        return strip(self.command, read_file=read_text)

    def _begin(self, words: tuple[str, ...], mode: Mode) -> None:
        with self._changed:
            if self._ending:
                raise ActuatorError("specwatch is about to end, and starts nothing", changed=True)
            self._words, self._mode, self._wanted = words, mode, True
            self._has_run = False
            self._problem = None
            self._last_end = ""
            self._backoff.reset()
            self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
            self._thread.start()
            self._changed.wait_for(
                lambda: self._has_run or self._problem is not None or self._thread is None,
                _START_SECONDS,
            )
            if self._problem is not None:
                raise ActuatorError(self._problem, changed=True, retry=True)

    def _end(self, timeout: float) -> None:
        with self._changed:
            self._wanted = False
            self._ask(timeout)
            if not self._changed.wait_for(lambda: self._thread is None, timeout + _KILL_SECONDS):
                raise ActuatorError(
                    f"vLLM did not end within {format_duration(timeout)}, nor by SIGKILL",
                    changed=True,
                    retry=True,
                )

    def _ask(self, timeout: float) -> None:
        self._changed.notify_all()
        if self._process is None:
            return
        if timeout:
            self._process.stop(timeout)
        else:
            self._process.kill()
        deadline = time.monotonic() + timeout + _KILL_SECONDS
        self._give_up_at = deadline if self._give_up_at is None else min(deadline, self._give_up_at)

    def _run(self) -> None:
        """The thread: starts one process after another, as long as one is wanted."""
        while self._run_once():
            pass
        if self._ending:
            self._then()

    def _run_once(self) -> bool:
        """One process, and the wait after it; returns whether there is to be another."""
        begun = time.monotonic()
        with self._changed:
            process = self._process = self._start() if self._wanted else None
        if process is not None:
            self._attend(process, begun)
        with self._changed:
            self._process = None
            self._changed.notify_all()
            if self._wanted:
                wait = self._backoff.after(time.monotonic() - begun)
                self._detail = f"{self._last_end}; starts again after {format_duration(wait)}"
                _log.warning("vllm_starts_again", seconds=wait)
                self._changed.wait_for(lambda: not self._wanted, wait)
            if not self._wanted:
                self._thread = self._give_up_at = None
                self._changed.notify_all()
            return self._wanted

    def _start(self) -> HeldProcess | None:
        try:
            return HeldProcess(self._words, environ=self._environ, grace=_GRACE_SECONDS)
        except OSError as error:
            self._failed(error.errno)
            return None

    def _attend(self, process: HeldProcess, begun: float) -> None:
        """Handle its events until it and all that it started have ended."""
        any_event = False
        for event in process.events(_TICK_SECONDS):
            any_event = any_event or bool(event.verb)
            with self._changed:
                self._handle(event, process, begun)
                self._changed.notify_all()
        complete = process.finish()
        with self._changed:
            if not any_event:
                self._failed(None)
            elif not complete:
                self._ended("ended because the process that holds it was killed", begun)

    def _handle(self, event: ProcessEvent, process: HeldProcess, begun: float) -> None:
        if event.verb == "started":
            self._running = True
            self._has_run = True
            self._problem = None
            self._detail = f"before: {self._last_end}" if self._last_end else ""
            _log.info("vllm_started", pid=event.number, mode=str(self._mode))
        elif event.verb == "failed":
            self._failed(event.number)
        elif event.verb == "ended":
            self._ended(_how(event.number), begun)
        elif self._give_up_at is not None and time.monotonic() > self._give_up_at:
            self._give_up_at = None
            _log.error("vllm_not_ended", detail="not in time, nor by SIGKILL; trying again")
            process.abandon()
            if self._ending:
                self._then()

    def _ended(self, how: str, begun: float) -> None:
        self._running = False
        self._detail = self._last_end = how
        log = _log.warning if self._wanted else _log.info
        log("vllm_ended", detail=how, seconds=round(time.monotonic() - begun, 1))

    def _failed(self, code: int | None) -> None:
        reason = os.strerror(code) if code else "its process ended at once"
        self._problem = f"cannot start {self._words[0]}: {reason}"
        self._detail = self._last_end = self._problem
        _log.error("vllm_start_failed", detail=self._problem)
        self._changed.notify_all()


def _how(status: int) -> str:
    """How a process ended; a negative status is a signal."""
    return f"ended by {signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
