"""Clients of the simulated API within its own process: built-in traffic that middleware sees."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive

from specwatch.lab.simulator.completion_request import CHARACTERS_PER_TOKEN, TOKENS_PER_MESSAGE
from specwatch.lab.simulator.runtime import SimulatedRuntime
from specwatch.lab.simulator.workload import SimulatedRequest, SimulatedWorkload

_STREAMED = 0.7
"""Share of the requests that ask for a stream."""
_log = structlog.get_logger(__name__)


class SimulatedClients:
    """Sends the traffic of the settings through an application, as requests to its chat API."""

    def __init__(self, app: ASGIApp, runtime: SimulatedRuntime) -> None:
        settings = runtime.settings
        self._app = app
        self._runtime = runtime
        self._workload = SimulatedWorkload(settings.traffic, settings.seed, settings.max_model_len)
        self._random = random.Random(f"clients/{settings.seed}")
        self._headers = [(b"content-type", b"application/json")]
        if settings.api_keys:
            self._headers.append((b"authorization", f"Bearer {settings.api_keys[0]}".encode()))

    async def run(self) -> None:
        """Send requests until cancelled."""
        self._workload.start(self._runtime.now)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workload.traffic.concurrency):
                group.create_task(self._keep_asking())
            while self._workload.next_arrival < float("inf"):
                wait = self._workload.next_arrival - self._runtime.now
                await asyncio.sleep(wait / self._runtime.settings.time_scale)
                group.create_task(self._ask(self._workload.arrive()))

    async def _keep_asking(self) -> None:
        while True:
            await self._ask(self._workload.draw())

    async def _ask(self, request: SimulatedRequest) -> None:
        body = {
            "messages": [
                {"role": "user", "content": "x" * (request.prompt_tokens * CHARACTERS_PER_TOKEN)}
            ],
            "temperature": request.temperature,
            "max_tokens": max(1, request.max_tokens - TOKENS_PER_MESSAGE),
            "stream": self._random.random() < _STREAMED,
        }
        try:
            await self._app(self._scope(), _sending(json.dumps(body).encode()), _ignore)
        except Exception:
            _log.exception("simulated_request_failed")

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "root_path": "",
            "query_string": b"",
            "headers": list(self._headers),
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", self._runtime.settings.port),
        }


def _sending(body: bytes) -> Receive:
    """The messages of a client that sends a body and stays."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return receive


async def _ignore(_: Message) -> None:
    """Ignore the answer."""
