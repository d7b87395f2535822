"""One request and all that came back, byte for byte, so that two servers can be compared."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.lab.traffic import TIMEOUT, headers

_CHANGING = (
    (re.compile(rb'(?<=")[a-z]+(?:-tool)?[-_][0-9a-f]{8,}(?:-[0-9a-f]+)*(?=")'), b"ID"),
    (re.compile(rb'"(id|item_id)": ?"[0-9a-f-]{8,}"'), rb'"\1":"ID"'),
    (re.compile(rb'"(created|created_at|completed_at)": ?[0-9.]+'), rb'"\1":0'),
)
"""What differs from one answer of a server to the next: ids and times."""
KEY = "sesame"
"""The API key of the servers that are compared."""
SAME_STEPS_WITHIN = 40
"""Times that a stream is asked for at most, until both engines cut it alike: they join what a
reader has not fetched yet, so a busy machine gets it in fewer or in other pieces."""
_OTHER_HEADERS = frozenset({"date"})
_HOST = {"Host": "vllm.example"}
"""The same name for both servers, since redirections contain it."""


@dataclass(frozen=True)
class Ask:
    """A request as bytes; ``body`` is JSON unless it is bytes already."""

    path: str
    body: Any = None
    method: str = "POST"
    more: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""
    key: str | None = KEY
    chunked: bool = False
    """Whether the body is sent in chunks of ten bytes, without its length."""

    @property
    def payload(self) -> bytes | None:
        """The body."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()


@dataclass(frozen=True)
class Answer:
    """What came back, with ids and times replaced."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return ("content-type", "text/event-stream; charset=utf-8") in self.headers

    def pieces(self) -> list[int]:
        """How long each event is, choice by choice."""
        return [len(str(event)) for event in self.shown()[2]] if self.streamed else []

    def shown(self) -> tuple[int, list[tuple[str, str]], Any]:
        """The whole answer, for a comparison.

        Of a stream each event as its fields in their order. Between the choices of one answer
        the order of events is chance, so they come choice by choice.
        """
        if not self.streamed:
            return self.status, self.headers, self.body
        events = [_fields(event) for event in self.body.split(b"\n\n")]
        return self.status, self.headers, sorted(events, key=_choice)


def ask(url: str, request: Ask) -> Answer:
    """Send it, and read what comes back to its end."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=TIMEOUT)
    payload = request.payload
    if request.chunked and payload is not None:
        body: Any = (payload[at : at + 10] for at in range(0, len(payload), 10))
    else:
        body = payload
    try:
        connection.request(
            request.method,
            request.path,
            body,
            {**_HOST, **headers(request.key), **request.more},
            encode_chunked=request.chunked,
        )
        response = connection.getresponse()
        received = response.read()
    finally:
        connection.close()
    for pattern, instead in _CHANGING:
        received = pattern.sub(instead, received)
    named = [(name.lower(), value) for name, value in response.getheaders()]
    kept = [(name, value) for name, value in named if name not in _OTHER_HEADERS]
    return Answer(response.status, kept, received)


def cut_alike(urls: tuple[str, str], request: Ask) -> tuple[Answer, Answer]:
    """The answers of two servers. An event that was added or lost stays so at every try."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(SAME_STEPS_WITHIN):
            one, other = pool.map(lambda url: ask(url, request), urls)
            if one.pieces() == other.pieces():
                break
    return one, other


def _fields(event: bytes) -> list[tuple[str, Any]]:
    """The lines of an event; of its data the leaves with their paths."""
    found: list[tuple[str, Any]] = []
    for line in event.split(b"\n"):
        name, _, value = line.decode().partition(": ")
        if name == "data" and value.startswith("{"):
            found += _leaves(json.loads(value))
        else:
            found.append((name, value))
    return found


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{path}.{key}")]
    if isinstance(value, list) and value:
        return [leaf for at, inner in enumerate(value) for leaf in _leaves(inner, f"{path}[{at}]")]
    return [(path, value)]


def _choice(fields: list[tuple[str, Any]]) -> int:
    """The choice that an event belongs to; what belongs to none is at the end."""
    return int(dict(fields).get(".choices[0].index", 1_000_000))
