"""Sending requests and timing their streams: what a user of the server sees.

Times are seconds, counts are tokens.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

import aiohttp
import msgspec

from specwatch import __version__
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch_tap.acceptance import Acceptance, Extension, Metrics, Timings, acceptance_of

CHAT, COMPLETIONS = "chat", "completions"
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
_TOKENIZER_SECONDS = 10.0
_LONGEST_COUNT = 1 << 24
"""Bytes of an answer of the tokenizer endpoint, which lists all tokens."""
_LONGEST_LINE = 1 << 20
_LONGEST_DETAIL = 300
_Count = Annotated[int, msgspec.Meta(ge=0)]


class LoadClient:
    """Sends requests to one OpenAI server, any number at a time; an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        endpoint: str = CHAT,
        headers: Callable[[], Mapping[str, str]] = dict,
        fields: Mapping[str, Any] | None = None,
        keep_alive: bool = True,
        tls: ssl.SSLContext | None = None,
        timeout: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``timeout`` bounds one request in seconds; ``headers`` is called for each.

        ``fields`` are in each request beside the usual ones. Without ``keep_alive`` each request
        opens a connection.
        """
        self._url = url + _PATHS[endpoint]
        self._tokenizer_url = url + "/tokenize"
        self._chat = endpoint == CHAT
        self._model = model
        self._headers = headers
        self._fields = fields or {}
        self._keep_alive = keep_alive
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._clock = clock
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=self._tls, force_close=not self._keep_alive
            ),
            timeout=self._timeout,
            headers={"User-Agent": f"specwatch/{__version__}"},
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
        """Send one request and read its answer to the end; no failure of the server raises.

        ``first`` is called when the first content comes. Cancelling closes the connection, which
        aborts the request. Raises ConfigError when ``headers`` does.
        """
        body = {
            "model": self._model,
            "max_tokens": ask.max_tokens,
            **({} if ask.read_text else {"ignore_eos": True}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
            **self._content(ask),
            **({} if ask.temperature is None else {"temperature": ask.temperature}),
        }
        headers = dict(self._headers())
        reading = _StreamReader(ask, self._clock, first)
        error: ErrorKind | None = None
        try:
            async with self._session.post(
                self._url, json=body, headers=headers, allow_redirects=False
            ) as response:
                reading.status = response.status
                error, detail = await reading.read(response)
        except TimeoutError:
            error, detail = ErrorKind.TIMEOUT, f"no end within {self._timeout.total:g} s"
        except aiohttp.ClientConnectorError as failed:
            error, detail = ErrorKind.CONNECT, str(failed)
        except (aiohttp.ClientError, OSError) as failed:
            error, detail = ErrorKind.BROKE_OFF, str(failed) or type(failed).__name__
        except (ValueError, RecursionError) as failed:
            error, detail = ErrorKind.UNREADABLE, f"{type(failed).__name__}: {failed}"
        return reading.answer(error, detail[:_LONGEST_DETAIL])

    async def count_tokens(self, prompt: str) -> int | None:
        """Tokens of a prompt by the server's tokenizer, chat template included; None if it has no
        such endpoint. Raises ConfigError when ``headers`` does."""
        body = b""
        try:
            async with self._session.post(
                self._tokenizer_url,
                json={"model": self._model, **self._content(Ask(prompt, 0))},
                headers=dict(self._headers()),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=_TOKENIZER_SECONDS),
            ) as response:
                async for piece in response.content.iter_any():
                    body += piece
                    if response.status != 200 or len(body) > _LONGEST_COUNT:
                        return None
            count = json.loads(body)["count"]
        except (aiohttp.ClientError, OSError):  # TimeoutError too
            return None
        except (ValueError, RecursionError, KeyError, TypeError):  # not vLLM's answer
            return None
        return count if type(count) is int and count > 0 else None

    def _content(self, ask: Ask) -> dict[str, Any]:
        if self._chat:
            return {"messages": ask.messages or ({"role": "user", "content": ask.prompt},)}
        return {"prompt": ask.prompt}


class StreamDelta(msgspec.Struct, gc=False):
    """What a chunk adds to an answer, under the names that servers give to it."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    text: Any = None

    @property
    def has_tokens(self) -> bool:
        """Whether it has content, and not only the role."""
        return bool(self.words or self.tool_calls)

    @property
    def words(self) -> Any:
        """The text of it."""
        return self.content or self.reasoning or self.reasoning_content or self.text


