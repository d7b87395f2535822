"""A process that serves moving pages to watchers at little cost, and counts them.

``python -m tests.benchmarks.page_server TARGETS`` listens on as many free ports of loopback and
prints them as JSON. ``GET /scrapes`` on any of them tells how many pages went out, ``GET /times``
when those of each target did since it was asked last.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.http_get import page
from tests.pages import capture

_GROWTH = 0.01


def pages(count: int) -> list[bytes]:
    """Pages as of a busy server: every counter and histogram grows by a hundredth from each to the
    next."""
    lines = capture("draft-k4.2").decode().splitlines()
    kinds = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE "))
    counting = {name for name, kind in kinds.items() if kind in ("counter", "histogram")}
    parts = [_split(line, counting) for line in lines]
    return [
        "".join(
            f"{head}\n" if value is None else f"{head} {_grown(value, number)}\n"
            for head, value in parts
        ).encode()
        for number in range(count)
    ]


def _split(line: str, counting: set[str]) -> tuple[str, float | None]:
    head, _, value = line.rpartition(" ")
    name = head.partition("{")[0]
    family = name
    for suffix in ("_bucket", "_sum", "_count"):
        family = family.removesuffix(suffix) if family not in counting else family
    return (head, float(value)) if family in counting and line[0] != "#" else (line, None)


def _grown(value: float, number: int) -> float:
    grown = value * (1 + _GROWTH * number)
    return float(int(grown)) if value.is_integer() else grown


_PAGES = 120
"""Of each target; from then on its counters stand still."""
_METRICS = b"GET /metrics "
_OTHERS = {
    b"GET /version ": b'{"version":"0.32.0"}',
    b"GET /v1/models ": b'{"data":[{"id":"target"}]}',
}
ROOT = Path(__file__).parents[2]


class PageServer:
    """The process, from outside."""

    def __init__(self, targets: int) -> None:
        self._targets = targets

    def __enter__(self) -> PageServer:
        command = [sys.executable, "-m", "tests.benchmarks.page_server", str(self._targets)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.ports: list[int] = json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def scrapes(self) -> int:
        """How many pages went out so far."""
        return int(page(f"http://127.0.0.1:{self.ports[0]}/scrapes"))

    def times(self) -> list[list[float]]:
        """When pages went out since the last call, by target: seconds of its clock."""
        times: list[list[float]] = json.loads(page(f"http://127.0.0.1:{self.ports[0]}/times"))
        return times


class _Served:
    def __init__(self) -> None:
        self.answers = [_answer(body, "text/plain; version=0.0.4") for body in pages(_PAGES)]
        self.others = {path: _answer(body, "application/json") for path, body in _OTHERS.items()}
        self.missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        self.scrapes = 0
        self.times: list[list[float]] = []

    def target(self) -> Callable[[], _Connection]:
        """A factory of connections that share the state of one target."""
        position = iter([*range(_PAGES - 1)])
        times: list[float] = []
        self.times.append(times)

        def turn() -> int:
            times.append(time.monotonic())
            return next(position, _PAGES - 1)

        return lambda: _Connection(self, turn)


class _Connection(asyncio.Protocol):
    """One connection; a request fits into one segment, which holds for every watcher here."""

    def __init__(self, served: _Served, turn: Callable[[], int]) -> None:
        self._served = served
        self._turn = turn
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport  # asyncio sets TCP_NODELAY itself

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while b"\r\n\r\n" in self._pending:
            request, _, self._pending = self._pending.partition(b"\r\n\r\n")
            self._transport.write(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        served = self._served
        if request.startswith(_METRICS):
            served.scrapes += 1
            return served.answers[self._turn()]
        path = request[: request.find(b" ", 4) + 1]
        if path == b"GET /scrapes ":
            return _answer(str(served.scrapes).encode(), "text/plain")
        if path == b"GET /times ":
            times = json.dumps(served.times).encode()
            for one in served.times:
                one.clear()
            return _answer(times, "application/json")
        return served.others.get(path, served.missing)


def _answer(body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(targets: int) -> None:
    """Serve until killed."""
    served = _Served()
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(served.target(), "127.0.0.1", 0, backlog=100)
        for _ in range(targets)
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
