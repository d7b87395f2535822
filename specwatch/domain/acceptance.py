"""Acceptance figures from counts of drafts and tokens, and how much acceptance has changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specwatch.domain.interval import LEAST_SAMPLES, Interval
from specwatch.domain.model import ALL, UNKNOWN_TEMPERATURE, Segment, Tally
from specwatch.domain.noise import student
from specwatch.domain.sample import Sample, counted_in
from specwatch.domain.shares import Share, binomial_variance, share_of
from specwatch.domain.speedup import LEAST_SHARE

LEAST_DRAFTS = 100
"""Drafts that a temperature needs in both periods to be compared."""
_NOT_COMPARED = {ALL, UNKNOWN_TEMPERATURE}
_MOST_CUT = 0.01
"""Share of draft tokens that may be missing where drafts are of one length."""
_MOST_ENDS = 0.15
"""Share of draft tokens that may be missing as requests end, where these are short."""


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


def lengths_vary(tally: Tally) -> bool:
    """Whether drafts are so much shorter than the longest that it is by design: more than requests
    that end, or a full context, explain. False with too few drafts to tell."""
    positions = tally.accepted_per_position or ()
    longest = max((place for place, kept in enumerate(positions, 1) if kept), default=0)
    drafts, drafted = tally.drafts or 0, tally.draft_tokens or 0
    return drafts >= LEAST_DRAFTS and drafted < (1 - _MOST_ENDS) * longest * drafts


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


class AcceptanceChange(NamedTuple):
    """Acceptance rate now less that of the reference; ``note`` says what was not held constant."""

    interval: Interval
    note: str | None = None


class _Stratum(NamedTuple):
    now: Share
    change: float
    variance: float


def acceptance_change(
    samples: Sequence[Sample], reference: Mapping[Segment, Tally]
) -> AcceptanceChange | str:
    """The change, standardised to the present mix of temperatures; words why there is no result.

    The sum of ``w * (rate now - rate then)`` over the buckets with enough drafts in both periods,
    with ``w`` the share of the draft tokens now: direct standardisation (K. J. Rothman,
    S. Greenland, *Modern Epidemiology*, 1998, ch. 4). Without buckets it is the difference of all
    temperatures, and the note says so.
    """
    labels = {label for sample in samples for label in sample.buckets} - _NOT_COMPARED
    known = reference.keys() - _NOT_COMPARED
    if labels and known:
        note, few = None, "too few drafts at temperatures that both periods have"
        strata = [_stratum(samples, label, reference[label]) for label in sorted(labels & known)]
        bucketed = (sample.buckets.get(label) for sample in samples for label in labels)
        tokens_needed = LEAST_SHARE * sum(
            counted.draft_tokens or 0 for counted in bucketed if counted
        )
    else:
        note, few = "temperature mix unknown", "too few drafts, now or in the reference"
        then = reference.get(ALL, Tally())
        strata = [_stratum(samples, ALL, then)]
        tokens_needed = 0.0
    compared = [stratum for stratum in strata if stratum is not None]
    tokens = sum(stratum.now.of for stratum in compared)
    if not compared or tokens < tokens_needed:
        return few
    minutes = max(stratum.now.parts for stratum in compared)
    if minutes < LEAST_SAMPLES:
        return "too few minutes of traffic"
    weighted = [(stratum.now.of / tokens, stratum) for stratum in compared]
    value = math.fsum(weight * stratum.change for weight, stratum in weighted)
    variance = math.fsum(weight**2 * stratum.variance for weight, stratum in weighted)
    away = student(0.975, minutes - 1) * math.sqrt(variance)
    return AcceptanceChange(Interval(value, value - away, value + away, minutes), note)


def _stratum(samples: Sequence[Sample], segment: Segment, then: Tally) -> _Stratum | None:
    """None where one of the periods has too few drafts.

    Of the reference there is but a sum: its variance is taken to be as many times the binomial one
    as now.
    """
    minutes = [counted_in(sample, segment) for sample in samples]
    now = share_of([(e.accepted_tokens or 0, e.draft_tokens or 0) for e in minutes])
    before, drafts = acceptance_rate(then), sum(e.drafts or 0 for e in minutes)
    if now is None or before is None or min(drafts, then.drafts or 0) < LEAST_DRAFTS:
        return None
    binomial = binomial_variance(then.accepted_tokens or 0, then.draft_tokens or 0)
    return _Stratum(now, now.value - before, now.variance + now.effect * binomial)
