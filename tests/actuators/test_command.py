"""The user's own commands are run safely, ended in time, and believed only when they succeed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.actuators import child_process
from specwatch.actuators.base import Actuator, Claim
from specwatch.actuators.child_process import environment_for, run_command
from specwatch.actuators.command import CommandActuator, run_hook
from specwatch.config.service import CommandService
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from specwatch.guard.plan import ProcessState
from tests.actuators.process_families import alive
from tests.fixtures import Log, events
from tests.hostile import wait_for

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes a shell script of these lines; returns its path."""

    def made(lines: str) -> str:
        path = tmp_path / f"script-{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return made


def late_once(written: Path) -> Callable[[], float]:
    """A clock that is hours ahead once there is something in the file."""
    return lambda: time.monotonic() + 9999.0 * (written.exists() and written.read_text() != "")


def actuator(
    disable: str,
    *,
    status: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **more: Any,
) -> Actuator:
    service = CommandService(
        kind="command",
        disable=(disable, "off"),
        enable=(more.pop("enable", disable), "on"),
        status=None if status is None else (status,),
    )
    service = service.model_copy(update=more)
    return CommandActuator(service, "chat-70b", monotonic=monotonic)


def failure(call: Callable[[], object]) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        call()
    return caught.value


def test_a_command_is_told_why_it_runs_and_none_of_our_secrets(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECWATCH_DB_PASSWORD", "hunter2")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("REGION", "eu-1")
    monkeypatch.setenv("SPECWATCH_INCIDENT", "of somebody else")
    switch = script(f'echo "$@" > {tmp_path}/words; env > {tmp_path}/env')
    hand = actuator(switch)
    for action, word in (("disable", "off"), ("enable", "on")):
        getattr(hand, action)(Claim("incident 7"))
        told = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
        assert {key: value for key, value in told.items() if key.startswith("SPECWATCH_")} == {
            "SPECWATCH_INCIDENT": "incident 7",
            "SPECWATCH_TARGET": "chat-70b",
            "SPECWATCH_ACTION": action,
            "SPECWATCH_VERSION": "0",
        }
        assert "NOTIFY_SOCKET" not in told
        assert told["REGION"] == "eu-1"
        assert (tmp_path / "words").read_text() == f"{word}\n"


def test_words_reach_a_command_without_a_shell(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "$HOME; rm *", "", "a b"]
    finished = run_command(words, timeout=20, environment={})
    assert finished.answer == "['$HOME; rm *', '', 'a b']\n"


@pytest.fixture
def standard_input(tmp_path: Path) -> Iterator[None]:
    """Gives this process one that has something in it."""
    kept = os.dup(0)
    (tmp_path / "input").write_text("ours")
    given = os.open(tmp_path / "input", os.O_RDONLY)
    os.dup2(given, 0)
    yield
    os.dup2(kept, 0)
    os.close(kept)
    os.close(given)


@pytest.mark.usefixtures("standard_input")
def test_a_command_can_neither_read_nor_signal_us(script: Script) -> None:
    words = [script('readlink /proc/self/fd/0; cut -d" " -f5,6 /proc/$$/stat; echo $$')]
    said = run_command(words, timeout=20, environment={}).answer.splitlines()
    assert said[0] == "/dev/null"
    group, session = said[1].split()
    assert (group, session) == (said[2], said[2])


def test_a_failed_command_may_have_changed_the_server_and_says_its_last_words(
    script: Script, log: Log
) -> None:
    switch = script("echo first; echo 'no such unit' >&2; echo; exit 3")
    error = failure(lambda: actuator(switch).disable(Claim("7")))
    assert error.changed
    assert str(error) == f"`{switch} off` exited with status 3; its last output: no such unit"
    (entry,) = events(log, "command_ended")
    assert (entry["log_level"], entry["status"]) == ("warning", 3)
    assert (entry["target"], entry["action"], entry["incident"]) == ("chat-70b", "disable", "7")
    assert entry["output"] == "first\nno such unit\n\n"


def test_a_command_that_was_killed_or_said_nothing_is_described(script: Script) -> None:
    switch = script("kill -9 $$")
    error = failure(lambda: actuator(switch).enable(Claim("7")))
    assert str(error) == f"`{switch} on` was ended by SIGKILL; it wrote nothing"


def test_what_a_command_says_is_bounded_and_safe_to_show(script: Script, log: Log) -> None:
    switch = script(
        "head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2;"
        " echo; printf '\\033[2Jend\\377%0999d\\n' 0; exit 1"
    )
    error = failure(lambda: actuator(switch).disable(Claim("7")))
    assert "its last output: ?[2Jend\ufffd0000" in str(error)
    assert len(str(error)) < 500
    (entry,) = events(log, "command_ended")
    assert len(entry["output"]) == child_process.KEPT - entry["output"].count("\ufffd") + 1


def test_a_secret_among_the_words_of_a_command_is_not_told(script: Script, log: Log) -> None:
    switch = script("exit 1")
    words = (switch, "--token", "hunter2")
    service = CommandService(kind="command", disable=words, enable=words)
    error = failure(lambda: CommandActuator(service, "chat-70b").disable(Claim("7")))
    plan = CommandActuator(service, "chat-70b").plan()
    told = f"{error} {events(log, 'command_ended')} {plan} {service.model_dump_json()}"
    assert told.count("--token '***'") == 4
    assert told.count("hunter2") == 0


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    script: Script, tmp_path: Path
) -> None:
    """SIGTERM first, for whoever can still tidy up."""
    child = tmp_path / "child"
    switch = script(
        "trap 'echo tidied; exit 0' TERM; echo begun;"
        f" sh -c 'echo $$ > {child}; exec sleep 60' & wait"
    )
    hand = actuator(switch, timeout=3600.0, monotonic=late_once(child))
    error = failure(lambda: hand.disable(Claim("7")))
    assert error.changed
    assert str(error) == (
        f"`{switch} off` took longer than 1h and was ended; its last output: tidied"
    )
    wait_for(lambda: not alive([int(child.read_text())]))


