"""What a holder holds: it passes on what it should, and nothing of it is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from specwatch.actuators import process_holder
from specwatch.actuators.held_process import MARK, HeldProcess, ProcessEvent
from tests.actuators.process_families import alive, born, descendants, family, python
from tests.hostile import wait_for

pytestmark = pytest.mark.usefixtures("only_ours")

SLEEP = python("import time; time.sleep(600)")
HOLDER = """\
import sys, time
from specwatch.actuators.held_process import HeldProcess
life = HeldProcess(sys.argv[2:], environ={}, grace=float(sys.argv[1]))
for event in life.events(1.0):
    print(event.number, file=sys.stderr, flush=True)
"""


def held(words: Sequence[str], *, grace: float = 30.0, sweep: float = 30.0) -> HeldProcess:
    return HeldProcess(words, environ=os.environ, grace=grace, sweep=sweep)


def started(life: HeldProcess) -> tuple[int, Iterator[ProcessEvent]]:
    """The program's number, and the events that follow."""
    events = life.events(60.0)
    event = next(events)
    assert event.verb == "started"
    return event.number, events


def finished(life: HeldProcess, events: Iterator[ProcessEvent]) -> list[ProcessEvent]:
    """The last events of a life that ended with all that it had."""
    last = []
    for event in events:
        assert event.verb, "it ends in time"
        last.append(event)
    assert life.finish()
    assert descendants() == []
    return last


def holder_of(program: int) -> int:
    found = process_holder.process(program)
    return found.parent


@contextmanager
def holder(words: Sequence[str], grace: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a program, and whose standard output nobody reads."""
    command = [sys.executable, "-c", HOLDER, str(grace), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_program_has_our_surroundings_and_its_end_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No descriptor of ours is among them but standard output and standard error."""
    code = (
        "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()));"
        " print(sorted(os.listdir('/proc/self/fd'))); sys.exit(3)"
    )
    life = held(python(code))
    _, events = started(life)
    assert finished(life, events) == [ProcessEvent("ended", 3)]
    out = capfd.readouterr().out.splitlines()
    assert out == ["True ''", "['0', '1', '2', '3']"]  # the last is that of listdir


def test_it_does_not_ignore_what_python_ignores(capfd: pytest.CaptureFixture[str]) -> None:
    life = held(["grep", "SigIgn", "/proc/self/status"])
    _, events = started(life)
    assert finished(life, events) == [ProcessEvent("ended", 0)]
    ignored = int(capfd.readouterr().out.split()[1], 16)
    assert not ignored & 1 << (signal.SIGPIPE - 1)


def test_its_environment_is_what_was_given_and_a_mark(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print(sorted(os.environ))"
    life = HeldProcess(python(code), environ={"LC_ALL": "C", "WATCHDOG_USEC": "1"}, grace=30.0)
    _, events = started(life)
    finished(life, events)
    assert capfd.readouterr().out == f"{['LC_ALL', MARK]}\n"


def test_a_program_is_asked_first_and_its_children_after_it(tmp_path: Path) -> None:
    """It ends its own processes in its own way; what it leaves behind is asked too."""
    code = """\
import os, signal, sys, time
told, read = os.path.join(sys.argv[1], "told"), os.path.join(sys.argv[1], "ready")
def parent_asked(*_):
    time.sleep(0.2)
    os._exit(4 if os.path.exists(told) else 7)
signal.signal(signal.SIGTERM, parent_asked)
if os.fork() == 0:
    def child_asked(*_):
        open(told, "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, child_asked)
    open(read, "w").close()
    time.sleep(600)
while True:
    time.sleep(600)
"""
    life = held(python(code, tmp_path))
    _, events = started(life)
    wait_for(lambda: (tmp_path / "ready").exists())
    life.stop(30.0)
    assert finished(life, events) == [ProcessEvent("ended", 7)]
    assert (tmp_path / "told").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_holder_goes_to_the_program(number: signal.Signals) -> None:
    life = held(["sleep", "600"])
    program, events = started(life)
    os.kill(holder_of(program), number)
    assert finished(life, events) == [ProcessEvent("ended", -number)]


def test_after_its_time_all_of_a_stubborn_family_is_killed(tmp_path: Path) -> None:
    life = held(family(tmp_path))
    _, events = started(life)
    pids = born(tmp_path)
    life.stop(0.2)
    assert finished(life, events) == [ProcessEvent("ended", -signal.SIGKILL)]
    assert alive(pids) == []


def test_a_second_request_hastens_the_first() -> None:
    life = held(python("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"))
    _, events = started(life)
    life.stop(600.0)
    life.kill()
    assert finished(life, events)[0].verb == "ended"


def test_what_a_program_leaves_behind_ends_with_it() -> None:
    """As the engine does when vLLM's front end was killed; here one that obeys, and one not."""
    obeys_not = "trap '' TERM; exec setsid sleep 600"
    life = held(["sh", "-c", f"sleep 600 & ({obeys_not}) & sleep 0.1; kill -9 $$"], sweep=0.2)
    _, events = started(life)
    assert finished(life, events) == [ProcessEvent("ended", -signal.SIGKILL)]


def test_when_its_owner_is_killed_a_stubborn_family_is_ended(tmp_path: Path) -> None:
    with holder(family(tmp_path), grace=0.2) as process:
        pids = born(tmp_path)
        above = holder_of(pids[-1])
        process.kill()
        wait_for(lambda: not alive([*pids, above]))


def test_when_the_holder_is_killed_a_flood_that_nobody_reads_is_ended() -> None:
    with holder(["yes"], grace=600.0) as process:
        program = int(process.stderr.readline())
        above = holder_of(program)
        process.kill()
        wait_for(lambda: not alive([program, above]))


def test_when_the_holder_is_killed_a_stubborn_family_is_ended(tmp_path: Path) -> None:
    """By its holder, who knows its session and its mark."""
    life = held(family(tmp_path), grace=0.2)
    program, events = started(life)
    pids = born(tmp_path)
    os.kill(holder_of(program), signal.SIGKILL)
    assert list(events) == []
    assert not life.finish()
    assert alive(pids) == []


def test_when_both_are_killed_the_program_is_told() -> None:
    with holder(SLEEP, grace=600.0) as process:
        program = int(process.stderr.readline())
        above = holder_of(program)
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(above, signal.SIGKILL)
        process.kill()
        wait_for(lambda: not alive([program, above]))
