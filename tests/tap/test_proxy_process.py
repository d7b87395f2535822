"""The real process, ``python -m specwatch tap proxy``: signals, memory, log, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specwatch.cli import group
from tests.hostile import Visit, wait_for
from tests.tap.proxied import Client, Upstream, request

ROOT = Path(__file__).parents[2]


class Process:
    """A proxy of its own, logging to a file."""

    def __init__(self, folder: Path, upstream: str, *options: str) -> None:
        self.log_file = folder / "log"
        words = ["tap", "proxy", "--upstream", upstream, "--listen", "127.0.0.1:0", *options]
        with self.log_file.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "specwatch", *words], cwd=ROOT, stdout=log, stderr=log
            )
        wait_for(lambda: self.popen.poll() is not None or self.entries("proxy_started"))
        url: str = self.entries("proxy_started")[0]["url"]
        self.port = int(url.rpartition(":")[2])

    def entries(self, event: str) -> list[dict[str, Any]]:
        """What it has logged of one event."""
        lines = self.log_file.read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry for entry in logged if entry["event"] == event]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        yield running


@pytest.fixture
def started(tmp_path: Path, upstream: Upstream) -> Iterator[list[Process]]:
    """Processes that a test adds to, ended when it ends."""
    running: list[Process] = []
    yield running
    for process in running:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait(10)


def refuses(port: int) -> bool:
    try:
        Client(port).sock.close()
    except ConnectionRefusedError:
        return True
    return False


FAILING = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Le",
)


def test_it_answers_until_it_has_ended_and_logs_no_secret(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    """No failure writes a key or a traceback to the log, its page shows when it started, and
    SIGTERM lets a response under way finish."""
    started.append(process := Process(tmp_path, upstream.url))
    for count, raw in enumerate(FAILING, 1):
        upstream.answers = lambda visit, raw=raw: visit.send(raw)
        with Client(process.port) as client:
            client.send(request("GET /x?key=sk-secret", "Authorization: Bearer sk-secret"))
            received = client.rest() if raw.endswith(b"half") else client.until(b"}}")
        assert b"sk-secret" not in received
        assert upstream.url.removeprefix("http://").encode() not in received
        warning = f"upstream {upstream.url} broke off: "
        wait_for(lambda: process.log_file.read_text().count(warning) == count)  # noqa: B023
    with Client(process.port) as client:
        client.send(request("GET /metrics", "Connection: close"))
        page = client.rest()
    assert b"\nprocess_start_time_seconds " in page
    assert b"\nspecwatch_tap_failures_total{" in page
    finish(process, upstream)
    assert process.entries("proxy_stopped")[0]["in_time"] is True
    log = process.log_file.read_text()
    assert not [word for word in ("sk-secret", "Traceback", "ASGI") if word in log]


def finish(process: Process, upstream: Upstream) -> None:
    """Send SIGTERM while a response is under way, which still arrives whole."""
    released = threading.Event()

    def answer(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        assert released.wait(60)
        visit.send(b" last")

    upstream.answers = answer
    with Client(process.port) as client:
        client.send(request("GET /x"))
        client.until(b"first")
        process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(process.port))
        assert process.popen.poll() is None
        released.set()
        client.until(b" last")
        assert process.popen.wait(60) == 0


REFUSED = {
    "no server": ([], "Missing option '--upstream'"),
    "no URL": (["--upstream", "localhost:8000"], 'write "http://localhost:8000"'),
    "credentials": (["--upstream", "http://a:b@h:1"], "holds credentials"),
    "an address without port": (["--upstream", "http://h:1", "--listen", "all"], "HOST:PORT"),
    "edges that do not ascend": (
        ["--upstream", "http://h:1", "--temperature-buckets", "1,0.5"],
        "does not ascend",
    ),
    "edges that are no numbers": (
        ["--upstream", "http://h:1", "--temperature-buckets", "warm"],
        "write ascending numbers like 0,0.3,0.7,1.0",
    ),
    "a time without unit": (["--upstream", "http://h:1", "--grace", "30"], "has no unit"),
    "a size without unit": (
        ["--upstream", "http://h:1", "--largest-request", "16"],
        'write "16B" for bytes',
    ),
    "no size": (
        ["--upstream", "http://h:1", "--largest-request", "0B"],
        "expected more than 0 bytes",
    ),
    "a negative temperature": (
        ["--upstream", "http://h:1", "--default-temperature", "-1"],
        "--default-temperature",
    ),
}


def test_invalid_options_are_refused_with_the_remedy() -> None:
    for title, (words, message) in REFUSED.items():
        done = CliRunner().invoke(group, ["tap", "proxy", *words])
        assert done.exit_code == 2, title
        assert message in " ".join(done.stderr.split()), title
