"""What a response says about its own acceptance."""

from __future__ import annotations

import contextlib
import json
from itertools import accumulate
from typing import Any

import msgspec

FINISH_REASONS = {
    # OpenAI's, as vLLM gives them.
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "abort": "abort",
    "error": "error", "repetition": "repetition", "content_filter": "content_filter",
    "function_call": "tool_calls",
    # Of /v1/responses: the status.
    "completed": "stop", "incomplete": "length", "failed": "error", "cancelled": "abort",
    # Of /v1/messages.
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    # Of llama.cpp's /completion.
    "eos": "stop", "word": "stop", "limit": "length",
}  # fmt: skip
"""Ends of a response, and the word that we use for each."""

OTHER = "other"
_NOT_YET = ("in_progress", "queued")


class Acceptance(msgspec.Struct, frozen=True):
    """What became of one request's drafts; ``method`` is a key of ``model.METHODS``.

    ``accepted_per_position`` is None where only the total is known.
    """

    method: str
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] | None = None


class Record(msgspec.Struct, gc=False):
    """vLLM's own record (``metrics.speculative_decoding``)."""

    acceptance_histogram: list[int]
    num_draft_tokens: int
    num_spec_steps: int | None = None

    def acceptance(self) -> Acceptance | None:
        """None where the numbers contradict one another."""
        lengths = self.acceptance_histogram
        at_least = tuple(accumulate(reversed(lengths[1:])))[::-1]
        drafts, accepted = sum(lengths), sum(at_least)
        sound = min(lengths, default=0) >= 0 and accepted <= self.num_draft_tokens
        if not sound or self.num_spec_steps not in (None, drafts):
            return None
        return Acceptance("record", drafts, self.num_draft_tokens, accepted, at_least)


class Metrics(msgspec.Struct, gc=False):
    """``metrics`` of a response; times are in milliseconds."""

    time_to_first_token_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    speculative_decoding: Record | None = None

    @property
    def ttft(self) -> float | None:
        """In seconds, with the time in the queue, as the server's own histogram has it."""
        if self.time_to_first_token_ms is None:
            return None
        return _seconds(self.time_to_first_token_ms + (self.queue_time_ms or 0.0))

    @property
    def tpot(self) -> float | None:
        """In seconds."""
        return _seconds(self.mean_itl_ms)


class Timings(msgspec.Struct, gc=False):
    """``timings`` of llama.cpp; times are in milliseconds."""

    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None

    def acceptance(self) -> Acceptance | None:
        """None where nothing was drafted or the numbers contradict one another.

        Each step yields the accepted tokens and one more, the first token comes of the prompt; so
        there were as many steps as tokens after the first that were not drafted.
        """
        drafted, accepted = self.draft_n, self.draft_n_accepted
        if drafted is None or accepted is None or not 0 <= accepted <= drafted:
            return None
        steps = max(0, (self.predicted_n or 0) - 1 - accepted)
        return Acceptance("timings", steps, drafted, accepted)


class Usage(msgspec.Struct, gc=False):
    """``usage`` under the names of either family of APIs."""

    completion_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def tokens(self) -> int | None:
        """Generated tokens."""
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens


class Delta(msgspec.Struct, gc=False):
    """``delta`` of a chunk of chat."""

    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    @property
    def only_names_the_role(self) -> bool:
        """Whether it comes before any content."""
        said = self.content or self.reasoning or self.reasoning_content or self.tool_calls
        return self.role is not None and not said


class Choice(msgspec.Struct, gc=False):
    """One of ``choices``."""

    finish_reason: Any = None
    stop_reason: Any = None
    delta: Delta | None = None


class Inner(msgspec.Struct, gc=False):
    """``response`` of the last event of a stream of /v1/responses."""

    status: Any = None
    usage: Usage | None = None


