"""A connection to an HTTP server in an event loop, with one request at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

_MOST_HEADERS = 100
_LONGEST_HEAD = 64 * 1024


class BadAnswer(Exception):
    """The server does not speak HTTP, or a part of its answer is too long."""


class Receiver(Protocol):
    """Takes an answer as it arrives. What its methods raise, the request raises."""

    def begin(self, status: int, reason: str, headers: dict[str, str]) -> None:
        """The status line and the headers have come, with their names in lower case."""

    def feed(self, data: bytes) -> None:
        """A part of the body has come, without its framing."""


class HttpConnection(asyncio.Protocol):
    """As the protocol of a transport; all methods are for the thread of its loop."""

    def __init__(self) -> None:
        self.usable = False
        """Whether it may have another request."""
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        """Of the request that is being answered."""

    async def request(self, head: bytes, receiver: Receiver) -> None:
        """Send a request without a body, and hand its answer to ``receiver``.

        Raises ConnectionError and other OSErrors, BadAnswer, and what the receiver raises.
        """
        if self._transport is None or not self.usable:
            raise ConnectionResetError("the connection was closed")
        self.usable = False
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._forget_head()
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(head)
        try:
            await self._ended
        finally:
            self._ended = None
            del self._receiver, self._parser  # the caller has what has come
            if not self._complete:
                self.close()

    def close(self) -> None:
        """Close it at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of asyncio."""
        self._transport, self.usable = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """As of asyncio."""
        if self._ended is None or self._complete:
            self.close()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(BadAnswer(str(error)))
        else:
            self._head_size += 0 if self._has_head else len(data)
            if self._head_size > _LONGEST_HEAD:
                self._fail(BadAnswer(f"a line or the head is longer than {_LONGEST_HEAD} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """As of asyncio."""
        self.usable, self._transport = False, None
        if self._ended is None or self._complete:
            return
        if exc is None and self._has_head and self._ends_with_connection:
            self._complete = True
            self._end(None)
        else:
            self._end(exc or ConnectionResetError("the server closed the connection"))

    def on_message_begin(self) -> None:
        """As of httptools."""
        if self._complete:
            raise BadAnswer("more than was asked for")

    def on_status(self, status: bytes) -> None:
        """As of httptools."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """As of httptools."""
        if self._has_head:
            return  # a trailer
        if len(self._headers) == _MOST_HEADERS:
            raise BadAnswer(f"more than {_MOST_HEADERS} headers")
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """As of httptools."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._has_head = True
            headers = dict(self._headers)
            self._ends_with_connection = not headers.keys() & {
                "content-length",
                "transfer-encoding",
            }
            self._receiver.begin(status, self._reason.decode("latin-1"), headers)

    def on_body(self, body: bytes) -> None:
        """As of httptools."""
        self._receiver.feed(body)

    def on_message_complete(self) -> None:
        """As of httptools."""
        if not self._has_head:  # "100 Continue" and the like
            self._forget_head()
            return
        self._complete = True
        self.usable = self._parser.should_keep_alive()
        self._end(None)
        if not self.usable:
            self.close()

    def _forget_head(self) -> None:
        self._reason = b""
        self._headers: list[tuple[str, str]] = []
        self._head_size = 0
        self._has_head = self._ends_with_connection = False

    def _fail(self, error: BaseException) -> None:
        self._end(error)
        self.close()

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
