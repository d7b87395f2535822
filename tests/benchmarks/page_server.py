"""A process that serves pages to watchers: cheap itself, and counting what it served.

``python -m tests.benchmarks.page_server TARGETS`` listens on as many free ports of loopback and
prints them as JSON. ``GET /scrapes`` on any of them tells how many pages went out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.benchmarks.moving_page import pages

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def scrapes(self) -> int:
        """How many pages went out so far."""
        url = f"http://127.0.0.1:{self.ports[0]}/scrapes"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.read())


class _Served:
    def __init__(self) -> None:
        self.answers = [_answer(page, "text/plain; version=0.0.4") for page in pages(_PAGES)]
        self.others = {path: _answer(body, "application/json") for path, body in _OTHERS.items()}
        self.missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        self.scrapes = 0

    def target(self) -> Callable[[], _Connection]:
        """A factory of connections that share the state of one target."""
        position = iter([*range(_PAGES - 1)])
        return lambda: _Connection(self, lambda: next(position, _PAGES - 1))


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
