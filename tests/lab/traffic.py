"""A load client for OpenAI servers that shares no code with specwatch: the independent witness.

It measures on its own clock what a user sees, and keeps what the server says about each request.
Times are seconds since the request was sent, counts are tokens.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WORDS = ("the", "loop", "reads", "a", "page", "of", "numbers", "and", "keeps", "what", "changed")
TIMEOUT = 120.0


@dataclass(frozen=True)
class SpecRecord:
    """The server's record of one request's speculation (vLLM's ``metrics`` of a response)."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_lengths: tuple[int, ...]
    """How many drafts had 0, 1, .. k tokens accepted."""

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """How many drafts had at least 1, 2, .. k tokens accepted."""
        return tuple(
            sum(self.accepted_lengths[length:]) for length in range(1, len(self.accepted_lengths))
        )


@dataclass(frozen=True)
class Request:
    """What to ask. None as temperature leaves it to the server's default."""

    temperature: float | None = 0.0
    stream: bool = False
    chat: bool = True
    prompt: str = "hello"
    max_tokens: int = 32
    include_usage: bool = True
    """Whether a stream asks for usage: without it, tokens and record stay unknown."""
    ignore_eos: bool = True
    model: str = "tiny"
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the body, such as ``n``."""

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "ignore_eos": self.ignore_eos,
        }
        if self.chat:
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = self.prompt
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.stream:
            body["stream"] = True
            if self.include_usage:
                body["stream_options"] = {"include_usage": True}
        return body | self.more


@dataclass
class Outcome:
    """What came of one request; ``error`` says why it has no answer, or no whole one."""

    request: Request
    status: int | None = None
    """HTTP status, None where no response came."""
    ttft: float | None = None
    """To the first chunk that carries text; only a stream shows it."""
    last_token: float | None = None
    """To the last chunk that carries text; only a stream shows it."""
    finished: float | None = None
    """To the end of the response."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    events: int = 0
    """Events of a stream that brought something of a completion."""
    record: SpecRecord | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return self.status == 200 and self.error is None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds."""
        if self.ttft is None or self.last_token is None or self.tokens is None or self.tokens < 2:
            return None
        return (self.last_token - self.ttft) / (self.tokens - 1)

    def read(self, response: http.client.HTTPResponse, start: float) -> None:
        """Read a response to its end; ``start`` is when it was asked for, by ``perf_counter``."""
        self.status = response.status
        if response.status != 200:
            self.error = response.read().decode(errors="replace")[:500]
        elif self.request.stream:
            self._read_stream(response, start)
        else:
            self._read_whole(json.load(response))

    def _read_whole(self, body: dict[str, Any]) -> None:
        choice = body["choices"][0]
        self.finish_reason = choice["finish_reason"]
        self.text = choice["message"]["content"] if "message" in choice else choice["text"]
        self._read_account(body)

    def _read_stream(self, response: http.client.HTTPResponse, start: float) -> None:
        done = False
        for line in response:
            now = time.perf_counter() - start
            field_name, _, data = line.decode().strip().partition(": ")
            if field_name != "data":
                continue
            if data == "[DONE]":
                done = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                self.error = str(chunk["error"])
            for choice in chunk.get("choices", ()):
                self.events += 1
                self._read_choice(choice, now)
            self._read_account(chunk)
        if not done and self.error is None:
            self.error = "the stream ended without [DONE]"

    def _read_choice(self, choice: dict[str, Any], now: float) -> None:
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        # The final chunk of a choice may carry tokens that decode to no text.
        if text or (choice["finish_reason"] and self.ttft is not None):
            self.ttft = now if self.ttft is None else self.ttft
            self.last_token = now
            self.text += text or ""
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    def _read_account(self, body: dict[str, Any]) -> None:
        if usage := body.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.tokens = usage["completion_tokens"]
        if record := (body.get("metrics") or {}).get("speculative_decoding"):
            self.record = SpecRecord(
                drafts=record["num_spec_steps"],
                draft_tokens=record["num_draft_tokens"],
                accepted_tokens=record["num_accepted_draft_tokens"],
                accepted_lengths=tuple(record["acceptance_histogram"]),
            )


def requests_at(temperatures: Sequence[float | None], count: int, **fields: Any) -> list[Request]:
    """``count`` requests that take the temperatures in turn, each with its own prompt."""
    turns = itertools.cycle(temperatures)
    return [
        Request(temperature=next(turns), prompt=prompt_number(number), **fields)
        for number in range(count)
    ]


def prompt_number(number: int) -> str:
    """A prompt of 8 to 23 words; unlike numbers give unlike prompts."""
    length = 8 + number % 16
    words = (WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(length))
    return f"{number}: " + " ".join(words)


def send_all(
    url: str, requests: Sequence[Request], concurrency: int = 4, *, key: str | None = None
) -> list[Outcome]:
    """Send the requests, at most ``concurrency`` at a time; the outcomes are in their order."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda request: send(url, request, key=key), requests))


def headers(key: str | None = None) -> dict[str, str]:
    """Of a request with a JSON body and, where there is one, an API key."""
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    return {"Content-Type": "application/json", **authorization}


def send(url: str, request: Request, *, key: str | None = None) -> Outcome:
    """Send one request to the server at ``url`` and read the answer to its end; never raises.

    ``key`` is the API key, where the server wants one.
    """
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=TIMEOUT)
    outcome, start = Outcome(request), time.perf_counter()
    try:
        connection.request("POST", request.path, json.dumps(request.body), headers(key))
        outcome.read(connection.getresponse(), start)
    except (OSError, http.client.HTTPException, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        outcome.finished = time.perf_counter() - start
        connection.close()
    return outcome
