"""Servers that misbehave: raw TCP, so that every byte and every pause is the test's own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

LONGEST = 30.0
"""Seconds after which a server gives up, so that no test can hang on one."""

Behaviour = Callable[["Visit"], bool | None]
"""Answers one request; true keeps the connection open for the next one."""


class Visit:
    """One request on one connection."""

    def __init__(self, server: HostileServer, sock: socket.socket, head: bytes) -> None:
        self._server = server
        self._sock = sock
        self.head = head.decode("latin-1")

    @property
    def path(self) -> str:
        """The path that was asked for."""
        return self.head.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        """What the client sent, by lower-case name."""
        pairs = (line.split(": ", 1) for line in self.head.splitlines()[1:] if ": " in line)
        return {name.lower(): value for name, value in pairs}

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._sock.sendall(data)

    def receive(self) -> bytes:
        """What comes next, behind the head; nothing once the client has left."""
        return self._sock.recv(65536)

    def answer(
        self, body: bytes, status: str = "200 OK", headers: str = "", length: int | None = None
    ) -> None:
        """A whole answer; ``length`` is what it claims to be."""
        claimed = len(body) if length is None else length
        self.send(
            f"HTTP/1.1 {status}\r\nContent-Length: {claimed}\r\n{headers}\r\n".encode() + body
        )

    def hang(self) -> None:
        """Say nothing until the client leaves or the server stops."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(LONGEST)
            while self._sock.recv(65536):  # a body may come after its head
                pass

    def trickle(self, pieces: Iterator[bytes], pause: float) -> None:
        """Send piece after piece, with a pause after each, until somebody leaves."""
        for piece in pieces:
            self.send(piece)
            if self._server.stopped.wait(pause):
                return

    def reset(self) -> None:
        """Break the connection off the hard way."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sock.close()


class HostileServer:
    """Listens on a free loopback port and lets ``behaviour`` answer; as a context manager."""

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.behaviour = behaviour
        self.connections = 0
        self.paths: list[str] = []
        self.visits: list[Visit] = []
        self.stopped = threading.Event()
        self._tls = tls
        self._host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=512)
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="hostile", daemon=True)

    @property
    def url(self) -> str:
        """Base URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.drop_all()
        self._thread.join(LONGEST)

    def drop_all(self) -> None:
        """Close every connection, as a server does with idle ones."""
        with self._lock:
            sockets, self._open = self._open, set()
        for sock in sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(LONGEST)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self.connections += 1
            self._open.add(sock)
        with contextlib.suppress(OSError), contextlib.closing(self._secured(sock)) as served:
            while head := _head(served):
                visit = Visit(self, served, head)
                self.paths.append(visit.path)
                self.visits.append(visit)
                if not self.behaviour(visit):
                    break
        with self._lock:
            self._open.discard(sock)

    def _secured(self, sock: socket.socket) -> socket.socket:
        if self._tls is None:
            return sock
        secured = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open.add(secured)
        try:
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        return secured


def _head(sock: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(4096)
        if not data:
            return b""
        head += data
    return head


def page(body: bytes) -> Behaviour:
    """Answers every request with this page, and keeps the connection."""

    def behave(visit: Visit) -> bool:
        visit.answer(body)
        return True

    return behave


def hanging(visit: Visit) -> None:
    """Takes the request and never answers."""
    visit.hang()


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true; fails when it is not in time."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s without success for {what}")
        time.sleep(pause)
        pause = min(2 * pause, 0.016)


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port where connecting hangs: it listens, and its queue is full."""
    with contextlib.ExitStack() as held:
        listening = held.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port: int = listening.getsockname()[1]
        for _ in range(4):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        yield port
