"""A socket for http.client with one deadline for all its operations."""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from specwatch.runtime.resolver import Address

_CHUNK = 64 * 1024


class BoundedSocket:
    """Connects, sends and receives until ``deadline``, a time of the monotonic clock.

    A socket's own timeout bounds each single call, so that a server that sends slowly could delay a
    scrape without limit. Only one thread may use it, but any may :meth:`abort` it.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sock: socket.socket | None = None
        self._aborted = False
        self._readers = 0
        self._closing = False
        self.deadline = 0.0

    def connect(
        self, addresses: Sequence[Address], tls: ssl.SSLContext | None, server_name: str
    ) -> None:
        """Connect to the first address that answers; each gets its share of the time.

        Raises OSError: that of the last address.
        """
        failed: OSError = OSError("the name has no address")
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            sock = self._take(socket.socket(address.family, address.kind, address.protocol))
            try:
                self._connect(sock, address, self._remaining() / left)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                break
            except OSError as error:
                sock.close()
                failed = error
        else:
            raise failed
        if tls is not None:
            secured = tls.wrap_socket(
                sock, server_hostname=server_name, do_handshake_on_connect=False
            )
            self._take(secured)
            secured.settimeout(self._remaining())
            secured.do_handshake()

    def is_idle(self) -> bool:
        """Whether there is nothing to read: neither the end of the connection nor stray bytes."""
        sock = self._sock
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """Make the current operation fail soon, and all later ones."""
        self._aborted = True
        sock = self._sock
        if sock is not None:
            try:
                # Not a TLS socket's own method, which pulls the session from under its user.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # not connected any more

    def end(self) -> None:
        """Close now, even if there are readers."""
        if self._sock is not None:
            self._sock.close()

    def sendall(self, data: bytes) -> None:
        """As a socket's method of the same name."""
        self._bound().sendall(data)

    def recv_into(self, buffer: Any) -> int:
        """As a socket's method of the same name."""
        return self._bound().recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A reader, which keeps the connection open beyond :meth:`close`."""
        self._readers += 1
        return io.BufferedReader(_BoundedReader(self), _CHUNK)

    def close(self) -> None:
        """Close as soon as there is no reader."""
        self._closing = True
        if not self._readers:
            self.end()

    def reader_closed(self) -> None:
        """Called by a reader that is closed."""
        self._readers -= 1
        if self._closing and not self._readers:
            self.end()

    def _connect(self, sock: socket.socket, address: Address, seconds: float) -> None:
        # Not in one blocking call: a shutdown just before it would have no effect.
        sock.setblocking(False)
        code = sock.connect_ex(address.place)
        if code == errno.EINPROGRESS:
            self._refuse_aborted()
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            if not poll.poll(seconds * 1000):
                raise TimeoutError("no answer in time")
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._refuse_aborted()
        if code:
            raise OSError(code, os.strerror(code))

    def _refuse_aborted(self) -> None:
        if self._aborted:
            raise ConnectionAbortedError("given up")

    def _take(self, sock: socket.socket) -> socket.socket:
        self._sock = sock
        if self._aborted:
            sock.close()
            raise ConnectionAbortedError("given up")
        return sock

    def _remaining(self) -> float:
        remaining = self.deadline - self._monotonic()
        if remaining <= 0:
            raise TimeoutError("deadline passed")
        return remaining

    def _bound(self) -> socket.socket:
        if self._sock is None:
            raise OSError("not connected")
        self._sock.settimeout(self._remaining())
        return self._sock


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: BoundedSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.reader_closed()
