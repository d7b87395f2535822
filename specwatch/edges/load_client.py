"""Sending one request at a time and timing its stream: what a user of the server sees.

Needs the package aiohttp, of the extra ``bench``. Times are seconds, counts are tokens.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from specwatch import __version__
from specwatch.core.load import Acceptance, Answer, Ask, ErrorKind
from specwatch.errors import ConfigError

try:
    import aiohttp
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "aiohttp":
        raise
    raise ConfigError(
        "sending requests needs the package aiohttp; install it: pip install 'specwatch[bench]'"
    ) from None

CHAT, COMPLETIONS = "chat", "completions"
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
_LONGEST_LINE = 1 << 20
_LONGEST_DETAIL = 300
_TIMINGS = {"draft_n", "draft_n_accepted", "predicted_n"}


class LoadClient:
    """Sends requests to one OpenAI server, any number at a time; an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        endpoint: str = CHAT,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
        timeout: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``timeout`` bounds one request in seconds; ``headers`` is called for each."""
        self._url = url + _PATHS[endpoint]
        self._chat = endpoint == CHAT
        self._model = model
        self._headers = headers
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),
            timeout=self._timeout,
            headers={"User-Agent": f"specwatch/{__version__}"},
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
        """Send one request and read its answer to the end; no failure of the server raises.

        ``first`` is called when the first content comes. Cancelling closes the connection, which
        aborts the request. Raises ConfigError when ``headers`` does.
        """
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        reading = _Reading(self._clock, first)
        headers = dict(self._headers())
        sent = self._clock()
        error, detail = None, ""
        try:
            async with self._session.post(
                self._url, json=self._body(ask), headers=headers, allow_redirects=False
            ) as response:
                reading.status = response.status
                error, detail = await reading.read(response)
        except TimeoutError:
            error, detail = ErrorKind.TIMEOUT, f"no end within {self._timeout.total:g} s"
        except aiohttp.ClientConnectorError as failed:
            error, detail = ErrorKind.CONNECT, str(failed)
        except (aiohttp.ClientError, OSError) as failed:
            error, detail = ErrorKind.BROKE_OFF, str(failed) or type(failed).__name__
        except (ValueError, KeyError, TypeError, AttributeError) as failed:
            error, detail = ErrorKind.UNREADABLE, f"{type(failed).__name__}: {failed}"
        return Answer(
            ask=ask,
            sent=sent,
            ended=self._clock(),
            error=error,
            detail=detail[:_LONGEST_DETAIL],
            **reading.found(),
        )

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": ask.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._chat:
            body["messages"] = ask.messages or ({"role": "user", "content": ask.prompt},)
        else:
            body["prompt"] = ask.prompt
        if ask.temperature is not None:
            body["temperature"] = ask.temperature
        return body


class _Reading:
    """What has been read of one stream so far.

    Every server of interest sends each event as one ``data:`` line.
    """

    def __init__(self, clock: Callable[[], float], first: Callable[[], None]) -> None:
        self._clock = clock
        self._tell_first = first
        self.status: int | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._chunks = 0
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._acceptance: Acceptance | None = None

    def found(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "first": self._first,
            "last": self._last,
            "chunks": self._chunks,
            "prompt_tokens": self._usage.get("prompt_tokens"),
            "tokens": self._usage.get("completion_tokens"),
            "finish_reason": self._finish_reason,
            "acceptance": self._acceptance,
        }

    async def read(self, response: aiohttp.ClientResponse) -> tuple[ErrorKind | None, str]:
        """Read to the end; returns what was wrong with the answer, if anything."""
        if response.status != 200:
            said = (await response.content.read(4096)).decode("utf-8", "replace")
            kind = ErrorKind.FAILED if response.status >= 500 else ErrorKind.REFUSED
            return kind, f"{response.status} {_message(said)}"
        rest = b""
        # By what has come, not by lines: each line that is waited for costs as much as reading it.
        async for came in response.content.iter_any():
            *lines, rest = (rest + came).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return None, ""
                    if problem := self._take(data, self._clock()):
                        return ErrorKind.FAILED, problem
            if len(rest) > _LONGEST_LINE:
                return ErrorKind.UNREADABLE, f"a line of more than {_LONGEST_LINE >> 20} MiB"
        return ErrorKind.BROKE_OFF, "the stream ended without [DONE]"

    def _take(self, data: bytes, now: float) -> str | None:
        """Note an event that came at a time; returns the message of one that is an error."""
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            return _message(data.decode("utf-8", "replace"))
        for choice in chunk.get("choices") or ():
            told = choice.get("delta") or choice
            text = told.get("content") or told.get("reasoning") or told.get("text")
            reason = choice.get("finish_reason")
            # The last piece may carry tokens that decode to no text.
            if text or (reason and self._first is not None):
                if self._first is None:
                    self._first = now
                    self._tell_first()
                self._last = now
                self._chunks += 1
            self._finish_reason = reason or self._finish_reason
        self._usage = chunk.get("usage") or self._usage
        self._acceptance = _acceptance(chunk) or self._acceptance
        return None


def _acceptance(chunk: Mapping[str, Any]) -> Acceptance | None:
    """vLLM's record of a request, or what llama.cpp's ``timings`` tell of it.

    Those do not count steps: each yields a token beside those accepted, the first is the prompt's.
    """
    record = (chunk.get("metrics") or {}).get("speculative_decoding")
    if record:
        return Acceptance(
            record["num_spec_steps"],
            record["num_draft_tokens"],
            record["num_accepted_draft_tokens"],
            tuple(record.get("acceptance_histogram") or ()),
        )
    timings = chunk.get("timings") or {}
    if timings.keys() >= _TIMINGS:
        accepted = int(timings["draft_n_accepted"])
        steps = max(int(timings["predicted_n"]) - 1 - accepted, 0)
        return Acceptance(steps, int(timings["draft_n"]), accepted)
    return None


def _message(said: str) -> str:
    """The message of an error as OpenAI's servers word it, else the text itself."""
    try:
        error = json.loads(said)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return " ".join(said.split())
