"""One request of a load, and what came of it. Times are seconds, counts are tokens."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.engines.acceptance import Acceptance


class ErrorKind(enum.StrEnum):
    """Why a request has no whole answer: the closed set of what errors are counted by."""

    CONNECT = "connect"
    """No connection came about."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The server answered 4xx."""
    FAILED = "failed"
    """The server answered 5xx, or an error inside the stream."""
    BROKE_OFF = "broke_off"
    """The stream ended before its end."""
    UNREADABLE = "unreadable"
    """What came is no stream of completions."""


class Prompt(NamedTuple):
    """What a request begins with: a text, or the messages of a conversation."""

    text: str
    messages: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What to ask for: exactly ``max_tokens``, from servers that heed ``ignore_eos``."""

    prompt: str
    max_tokens: int
    temperature: float | None = None
    """None leaves it to the server's default."""
    messages: tuple[Mapping[str, str], ...] = ()
    """A conversation, in place of the prompt; of the chat endpoint."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; all times are on the client's monotonic clock.

    Tokens are those that the server counted; None where it did not say.
    """

    ask: Ask
    sent: float
    ended: float
    status: int | None = None
    first: float | None = None
    """When the first content came."""
    last: float | None = None
    """When the last content came."""
    chunks: int = 0
    """Pieces of content: fewer than tokens where several come at once."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    finish_reason: str | None = None
    acceptance: Acceptance | None = None
    error: ErrorKind | None = None
    detail: str = ""
    """What the server, or the network, said of the error."""
    due: float | None = None
    """When it should have been sent, where that was known before: latencies count from then."""

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None

    @property
    def began(self) -> float:
        """What latencies count from."""
        return self.sent if self.due is None else self.due

    @property
    def latency(self) -> float:
        """Of the whole request, in seconds."""
        return self.ended - self.began

    @property
    def ttft(self) -> float | None:
        """Time to the first content, in seconds."""
        return None if self.first is None else self.first - self.began

    @property
    def tpot(self) -> float | None:
        """(last - first) / (tokens - 1), in seconds; None below two tokens."""
        if self.first is None or self.last is None or self.tokens is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)
