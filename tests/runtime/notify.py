"""The service manager's end of sd_notify."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

Message = dict[str, str]


class NotifySocket:
    """Receives notifications at ``address``, a path or @ and an abstract name."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._messages: queue.Queue[Message] = queue.Queue()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self._thread = threading.Thread(target=self._receive, name="notify", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.shutdown(socket.SHUT_RD)  # ends the thread
        self._thread.join(10)
        self._sock.close()

    def next(self, seconds: float = 60.0) -> Message:
        """The next message; fails when none comes."""
        return self._messages.get(timeout=seconds)

    def until(self, wanted: Callable[[Message], bool], seconds: float = 60.0) -> list[Message]:
        """All messages up to the first that is wanted; fails when that does not come."""
        deadline = time.monotonic() + seconds
        seen = []
        while True:
            seen.append(self.next(max(0.0, deadline - time.monotonic())))
            if wanted(seen[-1]):
                return seen

    def forget(self) -> None:
        """Drop what came so far."""
        while not self._messages.empty():
            self._messages.get()

    def _receive(self) -> None:
        while data := self._sock.recv(65536):
            lines = data.decode().split("\n")
            self._messages.put(dict(line.split("=", 1) for line in lines))
