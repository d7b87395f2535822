"""What segments are called in sentences."""

from __future__ import annotations

import re

from specwatch.domain.segments import (
    ADAPTER,
    HEADER,
    NONE,
    OTHER,
    OUTPUT,
    PROMPT_LENGTH,
    STREAM,
    UNKNOWN,
    kind_of,
    value_of,
)
from specwatch.wording.text import shown

_WORDS = {
    (STREAM, "yes"): "streamed requests",
    (STREAM, "no"): "requests that are not streamed",
    (OUTPUT, "tool_call"): "tool calls",
    (OUTPUT, "schema"): "structured output",
    (OUTPUT, "reasoning"): "responses with reasoning",
    (OUTPUT, "text"): "plain text",
    (ADAPTER, NONE): "the model without an adapter",
    (ADAPTER, OTHER): "other adapters",
}
_TITLES = {
    PROMPT_LENGTH: "prompt length", STREAM: "streaming", OUTPUT: "output", ADAPTER: "adapter",
}  # fmt: skip


def kind_title(kind: str) -> str:
    """``prompt length``, ``header x-tenant``."""
    return _TITLES.get(kind, shown(kind.replace(HEADER, "header ")))


def segment_words(label: str) -> str:
    """``tool calls``, ``prompts above 16,384 tokens``, ``x-tenant acme``."""
    kind, value = kind_of(label), value_of(label)
    if words := _WORDS.get((kind, value)):
        return words
    span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})|\+)", value) if kind == PROMPT_LENGTH else None
    if span is not None:
        first, last = int(span[1]), span[2]
        if last is None:
            return f"prompts above {first - 1:,} tokens"
        if first == 1:
            return f"prompts up to {int(last):,} tokens"
        return f"prompts of {first:,} to {int(last):,} tokens"
    if value == UNKNOWN:
        return f"requests of unknown {kind_title(kind)}"
    name = kind.removeprefix(HEADER)
    if name != kind and value in (NONE, OTHER):
        return f"requests without {shown(name)}" if value == NONE else f"other {shown(name)}"
    return shown(f"{name} {value}")
