"""What a response says of its acceptance, its end and its length."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specwatch_tap import answer
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.answer import FINISH_REASONS, ResponsePart


def read(**members: Any) -> ResponsePart:
    """The answer with the members."""
    response = answer.read(json.dumps(members).encode())
    assert response is not None
    return response


def record(lengths: list[int], **members: Any) -> Acceptance | None:
    """Of vLLM's record with the histogram of accepted lengths."""
    members_of_record = {"acceptance_histogram": lengths, **members}
    return read(metrics={"speculative_decoding": members_of_record}).acceptance


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), st.integers(0, 100))
def test_a_record_is_the_sums_of_its_histogram(lengths: list[int], rejected: int) -> None:
    accepted = sum(length * steps for length, steps in enumerate(lengths))
    acceptance = record(lengths, num_draft_tokens=accepted + rejected, num_spec_steps=sum(lengths))
    at_least = tuple(sum(lengths[n:]) for n in range(1, len(lengths)))
    assert acceptance == Acceptance("record", sum(lengths), accepted + rejected, accepted, at_least)


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "more accepted than proposed": {"lengths": [0, 0, 3], "num_draft_tokens": 5},
    "fewer steps than lengths": {"lengths": [1, 1], "num_draft_tokens": 2, "num_spec_steps": 1},
    "steps without lengths": {"lengths": [], "num_draft_tokens": 2, "num_spec_steps": 1},
    "a negative number of steps": {"lengths": [3, -1], "num_draft_tokens": 9},
    "tokens proposed fewer than none": {"lengths": [0], "num_draft_tokens": -1},
}


def test_a_record_that_contradicts_itself_is_none() -> None:
    found = {title: record(**members) for title, members in CONTRADICTIONS.items()}
    assert found == dict.fromkeys(CONTRADICTIONS)


def test_a_long_record_takes_no_quadratic_time() -> None:
    """Some 10^10 additions would be felt."""
    acceptance = record([0] * 200_000, num_draft_tokens=0)
    assert acceptance is not None
    assert acceptance.drafts == 0


TIMINGS: dict[str, tuple[dict[str, Any], Acceptance | None]] = {
    "as many steps as tokens of the target's own": (
        {"predicted_n": 10, "draft_n": 8, "draft_n_accepted": 5},
        Acceptance("timings", 4, 8, 5),
    ),
    "without a number of tokens": (
        {"draft_n": 8, "draft_n_accepted": 5},
        Acceptance("timings", 0, 8, 5),
    ),
    "nothing drafted": ({"predicted_n": 10}, None),
    "more accepted than drafted": ({"predicted_n": 9, "draft_n": 1, "draft_n_accepted": 2}, None),
    "fewer than none": ({"predicted_n": 9, "draft_n": 1, "draft_n_accepted": -1}, None),
}


def test_llama_cpps_timings() -> None:
    for title, (timings, expected) in TIMINGS.items():
        assert read(timings=timings).acceptance == expected, title


ONE = {"spec_verify_ct": 4, "spec_num_proposed_drafts": 12, "spec_num_correct_drafts": 5}
DETAILS: dict[str, tuple[object, Acceptance | None]] = {
    "without a histogram": (ONE, Acceptance("record", 4, 12, 5)),
    "with one": (
        {**ONE, "spec_correct_drafts_histogram": [1, 2, 0, 1]},
        Acceptance("record", 4, 12, 5, (3, 1, 1)),
    ),
    "with one of other drafts": ({**ONE, "spec_correct_drafts_histogram": [9]}, None),
    "of the only completion": ([ONE], Acceptance("record", 4, 12, 5)),
    "of several completions": ([ONE, ONE], None),
    "of a server that does not speculate": ({}, None),
    "not asked for": (None, None),
    "in another shape": ("none", None),
}


def test_sglangs_details_of_speculation() -> None:
    for title, (details, expected) in DETAILS.items():
        response = read(sglext={"spec_tokens_details": details}, usage={"completion_tokens": 9})
        assert (response.acceptance, response.tokens) == (expected, 9), title


ENDS: dict[str, tuple[dict[str, Any], str | None]] = {
    **{
        f"chat: {reason}": ({"choices": [{"finish_reason": reason}]}, word)
        for reason, word in FINISH_REASONS.items()
    },
    "one that is new": ({"choices": [{"finish_reason": "boredom"}]}, "other"),
    "not yet": ({"choices": [{"finish_reason": None}]}, None),
    "no choices": ({"choices": []}, None),
    "responses, whole": ({"object": "response", "status": "completed"}, "stop"),
    "responses, cut": ({"object": "response", "status": "incomplete"}, "length"),
    "responses, in the background": ({"object": "response", "status": "queued"}, None),
    "responses, under way": ({"type": "x", "response": {"status": "in_progress"}}, None),
    "responses, over": ({"type": "x", "response": {"status": "failed"}}, "error"),
    "messages, whole": ({"type": "message", "stop_reason": "end_turn"}, "stop"),
    "messages, the end": (
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        "tool_calls",
    ),
    "messages, between": ({"type": "content_block_delta", "delta": {"text": "a"}}, None),
    "llama.cpp, over": ({"content": "", "stop": True, "stop_type": "eos"}, "stop"),
    "llama.cpp, once": ({"content": "", "stop": True}, "stop"),
    "llama.cpp, under way": ({"content": "a", "stop": False}, None),
}


