"""The judgement of a request, row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain import tap_keys
from specwatch_tap import answer
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.outcome import ObservedRequest, RequestOutcome
from specwatch_tap.request_options import RequestOptions
from specwatch_tap.server_facts import Endpoint, ServerFacts
from specwatch_tap.stream import StreamReader
from tests.tap.streams import DATA, Stream, events_of

CHAT = Endpoint.CHAT
FACTS = ServerFacts("tiny", draft_tokens=4, keeps_records=True)
NO_RECORDS = ServerFacts("tiny", draft_tokens=4)
OFF = ServerFacts("tiny", draft_tokens=0)
RECORD = Acceptance("record", 8, 32, 19, (7, 5, 4, 3))
STARTED = 100.0


def ended(**members: Any) -> ObservedRequest:
    """A request that came to its end, but for ``members``."""
    usual: dict[str, Any] = {
        "facts": FACTS,
        "endpoint": CHAT,
        "options": RequestOptions(CHAT),
        "started": STARTED,
        "status": 200,
        "complete": True,
        "disconnected": False,
        "unreadable": False,
        "stream": None,
        "answer": None,
    }
    return ObservedRequest(**{**usual, **members})


def streamed(stream: Stream, *, events: int | None = None) -> StreamReader:
    """A stream whose first event comes 0.5 s after the request, each other 0.1 s after the last."""
    reading = StreamReader(stream.endpoint, remove_usage=False, remove_metrics=False)
    for index, event in enumerate(events_of(stream.written(usage=True))[:events]):
        reading.feed(event, STARTED + 0.5 + index / 10)
    return reading


def whole(changes: Mapping[bytes, bytes] | None = None) -> answer.ResponsePart:
    """The captured response, changed."""
    text = (DATA / "chat-response.json").read_bytes()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    response = answer.read(text)
    assert response is not None
    return response


def bare(finish_reason: str = "stop", **members: Any) -> answer.ResponsePart:
    """A response without a record."""
    choice = {"finish_reason": finish_reason}
    response = answer.read(msgspec.json.encode({"choices": [choice], **members}))
    assert response is not None
    return response


ENDED = Stream(CHAT, ("a", "b", "c"), record=False)
UNCOVERED: dict[str, list[ObservedRequest]] = {
    "several": [
        ended(options=RequestOptions(CHAT, several=True), answer=bare()),
        ended(options=RequestOptions(CHAT, several=True, stream=True), stream=streamed(ENDED)),
        ended(options=RequestOptions(CHAT, several=True), stream=streamed(ENDED), facts=NO_RECORDS),
    ],
    "beam_search": [ended(options=RequestOptions(CHAT, beam_search=True), answer=bare())],
    "refused": [
        ended(status=400),
        ended(status=401, options=None),
        ended(status=499),
        ended(status=404, facts=OFF),
    ],
    "failed": [
        ended(status=500),
        ended(status=503, facts=OFF),
        ended(status=None),
        ended(complete=False, stream=streamed(ENDED, events=2)),
        ended(stream=streamed(Stream(CHAT, ("a",), error="out of memory"))),
        ended(complete=False),
        ended(answer=bare(error={"message": "x"})),
    ],
    "aborted": [
        ended(answer=bare("abort")),
        ended(stream=streamed(Stream(CHAT, ("a",), finish_reason="abort", record=False))),
    ],
    "disconnected": [
        ended(status=None, disconnected=True),
        ended(status=400, disconnected=True, options=None),
        ended(status=500, disconnected=True, options=None),
        ended(complete=False, disconnected=True, stream=streamed(ENDED, events=2)),
        ended(complete=False, disconnected=True),
        ended(disconnected=True),
    ],
    "no_record": [ended(answer=bare()), ended(stream=streamed(ENDED))],
    "unreadable": [ended(), ended(unreadable=True), ended(options=None)],
    "endpoint": [ended(endpoint=Endpoint.OTHER, options=None)],
    "stop_string": [
        ended(answer=bare(choices=[{"finish_reason": "stop", "stop_reason": "END"}])),
    ],
}


def test_why_the_acceptance_of_a_request_is_not_known() -> None:
    for reason, requests in UNCOVERED.items():
        for number, request in enumerate(requests):
            outcome = request.outcome()
            assert (outcome.uncovered, outcome.acceptance) == (reason, None), (reason, number)
    assert set(UNCOVERED) == set(tap_keys.UNCOVERED)


NOTHING_TO_KNOW = ["several", "beam_search", "no_record", "unreadable", "endpoint", "stop_string"]


def test_without_speculation_nothing_is_uncovered() -> None:
    for reason in NOTHING_TO_KNOW:
        for request in UNCOVERED[reason]:
            off = msgspec.structs.replace(request, facts=OFF).outcome()
            assert (off.uncovered, off.acceptance) == (None, None), reason


def test_a_whole_response_with_its_record() -> None:
    outcome = ended(answer=whole()).outcome()
    assert outcome == RequestOutcome(
        finish_reason="length", tokens=24, prompt_tokens=13, acceptance=RECORD
    )


def test_the_times_of_a_whole_response_are_those_that_the_server_tells() -> None:
    timed = {
        b'"time_to_first_token_ms":null': b'"time_to_first_token_ms":30',
        b'"queue_time_ms":null': b'"queue_time_ms":20',
        b'"mean_itl_ms":null': b'"mean_itl_ms":4',
    }
    outcome = ended(answer=whole(timed)).outcome()
    assert (outcome.ttft, outcome.tpot) == (0.05, 0.004)
    several = ended(answer=whole(timed), options=RequestOptions(CHAT, several=True)).outcome()
    assert (several.ttft, several.tpot) == (None, None)


def test_each_finish_reason_is_counted() -> None:
    for word in ("stop", "length", "tool_calls", "error", "repetition", "new"):
        expected = "other" if word == "new" else word
        stream = streamed(Stream(CHAT, ("a",), finish_reason=word))
        assert ended(answer=bare(word)).outcome().finish_reason == expected
        assert ended(stream=stream).outcome().finish_reason == expected


def test_a_response_that_does_not_say_why_it_ended_is_counted_too() -> None:
    assert ended(answer=bare(choices=[])).outcome().finish_reason == "other"


def test_the_times_of_a_stream() -> None:
    """The first content is the event after the role, the last that with the finish reason."""
    outcome = ended(stream=streamed(Stream(CHAT, ("a", "b", "c", "d", "e")))).outcome()
    assert outcome.ttft == pytest.approx(0.6)
    assert outcome.tpot == pytest.approx(0.5 / 4)
    assert (outcome.tokens, outcome.finish_reason) == (5, "stop")


NO_TIME_PER_TOKEN = {
    "one token": ended(stream=streamed(Stream(CHAT, ("a",)))),
    "several completions": ended(
        stream=streamed(Stream(CHAT, ("a", "b"))), options=RequestOptions(CHAT, several=True)
    ),
    "cut short": ended(stream=streamed(Stream(CHAT, ("a", "b", "c")), events=3), complete=False),
    "an error": ended(stream=streamed(Stream(CHAT, ("a", "b", "c"), error="x"))),
}


def test_time_per_token_needs_several_tokens_of_one_completion() -> None:
    for title, request in NO_TIME_PER_TOKEN.items():
        outcome = request.outcome()
        assert outcome.tpot is None, title
        assert outcome.ttft is not None, title


def test_a_request_that_was_not_read_has_no_times_and_yet_its_record() -> None:
    outcome = ended(stream=streamed(Stream(CHAT, ("a", "b"))), options=None).outcome()
    assert (outcome.ttft, outcome.tpot, outcome.acceptance) == (None, None, RECORD)


def test_a_stream_of_nothing_has_no_time_to_the_first_token() -> None:
    assert ended(stream=streamed(ENDED, events=0), complete=False).outcome().ttft is None


def test_a_stream_that_the_client_left_counts_its_record_all_the_same() -> None:
    stream = streamed(Stream(CHAT, ("a", "b")), events=5)
    outcome = ended(stream=stream, complete=False, disconnected=True).outcome()
    assert (outcome.acceptance, outcome.uncovered) == (RECORD, None)


def steps(count: int, tokens: int, **changes: Any) -> ObservedRequest:
    """A stream of so many steps, on a server without records."""
    stream = streamed(Stream(CHAT, ("a",) * (count - 1), record=False))
    stream.tokens = tokens
    return ended(**{"facts": NO_RECORDS, "stream": stream, **changes})


@given(st.lists(st.integers(0, 4), max_size=20))
def test_acceptance_is_derived_from_steps(accepted: list[int]) -> None:
    """The first step yields a token, each other one more than was accepted."""
    tokens = 1 + sum(kept + 1 for kept in accepted)
    outcome = steps(1 + len(accepted), tokens).outcome()
    drafts = len(accepted)
    assert outcome.acceptance == Acceptance("derived", drafts, 4 * drafts, sum(accepted))
    assert outcome.uncovered is None


NOT_DERIVED = {
    "fewer tokens than steps": steps(5, 4),
    "more tokens than steps can yield": steps(3, 12),
    "no number of tokens": steps(3, 0),
    "a server that keeps records": steps(3, 5, facts=FACTS),
    "tools, whose chunks may be swallowed": steps(3, 5, options=RequestOptions(CHAT, tools=True)),
    "several completions": steps(3, 5, options=RequestOptions(CHAT, several=True)),
    "an unknown k": steps(3, 5, facts=ServerFacts("tiny")),
    "an echo, which is an event more": steps(3, 5, options=RequestOptions(CHAT, echo=True)),
    "joined steps": steps(3, 5, facts=ServerFacts("tiny", draft_tokens=4, joins_steps=True)),
    "an API that swallows empty steps": steps(3, 5, endpoint=Endpoint.MESSAGES),
}


def test_acceptance_is_not_derived_where_it_would_be_wrong() -> None:
    for title, request in NOT_DERIVED.items():
        outcome = request.outcome()
        assert outcome.acceptance is None, title
        assert outcome.uncovered is not None, title


def test_without_speculation_nothing_is_derived() -> None:
    outcome = steps(3, 3, facts=OFF).outcome()
    assert (outcome.acceptance, outcome.uncovered) == (None, None)


def test_a_contradictory_record_is_not_used() -> None:
    outcome = ended(answer=whole({b'"num_draft_tokens":32': b'"num_draft_tokens":12'})).outcome()
    assert (outcome.acceptance, outcome.uncovered) == (None, "no_record")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"object":"response","status":"failed","error":null}', "failed"),
        (b'{"object":"response","status":"queued"}', "endpoint"),
        (b'{"object":"response","status":"in_progress"}', "endpoint"),
    ],
)
def test_failed_and_queued_responses_are_not_covered(body: bytes, expected: str) -> None:
    outcome = ended(endpoint=Endpoint.RESPONSES, answer=answer.read(body)).outcome()
    assert (outcome.uncovered, outcome.finish_reason) == (expected, None)


def test_a_stream_of_responses_that_failed() -> None:
    reading = StreamReader(Endpoint.RESPONSES, remove_usage=False, remove_metrics=False)
    failed = {"type": "response.failed", "response": {"status": "failed", "usage": None}}
    reading.feed(b"event: response.failed\ndata: %b\n\n" % json.dumps(failed).encode(), STARTED)
    outcome = ended(endpoint=Endpoint.RESPONSES, stream=reading).outcome()
    assert (outcome.uncovered, outcome.finish_reason) == ("failed", None)


def test_the_record_of_several_completions_is_not_used() -> None:
    """llama.cpp gives the first one's."""
    outcome = ended(answer=whole(), options=RequestOptions(CHAT, several=True)).outcome()
    assert (outcome.acceptance, outcome.uncovered) == (None, "several")


ENDINGS: dict[tuple[str | None, Acceptance | None], str | None] = {
    ("length", Acceptance("record", 100, 400, 392)): "loop",
    ("repetition", Acceptance("timings", 300, 1200, 1200)): "loop",
    ("length", Acceptance("timings", 300, 12, 12)): "usual",
    ("length", Acceptance("timings", 300, 540, 540)): "usual",
    ("length", Acceptance("record", 100, 400, 391)): "usual",
    ("length", Acceptance("record", 99, 396, 396)): "usual",
    ("stop", Acceptance("record", 300, 1200, 1200)): "usual",
    ("length", Acceptance("record", 0, 0, 0)): "usual",
    ("length", Acceptance("derived", 300, 1200, 1200)): None,
    (None, Acceptance("record", 300, 1200, 1200)): None,
    ("length", None): None,
}


def test_a_loop_accepts_nearly_all_of_many_drafts_and_does_not_end_by_itself() -> None:
    """Text that is copied on purpose is accepted as well, and ends; what is derived may be too
    high."""
    found = {
        (reason, acceptance): RequestOutcome(finish_reason=reason, acceptance=acceptance).ending
        for reason, acceptance in ENDINGS
    }
    assert found == ENDINGS
