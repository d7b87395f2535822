"""Chunks that are only counted leave the same behind as if each were read."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from specwatch.tap import exchange
from specwatch.tap.server_facts import Endpoint
from specwatch.tap.stream import StreamReader
from tests.tap.exchanges import (
    EVENTS,
    QUESTION,
    STREAMED,
    Known,
    answering,
    parts,
    scope,
    tapped,
    visit,
)
from tests.tap.streams import USAGE, Stream, chunked, events_of, streams


class ReadingAll(StreamReader):
    """Reads each chunk."""

    @property
    def usual_end(self) -> bytes:
        """None has it."""
        return b""

    @usual_end.setter
    def usual_end(self, value: bytes) -> None:
        pass


def seen(chunks: list[bytes], body: bytes, reader: type[StreamReader], **facts: Any) -> Any:
    """What a client gets of a stream, message by message, and what the tap knows of it."""
    made: list[StreamReader] = []

    def make(*given: Any, **named: Any) -> StreamReader:
        made.append(reader(*given, **named))
        return made[-1]

    registry = CollectorRegistry()
    ticks = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "StreamReader", make)
        patch.setattr(exchange, "_clock", lambda: next(ticks) / 8)
        app = tapped(answering(*chunks, b"", headers=EVENTS), registry, Known(**facts))
        response = visit(app, parts(body), scope())
    (stream,) = made
    times = stream.steps, stream.first, stream.last
    return response.sent, times, generate_latest(registry)


LONG = [events_of(USAGE)[0], *events_of(USAGE)[1:2] * 20, *events_of(USAGE)[2:]]
PIECE = b'ta: {"choices":[{"delta":{"content":"'


cuts = st.lists(st.integers(0, 3000), max_size=12)


@given(streams, cuts | st.none(), st.booleans(), st.booleans())
@example(Stream(Endpoint.CHAT, ("a",) * 9), None, True, True)
def test_counting_is_reading(
    stream: Stream, places: list[int] | None, keeps_records: bool, asks: bool
) -> None:
    written = stream.written(usage=True)
    chunks = events_of(written) if places is None else chunked(written, places)
    body = STREAMED if asks else STREAMED[:-1] + b',"stream_options":{"include_usage":true}}'
    counted = seen(chunks, body, StreamReader, keeps_records=keeps_records)
    assert counted == seen(chunks, body, ReadingAll, keeps_records=keeps_records)


@pytest.mark.parametrize(
    "odd",
    [
        LONG[1] + LONG[2], LONG[1][:40], PIECE, b"", b": ping\n\n", LONG[1][:-1], b"\n",
        LONG[1].replace(b"\n", b"\r\n"),
    ],
)  # fmt: skip
def test_an_odd_chunk_among_the_usual_ones(odd: bytes) -> None:
    for place in range(1, 6):
        chunks = [*LONG[:place], odd, *LONG[place:]]
        assert seen(chunks, STREAMED, StreamReader, keeps_records=False) == seen(
            chunks, STREAMED, ReadingAll, keeps_records=False
        )


@pytest.mark.parametrize("body", ["{}", bytearray(b"{}"), memoryview(b"{}")])
def test_a_body_of_another_type_is_no_failure(body: Any) -> None:
    response = visit(tapped(answering(body), CollectorRegistry()), parts(QUESTION))
    assert response.error is None
    assert response.sent[-1]["body"] is body


def test_most_chunks_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[bytes] = []
    feed = StreamReader.feed

    def noting(self: StreamReader, chunk: bytes, now: float) -> bytes:
        fed.append(chunk)
        return feed(self, chunk, now)

    monkeypatch.setattr(StreamReader, "feed", noting)
    visit(tapped(answering(*LONG, b"", headers=EVENTS), CollectorRegistry()), parts(STREAMED))
    assert fed == [LONG[0], LONG[1], *LONG[-3:], b""]


@pytest.mark.parametrize("body", [QUESTION, STREAMED])
def test_an_exchange_is_freed_without_the_garbage_collector(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []

    class Weak(exchange.Exchange):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr("specwatch.tap.middleware.Exchange", Weak)
    gc.disable()
    try:
        visit(tapped(answering(*LONG, b"", headers=EVENTS), CollectorRegistry()), parts(body))
        assert [reference() for reference in made] == [None]
    finally:
        gc.enable()
