"""Events are cut the same however their stream was."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specwatch.tap.stream import LONGEST_EVENT, Splitter, data_of
from tests.tap.streams import chunked

parts = st.sampled_from([b"data: {}", b"\n", b"\r", b"\r\n", b": x", b"a", b"\n\n", b"\r\n\r\n"])
lines = st.lists(parts | st.binary(max_size=3), max_size=20).map(b"".join)
cuts = st.lists(st.integers(0, 100), max_size=20)


@given(lines, cuts)
def test_nothing_is_lost_added_or_moved(stream: bytes, places: list[int]) -> None:
    splitter = Splitter()
    events = [event for chunk in chunked(stream, places) for event in splitter.split(chunk)]
    assert b"".join(events) + splitter.flush() == stream
    assert splitter.idle


@given(lines, cuts)
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


DATA = {
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


@pytest.mark.parametrize(("event", "expected"), DATA.items())
def test_the_data_of_an_event(event: bytes, expected: bytes) -> None:
    assert data_of(event) == expected
