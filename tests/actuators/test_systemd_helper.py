"""The helper and its client, over a real socket: what goes in comes out at the other end.

The end-to-end tests look at the privilege, and send what no client would.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from specwatch.actuators.base import Claim
from specwatch.actuators.systemd.helper import GuardHelper, HelperClient, activated_socket
from specwatch.cli import group
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, ConfigError
from specwatch.guard.plan import FileChange, Plan, ProcessState, Service

PLAN = Plan(("a", "b c"), ("a",), (FileChange("/x", None, "text\n"),), ("step",), ("note",))
SERVICE = Service(ProcessState.CHANGING, Mode.OFF, None, "語")


class Recorder:
    """An actuator that does what ``acting`` does."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.timeouts: list[float] = []
        self.versions: list[int] = []
        self.acting: Callable[[], None] = lambda: None

    handover = 0.0

    def __call__(self, timeout: float) -> Recorder:
        self.timeouts.append(timeout)
        return self

    def plan(self) -> Plan:
        return PLAN

    def status(self) -> Service:
        return SERVICE

    def disable(self, claim: Claim) -> None:
        self.acting()
        self.done.append(("disable", claim.incident))
        self.versions.append(claim.version)

    def enable(self, claim: Claim) -> None:
        self.acting()
        self.done.append(("enable", claim.incident))
        self.versions.append(claim.version)

    def close(self) -> None:
        self.done.append(("close",))


@contextmanager
def listening_in(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "vllm.sock"))
        listening.listen()
        yield listening


@pytest.fixture
def actuator() -> Recorder:
    return Recorder()


@pytest.fixture
def client(tmp_path: Path, actuator: Recorder) -> Iterator[HelperClient]:
    """A client of a helper that is started again when it has returned, as systemd does."""
    over = threading.Event()
    with listening_in(tmp_path) as listening:
        helper = GuardHelper(listening, actuator, idle=0.005)

        def serve() -> None:
            while not over.is_set():
                helper.serve()

        thread = threading.Thread(target=serve)
        thread.start()
        yield HelperClient("vllm.service", timeout=7, folder=str(tmp_path))
        over.set()
        thread.join(10)
        assert not thread.is_alive()


def test_it_returns_once_nothing_is_asked_and_all_is_answered(
    tmp_path: Path, actuator: Recorder
) -> None:
    actuator.acting = lambda: time.sleep(0.02)
    with listening_in(tmp_path) as listening, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "vllm.sock"))
        sock.sendall(b'{"do": "disable", "incident": "a"}\n')
        GuardHelper(listening, actuator, idle=0.0).serve()
        assert actuator.done == [("disable", "a"), ("close",)]
        assert sock.makefile().readline() == "{}\n"


def test_a_plan_and_a_status_arrive_as_they_are(client: HelperClient, actuator: Recorder) -> None:
    assert client.plan() == PLAN
    assert client.status() == SERVICE
    assert actuator.done == [("close",), ("close",)]


def test_a_request_brings_its_incident_and_its_time(
    client: HelperClient, actuator: Recorder
) -> None:
    client.disable(Claim("a-1"))
    client.enable(Claim("b-2"))
    assert actuator.done == [("disable", "a-1"), ("close",), ("enable", "b-2"), ("close",)]
    client.enable(Claim("b-2", version=1_800_000_012))
    assert actuator.versions == [0, 0, 1_800_000_012]
    assert actuator.timeouts == [7, 7, 7]


def test_without_a_lease_nothing_is_asked(client: HelperClient, actuator: Recorder) -> None:
    with pytest.raises(ActuatorError, match="the lease of the guard has ended"):
        client.disable(Claim("a", until=lambda: 0.0))
    assert actuator.done == []


@pytest.mark.parametrize("changed", [False, True])
def test_an_error_arrives_with_what_it_says_of_changes(
    client: HelperClient, actuator: Recorder, changed: bool
) -> None:
    def fail() -> None:
        raise ActuatorError("no", changed=changed, retry=not changed)

    actuator.acting = fail
    with pytest.raises(ActuatorError, match=r"^no$") as caught:
        client.disable(Claim("a"))
    assert (caught.value.changed, caught.value.retry) == (changed, not changed)


