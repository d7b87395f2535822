"""The user's own commands as an actuator."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence

from specwatch.actuators.base import ANYTIME, Claim
from specwatch.actuators.child_process import (
    OUTLIVES,
    Finished,
    environment_for,
    printable,
    run_command,
)
from specwatch.config.masking import masked
from specwatch.config.service import CommandService
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration, quoted
from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, ProcessState, Service

_MODES = {"on": Mode.ON, "off": Mode.OFF}
_LIFE_UNKNOWN = "whether vLLM's process runs is not known: commands do not report it"


def run_hook(words: Sequence[str], *, timeout: float, environment: Mapping[str, str]) -> None:
    """Run a hook to its end, ``timeout`` seconds at most; it may be run again.

    ``environment`` says why it runs, as ``child_process.environment_for`` makes it. Raises
    ActuatorError when it fails; ``retry`` is set, for the server itself was not touched.
    """
    failure = run_command(words, timeout=timeout, environment=environment).failure
    if failure is not None:
        raise ActuatorError(f"the hook {failure}", retry=True)


class CommandActuator:
    """Runs the commands of one target, one at a time.

    They get SPECWATCH_TARGET, SPECWATCH_ACTION (``disable``, ``enable`` or ``status``),
    SPECWATCH_INCIDENT, which is empty for ``status``, and SPECWATCH_VERSION, which is greater for
    what is claimed later.
    """

    def __init__(
        self,
        service: CommandService,
        target: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._target = target
        self._monotonic = monotonic

    @property
    def handover(self) -> float:
        """Seconds for which a command of a daemon that was stopped may go on."""
        return self._service.timeout + OUTLIVES

    def plan(self) -> Plan:
        """The commands, without running one; ActuatorError for one that could not be run."""
        service = self._service
        commands = filter(None, (service.disable, service.enable, service.status))
        problems = [problem for words in commands if (problem := _cannot_run(words[0]))]
        if problems:
            raise ActuatorError("; ".join(dict.fromkeys(problems)))
        limit = format_duration(service.timeout)
        disable, enable = (shlex.join(masked(words)) for words in (service.disable, service.enable))
        notes = ["specwatch cannot see what these commands do"]
        if service.status is None:
            notes.append(
                "without a status command specwatch cannot see how vLLM is configured to"
                " start; set service.status"
            )
        steps = (
            f"run `{disable}`, for {limit} at most",
            f"to undo it, run `{enable}`, for {limit} at most",
        )
        return Plan(before=(), after=(), files=(), steps=steps, notes=tuple(notes))

    def status(self) -> Service:
        """What the status command prints; the mode is None where there is no such command."""
        words = self._service.status
        if words is None:
            detail = (
                f"how it is set to start is not known without a status command; {_LIFE_UNKNOWN}"
            )
            return Service(ProcessState.UP, None, None, detail)
        finished = self._run(words, "status")
        if finished.failure is not None:
            raise ActuatorError(finished.failure, retry=True)
        first = next(iter(finished.answer.split()), "")
        mode = _MODES.get(first.lower())
        if mode is None:
            printed = f"printed {quoted(printable(first))}" if first else "printed nothing"
            raise ActuatorError(
                f"`{shlex.join(masked(words))}` {printed}; a status command prints on or off first"
            )
        return Service(ProcessState.UP, mode, None, _LIFE_UNKNOWN)

    def disable(self, claim: Claim) -> None:
        """Run the disable command; ActuatorError when it fails."""
        self._switch(self._service.disable, "disable", claim)

    def enable(self, claim: Claim) -> None:
        """Run the enable command; ActuatorError when it fails."""
        self._switch(self._service.enable, "enable", claim)

    def close(self) -> None:
        """Nothing is held between two commands."""

    def _switch(self, words: tuple[str, ...], action: str, claim: Claim) -> None:
        failure = self._run(words, action, claim).failure
        if failure is not None:
            raise ActuatorError(failure, changed=True)

    def _run(self, words: tuple[str, ...], action: str, claim: Claim = ANYTIME) -> Finished:
        return run_command(
            words,
            timeout=self._service.timeout,
            environment=environment_for(self._target, action, claim),
            apart=action == "status",
            claim=claim,
            monotonic=self._monotonic,
        )


def _cannot_run(program: str) -> str | None:
    if not os.path.isfile(program):
        return f"{program} does not exist or is not a file; create it, or correct the path"
    if not os.access(program, os.X_OK):
        return f"{program} may not be executed; make it executable for the user that runs specwatch"
    return None
