"""Splits a stream of server-sent events into events, however it was chunked.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream.
"""

from __future__ import annotations

import re

LONGEST_EVENT = 1 << 20
"""Bytes of an unfinished event that are held."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r(?!\Z))")
"""A CR at the end of what has arrived may be half of a line end."""
_DATA = re.compile(rb"(?:^|[\r\n])data:[ ]?([^\r\n]*)")
_LONGEST_BLANK_LINE = 4
_CR = 13


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
    """Whether it is one line and a blank line, as vLLM sends all its events."""
    return event.find(b"\n") == len(event) - 2 and event.endswith(b"\n") and _CR not in event


def data_of(event: bytes) -> bytes:
    """The data of an event, its lines joined; empty for a comment."""
    if event.startswith(b"data: {") and is_one_line(event):
        return event[6:-2]
    return b"\n".join(_DATA.findall(event))
