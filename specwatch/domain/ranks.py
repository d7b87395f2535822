"""Data-parallel ranks of one server, and those that stand out.

The ranks of a server get requests of the same traffic, so that as much of their drafts is accepted,
and they draft as often for each token. One that differs has other weights of the draft, a draft
that was not loaded, or a broken device. How much work a rank gets is the router's choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specwatch.domain.acceptance import LEAST_DRAFTS
from specwatch.domain.group import apart
from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.model import RankCounts
from specwatch.domain.noise import Spread, spread_of

LEAST_REQUESTS = 30
"""Requests that a rank needs: minutes of one long request say nothing of the next."""
_LOOKS = 60
"""Looks at the same minutes: with one a minute, a chance outlier would soon be seen."""


class Rank(NamedTuple):
    """One rank: accepted over draft tokens, and drafts over generated tokens; None with too few
    of them, or of requests. ``stands_out``: either is far from that of the median rank."""

    rank: str
    drafts: int
    acceptance: Interval | None
    drafting: Interval | None
    stands_out: bool = False


def ranks_of(minutes: Sequence[Mapping[str, RankCounts]]) -> tuple[Rank, ...]:
    """The ranks of the newest of consecutive minutes, and which of them stand out: as servers of a
    group do, with intervals that hold for all ranks together, and for the looks of an hour."""
    names = sorted(minutes[-1] if minutes else (), key=lambda name: (len(name), name))
    tail = (1 - CONFIDENCE) / 2 / (_LOOKS * max(len(names), 1))
    ranks = []
    for name in names:
        counts = [minute[name] for minute in minutes if name in minute]
        drafts = sum(count.drafts for count in counts)
        if sum(count.requests for count in counts) < LEAST_REQUESTS:
            ranks.append(Rank(name, drafts, None, None))
            continue
        drafted = [(one.accepted_tokens, one.draft_tokens) for one in counts if one.draft_tokens]
        generated = [(one.drafts, one.generation_tokens) for one in counts if one.generation_tokens]
        ranks.append(Rank(name, drafts, _share(drafted, tail), _share(generated, tail)))
    outliers = {
        *apart({one.rank: one.acceptance for one in ranks if one.acceptance}),
        *apart({one.rank: one.drafting for one in ranks if one.drafting}),
    }
    return tuple(one._replace(stands_out=one.rank in outliers) for one in ranks)


def _share(minutes: Sequence[tuple[int, int]], tail: float) -> Interval | None:
    """The sum of the first counts over that of the second; None with too few.

    Half a count is added, so that none is 0; the variance is that of consecutive minutes, at least
    the binomial one.
    """
    over, under = sum(a for a, _ in minutes), sum(b for _, b in minutes)
    if len(minutes) < LEAST_SAMPLES or under < LEAST_DRAFTS:
        return None
    value = (over + 0.5) / (under + 1)
    binomial = max(1 - value, 1 / under) / (over + 0.5)
    spread = spread_of([a for a, _ in minutes], [b for _, b in minutes])
    if spread is None or spread.variance < binomial:
        spread = Spread(binomial, math.inf)
    return Interval.around(value, spread.half_width(tail), len(minutes))
