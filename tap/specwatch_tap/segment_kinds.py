"""The kinds of segments, the words for values that every kind has, and classes of prompts."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence

PROMPT_LENGTH = "prompt_length"
STREAM = "stream"
OUTPUT = "output"
ADAPTER = "adapter"
HEADER = "header:"
"""What the kind of a request header begins with; its name follows."""
KINDS = (PROMPT_LENGTH, STREAM, OUTPUT, ADAPTER)
"""Kinds beside those of a header."""
MOST_KINDS = 2
"""Each costs CPU time of every request, and memory of the server."""

OTHER = "other"
"""Value of all that are too rare for a segment."""
NONE = "none"
"""Value of requests without the header, or of no adapter."""
UNKNOWN = "unknown"
"""Value of requests of which the value is not known."""

_LONGEST_PROMPTS = (256, 2048, 8192, 16_384)
PROMPT_LENGTHS = ("1-256", "257-2048", "2049-8192", "8193-16384", "16385+")
"""Classes of prompts by their tokens; the one without an end has those longer than the last of
the above."""

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")  # RFC 9110, a token
_SECRET = re.compile(r"authorization|cookie|api-?key|token|secret|password|credential")


def checked_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """``kinds`` as they are; raises ValueError for one that is not known, and for too many."""
    for kind in kinds:
        name = kind.removeprefix(HEADER)
        if name != kind and _SECRET.search(name):
            raise ValueError(
                f"{kind!r} may hold credentials, which metrics would show; use another"
            )
        if kind not in KINDS and (name == kind or not _HEADER_NAME.fullmatch(name)):
            known = f"{', '.join(KINDS)} or {HEADER}NAME with a header in lower case"
            raise ValueError(f"{kind!r} is not a kind of segment; use {known}")
    if len(set(kinds)) != len(kinds):
        raise ValueError("names a kind twice; name each once")
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"names {len(kinds)} kinds; give at most {MOST_KINDS}")
    if sum(kind.startswith(HEADER) for kind in kinds) > 1:
        raise ValueError("names two headers; give one")
    return tuple(kinds)


def prompt_length_label(tokens: int | None) -> str:
    """``1-256``, ``16385+``; ``unknown`` for None."""
    if tokens is None:
        return UNKNOWN
    return PROMPT_LENGTHS[bisect.bisect_left(_LONGEST_PROMPTS, tokens)]
