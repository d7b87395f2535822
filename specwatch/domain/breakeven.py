"""Whether speculation pays: the cost of a step, the speedup, and the break-even line.

At load L, with the time of a step = TPOT x tau::

    o(L)   = TPOT_on(L) * tau_on(L) / TPOT_off(L)    cost of a speculative step, in plain steps
    S      = tau / o(L)                              speedup: below 1 speculation loses
    tau*   = o(L),  alpha* = (o(L) - 1) / (k * f)    the break-even line

tau is counted over all decoding steps: where only the share f of them drafted (a lookup that
found nothing drafts nothing) it is ``1 + f * accepted / drafts``; with f = 1 these are the
formulas of Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*
(2023), with measured times in place of their model of costs. o belongs to the batch, tau to the
temperature bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal

from specwatch.domain.acceptance import fixed_draft_length
from specwatch.domain.baseline import Baseline
from specwatch.domain.cost import CostModel
from specwatch.domain.counterfactual import Baselines, Memory, Minute
from specwatch.domain.interval import Interval
from specwatch.domain.merge import sum_fields
from specwatch.domain.model import Objective, Segment, Tally
from specwatch.domain.quantile import NORMAL
from specwatch.domain.sample import Sample
from specwatch.domain.shares import binomial_variance
from specwatch.domain.speedup import TOO_FEW, Comparison

_LEAST_DRAFTS = 20
"""Fewest drafts of a segment whose speedup is measured: fewer give no interval."""
DRAFT_COST_RATIO = 0.1
"""Cost of a draft token in target steps, assumed of a draft model of a tenth of the size.

