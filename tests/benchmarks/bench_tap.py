"""What the tap adds to the CPU time of a request and of a streamed chunk.

Measured without a server around it: an application that answers at once, bare, under a wrapper that
does nothing, and under the tap, in turn; of many rounds the cheapest counts, since other work on
the machine only adds. Multi-process mode, in which counters are files, needs its own process:
``python -m tests.benchmarks.bench_tap`` prints what it measures as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from specwatch_tap import Tap
from specwatch_tap.exchange import Message, Receive, Send
from specwatch_tap.middleware import App
from specwatch_tap.server_facts import Endpoint, Scope, ServerFacts
from specwatch_tap.settings import Settings
from tests.benchmarks.figure import Figure

_ROOT = Path(__file__).parents[2]
_DATA = _ROOT / "tests" / "data"
_ROUNDS = 60
_REQUESTS = 200
_CHUNKS = 1000
_QUESTION = "Write a limerick about a drafter whose target keeps nothing. " * 64
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time beyond that of the bare application, in microseconds."""

    whole: float
    streamed: float
    chunk: float


def run() -> list[Figure]:
    """Measure both modes."""
    wrapper, tap, segmented = measure()
    with tempfile.TemporaryDirectory(prefix="specwatch-bench-") as directory:
        found = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.bench_tap"],
            cwd=_ROOT,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": directory},
            stdout=subprocess.PIPE,
            check=True,
        )
    others = Costs(**json.loads(found.stdout))
    peer = "; peer: a wrapper that does nothing"
    return [
        Figure(f"tap: a request, 4 KB{peer}", tap.whole, "µs", wrapper.whole, 10, 5),
        Figure(f"tap: a streamed chunk{peer}", tap.chunk, "µs", wrapper.chunk, 0.5, 0.2),
        Figure(
            f"tap: a stream but for its chunks{peer}",
            tap.streamed,
            "µs",
            wrapper.streamed,
            10,
        ),
        Figure("tap: a request, two segments", segmented.whole, "µs"),
        Figure("tap: a request, multi-process mode", others.whole, "µs", None, 10, 5),
        Figure("tap: a streamed chunk, multi-process mode", others.chunk, "µs", None, 0.5, 0.2),
        Figure("tap: a stream but for its chunks, multi-process mode", others.streamed, "µs"),
    ]


def measure() -> tuple[Costs, Costs, Costs]:
    """Of the wrapper, of the tap, and of the tap with two segments."""
    facts = ServerFacts("tiny", default_temperature=1.0, draft_tokens=4, keeps_records=True)
    registry = CollectorRegistry()

    def tapped(app: App, *segments: str) -> App:
        settings = Settings(segments=segments)
        return Tap(app, server=_Known(facts), settings=settings, registry=registry)

    layers: list[Callable[[App], App]] = [
        lambda app: app,
        _Wrapper,
        tapped,
        lambda app: tapped(app, "prompt_length", "header:user-agent"),
    ]
    whole = _cheapest(layers, _whole(), _body(stream=False), _REQUESTS)
    short = _cheapest(layers, _stream(1), _body(stream=True), _REQUESTS)
    long = _cheapest(layers, _stream(_CHUNKS + 1), _body(stream=True), 1)
    wrapper, tap, segmented = (
        Costs(
            whole[at] - whole[0],
            short[at] - short[0],
            ((long[at] - long[0]) - (short[at] - short[0])) / _CHUNKS,
        )
        for at in (1, 2, 3)
    )
    return wrapper, tap, segmented


class _Known:
    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        return self._facts


class _Wrapper:
    """The least that any ASGI middleware costs that looks at what passes."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_in() -> Message:
            return await receive()

        async def pass_out(message: Message) -> None:
            await send(message)

        await self._app(scope, pass_in, pass_out)


def _whole() -> App:
    """Answers as vLLM does: a head and one body."""
    body = (_DATA / "chat-response.json").read_bytes()
    headers = [*_JSON, (b"content-length", str(len(body)).encode())]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _stream(chunks: int) -> App:
    """Streams as vLLM does to a client that did not ask for usage, and the tap does."""
    events = (_DATA / "chat-stream-usage.sse").read_bytes().split(b"\n\n")[:-1]
    role, usual, *_, last, usage, done = [event + b"\n\n" for event in events]
    sent = [role, *[usual] * chunks, last, usage, done]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        for event in sent:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def _body(*, stream: bool) -> bytes:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": _QUESTION}],
        "temperature": 0.7,
        "max_tokens": 256,
        "stream": stream,
    }
    return json.dumps(asked).encode()


def _cheapest(
    layers: list[Callable[[App], App]], app: App, body: bytes, requests: int
) -> list[float]:
    """The least CPU time of a request under each layer, in microseconds."""
    apps = [layer(app) for layer in layers]
    scope = _scope(body)
    found = [float("inf")] * len(apps)
    for _ in range(_ROUNDS):
        for at, layered in enumerate(apps):
            began = time.thread_time_ns()
            for _ in range(requests):
                _finish(layered, scope, body)
            found[at] = min(found[at], (time.thread_time_ns() - began) / 1e3 / requests)
    return found


def _finish(app: App, scope: Scope, body: bytes) -> None:
    """One request, without an event loop: nothing here ever waits."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        pass

    handling = app(scope, receive, send).__await__()
    for _ in handling:
        raise AssertionError("something waits")


def _scope(body: bytes) -> Scope:
    """As uvicorn gives it for a request of the ``openai`` package."""
    headers = {
        "host": "127.0.0.1:8000",
        "accept": "application/json",
        "accept-encoding": "gzip, deflate",
        "connection": "keep-alive",
        "content-type": "application/json",
        "user-agent": "OpenAI/Python 2.8.0",
        "x-stainless-lang": "python",
        "x-stainless-package-version": "2.8.0",
        "x-stainless-os": "Linux",
        "x-stainless-arch": "x64",
        "x-stainless-runtime": "CPython",
        "x-stainless-runtime-version": "3.11.7",
        "authorization": "Bearer key",
        "x-stainless-async": "false",
        "x-stainless-retry-count": "0",
        "x-stainless-read-timeout": "600",
        "content-length": str(len(body)),
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 40000),
        "scheme": "http",
        "method": "POST",
        "root_path": "",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "state": {},
    }


if __name__ == "__main__":
    print(json.dumps(asdict(measure()[1])))
