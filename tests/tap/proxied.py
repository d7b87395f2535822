"""A proxy in front of a server that misbehaves, and a client that sees every byte."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Self

from prometheus_client import CollectorRegistry

from specwatch.engines.sample_names import METRICS_PATHS
from specwatch.runtime.http_server import HttpServer
from specwatch_tap.proxy import ProxyApplication
from specwatch_tap.settings import Settings
from tests.hostile import Behaviour, HostileServer, Visit

LEARNED_FROM = ("/v1/models", "/metrics", "/props")


class Upstream(HostileServer):
    """A server whose behaviour a test sets; it has none of the pages that the proxy learns from,
    below /base neither: a proxy may ask for them when its test is over."""

    def __init__(self) -> None:
        super().__init__(self._behave)
        self.answers: Behaviour = nothing_set
        self.asked: list[Visit] = []

    def _behave(self, visit: Visit) -> bool | None:
        if visit.path.removeprefix("/base") in LEARNED_FROM:
            visit.answer(b"", "404 Not Found")
            return True
        self.asked.append(visit)
        return self.answers(visit)


def nothing_set(visit: Visit) -> None:
    """A test that forgot to say what the server does."""
    raise AssertionError(f"nobody expected {visit.head!r}")


@contextlib.contextmanager
def proxy(
    url: str,
    *,
    registry: CollectorRegistry | None = None,
    connect_timeout: float = 10.0,
    grace: float = 0.1,
    default_temperature: float | None = None,
    settings: Settings | None = None,
    **more: Any,
) -> Iterator[HttpServer]:
    """A proxy on a free port, in a thread of this process."""
    app = ProxyApplication(
        url,
        CollectorRegistry() if registry is None else registry,
        settings=settings or Settings(),
        metrics_paths=METRICS_PATHS,
        connect_timeout=connect_timeout,
        default_temperature=default_temperature,
        **more,
    )
    server = HttpServer(app, "127.0.0.1", 0, name="proxy", grace=grace, transparent=True)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(20)


class Client:
    """One connection: bytes go out as they are given."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.sock.sendall(data)

    def until(self, end: bytes) -> bytes:
        """Everything up to and with ``end``, which stays in ``seen`` no more."""
        while end not in self.seen:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(f"closed before {end!r}, after {self.seen!r}")
            self.seen += data
        position = self.seen.index(end) + len(end)
        received, self.seen = self.seen[:position], self.seen[position:]
        return received

    def rest(self) -> bytes:
        """Everything until the other side closes; a reset is a close too."""
        with contextlib.suppress(ConnectionResetError):
            while data := self.sock.recv(65536):
                self.seen += data
        return self.seen


def request(line: str, *headers: str, body: bytes = b"", host: str = "client.example") -> bytes:
    """A request as it goes over the wire."""
    fields = "".join(f"{header}\r\n" for header in (f"Host: {host}", *headers))
    return f"{line} HTTP/1.1\r\n{fields}\r\n".encode("latin-1") + body


def body_of(visit: Visit) -> bytes:
    """The body of a request that says its length."""
    head, _, body = visit.head.encode("latin-1").partition(b"\r\n\r\n")
    length = int(visit.headers["content-length"])
    while len(body) < length:
        data = visit._sock.recv(65536)
        if not data:
            raise EOFError(f"the body ended after {len(body)} of {length} bytes, after {head!r}")
        body += data
    return body