def test_an_error_that_nobody_foresaw_may_have_changed_something(
    client: HelperClient, actuator: Recorder
) -> None:
    def fail() -> None:
        raise KeyError("x")

    actuator.acting = fail
    with pytest.raises(ActuatorError, match="journal") as caught:
        client.disable(Claim("a"))
    assert caught.value.changed


def test_one_change_at_a_time_and_looks_in_between(
    client: HelperClient, actuator: Recorder
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    actuator.acting = wait
    first = threading.Thread(target=client.disable, args=(Claim("a"),))
    first.start()
    assert begun.wait(60)
    with pytest.raises(ActuatorError, match="another request") as caught:
        client.enable(Claim("b"))
    assert (caught.value.changed, caught.value.retry) == (False, True)
    assert client.status() == SERVICE
    go_on.set()
    first.join()
    assert ("disable", "a") in actuator.done
    assert ("enable", "b") not in actuator.done


@contextmanager
def answering(folder: Path, answer: bytes) -> Iterator[HelperClient]:
    """A client of something that is no helper."""
    with listening_in(folder) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield HelperClient("vllm.service", timeout=7, folder=str(folder))
        thread.join()


@pytest.mark.parametrize("answer", [b"", b"x\n", b"{", b'{"plan": 1}\n'])
def test_without_an_answer_a_change_may_have_been_made(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path, answer) as client:
        with pytest.raises(ActuatorError, match="gave no answer") as caught:
            client.disable(Claim("a"))
        assert (caught.value.changed, caught.value.retry) == (True, True)


def test_another_answer_than_was_asked_for_is_refused(tmp_path: Path) -> None:
    with (
        answering(tmp_path, b"{}\n") as client,
        pytest.raises(ActuatorError, match="something else"),
    ):
        client.plan()


def test_where_no_helper_is_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    client = HelperClient("vllm@a.service", timeout=7, folder=str(tmp_path))
    with pytest.raises(ActuatorError, match=r"enable --now specwatch-guard@vllm@a\.socket"):
        client.status()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"do": "exec"}',
        b'{"do": "status", "unit": "ssh.service"}',
        b'{"do": "disable"}',
        b'{"do": "disable", "incident": "a\\nb"}',
        b'{"do": "disable", "incident": "a\\n"}',
        b'{"do": "disable", "incident": "../a"}',
        b'{"do": "enable", "incident": "%s"}' % (b"a" * 65),
        b'{"do": "plan", "incident": "a"}',
        b'{"do": "status", "timeout": 0.5}',
        b'{"do": "status", "timeout": 7201}',
        b'{"do": "status", "timeout": NaN}',
        b'{"do": "status"}\n{"do": "status"}',
        b'{"do": "status"}' + b" " * 1024,
    ],
)
def test_nothing_but_a_request_is_a_request(
    client: HelperClient, actuator: Recorder, tmp_path: Path, line: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "vllm.sock"))
        sock.sendall(line + b"\n")
        answer = json.loads(sock.makefile().readline())
    assert answer["failure"]["message"].startswith("no request: ")
    assert not answer["failure"]["changed"]
    assert actuator.done == []


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "me", "LISTEN_FDS": "2"}]
)
def test_only_systemd_can_start_it(environ: dict[str, str]) -> None:
    mine = {name: value.replace("me", str(os.getpid())) for name, value in environ.items()}
    with pytest.raises(ConfigError, match=r"specwatch-guard@UNIT\.socket"):
        activated_socket(mine, os.getpid())


def test_the_command_is_hidden_and_refuses_a_person() -> None:
    run = CliRunner().invoke
    assert "guard-helper" not in run(group, ["--help"]).output
    refused = run(group, ["guard-helper", "vllm.service"])
    assert refused.exit_code == 2
    assert "specwatch-guard@UNIT.socket" in refused.output
