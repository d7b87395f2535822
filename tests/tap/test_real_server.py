"""The tap under uvicorn, around a starlette application, with bytes on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specwatch.runtime.http_server import HttpServer
from tests.tap.exchanges import QUESTION, STREAMED, counts, tapped
from tests.tap.streams import DATA, PLAIN, USAGE, events_of
from tests.tap.test_middleware import RECORD, TIMES

CHAT = (DATA / "chat-response.json").read_bytes()
ENDLESS = "endless"


async def chat(request: Request) -> Response:
    """Answers as vLLM does; a client may ask for a stream that never ends."""
    body = await request.body()
    assert int(request.headers["content-length"]) == len(body)
    asked = await request.json()
    if asked.get("user") == ENDLESS:
        return StreamingResponse(_endless(), media_type="text/event-stream")
    if asked.get("stream"):
        usage = (asked.get("stream_options") or {}).get("include_usage")
        return StreamingResponse(_events(USAGE if usage else PLAIN), media_type="text/event-stream")
    return Response(
        CHAT, media_type="application/json", background=BackgroundTask(asyncio.sleep, 0)
    )


async def _events(stream: bytes) -> AsyncIterator[str]:
    for event in events_of(stream):
        yield event.decode()
        await asyncio.sleep(0)


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield events_of(USAGE)[1]
        await asyncio.sleep(0.001)


class Looking(BaseHTTPMiddleware):
    """Reads the headers before the body is there, and hands the body on in parts."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        assert request.headers["content-length"]
        return await call_next(request)


ROUTES = [Route("/v1/chat/completions", chat, methods=["POST"])]


@contextlib.contextmanager
def serving(registry: CollectorRegistry, app: Starlette | None = None) -> Iterator[HttpServer]:
    tap = tapped(app or Starlette(routes=ROUTES), registry)
    server = HttpServer(tap, "127.0.0.1", 0, name="tapped", grace=0.1)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def post(server: HttpServer, body: bytes, **fields: str) -> tuple[http.client.HTTPResponse, bytes]:
    """One request on a connection of its own."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    with contextlib.closing(
        http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    ) as connection:
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json", **fields}
        )
        response = connection.getresponse()
        return response, response.read()


def settled(registry: CollectorRegistry, expected: dict[str, float]) -> None:
    """The counts are as expected, if not at once: the client has its answer before they are."""
    deadline = time.monotonic() + 60
    while counts(registry) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts(registry) == expected


STACKS = {
    "bare": [],
    "that reads the headers first": [Middleware(Looking)],
    "that compresses": [Middleware(GZipMiddleware, minimum_size=1)],
    "of many": [
        Middleware(CORSMiddleware, allow_origins=["*"]),
        Middleware(GZipMiddleware, minimum_size=1),
        Middleware(Looking),
        Middleware(Looking),
    ],
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_whole_and_streamed_through_a_stack(
    registry: CollectorRegistry, stack: list[Middleware]
) -> None:
    with serving(registry, Starlette(routes=ROUTES, middleware=stack)) as server:
        response, body = post(server, QUESTION, **{"Accept-Encoding": "gzip"})
        assert (response.status, body) == (200, CHAT)
        settled(registry, RECORD)
        response, body = post(server, STREAMED, **{"Accept-Encoding": "gzip"})
        assert response.headers["transfer-encoding"] == "chunked"
        left, right = events_of(body), events_of(PLAIN)
        assert [e[:6] + e[50:] for e in left[:-2]] == [e[:6] + e[50:] for e in right[:-2]]
        assert json.loads(left[-2][6:]).keys() == json.loads(right[-2][6:]).keys()
        settled(registry, {name: 2 * count for name, count in RECORD.items()} | TIMES)


def test_a_client_that_leaves_ends_the_stream(registry: CollectorRegistry) -> None:
    body = STREAMED[:-1] + b',"user":"%b"}' % ENDLESS.encode()
    with serving(registry) as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        settled(
            registry,
            {
                "tap_uncovered_requests disconnected (0,1]": 1.0,
                "time_to_first_token_seconds (0,1]": 1.0,
            },
        )


def test_a_client_that_leaves_before_its_request_is_there(registry: CollectorRegistry) -> None:
    with serving(registry) as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
            )
            time.sleep(0.05)
        settled(registry, {"tap_uncovered_requests disconnected unknown": 1.0})
