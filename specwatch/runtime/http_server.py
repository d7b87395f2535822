"""Serving an ASGI application from a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specwatch.domain.units import local_url
from specwatch.errors import ConfigError

_log = structlog.get_logger("specwatch.runtime.http_server")
_START_SECONDS = 10.0
_QUEUE = 2048
"""Connections that the kernel holds until they are accepted."""
MOST_CONNECTIONS = 256
"""Of a bounded server, and at most a quarter of the file descriptors that its process may have."""
_ACCEPTED_AT_ONCE = 32
REQUEST_SECONDS = 10.0
"""How long a client may take to send the head of a request."""
IDLE_SECONDS = 75.0
"""How long a connection is kept without a request; Prometheus asks every minute or sooner."""
ANSWER_SECONDS = 300.0
"""How long a request may take until the client has its answer, or as much as fits its buffers."""
_LOG_SECONDS = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""


class _Protocol(H11Protocol):
    """Refuses a request with a broken body without a traceback in the log.

    uvicorn's own method raises if the answer has begun or may have no body, and so does the
    application when it goes on with its answer: any client could fill the log.
    """

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()


class _TimedProtocol(_Protocol):
    """Closes connections whose next request does not come.

    uvicorn's own timeout ends only those that wait after an answer and send nothing at all.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None
        """Since when it waits for a request; None while it answers one."""
        self._begun = False
        """Whether a part of a request has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_in(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waited = self._waiting_since is not None
        super().data_received(data)
        if not waited or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._answer()
        elif not self._begun:
            self._begun = True
            self._end_in(REQUEST_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait(IDLE_SECONDS)
        else:  # the next request had come already
            self._answer()

    def _wait(self, seconds: float) -> None:
        self._waiting_since, self._begun = self.loop.time(), False
        self._end_in(seconds)

    def _answer(self) -> None:
        """There is no time limit for answers."""
        self._waiting_since = None
        self._end_in(None)

    def _end_in(self, seconds: float | None) -> None:
        """Close the connection after so many seconds, which replaces an earlier limit."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self.transport.abort)


class _BoundedProtocol(_TimedProtocol):
    """Closes slow connections, and of too many those that have waited longest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_in(REQUEST_SECONDS)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = files == resource.RLIM_INFINITY
        most = MOST_CONNECTIONS if unlimited else min(MOST_CONNECTIONS, files // 4)
        if len(self.connections) > most:
            protocols = (
                connection
                for connection in self.connections
                if isinstance(connection, _BoundedProtocol)
            )
            idle = [protocol for protocol in protocols if not protocol.transport.is_closing()]
            if len(idle) > most:
                min(idle, key=_BoundedProtocol._needed_since).transport.abort()

    def _answer(self) -> None:
        super()._answer()
        self._end_in(ANSWER_SECONDS)

    def shutdown(self) -> None:
        """As the server stops: a stream of events has no end that could be waited for."""
        if self.scope is not None and (b"accept", b"text/event-stream") in self.scope["headers"]:
            self.transport.close()
        else:
            super().shutdown()

    def _needed_since(self) -> float:
        """A sort key: idle connections first, longest waiting first."""
        if self._waiting_since is not None:
            return self._waiting_since
        # A client that does not read its answer is not better than one that does not ask.
        return 0.0 if self.flow.write_paused else self.loop.time()


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(LoopErrors(time.monotonic))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also ends connections that were made meanwhile, which nobody has told to close."""
        await super().shutdown(sockets)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()

    async def main_loop(self) -> None:
        """Set the header ``Date`` each second; uvicorn's own wakes up ten times as often."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)

    def end(self) -> None:
        """Shut down soon; for other threads, once it has started."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._ending.set)


class LoopErrors:
    """Logs errors of the event loop; a lack of file descriptors only once a minute.

    asyncio logs a traceback for each connection that it cannot accept, thousands a second.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._logged: float | None = None
        self._refused = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As an exception handler of an event loop."""
        error = context.get("exception")
        lacking = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
        if not isinstance(error, OSError) or error.errno not in lacking:
            loop.default_exception_handler(context)
            return
        now = self._monotonic()
        self._refused += 1
        if self._logged is None or now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.error(
                "cannot_accept",
                detail=f"{error.strerror}: connections have to wait; see who holds them, or raise"
                " LimitNOFILE of the service",
                times=self._refused,
            )
            self._refused = 0


class HttpServer:
    """Listens on one address; port 0 takes a free one, which ``port`` then shows."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        name: str,
        grace: float = 2.0,
        transparent: bool = False,
        bounded: bool = False,
    ) -> None:
        """``app`` may have a lifespan; ``name`` is that of the thread.

        At the end, requests that run get ``grace`` seconds. ``transparent`` is for a proxy: no
        ``Date`` is added to responses, and headers of an earlier proxy are left to the application.
        ``bounded`` is for a server that has few clients and short answers: it has
        :data:`MOST_CONNECTIONS`, of which the one that waits longest makes room for another.
        """
        self._app = app
        self._bounded = bounded
        self.host = host
        self.port = port
        self._name = name
        self._grace = grace
        self._transparent = transparent
        self._server: _UvicornServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Base URL for a client on this machine."""
        return local_url(self.host, self.port)

    def start(self) -> None:
        """Listen and serve; returns when requests are answered.

        Raises ConfigError when it cannot listen on the address.
        """
        listening = self._bind()
        config = uvicorn.Config(
            self._app,
            log_config=None,
            # Its warnings are about requests: clients could fill the log with them.
            log_level="error" if self._bounded else "warning",
            access_log=False,
            ws="none",
            server_header=False,
            timeout_keep_alive=int(IDLE_SECONDS),
            http=_BoundedProtocol if self._bounded else _TimedProtocol,
            # So many are accepted before the first of them can be refused.
            backlog=_ACCEPTED_AT_ONCE if self._bounded else _QUEUE,
            date_header=not self._transparent,
            proxy_headers=not self._transparent,
            # Typed as whole seconds, but uvicorn accepts fractions.
            timeout_graceful_shutdown=self._grace,  # type: ignore[arg-type]
        )
        server = _UvicornServer(config)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name=self._name, daemon=True
        )
        thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                server.should_exit = True
                listening.close()
                raise RuntimeError(f"the HTTP server {self._name} did not start")
            time.sleep(0.002)
        listening.listen(_QUEUE)
        self._server, self._thread = server, thread

    def stop(self, timeout: float = 3.0) -> bool:
        """Stop the server; returns whether it ended within ``timeout`` seconds."""
        if self._server is None or self._thread is None:
            return True
        self._server.end()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_alive()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With the protocol named, asyncio switches Nagle's delay off.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
            listening.listen(_QUEUE)
        except OSError as error:
            listening.close()
            raise ConfigError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror}; choose another"
                " address, or port 0 for a free one"
            ) from error
        self.port = listening.getsockname()[1]
        return listening
