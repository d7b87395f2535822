"""The tap, but not for requests with the key :data:`WITHOUT`: both ways in one process of vLLM."""

from __future__ import annotations

from specwatch_tap import Tap
from specwatch_tap.exchange import Receive, Send
from specwatch_tap.middleware import App
from specwatch_tap.server_facts import Scope

WITHOUT = "without-the-tap"
_FIELD = (b"authorization", f"Bearer {WITHOUT}".encode())


class OptionalTap:
    """Middleware for ``vllm serve --middleware``."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tap = Tap(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, by the tap or past it."""
        past = scope["type"] == "http" and _FIELD in scope["headers"]
        await (self._app if past else self._tap)(scope, receive, send)
