"""Reading a streamed response as it passes.

If the tap and not the client asked for the usage chunk, it is removed again, and the member that
vLLM moves into it (``system_fingerprint``) goes back to the last chunk of the only choice. That
chunk is held until the next one, which the server sends at once.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream.
"""

from __future__ import annotations

import re

from specwatch_tap import answer
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.answer import ResponsePart
from specwatch_tap.request_options import OPENAI
from specwatch_tap.server_facts import Endpoint
from specwatch_tap.whole_response import usage_chunk_without_metrics

LONGEST_EVENT = 1 << 20
"""Bytes of an unfinished event that are held."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r(?!\Z))")
"""A CR at the end of what has arrived may be half of a line end."""
_DATA = re.compile(rb"(?:^|[\r\n])data:[ ]?([^\r\n]*)")
_LONGEST_BLANK_LINE = 4
_CR = 13
_GOES_ON = b'"finish_reason":null'
"""In all chunks but the last one. Quotes inside strings are escaped: it is never text."""
_ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
"""In the chunk before any content, as vLLM sends it."""
_USAGE = b'"usage":'
_DONE = b"[DONE]"
_DATA_IS = b"data: "


class StreamReader:
    """One stream. Times are seconds of one clock."""

    __slots__ = (
        "_begun",
        "_behind",
        "_endpoint",
        "_held",
        "_holds_back",
        "_is_openai",
        "_remove_metrics",
        "_removing",
        "_splitter",
        "acceptance",
        "broke",
        "ended",
        "failed",
        "finish_reason",
        "first",
        "last",
        "prompt_tokens",
        "reasons",
        "steps",
        "stopped_by_string",
        "tokens",
        "unreadable",
        "usual_end",
    )

    def __init__(self, endpoint: Endpoint, *, remove_usage: bool, remove_metrics: bool) -> None:
        """``remove_usage``: remove the usage chunk, which only the tap asked for;
        ``remove_metrics``: keep it, but without the record."""
        self._endpoint = endpoint
        self._removing = remove_usage
        self._holds_back = remove_usage or remove_metrics
        self._remove_metrics = remove_metrics
        self._is_openai = endpoint in OPENAI
        self._splitter: Splitter | None = None
        """Of a stream whose chunks are not one event each."""
        self._held = b""
        """The last chunk of the choice, until the next one comes."""
        self._behind = b""
        """Comments that came after it."""
        self._begun = False
        self.usual_end = b""
        """How chunks that need not be read end, if they are one event; empty if none may be."""
        self.first: float | None = None
        """When the first content came."""
        self.last: float | None = None
        """When the last content came; None as well if that was only counted, which the end of a
        choice never is."""
        self.steps = 0
        """Events with content: as many as engine steps, unless the server joined some."""
        self.finish_reason: str | None = None
        self.reasons = False
        """Whether it has reasoning, of chat."""
        self.stopped_by_string = False
        self.tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.acceptance: Acceptance | None = None
        self.failed = False
        self.ended = False
        """Whether the stream's own end was seen."""
        self.unreadable = False
        self.broke: Exception | None = None
        """An unexpected error of the reading, if there was one."""

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take in what came at ``now``; returns what goes on to the client."""
        if not chunk:
            return chunk
        self.usual_end = b""
        splitter = self._splitter
        if (splitter is None or splitter.idle) and is_one_line(chunk):
            return self._event(chunk, chunk[6:-2], now)
        if splitter is None:
            splitter = self._splitter = Splitter()
        events = [self._event(event, data_of(event), now) for event in splitter.split(chunk)]
        if not splitter.idle:
            self.usual_end = b""
        return b"".join(events) if self._holds_back else chunk

    def add_usual(self, steps: int) -> None:
        """Count chunks that were not fed, as they were one event each with the usual end."""
        self.steps += steps
        self.last = None

    def end(self) -> bytes:
        """The stream is over; returns what was held back."""
        held = self._release()
        remaining = b"" if self._splitter is None else self._splitter.flush()
        return held + remaining if self._holds_back else held  # else it went on when it came

    def _event(self, event: bytes, data: bytes, now: float) -> bytes:
        """Read one event; returns what goes on in its place: the event itself if reading fails."""
        try:
            if not data.startswith(b"{"):
                if data.strip() == _DONE:
                    self.ended = True
                if data or not self._held:
                    return self._release() + event
                self._behind += event  # a comment, in its place
                return b""
            if not self._begun and _ROLE in data and _GOES_ON in data and _USAGE not in data:
                self._begun = True
                return event
            if not self._is_openai and self._is_content(event):
                self._content(now)
                return event
            chunk = answer.read(data)
            if chunk is None:
                self.unreadable = True
                return self._release() + event
            ends = self._note(chunk)
            return self._chunk(event, chunk, ends, now) if self._is_openai else event
        except Exception as error:
            self.broke, self.unreadable = error, True
            return self._release() + event

    def _is_content(self, event: bytes) -> bool:
        line = event[: event.find(b"\n")].rstrip()
        if self._endpoint is Endpoint.MESSAGES:
            return line == b"event: content_block_delta"
        return line.startswith(b"event: response.") and line.endswith(b".delta")

    def _content(self, now: float) -> None:
        if self.first is None:
            self.first = now
        self.last = now
        self.steps += 1

    def _note(self, chunk: ResponsePart) -> bool:
        """Take in what it says beside its content; returns whether it has the finish reason."""
        if chunk.failed:
            self.failed = True
        if (reason := chunk.finish_reason) is not None:
            self.finish_reason = reason
            self.stopped_by_string = self.stopped_by_string or chunk.stopped_by_string
        if chunk.has_numbers:
            if (tokens := chunk.tokens) is not None:
                self.tokens = tokens
            if (prompt_tokens := chunk.prompt_tokens) is not None:
                self.prompt_tokens = prompt_tokens
            self.acceptance = chunk.acceptance or self.acceptance
        if self.finish_reason is not None and (chunk.stop is True or not self._is_openai):
            self.ended = True  # without a [DONE]
        return reason is not None

    def _chunk(self, event: bytes, chunk: ResponsePart, ends: bool, now: float) -> bytes:
        begun, self._begun = self._begun, True
        if not begun and chunk.usage is not None:
            self._removing = False  # usage in every chunk: the server does this to all clients
        if chunk.choices:
            delta = chunk.choices[0].delta
            self.reasons = self.reasons or (delta is not None and delta.reasons)
            if begun or delta is None or not delta.only_names_the_role:
                self._content(now)
            released = self._release()
            if self._removing and ends:
                self._held, self.usual_end = event, b""
                return released
        elif chunk.is_usage_chunk:
            return self._usage_chunk(event, chunk)
        else:
            if chunk.stop is not None:
                self._content(now)  # of llama.cpp's /completion
            released = self._release()
        if self.first is not None:
            self.usual_end = _usual_end(event)
        return released + event

    def _usage_chunk(self, event: bytes, chunk: ResponsePart) -> bytes:
        if not self._removing:
            return self._release() + (
                usage_chunk_without_metrics(event) if self._remove_metrics else event
            )
        fingerprint = bytes(chunk.system_fingerprint)
        if self._held and fingerprint != b"null" and b'"system_fingerprint":' not in self._held:
            self._held = with_member(self._held, b"system_fingerprint", fingerprint)
        return self._release()

    def _release(self) -> bytes:
        if not self._held:  # then nothing is behind it either
            return b""
        held = self._held + self._behind
        self._held = self._behind = b""
        return held


def _usual_end(event: bytes) -> bytes:
    """How the chunks after ``event`` that are only counted will end too."""
    position = event.rfind(_GOES_ON)
    return event[position:] if position >= 0 and is_one_line(event) else b""


def with_member(event: bytes, name: bytes, value: bytes) -> bytes:
    """An event with one more member at the end of its JSON object; ``value`` is JSON."""
    end = event.rindex(b"}")
    return b'%b,"%b":%b%b' % (event[:end], name, value, event[end:])


class Splitter:
    """Splits one stream; holds its unfinished event."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    def split(self, chunk: bytes) -> list[bytes]:
        """The events that ``chunk`` completes, with their blank lines; joined they are the stream.

        An event that grows beyond :data:`LONGEST_EVENT` is handed out in pieces.
        """
        held = self._held
        held += chunk
        events = []
        start = 0
        for match in _BLANK_LINE.finditer(held, self._searched):
            events.append(bytes(held[start : match.end()]))
            start = match.end()
        if len(held) - start > LONGEST_EVENT:
            events.append(bytes(held[start:]))
            start = len(held)
        del held[:start]
        self._searched = max(0, len(held) - _LONGEST_BLANK_LINE)
        return events

    def flush(self) -> bytes:
        """Returns and forgets what is held."""
        remaining = bytes(self._held)
        self._held.clear()
        self._searched = 0
        return remaining


def is_one_line(event: bytes) -> bool:
    """Whether it is one line of data and a blank line, as vLLM sends all its events."""
    return (
        event.startswith(_DATA_IS)
        and event.find(b"\n") == len(event) - 2
        and event.endswith(b"\n")
        and _CR not in event
    )


def data_of(event: bytes) -> bytes:
    """The data of an event, its lines joined; empty for a comment."""
    return b"\n".join(_DATA.findall(event))
