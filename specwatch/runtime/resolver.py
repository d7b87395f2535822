"""Looking up one host's addresses without waiting longer than one wants to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import Future
from typing import Any, NamedTuple


class Address(NamedTuple):
    """The arguments of a socket, and the address that it connects to."""

    family: int
    kind: int
    protocol: int
    place: Any


class Resolver:
    """Addresses of one host and port.

    The system's resolver has no time limit, so it runs in a thread: one at a time, for which later
    callers wait too.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._pending: Future[list[Address]] | None = None
        self._fixed: list[Address] | None = None
        # Fails for a name, which is looked up when it is needed.
        with contextlib.suppress(OSError, UnicodeError):
            self._fixed = _look_up(host, port, socket.AI_NUMERICHOST)

    async def addresses(self) -> list[Address]:
        """All addresses in the system's order of preference.

        Raises OSError for an unknown name, UnicodeError for an invalid name.
        """
        if self._fixed is not None:
            return self._fixed
        pending = self._pending
        if pending is None:
            pending = self._pending = Future()
            pending.set_running_or_notify_cancel()  # who waits may give up, the look-up goes on
            threading.Thread(target=self._run, args=(pending,), name="resolve", daemon=True).start()
        try:
            return await asyncio.wrap_future(pending)
        finally:
            if pending.done():
                self._pending = None

    def _run(self, pending: Future[list[Address]]) -> None:
        try:
            pending.set_result(_look_up(self._host, self._port))
        except Exception as error:
            pending.set_exception(error)  # raised where the result is waited for


def _look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Address(family, kind, protocol, place) for family, kind, protocol, _, place in entries]
