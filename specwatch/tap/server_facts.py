"""What the tap needs to know about the server whose requests it reads."""

from __future__ import annotations

import enum
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
"""An ASGI connection scope."""


class Endpoint(enum.StrEnum):
    """An API that generates."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"
    """Generates, but the tap cannot read its responses."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server at the time of a request.

    ``model_name`` is the one on the server's own metrics. ``default_temperature`` holds for
    requests without a temperature; None when it is not known. ``draft_tokens`` is the k of the
    server's speculation: 0 while it does not speculate, None when it is not known.
    ``keeps_records`` says that responses carry a record of their acceptance. ``forces_usage`` says
    that streams carry usage whether or not the client asks, ``joins_steps`` that one event may hold
    the tokens of several engine steps. ``asks_nothing`` says that requests are not changed: for a
    server whose streams have the numbers anyway (llama.cpp's ``timings``), or that might refuse.
    """

    model_name: str
    default_temperature: float | None = None
    draft_tokens: int | None = None
    keeps_records: bool = False
    forces_usage: bool = False
    joins_steps: bool = False
    asks_nothing: bool = False


class FactsSource(Protocol):
    """Gives the facts; called once per request, so it must not wait."""

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        """The facts now."""
