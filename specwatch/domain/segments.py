"""Segments: divisions of the traffic by something else than temperature.

The label of a segment is ``KIND=VALUE``, such as ``output=tool_call``; a temperature bucket has no
``=``. The segments of one kind are all requests that were answered, so that they add up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from specwatch.domain.model import ALL_TEMPERATURES

TEMPERATURE = "temperature"
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
_LAST = (NONE, OTHER, UNKNOWN)

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


def label_of(kind: str, value: str) -> str:
    """The label of a segment."""
    return f"{kind}={value}"


@lru_cache(maxsize=1024)
def kind_of(label: str) -> str:
    """The kind of a segment; empty for the label of a temperature bucket."""
    kind, divided, _ = label.partition("=")
    return kind if divided else ""


def value_of(label: str) -> str:
    """The value of a segment."""
    return label.partition("=")[2]


class Dimension(NamedTuple):
    """What requests are grouped by, and the value: ``temperature`` and ``(0,0.3]``; ``all`` and
    ``all`` for all requests."""

    dimension: str
    value: str


@lru_cache(maxsize=4096)
def dimension_of(label: str) -> Dimension:
    """The dimension of a temperature bucket, a segment, or of all requests."""
    if label == ALL_TEMPERATURES:
        return Dimension(ALL_TEMPERATURES, ALL_TEMPERATURES)
    kind, divided, value = label.partition("=")
    return Dimension(kind, value) if divided else Dimension(TEMPERATURE, label)


def label_in(dimension: str, value: str) -> str:
    """The label of a value of a dimension: the inverse of :func:`dimension_of`."""
    return value if dimension in (TEMPERATURE, ALL_TEMPERATURES) else label_of(dimension, value)


def order_of(label: str) -> tuple[str, int, int, str]:
    """A sort key of segments: by kind, then ascending, at the end what has no segment."""
    kind, value = kind_of(label), value_of(label)
    number = re.match(r"\d{1,12}", value) if kind == PROMPT_LENGTH else None
    rank = _LAST.index(value) + 1 if value in _LAST else 0
    return kind, rank, int(number[0]) if number else 0, value
