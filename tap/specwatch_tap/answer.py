"""What a response says about its end, its length and its acceptance."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from specwatch_tap.acceptance import Acceptance, Extension, Metrics, Timings, acceptance_of

FINISH_REASONS = {
    # OpenAI's, as vLLM gives them.
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "abort": "abort",
    "error": "error",
    "repetition": "repetition",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    # Of /v1/responses: the status.
    "completed": "stop",
    "incomplete": "length",
    "failed": "error",
    "cancelled": "abort",
    # Of /v1/messages.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    # Of llama.cpp's /completion.
    "eos": "stop",
    "word": "stop",
    "limit": "length",
}
"""Finish reasons of all APIs, and the word that we use for each."""

OTHER = "other"
_NOT_YET = ("in_progress", "queued")


class ResponseUsage(msgspec.Struct, gc=False):
    """``usage`` under the names of either family of APIs."""

    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: Any = None
    input_tokens: Any = None

    @property
    def tokens(self) -> int | None:
        """Generated tokens."""
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens


class ResponseDelta(msgspec.Struct, gc=False):
    """``delta`` of a chunk of chat, or ``message`` of a whole response."""

    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    @property
    def only_names_the_role(self) -> bool:
        """Whether it is the chunk before any content."""
        content = self.content or self.reasons or self.tool_calls
        return self.role is not None and not content

    @property
    def reasons(self) -> bool:
        """Whether it has reasoning."""
        return bool(self.reasoning or self.reasoning_content)


class ResponseChoice(msgspec.Struct, gc=False):
    """One of ``choices``."""

    finish_reason: Any = None
    stop_reason: Any = None
    delta: ResponseDelta | None = None
    message: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")


class InnerResponse(msgspec.Struct, gc=False):
    """``response`` of the last event of a stream of /v1/responses."""

    status: Any = None
    usage: ResponseUsage | None = None


class ResponsePart(msgspec.Struct, gc=False):
    """A whole response or one event of a stream, of any API: the members that matter here."""

    choices: list[ResponseChoice] | None = None
    usage: ResponseUsage | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None
    sglext: Extension | None = None
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
    response: InnerResponse | None = None

    @property
    def failed(self) -> bool:
        """Whether it is an error, in place of a response or at its end."""
        if self.error is not None or self.object == "error":
            return True
        status = self.status if self.response is None else self.response.status
        return bool(status == "failed")

    @property
    def has_numbers(self) -> bool:
        """Whether any member is there that has tokens or acceptance."""
        return (
            self.usage is not None
            or self.metrics is not None
            or self.timings is not None
            or self.sglext is not None
            or self.response is not None
            or self.tokens_predicted is not None
        )

    @property
    def is_under_way(self) -> bool:
        """Whether the generation goes on in the background (``background``)."""
        return self.object == "response" and self.status in _NOT_YET

    @property
    def is_usage_chunk(self) -> bool:
        """Whether it is the chunk that a client gets only if it asks for usage."""
        return self.choices == [] and self.usage is not None

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, in our words; None while it goes on."""
        reason: Any = None
        if self.choices:
            reason = self.choices[0].finish_reason
        elif self.response is not None:
            reason = self.response.status
        elif isinstance(self.delta, dict):
            reason = self.delta.get("stop_reason")
        elif self.object == "response":
            reason = self.status
        elif self.type == "message":
            reason = self.stop_reason
        elif self.stop is True:
            reason = self.stop_type or "stop"
        if reason is None or reason in _NOT_YET:
            return None
        return FINISH_REASONS.get(reason, OTHER) if isinstance(reason, str) else OTHER

    @property
    def reasons(self) -> bool | None:
        """Whether a whole response has reasoning; None if its beginning is not there."""
        choice = self.choices[0] if self.choices else None
        if choice is None or not (choice.message or choice.text):
            return None
        try:
            return bool(choice.message) and _MESSAGE.decode(choice.message).reasons
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @property
    def stopped_by_string(self) -> bool:
        """Whether a stop string of the request ended the generation, and no token did."""
        return any(isinstance(choice.stop_reason, str) for choice in self.choices or ())

    @property
    def tokens(self) -> int | None:
        """Generated tokens; None if it does not say."""
        usage = self.usage if self.response is None else self.response.usage
        generated: Any = None if usage is None else usage.tokens
        if generated is None:
            generated = self.tokens_predicted if self.timings is None else self.timings.predicted_n
        return _count(generated)

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, those from a cache included; None if it does not say."""
        usage = self.usage if self.response is None else self.response.usage
        if usage is None:
            return None
        return _count(usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens)

    @property
    def acceptance(self) -> Acceptance | None:
        """The acceptance record, if there is one without contradictions."""
        return acceptance_of(self.metrics, self.timings, self.sglext)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


_ANSWER = msgspec.json.Decoder(ResponsePart)
_MESSAGE = msgspec.json.Decoder(ResponseDelta)
_MEMBER = {
    field.encode_name: msgspec.json.Decoder(field.type)
    for field in msgspec.structs.fields(ResponsePart)
}
_MEMBERS = ("usage", "metrics", "timings", "sglext")
_ENDS = ("finish_reason", "stop_reason", "status")
"""Members that say why a response ended, best first."""


def read(text: bytes) -> ResponsePart | None:
    """Read one JSON object; None for anything else.

    A member of another shape than expected counts as missing, so that a change of one member in a
    new release does not hide the others.
    """
    try:
        return _ANSWER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_by_member(text)


def _read_by_member(text: bytes) -> ResponsePart | None:
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    answer = ResponsePart()
    for name in _MEMBER.keys() & members.keys():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            setattr(answer, name, _MEMBER[name].decode(members[name]))
    if answer.usage is None and bytes(members.get("usage", b"null")) != b"null":
        answer.usage = ResponseUsage()  # there is one, whatever it says
    return answer


def read_end(tail: bytes) -> ResponsePart | None:
    """Read the last bytes of a whole response whose beginning is gone; None without usage.

    Quotes inside of strings are escaped, so ``"usage":`` can only be a key; its last occurrence is
    that of the response itself, since vLLM puts what was generated first.
    """
    text = tail.decode("utf-8", "replace")
    members: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    for name in (*_MEMBERS, *_ENDS):
        position = text.rfind(f'"{name}":')
        if position >= 0:
            start = position + len(name) + 3
            try:
                members[name], _ = decoder.raw_decode(
                    text, start + (text[start : start + 1] == " ")
                )
            except (ValueError, RecursionError):
                continue
    if members.get("usage") is None and members.get("timings") is None:
        return None
    ends = (members.pop(name, None) for name in _ENDS)
    reason = next((end for end in ends if isinstance(end, str)), None)
    return read(msgspec.json.encode({**members, "choices": [{"finish_reason": reason}]}))
