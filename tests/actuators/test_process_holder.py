"""What a holder holds: it passes on what it should, and nothing of it is ever left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specwatch.actuators import process_holder
from specwatch.actuators.held_process import MARK, HeldProcess, ProcessEvent
from tests.actuators.process_families import alive, born, descendants, family, python
from tests.hostile import wait_for

pytestmark = pytest.mark.usefixtures("only_ours")


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


SURROUNDINGS = """\
cat
ls -m /proc/self/fd
cut -d" " -f6 /proc/$$/stat
echo $$
tr "\\0" "\\n" < /proc/$$/environ | cut -d= -f1 | xargs
grep SigIgn /proc/self/status
exit 3
"""


def test_a_program_has_our_surroundings_and_its_end_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Standard output and standard error but no other descriptor, a session, the environment that
    was given and a mark; it does not ignore what Python ignores."""
    environ = {"LC_ALL": "C", "WATCHDOG_USEC": "1"}
    life = HeldProcess(["sh", "-c", SURROUNDINGS], environ=environ, grace=30.0)
    program, events = started(life)
    assert finished(life, events) == [ProcessEvent("ended", 3)]
    files, session, pid, variables, ignored = capfd.readouterr().out.splitlines()
    assert files == "0, 1, 2, 3"  # the last is that of ls
    assert int(session) == int(pid) == program
    assert sorted(variables.split()) == ["LC_ALL", MARK]
    assert not int(ignored.split()[1], 16) & 1 << (signal.SIGPIPE - 1)


def test_a_program_is_asked_first_and_its_children_after_it(tmp_path: Path) -> None:
    """It ends its own processes in its own way; what it leaves behind is asked too."""
    code = """\
import os, signal, sys, time
told, read = os.path.join(sys.argv[1], "told"), os.path.join(sys.argv[1], "ready")
def parent_asked(*_):
    time.sleep(0.05)
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
    life.stop(0.05)
    assert finished(life, events) == [ProcessEvent("ended", -signal.SIGKILL)]
    assert alive(pids) == []


def test_a_second_request_hastens_the_first() -> None:
    life = held(["sh", "-c", "trap '' TERM; exec sleep 600"])
    _, events = started(life)
    life.stop(600.0)
    life.kill()
    assert finished(life, events)[0].verb == "ended"


def test_what_a_program_leaves_behind_ends_with_it() -> None:
    """As the engine does when vLLM's front end was killed; here one that obeys, and one not."""
    obeys_not = "trap '' TERM; kill -9 $$; exec setsid sleep 600"
    life = held(["sh", "-c", f"sleep 600 & ({obeys_not}) & wait"], sweep=0.05)
    _, events = started(life)
    assert finished(life, events) == [ProcessEvent("ended", -signal.SIGKILL)]


def test_when_its_owner_is_gone_a_stubborn_family_is_ended(tmp_path: Path) -> None:
    life = held(family(tmp_path), grace=0.05)
    started(life)
    pids = born(tmp_path)
    assert life.finish()  # closes the connection, as the kernel does where the owner was killed
    assert alive(pids) == []


def test_when_the_holder_is_killed_a_stubborn_family_is_ended(tmp_path: Path) -> None:
    """By its holder, who knows its session and its mark."""
    life = held(family(tmp_path), grace=0.05)
    program, events = started(life)
    pids = born(tmp_path)
    os.kill(holder_of(program), signal.SIGKILL)
    assert list(events) == []
    assert not life.finish()
    assert alive(pids) == []


def test_when_the_holder_is_killed_a_child_with_another_environment_is_ended(
    tmp_path: Path,
) -> None:
    """It is known by the program's session."""
    child = tmp_path / "child"
    stubborn = f"trap '' TERM; echo \\$\\$ > {child}; exec sleep 600"
    life = held(["sh", "-c", f'env -i sh -c "{stubborn}" & wait'], grace=0.05)
    program, events = started(life)
    wait_for(lambda: child.exists() and child.read_text())
    os.kill(holder_of(program), signal.SIGKILL)
    assert list(events) == []
    assert not life.finish()
    assert alive([int(child.read_text())]) == []


def test_when_the_holder_is_killed_the_kernel_tells_the_program() -> None:
    """Where both are killed, nobody else does."""
    life = held(["sleep", "600"])
    program, events = started(life)
    os.kill(holder_of(program), signal.SIGKILL)
    wait_for(lambda: not alive([program]))
    assert list(events) == []
    assert not life.finish()
