"""What segments of the traffic are called in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable

from specwatch.domain.model import ALL, TEMPERATURE, Segment
from specwatch.wording.text import shown
from specwatch_tap.segment_kinds import (
    ADAPTER,
    HEADER,
    NONE,
    OTHER,
    OUTPUT,
    PROMPT_LENGTH,
    STREAM,
    UNKNOWN,
)

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
    PROMPT_LENGTH: "prompt length",
    STREAM: "streaming",
    OUTPUT: "output",
    ADAPTER: "adapter",
}


def kind_title(kind: str) -> str:
    """``prompt length``, ``header x-tenant``."""
    return _TITLES.get(kind, shown(kind.replace(HEADER, "header ")))


def segments_words(segments: Iterable[Segment]) -> list[str]:
    """Each of several segments; prompt lengths with neighbours as one: ``prompts above 8,192
    tokens`` of two classes."""
    words: list[str] = []
    spans: list[tuple[int, int | None]] = []
    for segment in segments:
        tokens = _prompt_tokens(segment)
        if tokens is None:
            words.append(segment_words(segment))
        else:
            spans.append(tokens)
    joined: list[tuple[int, int | None]] = []
    for first, last in sorted(spans, key=lambda span: span[0]):
        if joined and joined[-1][1] == first - 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return [*(_prompts(*span) for span in joined), *words]


def _prompt_tokens(segment: Segment) -> tuple[int, int | None] | None:
    """The first and last number of tokens of a prompt-length class; None for another segment."""
    if segment.dimension != PROMPT_LENGTH:
        return None
    tokens = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})|\+)", segment.value)
    return tokens and (int(tokens[1]), None if tokens[2] is None else int(tokens[2]))


def _prompts(first: int, last: int | None) -> str:
    if last is None:
        return f"prompts above {first - 1:,} tokens"
    return (
        f"prompts up to {last:,} tokens"
        if first == 1
        else (f"prompts of {first:,} to {last:,} tokens")
    )


def where(segment: Segment) -> str:
    """`` at temperature (0,0.3]``, `` for tool calls``; empty for all requests."""
    if segment == ALL:
        return ""
    at = "at temperature" if segment.dimension == TEMPERATURE else "for"
    return f" {at} {segment_words(segment)}"


def segment_title(segment: Segment) -> str:
    """As :func:`segment_words`, but ``temperature (0,0.3]``, beside other dimensions."""
    dimension = "temperature " if segment.dimension == TEMPERATURE else ""
    return dimension + segment_words(segment)


def segment_words(segment: Segment) -> str:
    """``tool calls``, ``prompts above 16,384 tokens``, ``x-tenant acme``; of temperatures the
    bucket alone, and ``all``."""
    kind = segment.dimension
    value = segment.value
    if kind in (ALL.dimension, TEMPERATURE):
        return shown(value)
    if words := _WORDS.get((kind, value)):
        return words
    tokens = _prompt_tokens(segment)
    if tokens is not None:
        return _prompts(*tokens)
    if value == UNKNOWN:
        return f"requests of unknown {kind_title(kind)}"
    name = kind.removeprefix(HEADER)
    if name != kind and value in (NONE, OTHER):
        return f"requests without {shown(name)}" if value == NONE else f"other {shown(name)}"
    return shown(f"{name} {value}")
