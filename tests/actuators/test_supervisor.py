"""The supervisor: one vLLM as asked for, started again when it ends by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from specwatch.actuators import process_holder
from specwatch.actuators import supervisor as supervisor_module
from specwatch.actuators.base import Claim
from specwatch.actuators.held_process import ProcessEvent
from specwatch.actuators.supervisor import Backoff, Supervisor
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.guard.plan import ProcessState
from tests.actuators.process_families import alive, descendants, descriptors
from tests.hostile import wait_for

pytestmark = pytest.mark.usefixtures("only_ours")

SERVER = """\
#!/bin/sh
printf '%s|' "$@" >> "$(dirname "$0")/starts"
echo >> "$(dirname "$0")/starts"
exec sleep 600
"""
"""A vLLM that says how it was started."""
SPECULATING = ("vllm", "serve", "m", "--spec-method", "ngram", "--spec-tokens", "4")
SCHEDULED = (
    "vllm",
    "serve",
    "m",
    "--speculative-config",
    '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}',
)
PLAIN = ("vllm", "serve", "m")
Supervise = Callable[..., Supervisor]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (SPECULATING, DraftLengths.MATCHES),
        (SCHEDULED, DraftLengths.SCHEDULE),
        (PLAIN, None),
        (("bash", "-c", "exec vllm serve $MODEL"), None),
    ],
)
def test_the_command_says_why_drafts_vary(words: Sequence[str], cause: DraftLengths | None) -> None:
    assert Supervisor(words, environ={}).draft_lengths is cause


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Makes supervisors with little patience, which find our vLLM; ends them."""
    (tmp_path / "vllm").write_text(SERVER)
    (tmp_path / "vllm").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made: list[Supervisor] = []

    def make(words: Sequence[str], *, first: float = 0.01, stop_timeout: float = 20) -> Supervisor:
        supervisor = Supervisor(
            words, environ=environ, stop_timeout=stop_timeout, backoff=Backoff(first, most=0.1)
        )
        made.append(supervisor)
        return supervisor

    yield make
    for supervisor in made:
        supervisor.stop(0.0)
    assert descendants() == []


def starts(folder: Path, count: int) -> list[tuple[str, ...]]:
    """The arguments of all starts, once there were ``count``."""
    file = folder / "starts"
    wait_for(lambda: file.exists() and file.read_text().count("\n") >= count)
    return [tuple(line.split("|")[:-1]) for line in file.read_text().splitlines()]


def program(supervisor: Supervisor) -> int:
    """The number of the process that runs, once it does."""
    wait_for(lambda: supervisor.status().life is ProcessState.UP)
    instance = supervisor.status().instance
    return int(instance.partition("-")[0])


@pytest.mark.parametrize(
    ("lives", "waits"),
    [
        ([0.0] * 8, [1, 2, 4, 8, 16, 32, 60, 60]),
        ([0.0, 599.0, 600.0, 0.0], [1, 2, 1, 2]),
        ([1e6, 1e6], [1, 1]),
    ],
    ids=["it doubles up to a minute", "a long life starts it anew", "long lives"],
)
def test_the_wait_before_a_start(lives: list[float], waits: list[float]) -> None:
    backoff = Backoff()
    assert [backoff.after(ran) for ran in lives] == waits
    backoff.reset()
    assert backoff.after(0.0) == 1


def test_it_runs_once_as_asked_and_is_gone_when_stopped(supervise: Supervise) -> None:
    """A second start changes nothing; a start after a stop is another instance."""
    supervisor = supervise(SPECULATING)
    assert supervisor.status().life is ProcessState.DOWN
    supervisor.start(Mode.ON)
    first = supervisor.status()
    assert (first.life, first.mode) == (ProcessState.UP, Mode.ON)
    supervisor.start(Mode.ON)
    assert supervisor.status() == first
    supervisor.stop()
    supervisor.start(Mode.ON)
    again = supervisor.status()
    assert (again.life, again.instance != first.instance) == (ProcessState.UP, True)
    supervisor.stop()
    stopped = supervisor.status()
    assert (stopped.life, stopped.instance) == (ProcessState.DOWN, None)
    assert stopped.detail == "ended by SIGTERM"
    assert descendants() == []


