"""A server with the real switch: its thread, the tap's route, and a page whose counters follow.

What drafts is not vLLM: each page counts ``tokens`` more tokens, in steps with as many draft tokens
as are ordered, or as launched if the server does not obey.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Self

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from specwatch.runtime.http_server import HttpServer
from specwatch_tap import Tap, switch
from specwatch_tap.exchange import Receive, Send
from specwatch_tap.orders import SwitchState
from specwatch_tap.server_facts import Scope
from specwatch_tap.settings import Settings
from specwatch_tap.switch import Switch
from tests.pages import counter, page

LAUNCH = SwitchState(server="", launch_draft_tokens=4, launch_schedule=((1, 4),))
TOKEN = "0123456789abcdef0123456789abcdef"


class SwitchedServer(contextlib.ExitStack):
    """Serves from entering to leaving; ``url`` is where."""

    def __init__(
        self,
        directory: Path,
        launch: SwitchState = LAUNCH,
        *,
        tokens: int = 40,
        obeys: bool = True,
    ) -> None:
        super().__init__()
        directory.mkdir(mode=0o770, exist_ok=True)
        self.directory = directory
        self.used: list[int | None] = []
        self.switch = Switch(directory, launch, self.used.append)
        self._launch = launch
        self._tokens = tokens
        self._obeys = obeys
        self._counts = {"generation_tokens": 0, "drafts": 0, "draft_tokens": 0}
        self._registry = CollectorRegistry()

    def __enter__(self) -> Self:
        wanted = Settings(switch_directory=self.directory, switch_token=TOKEN)
        tap = Tap(self._application, settings=wanted, registry=self._registry)
        server = HttpServer(tap, "127.0.0.1", 0, name="switched")
        server.start()
        self.callback(server.stop, 5.0)
        self.url = server.url
        patch = self.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(switch, "_SECONDS", 0.005)
        self.switch.turn()
        self.switch.start()
        self.callback(self.switch.stop)
        return self

    def hang(self) -> None:
        """Look for orders no more, as a process that was stopped: it keeps its lock."""
        hangs = threading.Event()
        self.switch.turn = hangs.set  # type: ignore[method-assign]
        assert hangs.wait(10)

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = self._page() if scope["path"] == "/metrics" else b"{}"
        status = 200 if scope["path"] in ("/metrics", "/health", "/v1/models") else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text})

    def _page(self) -> bytes:
        state = self.switch.state
        k = state.draft_tokens_now if self._obeys else state.launch_draft_tokens
        self._counts["generation_tokens"] += self._tokens
        self._counts["drafts"] += self._tokens // 2 if k else 0
        self._counts["draft_tokens"] += self._tokens // 2 * k
        labels = {"engine": "0", "model_name": "m"}
        ours = page(
            counter("vllm:generation_tokens", self._counts["generation_tokens"], **labels),
            counter("vllm:spec_decode_num_drafts", self._counts["drafts"], **labels),
            counter("vllm:spec_decode_num_draft_tokens", self._counts["draft_tokens"], **labels),
        )
        return ours.encode() + generate_latest(self._registry)
