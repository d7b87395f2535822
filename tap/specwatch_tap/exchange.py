"""One request and its response, as they pass the tap."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from specwatch_tap import request_options
from specwatch_tap.outcome import ObservedRequest
from specwatch_tap.server_facts import Endpoint, Scope, ServerFacts
from specwatch_tap.stream import StreamReader
from specwatch_tap.whole_response import WholeReader

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


_LINE_FEED = 10
_NO_VERSION: dict[str, str] = {}
_clock = time.perf_counter


@dataclass(slots=True)
class RequestRoom:
    """What requests may take that have not arrived as a whole; others pass unread.

    By default as much as the server itself holds.
    """

    largest: int = 64 << 20
    """Bytes of one request."""
    total: float = math.inf
    """Bytes of all together."""
    patience: float | None = None
    """Seconds for which the next part of a request may not come."""
    held: int = 0
    """Bytes that are held now."""


class Exchange:
    """Sits between the server's ``receive`` and ``send`` and the application's.

    ``fail`` is called with each failure of the tap's own reading; from then on the exchange only
    passes through. A request that does not fit into ``room`` passes unread.
    """

    __slots__ = (
        "_asks",
        "_fail",
        "_read",
        "_receive",
        "_remove_metrics",
        "_room",
        "_scope",
        "_send",
        "_start",
        "_stream",
        "_whole",
        "headers",
        "observed",
    )

    def __init__(
        self,
        scope: Scope,
        endpoint: Endpoint,
        receive: Receive,
        send: Send,
        *,
        facts: ServerFacts,
        remove_metrics: bool,
        room: RequestRoom,
        fail: Callable[[str, Exception], None],
    ) -> None:
        passed = endpoint is Endpoint.OTHER
        self.headers = [
            field for field in scope["headers"] if passed or field[0] != b"accept-encoding"
        ]
        """Those of the request, for the application."""
        self.observed = ObservedRequest(facts, endpoint, _clock())
        """What was observed so far."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._remove_metrics = remove_metrics
        self._room = room
        self._fail = fail
        self._read = False
        self._asks = False
        self._start: Message | None = None
        self._stream: StreamReader | None = None
        self._whole: WholeReader | None = None

    async def receive(self) -> Message:
        """What the application receives: the request's body in one piece, then what follows."""
        observed = self.observed
        if self._read or observed.endpoint is Endpoint.OTHER:
            message = await self._receive()
            if message["type"] == "http.disconnect" and not observed.complete:
                observed.disconnected = True
            return message
        self._read = True
        message = await self._receive()
        if message.get("more_body", False):
            message = await self._whole_request(message)
        if message["type"] != "http.request":
            observed.disconnected |= message["type"] == "http.disconnect"
            return message
        if message.get("more_body", False):
            return message
        observed.started = _clock()
        body = message.get("body", b"")
        if len(body) > self._room.largest:
            return message
        try:
            asking = self._request(body)
        except Exception as error:
            self._fail("request", error)
            return message
        return message if asking is body else {**message, "body": asking, "more_body": False}

    async def _whole_request(self, message: Message) -> Message:
        """A request that comes in parts in one piece, or as much of it as there is room for."""
        length = dict(self._scope["headers"]).get(b"content-length", b"")
        room = self._room
        if length.isdigit() and int(length) > room.largest:
            return message
        parts = [message.get("body", b"")]
        size = len(parts[0])
        room.held += size
        try:
            while size <= room.largest and room.held <= room.total:
                async with asyncio.timeout(room.patience):
                    message = await self._receive()
                if message["type"] != "http.request":
                    return message
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                room.held += len(parts[-1])
                if not message.get("more_body", False):
                    return {"type": "http.request", "body": b"".join(parts), "more_body": False}
        except TimeoutError:
            pass  # the application decides how long it waits
        finally:
            room.held -= size
        return {"type": "http.request", "body": b"".join(parts), "more_body": True}

    def sender(self) -> Send:
        """The application's ``send``: the response as it came, without what only the tap asked for.

        Not a coroutine itself: for a chunk of a stream that is only counted, that and a closure
        halve the cost. The exchange does not keep it, which would be a cycle.
        """
        # How servers since ASGI 2.4 report a client that is gone: by an OSError.
        raises = self._scope.get("asgi", _NO_VERSION).get("spec_version", "2.0") >= "2.4"
        deliver = self._noting_disconnects if raises else self._send
        usual_end = b""
        steps = 0

        def pass_on(message: Message) -> Awaitable[None]:
            nonlocal usual_end, steps
            if usual_end:
                try:
                    chunk = message["body"]
                    before = chunk.removesuffix(usual_end)
                    if (
                        len(before) != len(chunk)
                        and message["more_body"]
                        and _LINE_FEED not in before
                    ):
                        steps += 1
                        return deliver(message)
                except (AttributeError, KeyError, TypeError):  # without a body, or not of bytes
                    pass
                if steps and self._stream is not None:
                    self._stream.add_usual(steps)
                    steps = 0
            passed = self._pass_on(message)
            usual_end = b"" if self._stream is None else self._stream.usual_end
            if passed is None:
                return _nothing()
            if self._start is not None and passed is not self._start:
                return self._send_with_start(passed, deliver)
            return deliver(passed)

        return pass_on

    def _pass_on(self, message: Message) -> Message | None:
        """Take in a message; returns what goes on in its place, None for nothing yet."""
        kind = message["type"]
        if kind == "http.response.body":
            if self._stream is None:
                return self._whole_body(message)
            return self._stream_body(message, self._stream)
        if kind == "http.response.start":
            try:
                if self._begin(message):
                    return None
            except Exception as error:
                self._fail("response", error)
                self.observed.unreadable = True
        return message

    def _stream_body(self, message: Message, stream: StreamReader) -> Message | None:
        now = _clock()
        more = message.get("more_body", False)
        chunk = message.get("body", b"")
        try:
            passed = stream.feed(chunk, now)
        except Exception as error:  # then nothing more is read of it
            self._fail("response", error)
            self._stream = self.observed.stream = None
            self.observed.unreadable = True
            passed = stream.end() + chunk
        if not more:
            self.observed.complete = True
            if stream.broke is not None:
                self._fail("response", stream.broke)
            passed += stream.end()
        if passed is chunk:
            return message
        return {**message, "body": passed} if passed or not more else None

    async def _noting_disconnects(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            self.observed.disconnected = True
            raise

    async def _send_with_start(self, message: Message, deliver: Send) -> None:
        await deliver(self._started_with(message))
        await deliver(message)

    @property
    def is_streaming(self) -> bool:
        """Whether something of a stream may be held back."""
        return self._stream is not None and not self.observed.complete

    async def release(self) -> None:
        """Send what is held back of a stream that broke off: the server had sent it.

        Raises nothing: that the client is gone is not for the tap to report.
        """
        if self._stream is None or self.observed.complete or self.observed.disconnected:
            return
        if held := self._stream.end():
            with contextlib.suppress(Exception):
                await self._send({"type": "http.response.body", "body": held, "more_body": True})

    def _request(self, body: bytes) -> bytes:
        observed, facts = self.observed, self.observed.facts
        request = observed.options = request_options.read(observed.endpoint, body)
        if request is None:
            return body
        observed.endpoint = request.endpoint
        asks_usage = (
            request.askable
            and not (request.several or request.beam_search)
            and not (request.wants_usage or facts.forces_usage or facts.asks_nothing)
            and (facts.keeps_records or not request.open)
        )
        if not asks_usage:
            return body
        body = request_options.with_usage(body, request)
        length = (b"content-length", str(len(body)).encode())
        headers = self._scope["headers"]  # in place: starlette keeps the list that it left there
        for index, (name, _) in enumerate(headers):
            if name == b"content-length":
                headers[index] = length
        self._asks = True
        return body

    def _begin(self, message: Message) -> bool:
        """Take in the head of the response; returns whether it has to wait for the body."""
        observed = self.observed
        status = observed.status = message["status"]
        if status >= 400 or observed.endpoint is Endpoint.OTHER:
            return False
        headers = message["headers"] = list(message.get("headers", ()))  # may come only once
        kind = b""
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-type":
                kind = value
            elif lower == b"content-encoding" and value.lower() not in (b"", b"identity"):
                observed.unreadable = True
                return False
        remove = self._remove_metrics and observed.endpoint in request_options.OPENAI
        if kind.startswith(b"text/event-stream"):
            self._stream = observed.stream = StreamReader(
                observed.endpoint, remove_usage=self._asks, remove_metrics=remove
            )
            if self._asks or remove:
                message["headers"] = _without_length(headers)
            return False
        self._whole = WholeReader(remove_metrics=remove)
        if remove:
            self._start = message  # the length of the body is not known yet
        return remove

    def _whole_body(self, message: Message) -> Message:
        """A part of a body that is not streamed, as it goes on to the client."""
        last = not message.get("more_body", False)
        if last:
            self.observed.complete = True
        whole = self._whole
        if whole is None:
            return message
        chunk = message.get("body", b"")
        passed = whole.feed(chunk, last=last)
        if last:
            self.observed.answer = whole.answer
            if whole.broke is not None:
                self._fail("response", whole.broke)
        return message if passed is chunk else {**message, "body": passed}

    def _started_with(self, first: Message) -> Message:
        """The head of a response whose body may have become shorter."""
        start, self._start = self._start, None
        assert start is not None  # noqa: S101
        if first["type"] != "http.response.body":
            return start
        headers = _without_length(start["headers"])
        if not first.get("more_body", False):
            headers.append((b"content-length", str(len(first.get("body", b""))).encode()))
        return {**start, "headers": headers}


async def _nothing() -> None:
    """In place of a message that does not go on yet."""


def _without_length(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Header fields of a body that may become shorter."""
    return [(name, value) for name, value in headers if name.lower() != b"content-length"]