def test_the_end_of_each_api() -> None:
    for title, (members, expected) in ENDS.items():
        assert read(**members).finish_reason == expected, title


LENGTHS: dict[str, tuple[dict[str, Any], int | None]] = {
    "OpenAI's": ({"usage": {"completion_tokens": 7, "output_tokens": 3}}, 7),
    "of responses and messages": ({"usage": {"output_tokens": 7}}, 7),
    "inside the last event of responses": ({"response": {"usage": {"output_tokens": 7}}}, 7),
    "llama.cpp's": ({"timings": {"predicted_n": 7}}, 7),
    "llama.cpp's, without timings": ({"tokens_predicted": 7}, 7),
    "none": ({}, None),
    "fewer than none": ({"usage": {"completion_tokens": -7}}, None),
}


def test_the_number_of_tokens() -> None:
    for title, (members, expected) in LENGTHS.items():
        assert read(**members).tokens == expected, title


PROMPTS: dict[str, tuple[dict[str, Any], int | None]] = {
    "OpenAI's": ({"usage": {"prompt_tokens": 7, "completion_tokens": 3}}, 7),
    "of responses and messages": ({"usage": {"input_tokens": 7, "output_tokens": 3}}, 7),
    "inside the last event of responses": ({"response": {"usage": {"input_tokens": 7}}}, 7),
    "none": ({}, None),
    "not reported": ({"usage": {"completion_tokens": 3}}, None),
    "fewer than none": ({"usage": {"prompt_tokens": -7}}, None),
}


def test_the_tokens_of_the_prompt() -> None:
    for title, (members, expected) in PROMPTS.items():
        assert read(**members).prompt_tokens == expected, title


def test_an_odd_length_of_the_prompt_does_not_hide_the_tokens() -> None:
    response = read(usage={"prompt_tokens": "many", "completion_tokens": 9})
    assert (response.prompt_tokens, response.tokens) == (None, 9)


def test_the_time_in_the_queue_is_part_of_the_time_to_the_first_token() -> None:
    timing = {"time_to_first_token_ms": 40.0, "queue_time_ms": 10.0, "mean_itl_ms": 5.0}
    metrics = read(metrics=timing).metrics
    assert metrics is not None
    assert (metrics.ttft, metrics.tpot) == (0.05, 0.005)


def test_missing_and_negative_times_are_none() -> None:
    for value in (None, -1.0):
        metrics = read(metrics={"time_to_first_token_ms": value, "mean_itl_ms": value}).metrics
        assert metrics is not None
        assert (metrics.ttft, metrics.tpot) == (None, None)


def test_an_error_in_place_of_a_response() -> None:
    errors = ({"error": {"message": "x"}}, {"error": "x"}, {"object": "error", "message": "x"})
    assert all(read(**members).failed for members in errors)
    assert not read(error=None).failed
    assert not read().failed


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_none(text: bytes) -> None:
    answer.read(text)
    answer.read_end(text)


def test_an_unreadable_end_is_none() -> None:
    for tail in (b'"usage":' + b"[" * 60_000, b'"usage":{"completion_tokens":x}'):
        assert answer.read_end(tail) is None


OTHER_SHAPES = (
    b'{"speculative_decoding":{"acceptance_histogram":{"0":1},"num_draft_tokens":4}}',
    b'{"speculative_decoding":{"acceptance_histogram":[1,0.5],"num_draft_tokens":4}}',
    b'{"speculative_decoding":{"acceptance_histogram":[1,2],"drafted":4}}',
    b'{"speculative_decoding":7}',
    b'"none"',
)


def test_a_record_of_another_shape_is_none_and_the_rest_stays_readable() -> None:
    for metrics in OTHER_SHAPES:
        body = b'{"choices":[],"usage":{"completion_tokens":9},"metrics":%b}' % metrics
        response = answer.read(body)
        assert response is not None, metrics
        found = (response.acceptance, response.tokens, response.is_usage_chunk)
        assert found == (None, 9, True), metrics


def test_an_invalid_number_of_tokens_is_none() -> None:
    for tokens in ("-4", "3.5", '"x"', "[]"):
        for text in (
            '{"choices":[],"usage":{"completion_tokens":%s}}',
            '{"timings":{"predicted_n":%s}}',
            '{"tokens_predicted":%s}',
        ):
            response = answer.read((text % tokens).encode())
            assert response is not None
            assert response.tokens is None
