"""Reading a response that is not streamed."""

from __future__ import annotations

import json

from specwatch_tap import answer
from specwatch_tap.answer import ResponsePart

TAIL = 64 * 1024
"""Bytes of the end that are held; they have the acceptance, the usage and the finish reason."""

_METRICS = b'"metrics":'


class WholeReader:
    """One response body."""

    __slots__ = ("_cut", "_holds_back", "_tail", "answer", "broke")

    def __init__(self, *, remove_metrics: bool) -> None:
        """``remove_metrics``: the record is removed; for that the end is held back."""
        self._holds_back = remove_metrics
        self._tail = bytearray()
        self._cut = False
        self.answer: ResponsePart | None = None
        """What it says, once it is over; None when it cannot be read."""
        self.broke: Exception | None = None
        """An unexpected error of the reading, if there was one."""

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Take in the next part; returns what goes on to the client."""
        if last and not self._tail:  # as vLLM sends them
            return self._end(chunk)
        tail = self._tail
        tail += chunk
        beyond = max(0, len(tail) - TAIL)
        passed = bytes(tail[:beyond]) if self._holds_back else chunk
        if beyond:
            del tail[:beyond]
            self._cut = True
        if not last:
            return passed
        end = self._end(bytes(tail))
        tail.clear()
        return passed + end if self._holds_back else passed

    def _end(self, text: bytes) -> bytes:
        """Look at the end; returns what goes on in its place, whatever happens here."""
        try:
            self.answer = answer.read_end(text) if self._cut else answer.read(text)
            return without_metrics(text) if self._holds_back else text
        except Exception as error:
            self.broke = error
            return text


def without_metrics(text: bytes) -> bytes:
    """A whole response, or its end, as it is without the record: ``"metrics":null``.

    Timing that the operator switched on stays. A response that has no record stays as it is.
    """
    return _replaced(text, b"null")


def usage_chunk_without_metrics(event: bytes) -> bytes:
    """The usage chunk of a stream as it is without the record: no member ``metrics``.

    Timing that the operator switched on stays.
    """
    return _replaced(event, b"")


def _replaced(text: bytes, instead: bytes) -> bytes:
    position = text.rfind(_METRICS)
    if position < 0:
        return text
    start = position + len(_METRICS)
    decoded = text[start:].decode("utf-8", "replace")
    try:
        metrics, length = json.JSONDecoder().raw_decode(decoded)
    except (ValueError, RecursionError):
        return text
    if not isinstance(metrics, dict) or not metrics.get("speculative_decoding"):
        return text
    end = start + len(decoded[:length].encode())
    timing = {name: value for name, value in metrics.items() if name != "speculative_decoding"}
    if any(value is not None for value in timing.values()):
        kept = {**timing, "speculative_decoding": None} if instead else timing
        member = json.dumps(kept, separators=(",", ":"), ensure_ascii=False).encode()
        return text[:start] + member + text[end:]
    if instead:
        return text[:start] + instead + text[end:]
    if text[position - 1 : position] == b",":
        return text[: position - 1] + text[end:]
    return text[:position] + text[end:].removeprefix(b",")
