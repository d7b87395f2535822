"""Segments: divisions of the traffic by something else than temperature.

The label of a segment is ``KIND=VALUE``, such as ``output=tool_call``; a temperature bucket has no
``=``. The segments of one kind are all requests that were answered, so that they add up.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from specwatch.domain.model import ALL_TEMPERATURES
from specwatch_tap.segment_kinds import NONE, OTHER, PROMPT_LENGTH, UNKNOWN

TEMPERATURE = "temperature"
_LAST = (NONE, OTHER, UNKNOWN)


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
