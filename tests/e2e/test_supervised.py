"""``specwatch run -- COMMAND`` as a real process, with a real vLLM and with worse: no orphans."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.actuators import process_holder
from specwatch.actuators.supervisor import Supervisor
from specwatch.domain.model import Mode
from specwatch.guard.plan import ProcessState
from tests.actuators.process_families import (
    alive,
    born,
    descendants,
    family,
)
from tests.e2e.processes import Specwatch
from tests.e2e.waiting import eventually
from tests.e2e.witness import speculates
from tests.lab.http_get import is_ok
from tests.lab.vllm_server import (
    ENVIRONMENT,
    START_TIMEOUT,
    free_port,
    serve_command,
    speculation_flags,
)

pytestmark = pytest.mark.usefixtures("only_ours")
GONE_WITHIN = 120.0
"""Seconds from the end of specwatch to that of the last process of vLLM; 10 of them are grace."""
Run = Callable[..., Specwatch]


class Served:
    """A real vLLM as a command, that starts its processes in this way."""

    def __init__(self, vllm: Path, models: Path, processes: str = "fork") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {**ENVIRONMENT, "VLLM_WORKER_MULTIPROC_METHOD": processes}
        self.command = [
            "env",
            *(f"{name}={value}" for name, value in environment.items()),
            *serve_command(vllm, models, self.port),
            *speculation_flags(models, "ngram", 4),
        ]

    def healthy(self) -> bool:
        """Whether ``GET /health`` answers 200."""
        return is_ok(self.url + "/health")

    def speculates(self) -> bool:
        """Whether its page has the families of speculation."""
        eventually(self.healthy, what="vLLM is healthy", within=START_TIMEOUT)
        return speculates(self.url)


@pytest.fixture
def served(vllm_install: Path, tiny_models: Path) -> Served:
    return Served(vllm_install, tiny_models)


@pytest.fixture
def spawning(vllm_install: Path, tiny_models: Path) -> Served:
    """The default of vLLM, which takes longer."""
    return Served(vllm_install, tiny_models, "spawn")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """``run(*options, command=WORDS)`` is a daemon that runs a command."""
    running: list[Specwatch] = []

    def started(*options: str, command: list[str]) -> Specwatch:
        own = ["--listen", "127.0.0.1:0", "--database", f"sqlite:///{tmp_path}/d.db"]
        process = Specwatch(tmp_path / "log", "run", *own, *options, "--", *command)
        running.append(process)
        process.start()
        return process

    yield started
    for process in running:
        process.kill()


def below(process: Specwatch) -> list[int]:
    """All processes that it has, and those that these have."""
    return [
        descendant.pid
        for descendant in process_holder.descendants({process.pid}, process_holder.processes())
    ]


def test_killed_it_leaves_nothing_of_vllm(run: Run, spawning: Served) -> None:
    process = run(command=spawning.command)
    assert spawning.speculates()
    pids = below(process)
    assert len(pids) >= 3, "the holder, the server, its engine"
    process.kill()
    eventually(lambda: not alive(pids), what=f"{pids} have ended", within=GONE_WITHIN)
    assert not spawning.healthy()


def test_sigterm_ends_vllm_in_its_own_way_and_then_specwatch(run: Run, served: Served) -> None:
    """Its log passes through beside ours."""
    process = run(command=served.command)
    assert served.speculates()
    pids = below(process)
    process.stop(timeout=180.0)
    assert alive(pids) == []
    log_text = process.log_text()
    assert "Application startup complete" in log_text
    ended, stopped = log_text.index('"event": "vllm_ended"'), log_text.index('"event": "stopped"')
    assert log_text.index("Application shutdown complete") < ended < stopped


def test_a_restart_without_speculation_during_a_start(served: Served) -> None:
    supervisor = Supervisor(served.command, environ=os.environ)
    try:
        supervisor.start(Mode.ON)
        eventually(lambda: len(descendants()) > 2, what="an engine", within=START_TIMEOUT)
        before = descendants()
        supervisor.start(Mode.OFF)
        assert alive(before) == []
        assert not served.speculates()
        status = supervisor.status()
        assert (status.life, status.mode) == (ProcessState.UP, Mode.OFF)
    finally:
        supervisor.stop()
    assert descendants() == []


def test_a_second_signal_does_not_wait_for_a_stubborn_family(run: Run, tmp_path: Path) -> None:
    process = run(
        "--target", "http://127.0.0.1:1", "--stop-timeout", "1h", command=family(tmp_path)
    )
    pids = [*born(tmp_path), *below(process)]
    eventually(lambda: '"event": "started"' in process.log_text(), what="it watches", within=180)
    process.signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.running, "it waits for its child"
    process.stop(timeout=120.0)
    assert alive(pids) == []


def test_a_reload_leaves_the_child_alone(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text("targets: [{url: 'http://127.0.0.1:1', service: {kind: supervised}}]\n")
    process = run("--config", str(file), command=["sleep", "600"])
    eventually(lambda: '"event": "started"' in process.log_text(), what="it watches", within=180)
    pids = below(process)
    process.signal(signal.SIGHUP)
    eventually(lambda: '"event": "reloaded"' in process.log_text(), what="it reloads", within=180)
    assert alive(pids) == pids
    process.stop(timeout=120.0)
    assert alive(pids) == []


def test_the_child_ends_if_the_port_is_taken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = run(
            "--listen", listen, "--target", "http://127.0.0.1:1", command=["sleep", "600"]
        )
        eventually(lambda: not process.running, what="it ends", within=180)
    assert "Address already in use; choose another" in process.log_text()
    started = re.search(r'"event": "vllm_started", "pid": (\d+)', process.log_text())
    assert started is not None
    assert alive([int(started[1])]) == []
