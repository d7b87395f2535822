"""Acceptance figures from counts of drafts and tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from specwatch.domain.model import Tally

_MOST_CUT = 0.01
"""Share of draft tokens that may be missing at the ends of requests."""


def acceptance_rate(tally: Tally) -> float | None:
    """Accepted tokens / draft tokens; None where nothing was drafted or the server does not say."""
    if not tally.draft_tokens or tally.accepted_tokens is None:
        return None
    return tally.accepted_tokens / tally.draft_tokens


def mean_acceptance_length(tally: Tally) -> float | None:
    """1 + accepted tokens / drafts, in tokens per step: counts the bonus token, as vLLM does."""
    if not tally.drafts or tally.accepted_tokens is None:
        return None
    return 1 + tally.accepted_tokens / tally.drafts


def fixed_draft_length(tally: Tally) -> int | None:
    """Tokens of a draft where all drafts have as many, so that each reached every position.

    None where the length varies (a schedule by batch size, n-gram, suffix, adaptive verification),
    or where the server does not count by position. vLLM's phantom drafts, which pad new requests,
    have the full length; a draft may be cut where the context, the batch or a grammar ends it.
    """
    if not tally.drafts or not tally.draft_tokens or not tally.accepted_per_position:
        return None
    k = len(tally.accepted_per_position)
    full = k * tally.drafts
    return k if abs(full - tally.draft_tokens) <= _MOST_CUT * full else None


def accepted_length_histogram(
    drafts: int | None, per_position: Sequence[int] | None, accepted_tokens: int | None = None
) -> tuple[int, ...] | None:
    """Number of drafts that had exactly j tokens accepted, j = 0..k.

    A token is accepted only if all before it were, so the drafts that kept at least j tokens are
    those that accepted position j - 1: H0 = drafts - S0, Hj = S(j-1) - Sj, Hk = S(k-1). None where
    the server does not say, or where the counters contradict that (a page caught between updates),
    ``accepted_tokens`` included where given: they must be the sum over positions.
    """
    if drafts is None or per_position is None:
        return None
    if accepted_tokens is not None and accepted_tokens != sum(per_position):
        return None
    at_least = (drafts, *per_position)
    counts = tuple(a - b for a, b in itertools.pairwise(at_least)) + at_least[-1:]
    return counts if min(counts) >= 0 else None