def test_what_ends_by_itself_starts_again_as_it_was(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(SPECULATING)
    supervisor.start(Mode.OFF)
    for count in (1, 2):
        starts(tmp_path, count)
        os.kill(program(supervisor), signal.SIGKILL)
    assert starts(tmp_path, 3) == [PLAIN[1:]] * 3
    wait_for(lambda: supervisor.status().life is ProcessState.UP)
    assert supervisor.status().detail == "before: ended by SIGKILL"


def test_between_two_starts_it_is_down_and_says_why(supervise: Supervise) -> None:
    """A stop ends the wait; so does a start, after which it is as long as at first."""
    supervisor = supervise(["sh", "-c", "exit 3"], first=600.0)
    for _ in range(2):
        supervisor.start(Mode.ON)
        wait_for(lambda: supervisor.status().life is ProcessState.DOWN)
        status = supervisor.status()
        assert (status.instance, status.detail) == (
            None,
            "ended with exit status 3; starts again after 10m",
        )
    supervisor.stop()
    assert supervisor.status().life is ProcessState.DOWN


def test_a_start_waits_for_no_process_that_is_over_already(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though whoever started it never saw it run."""
    supervisor = supervise(PLAIN, first=600.0)

    class OverAtOnce:
        instance = "1-a"

        def __init__(self, words: Sequence[str], **_: object) -> None:
            pass

        def events(self, tick: float) -> Iterator[ProcessEvent]:
            with supervisor._changed:
                yield ProcessEvent("started", 1)
                yield ProcessEvent("ended", 3)

        def finish(self) -> bool:
            return True

    monkeypatch.setattr(supervisor_module, "HeldProcess", OverAtOnce)
    begun = time.monotonic()
    supervisor.start(Mode.ON)
    assert time.monotonic() - begun < 15.0
    wait_for(lambda: supervisor.status().life is ProcessState.DOWN)


@pytest.mark.parametrize(
    ("name", "reason"), [("none", "No such file or directory"), ("text", "Permission denied")]
)
def test_a_command_that_cannot_be_started_is_told_and_tried_again(
    supervise: Supervise, tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "text").write_text("no program")
    supervisor = supervise([str(tmp_path / name)])
    with pytest.raises(ActuatorError, match=f"cannot start .*{name}: {reason}"):
        supervisor.start(Mode.ON)
    (tmp_path / name).write_text(SERVER)
    (tmp_path / name).chmod(0o755)
    wait_for(lambda: supervisor.status().life is ProcessState.UP)


def test_its_holder_killed_all_ends_and_starts_again(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(SPECULATING)
    supervisor.start(Mode.ON)
    starts(tmp_path, 1)
    found = process_holder.process(program(supervisor))
    os.kill(found.parent, signal.SIGKILL)
    starts(tmp_path, 2)
    assert alive([found.pid]) == []
    wait_for(lambda: supervisor.status().life is ProcessState.UP)
    assert "the process that holds it was killed" in supervisor.status().detail


def test_asked_to_stop_it_ends_and_starts_nothing_more(supervise: Supervise) -> None:
    """Asked twice it does not wait."""
    told: list[str] = []
    supervisor = supervise(["sh", "-c", "trap '' TERM; exec sleep 600"], stop_timeout=600.0)
    supervisor.start(Mode.ON)
    supervisor.ask_to_stop(then=lambda: told.append("ended"))
    assert (supervisor.status().life, told) == (ProcessState.CHANGING, [])
    supervisor.ask_to_stop(then=lambda: told.append("hastened"))
    with pytest.raises(ActuatorError, match="about to end"):
        supervisor.start(Mode.ON)
    wait_for(lambda: told == ["hastened", "hastened"])
    assert descendants() == []


def test_a_holder_that_hangs_holds_up_nothing(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is told that it was not in time, and all of it ends nevertheless."""
    monkeypatch.setattr(supervisor_module, "_KILL_SECONDS", 0.1)
    monkeypatch.setattr(supervisor_module, "_TICK_SECONDS", 0.05)
    told: list[bool] = []
    supervisor = supervise(["sleep", "600"], stop_timeout=0.1)
    supervisor.start(Mode.ON)
    found = process_holder.process(program(supervisor))
    os.kill(found.parent, signal.SIGSTOP)
    with pytest.raises(ActuatorError, match="did not end within 100ms, nor by SIGKILL") as caught:
        supervisor.stop()
    assert (caught.value.changed, caught.value.retry) == (True, True)
    supervisor.ask_to_stop(then=lambda: told.append(True))
    wait_for(lambda: told and not alive([found.pid, found.parent]))
    monkeypatch.undo()  # what ends it has its usual patience


def test_asked_to_stop_with_nothing_running_it_says_so_at_once(supervise: Supervise) -> None:
    told: list[bool] = []
    supervise(PLAIN).ask_to_stop(then=lambda: told.append(True))
    assert told == [True]


def test_what_has_ended_leaves_no_process_and_no_descriptor(supervise: Supervise) -> None:
    supervisor = supervise(SPECULATING)
    before = descriptors()
    supervisor.start(Mode.ON)
    supervisor.start(Mode.OFF)
    supervisor.stop()
    assert (descriptors(), descendants()) == (before, [])


def test_the_actuator_shows_what_it_does_and_does_it(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(SPECULATING)
    plan = supervisor.plan()
    assert (plan.before, plan.after, plan.files) == (SPECULATING, PLAIN, ())
    supervisor.start(Mode.ON)
    expected = [SPECULATING[1:], PLAIN[1:], SPECULATING[1:]]
    assert starts(tmp_path, 1) == expected[:1]
    for switch, mode in ((supervisor.disable, Mode.OFF), (supervisor.enable, Mode.ON)):
        switch(Claim("incident"))
        first = supervisor.status()
        done = 2 if mode is Mode.OFF else 3
        assert starts(tmp_path, done) == expected[:done]
        assert (first.life, first.mode) == (ProcessState.UP, mode)
        switch(Claim("incident"))
        assert supervisor.status() == first
    supervisor.close()
    assert supervisor.status() == first


@pytest.mark.parametrize(
    ("words", "error"),
    [(PLAIN, ActuatorError), ((*PLAIN, "--spec-method", "$METHOD", "--specul"), CannotStrip)],
    ids=["nothing to switch off", "ambiguous"],
)
def test_what_cannot_be_switched_off_is_refused_and_left_running(
    supervise: Supervise, words: Sequence[str], error: type[ActuatorError]
) -> None:
    supervisor = supervise(words)
    supervisor.start(Mode.ON)
    first = supervisor.status()
    with pytest.raises(error) as caught:
        supervisor.disable(Claim("incident"))
    assert not caught.value.changed
    assert supervisor.status() == first
