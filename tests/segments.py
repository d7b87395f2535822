"""Segments in few letters."""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import ALL, TEMPERATURE, Segment, Tally
from specwatch.domain.sample import Divided, divided


def segment(text: str) -> Segment:
    """``all``, the label of a temperature bucket, or another dimension and its value, as
    ``output=tool_call``."""
    if text == ALL.value:
        return ALL
    dimension, _, value = text.rpartition("=")
    return Segment(dimension or TEMPERATURE, value)


def in_segments(counts: Mapping[str, Tally]) -> Divided:
    """Counts by segment, as samples have them."""
    return divided({segment(text): counted for text, counted in counts.items()})
