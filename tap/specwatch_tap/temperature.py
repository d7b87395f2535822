"""Temperature buckets: their labels, and the bucket of a temperature."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from specwatch_tap.segment_kinds import UNKNOWN

DEFAULT_EDGES = (0.0, 0.3, 0.7, 1.0)
MOST_EDGES = 20
_LEAST = 0.01
"""vLLM raises temperatures between 0 and this one to it (``_MAX_TEMP`` in sampling_params.py)."""


def checked_edges(edges: tuple[float, ...]) -> tuple[float, ...]:
    """``edges`` as they are; raises ValueError unless they ascend from 0 or more, 1 to 20 of them.

    Each is the upper end of a bucket.
    """
    shown = f"[{', '.join(map(_text, edges))}]"
    if not 1 <= len(edges) <= MOST_EDGES:
        raise ValueError(f"has {len(edges)} edges; give 1 to {MOST_EDGES}")
    if not all(math.isfinite(edge) and edge >= 0 for edge in edges):
        raise ValueError(f"{shown} has an edge that no temperature reaches; use 0 or more")
    if any(low >= high for low, high in itertools.pairwise(edges)):
        raise ValueError(f"{shown} does not ascend; sort the edges, each once")
    return edges


def bucket_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Labels of the temperature buckets under ``edges``: ``0``, ``(0,0.3]``, ..., ``>1``."""
    texts = [_text(edge) for edge in edges]
    first = "0" if edges[0] == 0 else f"[0,{texts[0]}]"
    inner = (f"({low},{high}]" for low, high in itertools.pairwise(texts))
    return (first, *inner, f">{texts[-1]}")


class Buckets:
    """The buckets under some edges."""

    def __init__(self, edges: Sequence[float] = DEFAULT_EDGES) -> None:
        """``edges`` as of :func:`checked_edges`."""
        self._edges = tuple(edges)
        self.labels = bucket_labels(edges)

    def of(self, temperature: float | None) -> str:
        """Label of the bucket that ``temperature`` falls into; ``unknown`` for anything else.

        Only 0 is greedy: what lies above it by very little is sampled with 0.01.
        """
        if temperature is None or not math.isfinite(temperature) or temperature < 0:
            return UNKNOWN
        if 0 < temperature < _LEAST:
            temperature = _LEAST
        return self.labels[bisect.bisect_left(self._edges, temperature)]


def _text(edge: float) -> str:
    return repr(float(edge)).removesuffix(".0")
