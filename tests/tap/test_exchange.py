"""Chunks that are only counted leave the same behind as if each were read."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from specwatch_tap import exchange
from specwatch_tap.exchange import Message
from specwatch_tap.server_facts import Endpoint
from specwatch_tap.stream import StreamReader
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
    sent = itertools.count(1)
    now = [0]

    async def tick(message: Message) -> None:
        now[0] = next(sent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "StreamReader", make)
        patch.setattr(exchange, "_clock", lambda: now[0] / 8)
        app = tapped(answering(*chunks, b"", headers=EVENTS), registry, Known(**facts))
        response = visit(app, parts(body), scope(), send=tick)
    (stream,) = made
    return response.sent, (stream.steps, stream.first), generate_latest(registry)


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
        LONG[1] + LONG[2],
        LONG[1][:40],
        PIECE,
        b"",
        b": ping\n\n",
        LONG[1][:-1],
        b"\n",
        LONG[1].replace(b"\n", b"\r\n"),
    ],
)
def test_an_odd_chunk_among_the_usual_ones(odd: bytes) -> None:
    for place in range(1, 6):
        chunks = [*LONG[:place], odd, *LONG[place:]]
        assert seen(chunks, STREAMED, StreamReader, keeps_records=False) == seen(
            chunks, STREAMED, ReadingAll, keeps_records=False
        )


def test_times_and_tokens_of_a_stream_most_of_which_is_only_counted() -> None:
    """17 tokens after the first, in the 12 messages after it: the time ends with the last."""
    usual, tokens = 10, 18
    usage = {"prompt_tokens": 300, "completion_tokens": tokens}
    end = b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(usage).encode()
    chunks = [LONG[0], *[LONG[1]] * (usual + 1), LONG[-3], end, LONG[-1]]
    sent, (steps, _), page = seen(chunks, STREAMED, StreamReader, keeps_records=False)
    assert steps == usual + 2
    drafts, seconds = steps - 1, (usual + 1) / 8
    for line in (
        f'decode_tokens_total{{model_name="tiny",prompt_length="257-2048",temperature="(0,1]"}} '
        f"{tokens - 1}.0",
        f'decode_seconds_total{{model_name="tiny",prompt_length="257-2048",temperature="(0,1]"}} '
        f"{seconds}",
        f'drafts_total{{model_name="tiny",temperature="(0,1]"}} {drafts}.0',
        f'draft_tokens_total{{model_name="tiny",temperature="(0,1]"}} {4 * drafts}.0',
        f'accepted_tokens_total{{model_name="tiny",temperature="(0,1]"}} {tokens - steps}.0',
    ):
        assert f"_{line}\n".encode() in page
    assert len(sent) == len(chunks) + 1


def test_a_stream_whose_last_content_was_only_counted_has_no_time_per_token() -> None:
    """No server ends a stream without a finish reason."""
    chunks = [*LONG[:20], *LONG[-2:]]
    _, (steps, _), page = seen(chunks, STREAMED, StreamReader, keeps_records=False)
    assert steps == 19
    assert b"specwatch_time_per_output_token_seconds_count" not in page
    assert b'time_to_first_token_seconds_count{model_name="tiny",temperature="(0,1]"} 1.0' in page


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

    monkeypatch.setattr("specwatch_tap.middleware.Exchange", Weak)
    gc.disable()
    try:
        visit(tapped(answering(*LONG, b"", headers=EVENTS), CollectorRegistry()), parts(body))
        assert [reference() for reference in made] == [None]
    finally:
        gc.enable()
