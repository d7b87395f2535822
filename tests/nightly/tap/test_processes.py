"""Processes of the proxy: their signals and their memory; and a tap of several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from specwatch.domain.model import Series
from specwatch.scrape.exposition import PageReader
from specwatch_tap.metrics import STAGES
from tests.hostile import Visit, wait_for
from tests.tap.proxied import Client, Upstream, request
from tests.tap.test_proxy_process import Process, started, upstream

__all__ = ["started", "upstream"]

LOTS = 96 << 20
PIECE = b"x" * (1 << 20)
MOST_GROWTH = 32 << 20


def peak(process: Process) -> int:
    """Most bytes of memory that a process ever held."""
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


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
        before = peak(process)
        client.send(request("GET /x"))
        client.until(b"\r\n\r\n")
        held = stands_still(sent)
        assert held < LOTS / 2
        arrived = len(client.seen)
        while arrived < LOTS:
            arrived += len(client.sock.recv(1 << 20))
    assert arrived == LOTS
    assert peak(process) - before < MOST_GROWTH


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
        before = peak(process)

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
    assert peak(process) - before < MOST_GROWTH


def stands_still(sent: list[int]) -> int:
    """What has been sent once no more can be."""
    seen = [-1]

    def same() -> bool:
        before, seen[0] = seen[0], sent[0]
        time.sleep(0.3)
        return sent[0] > 0 and before == sent[0]

    wait_for(same)
    return sent[0]


WORKER = """
import asyncio, sys
from specwatch_tap import Tap
from specwatch_tap.settings import Settings

body = open(sys.argv[1], "rb").read()

async def app(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

async def receive():
    return {"type": "http.request", "body": b'{"temperature":0.5}', "more_body": False}

async def send(message):
    pass

tap = Tap(app, settings=Settings())
print("ready", flush=True)
scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
for _ in range(int(sys.stdin.readline())):
    asyncio.run(tap(scope, receive, send))
print("done", flush=True)
sys.stdin.readline()  # stays: a process that ends takes nothing away, one that runs is the test
"""
PAGE = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
sys.stdout.buffer.write(generate_latest(registry))
"""
RESPONSE = Path(__file__).parents[2] / "data" / "chat-response.json"


def test_several_processes_count_on_one_page(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def look() -> dict[Series, float]:
        ran = subprocess.run(
            [sys.executable, "-c", PAGE], env=environment, stdout=subprocess.PIPE, check=True
        )
        return PageReader().read(ran.stdout)

    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(RESPONSE)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        failures = {Series("tap_failures", "", "", "", stage): 0.0 for stage in STAGES}
        assert look() == failures
        for worker, requests in zip(workers, (3, 4), strict=True):
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{requests}\n")
            assert worker.stdout.readline() == "done\n"
        samples = look()
    finally:
        for worker in workers:
            worker.communicate("\n", timeout=30)
    record = json.loads(RESPONSE.read_bytes())["metrics"]["speculative_decoding"]
    bucket = "(0.3,0.7]"
    expected = {
        "drafts": 7 * record["num_spec_steps"],
        "draft_tokens": 7 * record["num_draft_tokens"],
        "accepted_tokens": 7 * record["num_accepted_draft_tokens"],
        "generation_tokens": 7 * 24,
    }
    for quantity, value in expected.items():
        assert samples[Series(quantity, "", "", "", "", bucket)] == value
    assert samples[Series("requests", "", "", "", "length", bucket)] == 7
    assert samples[Series("request_acceptance", "count", "", "", "", bucket)] == 7
    assert samples[Series("request_acceptance", "bucket", "", "", "1.0", bucket)] == 7
    assert samples[Series("accepted_per_position", "", "", "", "0", bucket)] == 49
    assert {series for series in samples if series.quantity == "tap_failures"} == set(failures)
