"""A whole response as it passes: untouched, or without the record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch_tap import answer, whole_response
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.answer import ResponsePart
from specwatch_tap.whole_response import TAIL, WholeReader
from tests.tap.streams import DATA, RECORD, chunked, some_text

CHAT = (DATA / "chat-response.json").read_bytes()
COMPLETION = (DATA / "completion-response.json").read_bytes()
TIMING = {"time_to_first_token_ms": 12.5, "generation_time_ms": None, "queue_time_ms": 0.5}
cuts = st.lists(st.integers(0, 2000), max_size=8)


def passed(reading: WholeReader, chunks: list[bytes]) -> bytes:
    """What goes on of a body whose last part is empty, as many frameworks send it."""
    return b"".join(
        [*(reading.feed(chunk, last=False) for chunk in chunks), reading.feed(b"", last=True)]
    )


def compact(value: Any) -> bytes:
    """JSON as vLLM writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@given(st.binary() | st.sampled_from([CHAT, COMPLETION, CHAT[:-1], b"", b"[" * 1000]), cuts)
def test_any_body_passes_at_once(body: bytes, places: list[int]) -> None:
    reading = WholeReader(remove_metrics=False)
    for chunk in chunked(body, places):
        assert reading.feed(chunk, last=False) == chunk
    assert reading.feed(b"", last=True) == b""
    assert reading.broke is None
    in_one = WholeReader(remove_metrics=False)
    assert in_one.feed(body, last=True) is body


@given(
    st.binary() | st.sampled_from([b'{"metrics":', b'{"metrics":{"speculative_decoding":']), cuts
)
def test_where_there_is_no_record_nothing_is_removed(body: bytes, places: list[int]) -> None:
    reading = WholeReader(remove_metrics=True)
    assert passed(reading, chunked(body, places)) == body
    assert reading.broke is None


@pytest.mark.parametrize("body", [CHAT, COMPLETION])
@given(places=cuts)
def test_without_the_record_it_is_what_a_server_without_the_flag_says(
    body: bytes, places: list[int]
) -> None:
    expected = compact(json.loads(body) | {"metrics": None})
    assert passed(WholeReader(remove_metrics=True), chunked(body, places)) == expected
    assert WholeReader(remove_metrics=True).feed(body, last=True) == expected


def test_the_timing_that_an_operator_switched_on_stays() -> None:
    body = compact({"choices": [], "metrics": {**TIMING, "speculative_decoding": RECORD}, "x": 1})
    expected = compact({"choices": [], "metrics": {**TIMING, "speculative_decoding": None}, "x": 1})
    assert whole_response.without_metrics(body) == expected
    event = b"data: %b\n\n" % compact(
        {"metrics": {"queue_time_ms": 1.5, "speculative_decoding": {"a": 1}}}
    )
    assert (
        whole_response.usage_chunk_without_metrics(event)
        == b'data: {"metrics":{"queue_time_ms":1.5}}\n\n'
    )


def test_a_record_that_stands_first_leaves_no_comma() -> None:
    event = b'data: {"metrics":{"speculative_decoding":{"a":1}},"choices":[]}\n\n'
    assert whole_response.usage_chunk_without_metrics(event) == b'data: {"choices":[]}\n\n'


def test_generated_text_is_never_taken_for_the_record() -> None:
    text = '"metrics":{"speculative_decoding":{"a":1}}'
    body = compact({"choices": [{"message": {"content": text}}], "metrics": None})
    assert whole_response.without_metrics(body) == body


def test_surrogates_and_nesting_in_place_of_a_record_change_nothing() -> None:
    for inside in (b'{"a":"\\ud800","speculative_decoding":{"a":1}}', b"[" * 50_000):
        reading = WholeReader(remove_metrics=True)
        body = b'{"metrics":%b}' % inside
        assert reading.feed(body, last=True) == body


contents = st.recursive(
    st.none() | st.integers(-9, 9) | some_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some_text, inner, max_size=3),
    max_leaves=5,
)


SCHEMA = {"usage": {"output_tokens": 7}, "metrics": {"a": 1}, "status": {"type": "string"}}
"""What a user may have called the parameters of a tool."""


@st.composite
def long_bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Responses whose beginning does not fit into what is held, in the order of each API."""
    text = draw(some_text) + draw(st.sampled_from(["x", "é", "\\", '"usage":1,'])) * TAIL
    usage = draw(st.none() | st.fixed_dictionaries({"completion_tokens": st.integers(0, 10**6)}))
    end = draw(st.sampled_from(["stop", "length", "new"]))
    if draw(st.booleans()):
        choice = {
            "text": text,
            "logprobs": draw(contents),
            "finish_reason": end,
            "stop_reason": None,
        }
        record = draw(st.none() | st.just({**TIMING, "speculative_decoding": RECORD}))
        body = {"object": "x", "choices": [choice], "usage": usage, "params": draw(contents)}
        return body | {"metrics": record}
    if draw(st.booleans()):
        return {
            "type": "message",
            "content": [{"text": text}],
            "stop_reason": "end_turn",
            "usage": usage,
        }
    body = {"object": "response", "output": [{"text": text, "status": "completed"}]}
    return body | {"tools": [SCHEMA], "status": "incomplete", "usage": usage}


def fields_of(response: ResponsePart | None) -> tuple[Any, ...]:
    """What matters of an answer; nothing is known of one without usage."""
    if response is None or response.usage is None:
        return (None,)
    ttft = None if response.metrics is None else response.metrics.ttft
    return (response.tokens, response.finish_reason, response.acceptance, ttft)


@given(long_bodies(), st.lists(st.integers(0, 3 * TAIL), max_size=5))
def test_the_end_says_as_much_as_all_of_it(body: dict[str, Any], places: list[int]) -> None:
    text = compact(body)
    reading = WholeReader(remove_metrics=False)
    assert passed(reading, chunked(text, places)) == text
    assert fields_of(reading.answer) == fields_of(answer.read(text))


def test_a_finish_reason_that_is_not_text_is_none() -> None:
    body = compact({"output": "x" * TAIL, "usage": {"output_tokens": 7}, "text": SCHEMA["status"]})
    reading = WholeReader(remove_metrics=False)
    passed(reading, [body.replace(b'"text"', b'"status"')])
    assert fields_of(reading.answer) == (7, None, None, None)


def test_no_more_than_the_end_is_held() -> None:
    reading = WholeReader(remove_metrics=True)
    part = b"x" * 10_000
    out = sum(len(reading.feed(part, last=False)) for _ in range(100))
    assert out == 100 * len(part) - TAIL
    assert len(reading.feed(CHAT, last=True)) < len(CHAT) + TAIL
    assert reading.answer is not None


def test_an_unexpected_error_is_kept_and_the_body_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(answer, "read", fail)
    for chunks in ([], [CHAT], [CHAT[:100], CHAT[100:]]):
        reading = WholeReader(remove_metrics=True)
        assert passed(reading, chunks) == b"".join(chunks)
        assert isinstance(reading.broke, ZeroDivisionError)


def test_the_captured_responses() -> None:
    chat, completion = answer.read(CHAT), answer.read(COMPLETION)
    assert chat is not None
    assert completion is not None
    assert (chat.finish_reason, chat.tokens) == ("length", 24)
    assert chat.acceptance == Acceptance("record", 8, 32, 19, (7, 5, 4, 3))
    assert (completion.finish_reason, completion.tokens) == ("length", 16)
    assert completion.acceptance == Acceptance("record", 4, 16, 12, (3, 3, 3, 3))
