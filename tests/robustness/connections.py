"""Very many connections: half-open ones, and streams through the proxy, all at once.

``python -m tests.robustness.connections --half-open 2500 --streams 9000`` runs each against
its own process. Half-open connections alternately send nothing, half a head, or a head without its
body. The figures of each server are the connections that it holds, the time that its health check
takes, and the lines that it logs. A stream pauses until all others have begun, and must arrive
whole.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from specwatch.lab.simulator.server import SimulatedServer
from tests.daemon.running import FAST
from tests.robustness.campaign import progress, show
from tests.robustness.processes import Daemon, Proxy
from tests.tap.proxied import request
from tests.tap.streams import USAGE

HALVES = (
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: ",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
)
LOOKS = 10
_ESTABLISHED = "01"
"""As /proc/net/tcp writes it."""
_SPARE = 200
"""File descriptors that a process has beside its connections."""
_AT_ONCE = 100
"""Connections that are begun at a time: the queue of a listening socket is finite."""
_PATIENCE = 300.0


class Server(NamedTuple):
    """A process that listens, its page of health and the file that it logs to."""

    pid: int
    port: int
    health: str
    log: Path

    def held(self) -> int:
        """Connections that it has."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] == _ESTABLISHED for row in rows)

    def megabytes(self, kind: str = "VmRSS") -> float:
        """Resident memory; the most that it ever was as ``VmHWM``."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(f"{kind}:")[2].split()[0]) / 1024

    def health_seconds(self) -> float:
        """The longest of some looks at its health; raises when one is not 200."""
        longest = 0.0
        for _ in range(LOOKS):
            begun = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=60):
                longest = max(longest, time.monotonic() - begun)
        return longest


@contextlib.contextmanager
def half_open(server: Server, count: int) -> Any:
    """The figures of a server that has so many of them, which are closed with the block."""
    before = server.megabytes()
    lines = server.log.read_bytes().count(b"\n")
    with contextlib.ExitStack() as held:
        for number in range(count):
            client = held.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=60)
            )
            with contextlib.suppress(ConnectionError):  # it may have made room already
                client.sendall(HALVES[number % len(HALVES)])
        slowest = server.health_seconds()
        yield {
            "connections": count,
            "held": server.held(),
            "health_seconds": round(slowest, 3),
            "megabytes_before": round(before),
            "megabytes": round(server.megabytes()),
            "log_lines": server.log.read_bytes().count(b"\n") - lines,
        }


class Streams:
    """An upstream whose streams pause in their middle, and the clients that read them."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.whole = 0
        self._events = USAGE.split(b"\n\n")[:-1]
        self._expected = b"".join(event + b"\n\n" for event in self._events)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests, as vLLM answers them, until the proxy leaves or the campaign is over."""
        ends = ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        with contextlib.suppress(*ends):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not head.startswith(b"POST"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
                writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % kind)
                for number, event in enumerate(self._events):
                    writer.write(b"%x\r\n%b\n\n\r\n" % (len(event) + 2, event))
                    if number == len(self._events) // 2:
                        await self.go_on.wait()
                writer.write(b"0\r\n\r\n")
        writer.close()

    async def ask(self, port: int) -> None:
        """One client of the proxy; counts its stream where it is whole."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(
            {
                "model": "m",
                "messages": [],
                "stream": True,
                "temperature": 0.5,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        line = "POST /v1/chat/completions"
        kind = "Content-Type: application/json"
        writer.write(request(line, kind, f"Content-Length: {len(body)}", body=body))
        await reader.readuntil(b"\r\n\r\n")
        seen = b""
        while size := int(await reader.readline(), 16):
            if not seen:
                self.begun += 1
            seen += (await reader.readexactly(size + 2))[:-2]
        self.whole += seen == self._expected
        writer.close()


async def streams(folder: Path, count: int) -> dict[str, Any]:
    """The figures of a proxy with so many streams at once."""
    both = Streams()
    upstream = await asyncio.start_server(both.answer, "127.0.0.1", 0, backlog=2 * _AT_ONCE)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    process = await asyncio.to_thread(Proxy, folder, url)
    server = Server(process.popen.pid, process.port, "/specwatch/healthz", process.log_file)
    try:
        before, started = server.megabytes(), time.monotonic()
        clients: list[asyncio.Task[None]] = []
        while len(clients) < count:
            for _ in range(min(_AT_ONCE, count - len(clients))):
                clients.append(asyncio.create_task(both.ask(server.port)))
            while both.begun < len(clients):
                if time.monotonic() - started > _PATIENCE:
                    raise TimeoutError(f"{both.begun} streams have begun in {_PATIENCE:g} s")
                await asyncio.sleep(0.01)
            progress(f"{both.begun} of {count} streams")
        figures = {
            "streams": both.begun,
            "begun_seconds": round(time.monotonic() - started, 1),
            "health_seconds": round(await asyncio.to_thread(server.health_seconds), 3),
            "megabytes_before": round(before),
            "megabytes": round(server.megabytes()),
        }
        ending = time.monotonic()
        both.go_on.set()
        await asyncio.gather(*clients, return_exceptions=True)
        figures |= {
            "ended_seconds": round(time.monotonic() - ending, 1),
            "whole": both.whole,
            "peak_megabytes": round(server.megabytes("VmHWM")),
            "log_lines": server.log.read_bytes().count(b"\n") - 1,
        }
        return figures
    finally:
        process.end(signal.SIGKILL)
        upstream.close()


def daemon_with_half_open(folder: Path, count: int) -> dict[str, Any]:
    """The figures of a daemon that watches a simulated server."""
    with SimulatedServer(FAST) as watched:
        settings = [f"database: 'sqlite:///{folder}/d.db'", "listen: 127.0.0.1:0", "targets:"]
        target = f"  - {{name: t, url: '{watched.url}', interval: 1s}}"
        (folder / "c.yml").write_text("\n".join([*settings, target, ""]))
        process = Daemon(folder)
        try:
            process.scraped(1)
            port = int(process.wait_for("started")["listen"].rpartition(":")[2])
            with half_open(
                Server(process.popen.pid, port, "/healthz", folder / "log"), count
            ) as figures:
                process.scraped(2)
                return dict(figures)
        finally:
            process.end(signal.SIGKILL)


def proxy_with_half_open(folder: Path, count: int) -> dict[str, Any]:
    """The figures of a proxy before a simulated server."""
    with SimulatedServer(FAST) as upstream:
        process = Proxy(folder, upstream.url)
        server = Server(process.popen.pid, process.port, "/specwatch/healthz", process.log_file)
        try:
            with half_open(server, count) as figures:
                return dict(figures)
        finally:
            process.end(signal.SIGKILL)


def run(half: int, many: int) -> dict[str, dict[str, Any]]:
    """The figures of each server, by what it had to bear."""
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="specwatch-connections-") as name:
        folders = [Path(name) / part for part in ("daemon", "proxy", "streams")]
        for folder in folders:
            folder.mkdir()
        if half:
            progress(f"{half} half-open connections")
            figures["daemon, half-open"] = daemon_with_half_open(folders[0], half)
            figures["proxy, half-open"] = proxy_with_half_open(folders[1], half)
        if many:
            figures["proxy, streams"] = asyncio.run(streams(folders[2], many))
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half-open", type=int, default=2500)
    parser.add_argument("--streams", type=int, default=9000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if max(2 * asked.streams, asked.half_open) + _SPARE > hard:
        sys.exit(f"{hard} open files are allowed here: at most {(hard - _SPARE) // 2} streams")
    figures = run(asked.half_open, asked.streams)
    show(figures, as_json=asked.json)
    streamed = figures.get("proxy, streams", {})
    sys.exit(streamed.get("whole") != streamed.get("streams"))