class Answer(msgspec.Struct, gc=False):
    """A whole response or one event of a stream, of any API, as far as it concerns us."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")
    status: Any = None
    error: Any = None
    object: Any = None
    type: Any = None
    stop_reason: Any = None
    stop_type: Any = None
    stop: Any = None
    tokens_predicted: Any = None
    delta: Any = None
    response: Inner | None = None

    @property
    def failed(self) -> bool:
        """Whether it is an error that came in place of a response, or at its end."""
        status = self.status if self.response is None else self.response.status
        return self.error is not None or self.object == "error" or status == "failed"

    @property
    def is_under_way(self) -> bool:
        """Whether it only says that the generation will go on elsewhere (``background``)."""
        return self.object == "response" and self.status in _NOT_YET

    @property
    def is_usage_chunk(self) -> bool:
        """Whether it is the chunk that a client gets only when it asks for usage."""
        return self.choices == [] and self.usage is not None

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, in our words; None while it goes on."""
        said: Any = None
        if self.choices:
            said = self.choices[0].finish_reason
        elif self.response is not None:
            said = self.response.status
        elif isinstance(self.delta, dict):
            said = self.delta.get("stop_reason")
        elif self.object == "response":
            said = self.status
        elif self.type == "message":
            said = self.stop_reason
        elif self.stop is True:
            said = self.stop_type or "stop"
        if said is None or said in _NOT_YET:
            return None
        return FINISH_REASONS.get(said, OTHER) if isinstance(said, str) else OTHER

    @property
    def stopped_by_string(self) -> bool:
        """Whether a stop string of the request ended the generation, and no token did."""
        return any(isinstance(choice.stop_reason, str) for choice in self.choices or ())

    @property
    def tokens(self) -> int | None:
        """Generated tokens, where it says."""
        usage = self.usage if self.response is None else self.response.usage
        said: Any = None if usage is None else usage.tokens
        if said is None:
            said = self.tokens_predicted if self.timings is None else self.timings.predicted_n
        return said if isinstance(said, int) and said >= 0 else None

    @property
    def acceptance(self) -> Acceptance | None:
        """The record, where there is one that can be believed."""
        if self.metrics is not None and self.metrics.speculative_decoding is not None:
            return self.metrics.speculative_decoding.acceptance()
        return self.timings.acceptance() if self.timings is not None else None


_ANSWER = msgspec.json.Decoder(Answer)
_MEMBER = {
    field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Answer)
}
_MEMBERS = ("usage", "metrics", "timings")
_ENDS = ("finish_reason", "stop_reason", "status")
"""Members that say why a response ended, best first."""


def read(text: bytes) -> Answer | None:
    """Read one JSON object; None for what is none.

    A member of another shape than expected is as good as missing: what a new release changed of one
    must not hide the others.
    """
    try:
        return _ANSWER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_by_member(text)


def _read_by_member(text: bytes) -> Answer | None:
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = Answer()
    for name in _MEMBER.keys() & members.keys():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            setattr(found, name, _MEMBER[name].decode(members[name]))
    if found.usage is None and bytes(members.get("usage", b"null")) != b"null":
        found.usage = Usage()  # there is one, whatever it says
    return found


def read_end(tail: bytes) -> Answer | None:
    """Read the last bytes of a whole response whose beginning is gone; None without usage.

    Quotes inside of strings are escaped, so ``"usage":`` can only be a key; its last occurrence is
    that of the response itself, since vLLM puts what was generated first.
    """
    text = tail.decode("utf-8", "replace")
    members: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    for name in (*_MEMBERS, *_ENDS):
        at = text.rfind(f'"{name}":')
        if at >= 0:
            start = at + len(name) + 3
            try:
                members[name], _ = decoder.raw_decode(
                    text, start + (text[start : start + 1] == " ")
                )
            except (ValueError, RecursionError):
                continue
    if members.get("usage") is None and members.get("timings") is None:
        return None
    said = (members.pop(name, None) for name in _ENDS)
    reason = next((end for end in said if isinstance(end, str)), None)
    return read(msgspec.json.encode({**members, "choices": [{"finish_reason": reason}]}))


def _seconds(milliseconds: float | None) -> float | None:
    """A time that a server gave; None for what cannot be one."""
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1000
