"""Small applications, and a server's side of ASGI that sees every message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from specwatch_tap import Tap
from specwatch_tap.exchange import Message, Receive, Send
from specwatch_tap.middleware import App
from specwatch_tap.server_facts import Endpoint, Scope, ServerFacts
from specwatch_tap.settings import Settings

QUESTION = b'{"messages":[],"temperature":0.5}'
STREAMED = b'{"messages":[],"temperature":0.5,"stream":true}'
DISCONNECT = {"type": "http.disconnect"}
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]


class Known:
    """A server of which something is known."""

    def __init__(self, **facts: Any) -> None:
        usual = {"default_temperature": 1.0, "draft_tokens": 4, "keeps_records": True}
        self._facts = ServerFacts("tiny", **{**usual, **facts})

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        """The same for all endpoints."""
        return self._facts


@dataclass
class Visit:
    """One request by hand: what the application received, and what was sent to the client."""

    sent: list[Message] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def body(self) -> bytes:
        """All that was sent of the response's body."""
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def head(self) -> Message:
        """The head of the response."""
        (head,) = (one for one in self.sent if one["type"] == "http.response.start")
        return head


def tapped(
    app: App,
    registry: CollectorRegistry,
    server: Any = None,
    *,
    remove_metrics: bool = False,
    edges: tuple[float, ...] = (0.0, 1.0),
) -> Tap:
    """The application under a tap whose server is known."""
    settings = Settings(edges=edges, remove_metrics=remove_metrics)
    return Tap(app, server=server or Known(), settings=settings, registry=registry)


def scope(path: str = "/v1/chat/completions", **members: Any) -> Scope:
    """As uvicorn makes them."""
    headers = members.pop("headers", [(b"host", b"x"), (b"content-type", b"application/json")])
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "server": ("x", 80),
        "client": ("y", 1),
        **members,
    }


def parts(*bodies: bytes) -> list[Message]:
    """A request's body in parts."""
    last = len(bodies) - 1
    return [
        {"type": "http.request", "body": body, "more_body": index < last}
        for index, body in enumerate(bodies)
    ]


def visit(
    app: App,
    received: Iterable[Message] = (*parts(QUESTION), DISCONNECT),
    of: Scope | None = None,
    send: Callable[[Message], Awaitable[None]] | None = None,
) -> Visit:
    """Have a request handled; an exception of the application is noted."""
    response = Visit()
    messages = iter(received)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return next(messages)

    async def keep(message: Message) -> None:
        await asyncio.sleep(0)
        response.sent.append(message)
        if send is not None:
            await send(message)

    async def handle() -> None:
        try:
            await app(of or scope(), receive, keep)
        except (Exception, asyncio.CancelledError) as error:
            response.error = error

    asyncio.run(asyncio.wait_for(handle(), 20))
    return response


def answering(
    *bodies: bytes,
    status: int = 200,
    headers: list[tuple[bytes, bytes]] = JSON,
    reads: bool = True,
) -> App:
    """An application that reads the request and sends the body in parts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while reads and (await receive()).get("more_body", False):
            continue
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies[:-1]:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": bodies[-1]})

    return app


def echoing() -> App:
    """Answers with what it saw: the body, and the headers of its scope."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        headers = [[name.decode(), value.decode()] for name, value in scope["headers"]]
        seen = {"headers": headers, "body": message["body"].decode(), "more": message["more_body"]}
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})

    return app


def counts(registry: CollectorRegistry) -> dict[str, float]:
    """What a registry's page says, but for zeros, buckets and sums: ``requests stop (0,1]``."""
    counted = {}
    for family in registry.collect():
        if family.name == "specwatch_decode_seconds":
            continue
        for sample in family.samples:
            if sample.name.endswith(("_total", "_count")) and sample.value:
                name = sample.name.removeprefix("specwatch_").removesuffix("_total")
                labels = dict(sample.labels)
                last = [labels.pop("temperature", "")]
                labels.pop("model_name", None)
                words = [name.removesuffix("_count"), *labels.values(), *last]
                counted[" ".join(filter(None, words))] = sample.value
    return counted
