"""The real process, ``python -m specwatch tap proxy``: signals, memory, log, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specwatch.cli import group
from tests.hostile import Visit, wait_for
from tests.tap.proxied import Client, Upstream, request

ROOT = Path(__file__).parents[2]
LOTS = 96 << 20
PIECE = b"x" * (1 << 20)
MOST_GROWTH = 32 << 20


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

    @property
    def peak(self) -> int:
        """Most bytes of memory that it ever held."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


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


def test_a_response_under_way_is_finished_after_sigterm(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    released = threading.Event()

    def answer(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        assert released.wait(60)
        visit.send(b" last")

    upstream.answers = answer
    started.append(process := Process(tmp_path, upstream.url))
    with Client(process.port) as client:
        client.send(request("GET /x"))
        client.until(b"first")
        process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(process.port))
        time.sleep(0.2)  # long enough for the process to end if it did not wait
        assert process.popen.poll() is None
        released.set()
        client.until(b" last")
        assert process.popen.wait(60) == 0
    assert process.entries("proxy_stopped")[0]["in_time"] is True


def refuses(port: int) -> bool:
    try:
        Client(port).sock.close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_response_that_outlasts_the_grace_is_broken_off(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    gone = threading.Event()

    def answer(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        visit.hang()
        gone.set()

    upstream.answers = answer
    started.append(process := Process(tmp_path, upstream.url, "--grace", "200ms"))
    with Client(process.port) as client:
        client.send(request("GET /x"))
        client.until(b"half")
        process.popen.send_signal(signal.SIGINT)
        assert b"0\r\n\r\n" not in client.rest()
        assert process.popen.wait(60) == 0
    assert gone.wait(60)
    assert "Traceback" not in process.log_file.read_text()


def test_a_second_signal_ends_it_at_once(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    upstream.answers = lambda visit: visit.hang()
    started.append(process := Process(tmp_path, upstream.url, "--grace", "10m"))
    with Client(process.port) as client:
        client.send(request("GET /x"))
        wait_for(lambda: upstream.asked)
        process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: process.entries("proxy_stopping"))
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(60) == -signal.SIGTERM


def test_a_huge_response_takes_no_memory_however_slowly_it_is_read(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    """While nobody reads, the server is held up; then every byte arrives."""
    sent = [0]

    def answer(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LOTS)
        while sent[0] < LOTS:
            visit.send(PIECE)
            sent[0] += len(PIECE)

    upstream.answers = answer
    started.append(process := Process(tmp_path, upstream.url))
    with Client(process.port) as client:
        before = process.peak
        client.send(request("GET /x"))
        client.until(b"\r\n\r\n")
        held = stands_still(sent)
        assert held < LOTS / 2
        arrived = len(client.seen)
        while arrived < LOTS:
            arrived += len(client.sock.recv(1 << 20))
    assert arrived == LOTS
    assert process.peak - before < MOST_GROWTH


def test_a_huge_request_takes_no_memory_however_slowly_it_is_read(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    """While the server does not read, the client is held up; then every byte arrives."""
    sent, released = [0], threading.Event()

    def answer(visit: Visit) -> None:
        assert released.wait(60)
        arrived = len(visit.head.partition("\r\n\r\n")[2])
        while arrived < LOTS:
            arrived += len(visit._sock.recv(1 << 20))
        visit.answer(b"all")

    upstream.answers = answer
    started.append(process := Process(tmp_path, upstream.url))
    with Client(process.port) as client:
        before = process.peak

        def upload() -> None:
            client.send(request("POST /x", f"Content-Length: {LOTS}"))
            while sent[0] < LOTS:
                client.send(PIECE)
                sent[0] += len(PIECE)

        uploading = threading.Thread(target=upload)
        uploading.start()
        held = stands_still(sent)
        assert held < LOTS / 2
        released.set()
        uploading.join(60)
        client.until(b"all")
    assert process.peak - before < MOST_GROWTH


def stands_still(sent: list[int]) -> int:
    """What has been sent once no more can be."""
    seen = [-1]

    def same() -> bool:
        before, seen[0] = seen[0], sent[0]
        time.sleep(0.3)
        return sent[0] > 0 and before == sent[0]

    wait_for(same)
    return sent[0]


FAILING = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Le",
)


def test_no_failure_writes_a_key_or_a_traceback_to_the_log(
    tmp_path: Path, upstream: Upstream, started: list[Process]
) -> None:
    """And its page, which it serves all the time, shows when it started."""
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
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(60) == 0
    log = process.log_file.read_text()
    assert not [word for word in ("sk-secret", "Traceback", "ASGI") if word in log]


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


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_options_are_refused_with_the_remedy(words: list[str], message: str) -> None:
    done = CliRunner().invoke(group, ["tap", "proxy", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_other_modules_do_not_import_aiohttp() -> None:
    modules = "specwatch.daemon.daemon, specwatch.tap, specwatch.cli.tap"
    code = f"import sys, {modules}; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
