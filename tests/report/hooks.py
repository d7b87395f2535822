"""A webhook on this machine that keeps what is posted, and answers as it is told to."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Receiver(ThreadingHTTPServer):
    """As a context manager; ``answers`` are the next statuses, 0 for none at all, else 200."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.answers: list[int] = []
        self.reply = "ok"
        self.posted: list[tuple[str, dict[str, str], Any]] = []
        self.let_go = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return (
            f"{self._scheme}://127.0.0.1:{self.server_address[1]}/services/T000/B000/hunter2hunter2"
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.let_go.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, dict(self.headers), json.loads(body)))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if not status:
            self.server.let_go.wait(30)
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(self.server.reply.encode())

    def log_message(self, *_arguments: object) -> None:
        pass
