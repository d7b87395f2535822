"""A streamed response as it passes: what goes on, and what is known of it afterwards."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specwatch_tap import answer
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.server_facts import Endpoint
from specwatch_tap.stream import LONGEST_EVENT, Splitter, StreamReader, data_of
from tests.tap.streams import PLAIN, USAGE, Stream, chunked, events_of, shorter, streams

cuts = st.lists(st.integers(0, 3000), max_size=12)
fragments = st.sampled_from(
    [
        *events_of(USAGE)[:2],
        *events_of(USAGE)[-4:],
        b"data: [DONE]\n\n",
        b": x\n\n",
        b"\r\n\r\n",
        b'data: {"choices":[],"usage":{}}\r\n\r\n',
        b'data: {"choices":[{"finish_reason":"x"}]}\n\n',
        b'data: {"choices":[{"finish_reason":null}]}\n\n',
        b'"finish_reason":null',
        b"data: {",
        b"\n",
        b"event: content_block_delta\ndata: {}\n\n",
        b"event: response.x.delta\n\n",
        b"\r",
        b"}\n\n",
    ]
)
any_bytes = st.lists(fragments | st.binary(max_size=6), max_size=12).map(b"".join)
endpoints = st.sampled_from([e for e in Endpoint if e is not Endpoint.OTHER])


def reader(
    endpoint: Endpoint = Endpoint.CHAT, *, usage: bool = False, metrics: bool = False
) -> StreamReader:
    """One that removes what is named."""
    return StreamReader(endpoint, remove_usage=usage, remove_metrics=metrics)


def passed(reading: StreamReader, chunks: Iterable[bytes]) -> bytes:
    """What goes on of a stream whose chunks come a second after each other."""
    return (
        b"".join([reading.feed(chunk, float(second)) for second, chunk in enumerate(chunks)])
        + reading.end()
    )


@given(endpoints, any_bytes, cuts)
def test_a_stream_of_which_nothing_is_removed_passes_at_once(
    endpoint: Endpoint, stream: bytes, places: list[int]
) -> None:
    reading = reader(endpoint)
    for chunk in chunked(stream, places):
        assert reading.feed(chunk, 0.0) == chunk
    assert reading.end() == b""
    assert reading.broke is None


@given(any_bytes, cuts, st.booleans(), st.booleans())
def test_chunking_does_not_change_what_is_removed(
    stream: bytes, places: list[int], usage: bool, metrics: bool
) -> None:
    stream = stream.replace(b"\r", b"\r\n").replace(b"\r\n\n", b"\r\n")
    at_once = passed(reader(usage=usage, metrics=metrics), [stream])
    reading = reader(usage=usage, metrics=metrics)
    assert passed(reading, chunked(stream, places)) == at_once
    assert reading.broke is None


@given(streams, cuts)
def test_without_the_usage_chunk_a_stream_is_what_it_would_have_been(
    stream: Stream, places: list[int]
) -> None:
    reading = reader(stream.endpoint, usage=True)
    assert passed(reading, chunked(stream.written(usage=True), places)) == stream.written(
        usage=False
    )
    assert reading.broke is None
    assert reading.ended
    assert not reading.unreadable


@given(streams, st.booleans())
def test_events_in_chunks_of_their_own_lose_usage_too(stream: Stream, metrics: bool) -> None:
    written = stream.written(usage=True).replace(b"\r\n", b"\n")
    reading = reader(stream.endpoint, usage=True, metrics=metrics)
    expected = stream.written(usage=False).replace(b"\r\n", b"\n")
    assert passed(reading, events_of(written)) == expected


@given(streams, cuts)
def test_a_stream_that_has_no_usage_chunk_after_all_stays_as_it_is(
    stream: Stream, places: list[int]
) -> None:
    written = stream.written(usage=False)
    assert passed(reader(stream.endpoint, usage=True), chunked(written, places)) == written


def same(one: bytes, other: bytes) -> bool:
    """Whether two real streams are equal but for their ids."""
    left, right = (
        [
            json.loads(event[6:]) | {"id": ""} if event[6:7] == b"{" else event
            for event in events_of(stream)
        ]
        for stream in (one, other)
    )
    return left == right


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_the_captured_pair(size: int) -> None:
    assert not same(USAGE, PLAIN)
    places = list(range(0, len(USAGE), size))
    reading = reader(usage=True)
    assert same(passed(reading, chunked(USAGE, places)), PLAIN)
    assert reading.acceptance == Acceptance("record", 8, 32, 19, (7, 5, 4, 3))
    assert (reading.tokens, reading.finish_reason, reading.ended) == (24, "length", True)


def test_only_the_last_chunk_waits_and_only_for_the_next() -> None:
    reading = reader(usage=True)
    events = events_of(USAGE)
    out = [reading.feed(event, 0.0) for event in events]
    assert out[:-3] == events[:-3]
    assert out[-3] == b""
    assert same(out[-2], events_of(PLAIN)[-2])
    assert out[-1] == events[-1]
    assert reading.end() == b""


def test_a_stream_that_breaks_off_after_its_last_chunk_keeps_it() -> None:
    reading = reader(usage=True)
    events = events_of(USAGE)[:-2]
    assert passed(reading, events) == b"".join(events)
    assert not reading.ended


def test_usage_in_every_chunk_is_not_removed() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":{}}\n\n'
    last = b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\n'
    assert passed(reader(usage=True), [event, last]) == event + last


@given(streams, cuts)
def test_without_the_record_a_stream_is_that_of_a_server_without_the_flag(
    stream: Stream, places: list[int]
) -> None:
    flag_off = Stream(**{**vars(stream), "record": False}).written(usage=True)
    reading = reader(stream.endpoint, metrics=True)
    assert passed(reading, chunked(stream.written(usage=True), places)) == flag_off


@given(streams.map(shorter))
def test_counts_do_not_depend_on_chunking(stream: Stream) -> None:
    """The short way of chunks that are one event each is the long way."""
    written = stream.written(usage=True)
    short, long = reader(stream.endpoint), reader(stream.endpoint)
    passed(short, [event + b"\n\n" for event in written.replace(b"\r", b"").split(b"\n\n")[:-1]])
    passed(long, [b"", *chunked(written, list(range(len(written))))])
    for reading in (short, long):
        assert reading.steps == len(stream.texts) + 1
        assert reading.tokens == len(stream.texts)
        assert reading.failed is False
    assert (short.acceptance, short.finish_reason) == (long.acceptance, long.finish_reason)


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """An event of a chat stream."""
    if content is not None:
        delta["content"] = content
    choice = {"delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}, separators=(",", ":")).encode()


def test_the_role_alone_is_no_content() -> None:
    reading = reader()
    for second, event in enumerate(
        [chunk("", role="assistant"), chunk("a"), chunk("b"), chunk("", "stop")]
    ):
        reading.feed(event, float(second))
    assert (reading.first, reading.last, reading.steps) == (1.0, 3.0, 3)


FIRST = events_of(USAGE)[0]


@pytest.mark.parametrize(
    ("first", "reads"),
    [
        (FIRST, False),
        (FIRST.replace(b'"content":""', b'"content":"a"'), True),
        (FIRST.replace(b'"content":""', b'"content":"","reasoning":"a"'), True),
        (FIRST.replace(b'"finish_reason":null', b'"finish_reason":"stop"'), True),
        (FIRST.replace(b'"prompt_text":null', b'"usage":{"completion_tokens":0}'), True),
    ],
)
def test_vllms_first_chunk_is_only_read_if_it_says_anything(
    first: bytes, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, texts = answer.read, []

    def noting(text: bytes) -> answer.ResponsePart | None:
        texts.append(text)
        return read(text)

    monkeypatch.setattr(answer, "read", noting)
    reading = reader(usage=True)
    assert passed(reading, [first, FIRST]) == first + FIRST
    assert len(texts) == 1 + reads
    assert reading.steps == 1 + (b'"content":"a"' in first or b"reasoning" in first)


@pytest.mark.parametrize("content", [{"content": "a"}, {"reasoning": "a"}, {"tool_calls": [{}]}])
def test_the_role_with_content_is_content(content: dict[str, Any]) -> None:
    reading = reader()
    reading.feed(chunk(role="assistant", **content), 5.0)
    assert (reading.first, reading.steps) == (5.0, 1)


def test_several_events_in_a_chunk_are_counted_each() -> None:
    reading = reader()
    reading.feed(chunk("a"), 0.0)
    reading.feed(chunk("b") + chunk("c"), 1.0)
    reading.feed(chunk("d"), 2.0)
    assert (reading.steps, reading.last) == (4, 2.0)


def test_a_chunk_in_the_middle_of_an_event_is_not_taken_for_one() -> None:
    reading = reader()
    reading.feed(chunk("a"), 0.0)
    reading.feed(chunk("b") + b'data: {"choices":[{"delta":{"content":"', 1.0)
    reading.feed(b'"},"finish_reason":null}]}\n\n', 2.0)
    reading.feed(chunk("c"), 3.0)
    assert reading.steps == 4
    assert not reading.unreadable


def test_what_comes_after_the_last_chunk_does_not_overtake_it() -> None:
    stream = [chunk("a"), chunk("b") + chunk("", "stop"), chunk("c")]
    reading = reader(usage=True)
    out = [reading.feed(one, 0.0) for one in stream]
    assert out == [stream[0], chunk("b"), chunk("", "stop") + chunk("c")]


def test_a_comment_between_the_last_chunk_and_the_usage_does_not_hinder() -> None:
    events, ping = events_of(USAGE), b": keep-alive\n\n"
    out = passed(reader(usage=True), [*events[:-2], ping, *events[-2:]])
    assert same(out.replace(ping, b""), PLAIN)
    assert ping in out


def test_an_error_inside_a_stream_is_seen() -> None:
    reading = reader()
    passed(
        reading, [chunk("a"), b'data: {"error":{"message":"out of memory"}}\n\ndata: [DONE]\n\n']
    )
    assert reading.failed


RESPONSES = b"""event: response.created
data: {"type":"response.created","response":{"status":"in_progress","usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"a"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"b"}

event: response.completed
data: {"type":"response.completed","response":{"status":"completed","usage":{"output_tokens":2}}}

"""
ANTHROPIC = b"""event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":0}}}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"b"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

"""


OTHER_APIS = pytest.mark.parametrize(
    ("endpoint", "stream"), [(Endpoint.RESPONSES, RESPONSES), (Endpoint.MESSAGES, ANTHROPIC)]
)


@OTHER_APIS
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_the_other_apis(endpoint: Endpoint, stream: bytes, line_end: bytes) -> None:
    reading = reader(endpoint)
    chunks = [event.replace(b"\n", line_end) for event in events_of(stream)]
    assert passed(reading, chunks) == b"".join(chunks)
    assert (reading.first, reading.last, reading.steps) == (1.0, 2.0, 2)
    assert (reading.finish_reason, reading.tokens, reading.ended) == ("stop", 2, True)
    assert not reading.unreadable


@OTHER_APIS
def test_the_other_apis_cut_short(endpoint: Endpoint, stream: bytes) -> None:
    reading = reader(endpoint)
    passed(reading, events_of(stream)[:3])
    assert (reading.finish_reason, reading.ended) == (None, False)


LLAMA = [
    b'data: {"content":"a","stop":false,"tokens":[1]}\n\n',
    b'data: {"content":"b","stop":false,"tokens":[2]}\n\n',
    b'data: {"content":"","stop":true,"stop_type":"limit","tokens_predicted":9,"timings":'
    b'{"predicted_n":9,"draft_n":8,"draft_n_accepted":5}}\n\n',
]


def test_llama_cpps_own_completion_ends_without_a_word() -> None:
    reading = reader(Endpoint.COMPLETIONS)
    passed(reading, LLAMA)
    assert (reading.finish_reason, reading.tokens, reading.ended, reading.steps) == (
        "length",
        9,
        True,
        3,
    )
    assert reading.acceptance == Acceptance("timings", 3, 8, 5)


@pytest.mark.parametrize("usage", [False, True])
def test_an_endless_event_takes_bounded_memory(usage: bool) -> None:
    reading = reader(usage=usage)
    piece = b"data: {" + b"x" * (1 << 16)
    tracemalloc.start()
    try:
        gone = sum(len(reading.feed(piece, 0.0)) for _ in range(64))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5 * LONGEST_EVENT
    assert gone >= 63 * len(piece) - LONGEST_EVENT
    assert gone + len(reading.end()) == 64 * len(piece)


def test_an_endless_stream_takes_no_memory_that_grows() -> None:
    reading = reader(usage=True)
    reading.feed(chunk("a"), 0.0)
    tracemalloc.start()
    try:
        for event in itertools.repeat(chunk("a"), 3000):
            reading.feed(event, 0.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 16


def test_an_unexpected_error_is_kept_and_the_event_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: bytes) -> None:
        raise ZeroDivisionError

    reading = reader(usage=True)
    events = events_of(USAGE)
    before = [reading.feed(event, 0.0) for event in events[:-2]]
    monkeypatch.setattr("specwatch_tap.answer.read", fail)
    after = [reading.feed(event, 0.0) for event in events[-2:]]
    assert b"".join(before + after) == USAGE
    assert isinstance(reading.broke, ZeroDivisionError)
    assert reading.unreadable


parts = st.sampled_from([b"data: {}", b"\n", b"\r", b"\r\n", b": x", b"a", b"\n\n", b"\r\n\r\n"])
lines = st.lists(parts | st.binary(max_size=3), max_size=20).map(b"".join)
short_cuts = st.lists(st.integers(0, 100), max_size=20)


@given(lines, short_cuts)
def test_nothing_is_lost_added_or_moved(stream: bytes, places: list[int]) -> None:
    splitter = Splitter()
    events = [event for chunk in chunked(stream, places) for event in splitter.split(chunk)]
    assert b"".join(events) + splitter.flush() == stream
    assert splitter.idle


@given(lines, short_cuts)
@example(b"data: {}\r\n\r\ndata", [11])
@example(b"data: {}\r\n\r\ndata", [9, 10, 11, 12])
@example(b"data: {}\n\n", [9])
def test_chunking_does_not_matter(stream: bytes, places: list[int]) -> None:
    at_once, in_parts = Splitter(), Splitter()
    expected = at_once.split(stream)
    events = [event for chunk in chunked(stream, places) for event in in_parts.split(chunk)]
    assert (events, in_parts.flush()) == (expected, at_once.flush())


def test_an_endless_event_is_handed_out_in_pieces() -> None:
    splitter, handed, held = Splitter(), 0, 0
    for _ in range(3 * LONGEST_EVENT >> 16):
        held += 1 << 16
        gone = sum(map(len, splitter.split(b"x" * (1 << 16))))
        handed += gone
        held -= gone
        assert held <= LONGEST_EVENT
    assert handed >= 2 * LONGEST_EVENT


DATA_OF_EVENTS = {
    b'data: {"a":1}\n\n': b'{"a":1}',
    b'data:{"a":1}\r\n\r\n': b'{"a":1}',
    b'event: x\ndata: {"a":1}\nid: 3\n\n': b'{"a":1}',
    b"data: {\ndata: }\n\n": b"{\n}",
    b"data: {\rdata: }\r\r": b"{\n}",
    b"data: [DONE]\n\n": b"[DONE]",
    b": data: {}\n\n": b"",
    b"xdata: {}\n\n": b"",
    b"data\n\n": b"",
    b"\n\n": b"",
    b"": b"",
}


def test_the_data_of_an_event() -> None:
    assert {event: data_of(event) for event in DATA_OF_EVENTS} == DATA_OF_EVENTS
