"""A stand-in for an Alertmanager that records what it is sent, and fails as it is told to."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Receiver(ThreadingHTTPServer):
    """Speaks as an Alertmanager does; as a context manager.

    ``status`` and ``answer`` are what it answers, and with ``echo`` the headers that it was sent;
    ``open`` is cleared to keep it from answering.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.status, self.answer, self.echo = 200, "", False
        self.open = threading.Event()
        self.open.set()
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}"

    def messages(self) -> list[dict[str, dict[str, Any]]]:
        """What came, each as the alerts in it by name."""
        return [{a["labels"]["alertname"]: a for a in body} for _, _, body in self.asked]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves, or that will have nothing of our certificate."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.open.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        self.server.open.wait(30)
        answer = (self.server.answer + str(self.headers) * self.server.echo).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        if self.server.status == 302:
            self.send_header("Location", self.server.url)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        pass