It is the assumed break-even acceptance too: :func:`prior_speedup` is 1 there, whatever k.
"""


@dataclass(frozen=True, slots=True)
class BinBreakEven:
    """The break-even line of one load bin. ``share`` is its share of the generated tokens."""

    load_bin: int
    share: float
    acceptance_length: float
    """tau over all decoding steps, in tokens."""
    speedup: Interval
    step_cost: Interval
    """o(L), in plain steps: tau* as well."""
    acceptance: Interval
    """alpha*: below it speculation loses at this load."""
    simultaneous: float = 0.0
    """As :attr:`Assessment.simultaneous`, of the tokens at this load."""


@dataclass(frozen=True, slots=True)
class SegmentSpeedup:
    """The speedup of one segment. ``share`` is its share of the drafts of the dimension."""

    speedup: Interval
    share: float
    acceptance_rate: float | None

    @property
    def loses(self) -> bool:
        """Whether its whole interval is below 1."""
        return self.speedup.below(1.0)


@dataclass(frozen=True, slots=True)
class BestK:
    """Predicted speedup for each number of draft tokens up to the present one, 0 first.

    Position j is kept as often as now, and a step's cost grows evenly with each draft token, from
    1 at none to the measured one: an assumption about the cost, not about acceptance. 0 is a server
    without speculation, not a draft length of 0 set at run time, where the drafter still runs.
    """

    speedups: tuple[float, ...]

    @property
    def k(self) -> int:
        """The number of draft tokens with the greatest predicted speedup; the least of equals."""
        return self.speedups.index(max(self.speedups))


BestKUnknown = Literal["no_positions", "varying_length"]
"""Why the best number of draft tokens is not known: accepted tokens are not counted by position, or
drafts differ in length, and how many reached a position is not counted."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of a measurement of one model over some windows.

    ``speedup`` and what follows from it are None without a baseline at the loads that occurred, or
    with too little data: then ``missing`` says which.
    """

    samples: int = 0
    tokens: float = 0.0
    covered: float = 0.0
    """Share of the tokens generated at loads that the baseline covers."""
    speedup: Interval | None = None
    """By ``objective``."""
    objective: Objective = Objective.E2E
    """What ``speedup`` is of: time per token if other times are not known."""
    per_token: Interval | None = None
    bins: tuple[BinBreakEven, ...] = ()
    segments: Mapping[Segment, SegmentSpeedup] = field(default_factory=dict)
    best_k: BestK | None = None
    best_k_unknown: BestKUnknown | None = None
    """Why there is a speedup and no ``best_k``."""
    missing: str | None = None
    """Why there is no speedup, as words."""
    until: float | None = None
    """Unix time at which the newest of the minutes behind ``speedup`` ends."""
    missing_lately: str | None = None
    """Why the newest minutes give no speedup, as words; None if they do."""
    seconds: float = 0.0
    """Seconds of work with speculation that ``speedup`` is of, as it counts for ``objective``."""
    simultaneous: float = 0.0
    """Share of the tokens that were compared with a holdout at the same time and at a like load."""

    @property
    def measured(self) -> bool:
        """Whether there is a measured speedup."""
        return self.speedup is not None


def prior_speedup(
    acceptance_length: float, k: float, draft_cost_ratio: float = DRAFT_COST_RATIO
) -> float:
    """S = tau / (1 + k * c), with c the cost of a draft token in target steps: an assumption."""
    return acceptance_length / (1 + k * draft_cost_ratio)


def assumed_speedup(counted: Tally, draft_cost_ratio: float) -> float | None:
    """The assumed speedup, used until one is measured; None if drafts are not counted."""
    drafts, drafted = counted.drafts, counted.draft_tokens
    if not drafts or drafted is None or counted.accepted_tokens is None:
        return None
    return prior_speedup(1 + counted.accepted_tokens / drafts, drafted / drafts, draft_cost_ratio)


def speedup_of(samples: Iterable[Sample], baseline: Baseline) -> Interval | None:
    """Only the speedup of :func:`assess`, which is much faster."""
    return Comparison(list(samples), baseline).interval()


def assess(
    samples: Iterable[Sample],
    baseline: Baseline | Baselines,
    *,
    objective: Objective = Objective.E2E,
    given_loads: bool = False,
    usual: CostModel | None = None,
    by_minute: Comparison | None = None,
    same: Memory | None = None,
) -> Assessment:
    """Measure the speedup over samples against a baseline; only samples in mode ``on`` count.

    Each sample is compared with the baseline of its environment. The order of
    samples does not matter. ``usual`` is what steps took when the baseline was measured: see
    :meth:`specwatch.domain.speedup.Comparison.adjusted`. ``given_loads`` as in
    :class:`specwatch.domain.speedup.Comparison`. ``by_minute`` is the same time minute by minute,
    where samples are blocks of several: the noise cannot be estimated from blocks. ``same`` caches
    predictions for the same samples.
    """
    compared = Comparison(
        list(samples), baseline, objective=objective, given_loads=given_loads, same=same
    )
    if usual is not None:
        compared = compared.adjusted(usual)
    whole = by_minute or compared
    assessment = Assessment(samples=len(whole.minutes), tokens=whole.tokens, covered=whole.covered)
    speedup = whole.interval()
    if speedup is None:
        return replace(assessment, missing=whole.missing or TOO_FEW)
    stepping = compared.stepping
    best_k, best_k_unknown = _best_k(stepping, compared)
    return replace(
        assessment,
        speedup=speedup,
        until=max(float(minute.sample.start + minute.sample.length) for minute in whole.known),
        objective=whole.objective,
        per_token=whole.of(Objective.TPOT),
        bins=tuple(_bins(stepping, compared)),
        segments={
            segment: speedup
            for dimension in dict.fromkeys(name for e in stepping for name in e.sample.segments)
            for segment, speedup in _segments(stepping, compared, dimension)
        },
        best_k=best_k,
        best_k_unknown=best_k_unknown,
        seconds=sum(timed.under for timed in whole.times(whole.objective)),
        simultaneous=_simultaneous(whole),
    )


def _simultaneous(compared: Comparison, load_bin: int | None = None) -> float:
    """See :attr:`Assessment.simultaneous`; of one load bin, if it is given."""
    tokens = [
        (minute.pace.tokens, plain.level is not None)
        for minute, plain in zip(compared.known, compared.plain, strict=True)
        if load_bin in (None, minute.load_bin)
    ]
    return sum(n for n, at_once in tokens if at_once) / sum(n for n, _ in tokens)


def _bins(minutes: Sequence[Minute], compared: Comparison) -> Iterable[BinBreakEven]:
    whole = sum(minute.pace.tokens for minute in minutes)
    for bin_ in sorted({minute.load_bin for minute in minutes}):
        inside = [minute for minute in minutes if minute.load_bin == bin_]
        under = [minute.pace.seconds for minute in inside]
        plain = [compared.rate(minute) * minute.pace.tokens for minute in inside]
        speedup = compared.ratio(inside, plain, under)
        of_steps = [
            seconds / minute.tokens_per_step for minute, seconds in zip(inside, plain, strict=True)
        ]
        inverse = compared.ratio(inside, of_steps, under)
        drafted = sum(minute.sample.tally.draft_tokens or 0 for minute in inside)
        steps = sum(minute.steps for minute in inside)
        if speedup is None or inverse is None or not drafted:
            continue
        cost = inverse.inverse()
        tokens = sum(minute.pace.tokens for minute in inside)
        per_step = drafted / steps  # k * f
        yield BinBreakEven(
            load_bin=bin_,
            share=tokens / whole,
            acceptance_length=sum(e.tokens_per_step * e.steps for e in inside) / steps,
            speedup=speedup,
            step_cost=cost,
            simultaneous=_simultaneous(compared, bin_),
            acceptance=Interval(
                (cost.value - 1) / per_step,
                (cost.lower - 1) / per_step,
                (cost.upper - 1) / per_step,
                cost.samples,
                cost.confidence,
            ),
        )


def _segments(
    minutes: Sequence[Minute], compared: Comparison, dimension: str
) -> Iterable[tuple[Segment, SegmentSpeedup]]:
    rows = [
        (
            one,
            one.sample.segments.get(dimension, {}),
            one.drafting,
            one.kept * compared.rate(one),
            one.step_seconds,
        )
        for one in minutes
    ]
    drafts: dict[Segment, int] = {}
    for _, tallies, *_ in rows:
        for segment, counted in tallies.items():
            if counted.drafts:
                drafts[segment] = drafts.get(segment, 0) + counted.drafts
    whole = sum(drafts.values())
    for segment, count in drafts.items():
        if count < _LEAST_DRAFTS:
            continue
        # Its drafts, and its part of the steps that did not draft.
        part = [
            (minute, bucket, bucket.drafts / drafting, yielded, step)
            for minute, tallies, drafting, yielded, step in rows
            if (bucket := tallies.get(segment)) and bucket.drafts and drafting
        ]
        # Tokens that the bucket got from its steps, and the time that these took.
        over = [
            (steps + (tally.accepted_tokens or 0)) * yielded for _, tally, steps, yielded, _ in part
        ]
        under = [steps * step for _, _, steps, _, step in part]
        speedup = compared.ratio([row[0] for row in part], over, under)
        if speedup is None:
            continue
        drafted = sum(row[1].draft_tokens or 0 for row in part)
        accepted = sum(row[1].accepted_tokens or 0 for row in part)
        rate = accepted / drafted if drafted else None
        # At least what independent tokens would vary: few minutes may be alike by chance.
        least = NORMAL * drafted * math.sqrt(binomial_variance(accepted, drafted))
        half = max(speedup.up, least / (count + accepted))
        speedup = Interval.around(speedup.value, half, speedup.samples, speedup.confidence)
        yield segment, SegmentSpeedup(speedup, count / whole, rate)


def _best_k(
    minutes: Sequence[Minute], references: Comparison
) -> tuple[BestK | None, BestKUnknown | None]:
    counting = [e for e in minutes if e.sample.tally.accepted_per_position is not None]
    fields = ("drafts", "draft_tokens", "accepted_per_position")
    drafted = Tally(**sum_fields((minute.sample.tally for minute in counting), fields))
    kept, drafts = drafted.accepted_per_position, drafted.drafts
    if not kept or not drafts:
        return None, "no_positions"
    k = fixed_draft_length(drafted)
    if k is None:
        return None, "varying_length"
    steps = sum(minute.steps for minute in counting)
    plain = sum(references.rate(minute) * minute.steps for minute in counting)
    cost = sum(minute.step_seconds * minute.steps for minute in counting) / plain
    drafting = min(drafts / steps, 1.0)
    lengths = accumulate((count / drafts for count in kept), initial=0.0)
    speedups = (
        (1 + drafting * length) / (1 + (cost - 1) * length_drafted / k)
        for length_drafted, length in enumerate(lengths)
    )
    return BestK(tuple(speedups)), None