class StreamChoice(StreamDelta, gc=False):
    """One of ``choices``: of a chat the content is in ``delta``, else in the choice itself."""

    delta: StreamDelta | None = None
    finish_reason: str | None = None


class StreamUsage(msgspec.Struct, gc=False):
    """Numbers of tokens, in one of the last events."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class StreamEvent(msgspec.Struct, gc=False):
    """One ``data:`` line. A field of another type makes the answer unreadable."""

    choices: list[StreamChoice] | None = None
    usage: StreamUsage | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None
    sglext: Extension | None = None
    error: Any = None


_read_event = msgspec.json.Decoder(StreamEvent).decode


class _StreamReader:
    """What has been read of one stream so far; servers send each event as one ``data:`` line."""

    def __init__(self, ask: Ask, clock: Callable[[], float], first: Callable[[], None]) -> None:
        self._ask = ask
        self._clock = clock
        self._tell_first = first
        self._sent = clock()
        self.status: int | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._chunks = 0
        self._usage = StreamUsage()
        self._finish_reason: str | None = None
        self._acceptance: Acceptance | None = None
        self._texts: list[str] = []

    def answer(self, error: ErrorKind | None, detail: str) -> Answer:
        """The answer, as far as it is known."""
        return Answer(
            ask=self._ask,
            sent=self._sent,
            ended=self._clock(),
            status=self.status,
            first=self._first,
            last=self._last,
            chunks=self._chunks,
            prompt_tokens=self._usage.prompt_tokens,
            tokens=self._usage.completion_tokens,
            finish_reason=self._finish_reason,
            acceptance=self._acceptance,
            text="".join(self._texts),
            error=error,
            detail=detail,
        )

    async def read(self, response: aiohttp.ClientResponse) -> tuple[ErrorKind | None, str]:
        """Read to the end; returns what was wrong with the answer, if anything."""
        if response.status != 200:
            text = (await response.content.read(4096)).decode("utf-8", "replace")
            kind = ErrorKind.FAILED if response.status >= 500 else ErrorKind.REFUSED
            return kind, f"{response.status} {_message(text)}"
        unfinished = b""
        # By what has come, not by lines: each line that is waited for costs as much as reading it.
        async for chunk in response.content.iter_any():
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        # What a whole answer must have.
                        if not (tokens := self._usage.completion_tokens):
                            return ErrorKind.UNREADABLE, "it has no token count (stream_options)"
                        if self._first is None and not self._ask.read_text:
                            return ErrorKind.UNREADABLE, f"{tokens} tokens but no content"
                        return None, ""
                    if problem := self._take(data, self._clock()):
                        return ErrorKind.FAILED, problem
            if len(unfinished) > _LONGEST_LINE:
                return ErrorKind.UNREADABLE, f"a line of more than {_LONGEST_LINE >> 20} MiB"
        return ErrorKind.BROKE_OFF, "the stream ended without [DONE]"

    def _take(self, data: bytes, now: float) -> str | None:
        """Record an event received at ``now``; returns the message if it is an error."""
        event = _read_event(data)
        if event.error is not None:
            return _message(data.decode("utf-8", "replace"))
        for choice in event.choices or ():
            reason = choice.finish_reason
            if self._ask.read_text and (words := (choice.delta or choice).words):
                self._texts.append(str(words))
            # The last chunk may carry tokens that decode to no text.
            if (choice.delta or choice).has_tokens or (reason and self._first is not None):
                if self._first is None:
                    self._first = now
                    self._tell_first()
                self._last = now
                self._chunks += 1
            self._finish_reason = reason or self._finish_reason
        self._usage = event.usage or self._usage
        acceptance = acceptance_of(event.metrics, event.timings, event.sglext)
        self._acceptance = acceptance or self._acceptance
        return None


def _message(text: str) -> str:
    """The message of an error in OpenAI's format, else the text itself."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return " ".join(text.split())
