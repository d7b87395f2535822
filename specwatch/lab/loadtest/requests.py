"""One request of a load, and its answer. Times are seconds, counts are tokens."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from specwatch_tap.acceptance import Acceptance


class ErrorKind(enum.StrEnum):
    """Why a request has no complete answer."""

    CONNECT = "connect"
    """The connection failed."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The server answered 4xx."""
    FAILED = "failed"
    """The server answered 5xx, or an error inside the stream."""
    BROKE_OFF = "broke_off"
    """The stream ended early."""
    UNREADABLE = "unreadable"
    """The response is not a stream of completions."""


class Prompt(NamedTuple):
    """A prompt: a text, or the messages of a conversation."""

    text: str
    messages: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for exactly ``max_tokens``, from servers that support ``ignore_eos``.

    With ``read_text`` the model ends its answer by itself, and the text is kept.
    """

    prompt: str
    max_tokens: int
    temperature: float | None = None
    """None for the server's default."""
    messages: tuple[Mapping[str, str], ...] = ()
    """A conversation, in place of the prompt; for the chat endpoint."""
    read_text: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request; all times are on the client's monotonic clock.

    Tokens are those that the server counted; None if it did not report them.
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
    """Chunks with content: fewer than tokens if several are sent at once."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    finish_reason: str | None = None
    acceptance: Acceptance | None = None
    text: str = ""
    """Reasoning and content, if it was asked for."""
    error: ErrorKind | None = None
    detail: str = ""
    """The message of the error."""
    due: float | None = None
    """When it should have been sent, in an open loop: latencies count from then."""

    @property
    def ok(self) -> bool:
        """Whether the answer is complete."""
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
