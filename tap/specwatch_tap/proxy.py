"""A reverse proxy that changes nothing, for servers that cannot load the tap.

How it forwards, in points on which proxies differ:

* Host is that of the upstream, as nginx does by default, so that virtual hosts and TLS work; the
  client's goes into X-Forwarded-Host. X-Forwarded-For is appended to; X-Forwarded-Proto and -Host
  of a proxy in front of us stay.
* Header fields for one connection only (RFC 9110, section 7.6.1) are dropped both ways; all others
  stay, with order and repetition. Reason phrases become the standard ones: ASGI has none.
* A WebSocket gets 501: the tap cannot read it.
* A request is sent a second time only if all of it has arrived and a kept-alive connection was
  closed without a byte of response, as servers do with idle ones. That holds for POST too:
  generating twice has no effect but its cost.
* A target in absolute form (``GET http://host/path``) is cut to its path, and its host is taken as
  the client's; any other target that is not a path gets 400. So does a request with both
  Content-Length and Transfer-Encoding, since servers differ in which of the two they use.
* What failed and where is logged, not sent: the client must not learn the names of inner hosts.
* If a response breaks off, so does the client's: it never ends cleanly.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from aiohttp import ClientResponse, ClientSession, hdrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from specwatch_tap import forwarding
from specwatch_tap.exchange import Message, Receive, RequestRoom, Send
from specwatch_tap.middleware import Tap
from specwatch_tap.server_facts import Scope
from specwatch_tap.settings import Settings
from specwatch_tap.upstream import Upstream, described, shown

METRICS = "/metrics"
HEALTH = "/specwatch/healthz"
"""The two pages of the proxy itself. All others are the upstream's, also its ``/health``."""

_KEPT_IDLE = 4.0
"""Seconds that an idle connection is kept; uvicorn and llama.cpp close theirs after 5."""
_LONGEST_LINE = 64 << 10
_JSON = "application/json"
_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
_LARGEST_REQUEST = 16 << 20
_ALL_REQUESTS = 256 << 20
"""Bytes of all requests that are held because they have not arrived as a whole."""
_PATIENCE = 30.0
"""Seconds for which the next part of one may not come: then it is forwarded as it comes."""
_log = logging.getLogger("specwatch_tap")


class _ClientGone(Exception):
    """The client has disconnected."""


