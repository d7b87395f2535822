"""Serving an ASGI application from a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from specwatch.errors import ConfigError
from specwatch.scalars import local_url

_START_SECONDS = 10.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
    ) -> None:
        """``app`` may have a lifespan; ``name`` is that of the thread.

        At the end, requests that run get ``grace`` seconds. ``transparent`` is for a proxy: no
        ``Date`` is added to responses, and what requests say of an earlier proxy is left to the
        application.
        """
        self._app = app
        self.host = host
        self.port = port
        self._name = name
        self._grace = grace
        self._transparent = transparent
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Base URL for a client on this machine."""
        return local_url(self.host, self.port)

    def start(self) -> None:
        """Listen and serve; returns when requests are answered.

        Raises ConfigError when the address cannot be had.
        """
        listening = self._bind()
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="warning",
            access_log=False,
            ws="none",
            server_header=False,
            timeout_keep_alive=75,
            date_header=not self._transparent,
            proxy_headers=not self._transparent,
            # uvicorn is said to take whole seconds, and takes any.
            timeout_graceful_shutdown=self._grace,  # type: ignore[arg-type]
        )
        server = _Server(config)
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
        self._server, self._thread = server, thread

    def stop(self, timeout: float = 3.0) -> bool:
        """Stop listening; returns whether that was over within ``timeout`` seconds."""
        if self._server is None or self._thread is None:
            return True
        self._server.should_exit = True
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
            listening.listen(2048)
        except OSError as error:
            listening.close()
            raise ConfigError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror}; choose another"
                " address, or port 0 for a free one"
            ) from error
        self.port = listening.getsockname()[1]
        return listening