@pytest.mark.parametrize(
    "lines",
    [
        "trap '' TERM; echo $$; (sleep 60) & echo $! > {child}; sleep 60",
        "echo $$; (trap '' TERM; exec sh -c 'echo $$ > {child}; sleep 60; sleep 60') & wait",
    ],
    ids=["the leader", "a grandchild"],
)
def test_a_group_that_ignores_sigterm_is_killed(script: Script, tmp_path: Path, lines: str) -> None:
    child = tmp_path / "child"
    switch = script(lines.format(child=child))
    finished = run_command(
        [switch], timeout=60.0, environment={}, grace=0.01, monotonic=late_once(child)
    )
    assert finished.status is None
    wait_for(lambda: not alive([int(child.read_text()), int(finished.answer)]))


def test_without_a_lease_nothing_is_run(script: Script, tmp_path: Path) -> None:
    """It may end after we have looked, and before the command begins."""
    hand = actuator(script(f"touch {tmp_path}/ran"))
    error = failure(lambda: hand.disable(Claim("7", until=lambda: 0.0)))
    assert str(error).startswith("the lease of the guard has ended, and another daemon may act")
    assert (error.changed, error.retry) == (False, True)
    assert not (tmp_path / "ran").exists()


OWNER = """\
import sys
from specwatch.actuators.child_process import run_command
run_command(sys.argv[2:], timeout=float(sys.argv[1]), environment={}, grace=0.2)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_command_ends_with_its_owner_and_in_its_time(
    script: Script, tmp_path: Path, how: signal.Signals
) -> None:
    """With all of its session; what it has put into another one goes on."""
    lines = (
        f"setsid sleep 60 & echo $! > {tmp_path}/server; (trap '' TERM; sleep 60) &"
        f" echo $! $$ > {tmp_path}/ours; wait"
    )
    timeout = "600" if how is signal.SIGKILL else "0.5"
    command = [sys.executable, "-c", OWNER, timeout, script(lines)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as owner:
        try:
            wait_for(lambda: (tmp_path / "ours").exists() and (tmp_path / "ours").read_text())
            server = int((tmp_path / "server").read_text())
            wait_for(lambda: os.getsid(server) == server)
            owner.send_signal(how)
            ours = [int(pid) for pid in (tmp_path / "ours").read_text().split()]
            wait_for(lambda: not alive(ours))
        finally:
            owner.kill()
    assert alive([server])
    os.kill(server, signal.SIGKILL)


def test_a_child_left_in_the_background_does_not_hold_up_its_parent(
    script: Script, tmp_path: Path
) -> None:
    """It holds the output open, as a server that was started with & does, and it may stay."""
    switch = script(f"sleep 60 & echo $! > {tmp_path}/child; echo done")
    finished = run_command([switch], timeout=30, environment={})
    assert (finished.status, finished.answer) == (0, "done\n")
    child = int((tmp_path / "child").read_text())
    assert alive([child])
    os.kill(child, signal.SIGKILL)


def test_a_command_that_closes_its_output_is_waited_for(script: Script, tmp_path: Path) -> None:
    switch = script(f"exec >&- 2>&-; sleep 0.05; echo late > {tmp_path}/late; exit 4")
    assert run_command([switch], timeout=30, environment={}).status == 4
    assert (tmp_path / "late").exists()


@pytest.mark.parametrize("body", ["absent", "no rights", "no program"])
def test_what_cannot_be_started_has_changed_nothing(body: str, tmp_path: Path) -> None:
    path = tmp_path / "switch"
    if body != "absent":
        path.write_bytes(b"\x7fELF nonsense")
        path.chmod(0o755 if body == "no program" else 0o644)
    error = failure(lambda: actuator(str(path)).disable(Claim("7")))
    assert not error.changed
    assert str(error).startswith(f"cannot run {path}: ")
    assert "executable file" in str(error)


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("echo on", Mode.ON),
        ("echo OFF", Mode.OFF),
        ("echo warning: slow >&2; printf '\\n  Off, since Monday\\n'", None),
        ("echo warning: slow >&2; printf '\\n  Off since Monday\\n'", Mode.OFF),
    ],
)
def test_the_first_word_of_the_status_is_the_mode(
    script: Script, lines: str, mode: Mode | None
) -> None:
    hand = actuator(script("exit 1"), status=script(lines))
    if mode is None:
        assert 'printed "Off,"; a status command prints on or off' in str(failure(hand.status))
        return
    service = hand.status()
    assert (service.life, service.mode, service.instance) == (ProcessState.UP, mode, None)
    assert "process runs is not known" in service.detail


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("echo enabled", 'printed "enabled"; a status command prints on or off first'),
        ("true", "printed nothing; a status command prints on or off first"),
        ("echo on >&2", "printed nothing; a status command prints on or off first"),
        ("echo on; exit 1", "exited with status 1; its last output: on"),
    ],
)
def test_a_status_that_says_neither_is_an_error(script: Script, lines: str, found: str) -> None:
    status = script(lines)
    error = failure(actuator(script("exit 1"), status=status).status)
    assert str(error) == f"`{status}` {found}"
    assert not error.changed


def test_without_a_status_command_nothing_is_claimed(script: Script) -> None:
    service = actuator(script("exit 1")).status()
    assert (service.life, service.mode, service.instance) == (ProcessState.UP, None, None)
    assert "without a status command" in service.detail


def test_a_plan_names_the_commands_and_runs_none(script: Script, tmp_path: Path) -> None:
    switch = script(f"touch {tmp_path}/ran")
    service = CommandService(
        kind="command", disable=(switch, "a b"), enable=(switch, "on"), timeout="90s"
    )
    plan = CommandActuator(service, "chat-70b").plan()
    assert plan.steps == (
        f"run `{shlex.join([switch, 'a b'])}`, for 1m30s at most",
        f"to undo it, run `{switch} on`, for 1m30s at most",
    )
    assert (plan.before, plan.after, plan.files) == ((), (), ())
    assert any("without a status command" in note for note in plan.notes)
    assert not (tmp_path / "ran").exists()


def test_a_plan_says_in_advance_what_could_not_be_run(script: Script, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    error = failure(actuator(script("true"), enable="/absent/on", status=str(plain)).plan)
    assert str(error) == (
        "/absent/on does not exist or is not a file; create it, or correct the path;"
        f" {plain} may not be executed; make it executable for the user that runs specwatch"
    )
    assert not error.changed


def test_a_hook_is_run_the_same_way(script: Script, tmp_path: Path) -> None:
    hook = script(f'echo "$1 $SPECWATCH_ACTION $SPECWATCH_INCIDENT" > {tmp_path}/told')
    run_hook(
        [hook, "drain"], timeout=20, environment=environment_for("chat-70b", "before", Claim("7"))
    )
    assert (tmp_path / "told").read_text() == "drain before 7\n"


def test_a_hook_that_fails_may_be_tried_again(script: Script) -> None:
    hook = script("echo balancer is away; exit 2")
    error = failure(lambda: run_hook([hook], timeout=20, environment={}))
    assert str(error) == (
        f"the hook `{hook}` exited with status 2; its last output: balancer is away"
    )
    assert (error.retry, error.changed) == (True, False)