class ProxyApplication:
    """The proxy under a tap, as an ASGI application; its lifespan opens and closes the client."""

    def __init__(
        self,
        url: str,
        registry: CollectorRegistry,
        *,
        settings: Settings,
        metrics_paths: Mapping[str, str],
        default_temperature: float | None = None,
        connect_timeout: float = 10.0,
        largest_request: int = _LARGEST_REQUEST,
    ) -> None:
        """``url`` is the base URL of the upstream; ``registry`` gets the tap's counters and is what
        ``/metrics`` shows. ``metrics_paths`` has the engines that are known by name, and where each
        has its metrics; ``default_temperature`` is that of the upstream if it cannot be read;
        ``connect_timeout`` is in seconds. Of requests that generate, those of up to
        ``largest_request`` bytes are held, whether or not the upstream will take them, and as many
        as :data:`_ALL_REQUESTS` has room for.
        """
        self.url = url
        self.upstream = Upstream(url, default_temperature, metrics_paths=metrics_paths)
        self.session: ClientSession | None = None
        """The client; None before the lifespan has begun."""
        self._registry = registry
        self._connect_timeout = connect_timeout
        self._tap = Tap(
            self._forward,
            server=self.upstream,
            settings=settings,
            registry=registry,
            room=RequestRoom(largest_request, _ALL_REQUESTS, _PATIENCE),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and self.session is not None:
            try:
                checked = forwarding.checked(scope)
            except ValueError as error:
                await _fail(scope, send, 400, str(error), "invalid_request_error")
                return
            await self._tap(checked, receive, send)
        else:
            raise ValueError(f"the proxy cannot serve {scope['type']} now")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with client_session(self._connect_timeout) as session:
            await self.upstream.learn(session)
            self.session = session
            async with self.upstream.learning(session):
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, below the tap."""
        if scope["path"] == METRICS:
            page = generate_latest(self._registry)
            await _answer(scope, send, 200, page, CONTENT_TYPE_LATEST)
        elif scope["path"] == HEALTH:
            health = {"status": "ok", "model_name": self.upstream.last_facts.model_name}
            await _answer(scope, send, 200, json.dumps(health).encode())
        elif scope["method"] == "CONNECT" or forwarding.asks_for_websocket(scope["headers"]):
            await _fail(scope, send, 501, "the proxy forwards neither WebSockets nor tunnels")
        else:
            await _Forward(self, scope, receive, send).run()


def client_session(connect_timeout: float) -> ClientSession:
    """A client that passes bytes on as they are, with as many connections as there are requests.

    ``connect_timeout`` is in seconds; a response may take as long as it likes. Close it after use.
    """
    return ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_IDLE),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
        skip_auto_headers=_ADDED,
        auto_decompress=False,
        max_line_size=_LONGEST_LINE,
        max_field_size=_LONGEST_LINE,
        trace_configs=[_noting_kept_connections()],
    )


class _Forward:
    """One request that is being forwarded."""

    def __init__(self, proxy: ProxyApplication, scope: Scope, receive: Receive, send: Send) -> None:
        assert proxy.session is not None  # noqa: S101
        self._proxy = proxy
        self._session = proxy.session
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self._gone = False
        self._received = asyncio.Event()

    async def run(self) -> None:
        """Forward it; if the client disconnects, end it at once, also upstream."""
        forward = asyncio.create_task(self._forward())
        watch = asyncio.create_task(self._client_leaves())
        try:
            await asyncio.wait((forward, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not forward.done():
                forward.cancel()
            with contextlib.suppress(asyncio.CancelledError, _ClientGone):
                await forward

    async def _client_leaves(self) -> None:
        await self._received.wait()
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def _forward(self) -> None:
        try:
            await self._exchange()
        except TimeoutError as error:
            await self._failed(504, "does not answer in time", error)
        except aiohttp.ClientConnectorError as error:  # before: a bad certificate is a ValueError
            await self._failed(502, "cannot be reached", error)
        except ValueError as error:
            await self._failed(400, "cannot be asked this", error)
        except (aiohttp.ClientError, OSError) as error:
            await self._failed(502, "broke off", error)

    async def _failed(self, status: int, what: str, error: Exception) -> None:
        """Answer with an error if there is no response yet, else leave the response unfinished."""
        if self._gone:
            return
        _log.warning("upstream %s %s: %s", shown(self._proxy.url), what, described(error))
        if status >= 500:
            self._proxy.upstream.look_again()
        if not self._started:
            await _fail(self._scope, self._send, status, f"the upstream {what}")

    async def _exchange(self) -> None:
        body = await self._body()
        while True:
            used: dict[str, bool] = {}
            try:
                response = await self._request(body, used)
                break
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                if not used.get("kept") or isinstance(body, AsyncIterator):
                    raise
        try:
            await self._respond(response)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _body(self) -> bytes | AsyncIterator[bytes] | None:
        """The body: whole if all of it has arrived, else in parts; None without one."""
        names = {name for name, _ in self._scope["headers"]}
        if not names & {b"content-length", b"transfer-encoding"}:
            self._received.set()
            return None
        first = await self._next()
        if first.get("more_body", False):
            return self._bits(first)
        self._received.set()
        return bytes(first.get("body", b""))

    async def _bits(self, message: Message) -> AsyncIterator[bytes]:
        while True:
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                self._received.set()
                return
            message = await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            raise _ClientGone
        return message

    async def _request(
        self, body: bytes | AsyncIterator[bytes] | None, used: dict[str, bool]
    ) -> ClientResponse:
        return await self._session.request(
            self._scope["method"],
            forwarding.target(self._proxy.url, self._scope),
            # Only now: the tap adapts the length once it has the body.
            headers=forwarding.forwarded(self._scope, has_body=body is not None),
            data=body,
            allow_redirects=False,
            trace_request_ctx=used,
        )

    async def _respond(self, response: ClientResponse) -> None:
        if response.status < 200:  # such as 101, an upgrade that was not requested
            raise aiohttp.ClientPayloadError(f"it answered {response.status}")
        headers = [(name.lower(), value) for name, value in response.raw_headers]
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": forwarding.end_to_end(headers),
            }
        )
        self._started = True
        while chunk := await response.content.readany():
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    kind: str = _JSON,
    *more: tuple[bytes, bytes],
) -> None:
    length = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", kind.encode()), length, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] == "HEAD":
        body = b""
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _fail(
    scope: Scope, send: Send, status: int, message: str, kind: str = "upstream_error"
) -> None:
    """An error as OpenAI's clients expect it; a 400 also closes the connection."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    close = [(b"connection", b"close")] if status == 400 else []
    await _answer(scope, send, status, json.dumps({"error": error}).encode(), _JSON, *close)


def _noting_kept_connections() -> aiohttp.TraceConfig:
    """Notes in the context of a request whether its connection had been used before."""

    async def note(kept: bool, _: ClientSession, context: Any, __: Any) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx["kept"] = kept

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(functools.partial(note, True))
    tracing.on_connection_create_start.append(functools.partial(note, False))
    return tracing
