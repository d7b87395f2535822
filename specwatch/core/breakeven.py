"""Does speculation pay: the cost of a step, the speedup, and the line between gain and loss.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from specwatch.core.acceptance import fixed_draft_length
from specwatch.core.baseline import Baseline, Point
from specwatch.core.interval import Interval, Ratio, Reference, interval_of
from specwatch.core.merge import sum_fields
from specwatch.core.sample import Pace, Sample
from specwatch.model import Environment, Mode, Tally

DRAFT_COST_RATIO = 0.1
"""Cost of a draft token in target steps, assumed of a draft model of a tenth of the size.

It is the assumed break-even acceptance too: :func:`prior_speedup` is 1 there, whatever k.
"""
LEAST_SHARE = 0.5
"""Share of the tokens that must have been generated at loads of which there is a baseline."""

Baselines = Callable[[Environment], Baseline]
"""The baseline of each environment: what ran in another is no measure."""


@dataclass(frozen=True, slots=True)
class BinBreakEven:
    """The line at one load bin. ``share`` is that of the tokens generated there."""

    load_bin: int
    share: float
    acceptance_length: float
    """tau over all decoding steps, in tokens."""
    speedup: Interval
    step_cost: Interval
    """o(L), in plain steps: tau* as well."""
    acceptance: Interval
    """alpha*: below it speculation loses at this load."""


@dataclass(frozen=True, slots=True)
class BucketSpeedup:
    """What speculation does for one temperature bucket. ``share`` is that of its drafts."""

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
    """What was measured of one model over some windows.

    ``speedup`` and all that follow from it are None without a baseline at the loads that there
    were, or for too little data: then ``missing`` says which.
    """

    samples: int = 0
    tokens: float = 0.0
    covered: float = 0.0
    """Share of the tokens generated at loads of which there is a baseline."""
    speedup: Interval | None = None
    bins: tuple[BinBreakEven, ...] = ()
    buckets: Mapping[str, BucketSpeedup] = field(default_factory=dict)
    best_k: BestK | None = None
    best_k_unknown: BestKUnknown | None = None
    """Why there is a speedup and no ``best_k``."""
    missing: str | None = None
    """Why there is no speedup, as words."""

    @property
    def measured(self) -> bool:
        """Whether there is a measured speedup; else all that can be said is assumed."""
        return self.speedup is not None


def prior_speedup(
    acceptance_length: float, k: float, draft_cost_ratio: float = DRAFT_COST_RATIO
) -> float:
    """S = tau / (1 + k * c), with c the cost of a draft token in target steps: an assumption."""
    return acceptance_length / (1 + k * draft_cost_ratio)


def assumed_speedup(counted: Tally, draft_cost_ratio: float) -> float | None:
    """The speedup to assume until there is a measurement; None where drafts are not counted."""
    drafts, drafted = counted.drafts, counted.draft_tokens
    if not drafts or drafted is None or counted.accepted_tokens is None:
        return None
    return prior_speedup(1 + counted.accepted_tokens / drafts, drafted / drafts, draft_cost_ratio)


def speedup_of(samples: Iterable[Sample], baseline: Baseline, *, seed: int = 0) -> Interval | None:
    """Only the speedup of :func:`assess`, in a fraction of the time."""
    if not baseline:
        return None
    ran = [each for each in map(_Minute.of, samples) if each is not None]
    if not ran:
        return None
    references = _References(baseline, ran)
    return references.speedup(references.known, seed) if references.enough else None


def assess(
    samples: Iterable[Sample],
    baseline: Baseline | Baselines,
    *,
    seed: int = 0,
    given_loads: bool = False,
) -> Assessment:
    """Measure the speedup over samples against a baseline; what is not ``on`` is passed over.

    Samples of several environments are each compared with the baseline of their own. The order of
    samples does not matter, nor does the unit of time. With ``given_loads`` it is asked what was
    gained in the very time that each load, and each environment, had: it is no noise how they mix.
    """
    ran = [each for each in map(_Minute.of, samples) if each is not None]
    if not ran:
        return Assessment(missing="nothing was generated with speculation")
    references = _References(baseline, ran, given_loads=given_loads)
    known, covered = references.known, references.covered
    tokens = sum(each.pace.tokens for each in ran)
    found = Assessment(samples=len(ran), tokens=tokens, covered=covered)
    if not references:
        return _without(found, "no baseline")
    if covered < LEAST_SHARE:
        return _without(found, "no baseline at the load that there was")
    speedup = references.speedup(known, seed)
    if speedup is None:
        return _without(found, "too few minutes of traffic")
    stepping = [each for each in known if each.steps]
    best_k = _best_k(stepping, references)
    return Assessment(
        samples=len(ran),
        tokens=tokens,
        covered=covered,
        speedup=speedup,
        bins=tuple(_bins(stepping, references, seed)),
        buckets=_buckets(stepping, references, seed),
        best_k=best_k if isinstance(best_k, BestK) else None,
        best_k_unknown=None if isinstance(best_k, BestK) else best_k,
    )


def _without(found: Assessment, missing: str) -> Assessment:
    return Assessment(found.samples, found.tokens, found.covered, missing=missing)


@dataclass(frozen=True, slots=True)
class _Minute:
    """A sample with speculation on, of which all is known that a speedup needs.

    ``steps`` is 0 where drafts are not counted: then nothing can be said of a step.
    """

    sample: Sample
    pace: Pace
    steps: float
    concurrency: float
    load_bin: int

    @classmethod
    def of(cls, sample: Sample) -> _Minute | None:
        pace, steps, concurrency = sample.pace, sample.steps, sample.gauges.concurrency
        bin_ = sample.load_bin
        if sample.mode is not Mode.ON or not sample.sound or pace is None:
            return None
        if concurrency is None or bin_ is None:
            return None
        return cls(sample, pace, steps or 0.0, concurrency, bin_)

    @property
    def tokens_per_step(self) -> float:
        if self.pace.by_token:
            return self.pace.tokens / self.steps
        return 1 + (self.sample.tally.accepted_tokens or 0) / self.steps

    @property
    def step_seconds(self) -> float:
        return self.pace.seconds / self.pace.tokens * self.tokens_per_step

    @property
    def kept(self) -> float:
        """Share of what the steps yielded: an output that ends within one throws the rest away."""
        yielded = 1 + (self.sample.tally.accepted_tokens or 0) / self.steps
        return self.tokens_per_step / yielded

    @property
    def drafting(self) -> float:
        """Share of the steps that drafted."""
        return min((self.sample.tally.drafts or 0) / self.steps, 1.0)


class _References:
    """The baselines as columns: the pace of each load bin, by how it was counted."""

    def __init__(
        self,
        baseline: Baseline | Baselines,
        minutes: Sequence[_Minute],
        *,
        given_loads: bool = False,
    ) -> None:
        self._references: list[Reference] = []
        self._measures: dict[Environment, tuple[Baseline, dict[tuple[int, bool], int]]] = {}
        """Of each environment its baseline, and the column of each load bin and way to count."""
        columns: dict[tuple[int, bool, tuple[Point, ...]], int] = {}
        for environment in {each.sample.environment: None for each in minutes}:
            own = baseline if isinstance(baseline, Baseline) else baseline(environment)
            self._measures[environment] = own, self._places(own, columns)
        rows = {id(each): self._row(each) for each in minutes}
        self._rows = {minute: row for minute, row in rows.items() if row is not None}
        self.known = [each for each in minutes if id(each) in self._rows]
        tokens, covered = (sum(e.pace.tokens for e in group) for group in (minutes, self.known))
        self.covered = covered / tokens if tokens else 0.0
        """Share of the tokens of ``minutes`` generated at loads that the baselines know."""
        places = sorted({_place(each) for each in minutes}) if given_loads else []
        self._strata = {place: at for at, place in enumerate(places)}

    def __bool__(self) -> bool:
        return any(own for own, _ in self._measures.values())

    def _places(
        self, own: Baseline, columns: dict[tuple[int, bool, tuple[Point, ...]], int]
    ) -> dict[tuple[int, bool], int]:
        found = {}
        for bin_, measurement in sorted(own.bins.items()):
            for by_token in (True, False):
                points = tuple(each for each in measurement.points if each.by_token is by_token)
                if not points:
                    continue
                column = columns.get((bin_, by_token, points))
                if column is None:
                    column = columns[bin_, by_token, points] = len(self._references)
                    self._references.append(_reference(points))
                found[bin_, by_token] = column
        return found

    @property
    def enough(self) -> bool:
        """Whether what is known is most of what there was."""
        return self.covered >= LEAST_SHARE

    def rate(self, minute: _Minute) -> float:
        """Seconds per token without speculation at the load of a minute that is known."""
        row = self._rows[id(minute)]
        return sum(w * each.rate for w, each in zip(row, self._references, strict=True))

    def _row(self, minute: _Minute) -> list[float] | None:
        """Weights of the columns whose rate is the pace at this load; None where unknown."""
        own, places = self._measures[minute.sample.environment]
        weights = own.weights(minute.concurrency)
        if weights is None:
            return None
        row = [0.0] * len(self._references)
        for bin_, weight in weights.items():
            column = places.get((bin_, minute.pace.by_token))
            if column is None:
                return None
            row[column] = weight
        return row

    def speedup(self, minutes: Sequence[_Minute], seed: int) -> Interval | None:
        """Of the tokens of some minutes, all temperatures together."""
        tokens = [each.pace.tokens for each in minutes]
        return self.interval(minutes, tokens, [each.pace.seconds for each in minutes], seed)

    def interval(
        self,
        minutes: Sequence[_Minute],
        tokens: Sequence[float],
        seconds: Sequence[float],
        seed: int,
    ) -> Interval | None:
        """Time that ``tokens`` would take without speculation, over ``seconds``; by minute."""
        if not minutes:
            return None
        parts = [
            [weight * part for part in self._rows[id(each)]]
            for weight, each in zip(tokens, minutes, strict=True)
        ]
        strata = [self._strata[_place(each)] for each in minutes] if self._strata else ()
        return interval_of(Ratio(parts, seconds, strata), self._references, seed=seed)


def _place(minute: _Minute) -> tuple[str, str, int]:
    """What its pace depends on."""
    own = minute.sample.environment
    return own.engine_version or "", own.fingerprint or "", minute.load_bin


@lru_cache(maxsize=1024)
def _reference(points: tuple[Point, ...]) -> Reference:
    """Kept, because the same baseline is compared with minute by minute."""
    return Reference([each.seconds for each in points], [each.tokens for each in points])


def _bins(minutes: Sequence[_Minute], references: _References, seed: int) -> Iterable[BinBreakEven]:
    whole = sum(each.pace.tokens for each in minutes)
    for bin_ in sorted({each.load_bin for each in minutes}):
        inside = [each for each in minutes if each.load_bin == bin_]
        speedup = references.speedup(inside, seed)
        plain = references.interval(
            inside,
            [each.pace.tokens / each.tokens_per_step for each in inside],
            [each.pace.seconds for each in inside],
            seed,
        )
        drafted = sum(each.sample.tally.draft_tokens or 0 for each in inside)
        steps = sum(each.steps for each in inside)
        if speedup is None or plain is None or not drafted:
            continue
        cost = plain.inverse()
        tokens = sum(each.pace.tokens for each in inside)
        per_step = drafted / steps  # k * f
        yield BinBreakEven(
            load_bin=bin_,
            share=tokens / whole,
            acceptance_length=sum(e.tokens_per_step * e.steps for e in inside) / steps,
            speedup=speedup,
            step_cost=cost,
            acceptance=Interval(
                (cost.value - 1) / per_step,
                (cost.lower - 1) / per_step,
                (cost.upper - 1) / per_step,
                cost.samples,
                cost.confidence,
            ),
        )


def _buckets(
    minutes: Sequence[_Minute], references: _References, seed: int
) -> dict[str, BucketSpeedup]:
    drafts: dict[str, int] = {}
    for each in minutes:
        for label, counted in each.sample.buckets.items():
            if counted.drafts:
                drafts[label] = drafts.get(label, 0) + counted.drafts
    whole = sum(drafts.values())
    found = {}
    for label, count in drafts.items():
        part = [(each, steps) for each in minutes if (steps := _steps_of(label, each))]
        took_part = [each for each, _ in part]
        tallies = [each.sample.buckets[label] for each in took_part]
        speedup = references.interval(
            took_part,
            # Tokens that the bucket got from its steps, and the time that these took.
            [
                (steps + (tally.accepted_tokens or 0)) * each.kept
                for (each, steps), tally in zip(part, tallies, strict=True)
            ],
            [steps * each.step_seconds for each, steps in part],
            seed,
        )
        if speedup is None:
            continue
        drafted = sum(each.draft_tokens or 0 for each in tallies)
        accepted = sum(each.accepted_tokens or 0 for each in tallies)
        rate = accepted / drafted if drafted else None
        found[label] = BucketSpeedup(speedup, count / whole, rate)
    return found


def _steps_of(label: str, minute: _Minute) -> float:
    """Decoding steps of a bucket: its drafts, and its part of those that did not draft."""
    counted = minute.sample.buckets.get(label)
    if counted is None or not counted.drafts:
        return 0.0
    drafting = minute.drafting
    return counted.drafts / drafting if drafting else 0.0


def _best_k(minutes: Sequence[_Minute], references: _References) -> BestK | BestKUnknown:
    counting = [each for each in minutes if each.sample.tally.accepted_per_position is not None]
    drafted = Tally(**sum_fields((each.sample.tally for each in counting), _DRAFTED))
    kept, drafts = drafted.accepted_per_position, drafted.drafts
    if not kept or not drafts:
        return "no_positions"
    k = fixed_draft_length(drafted)
    if k is None:
        return "varying_length"
    steps = sum(each.steps for each in counting)
    plain = sum(references.rate(each) * each.steps for each in counting)
    cost = sum(each.step_seconds * each.steps for each in counting) / plain
    drafting = min(drafts / steps, 1.0)
    lengths = accumulate((count / drafts for count in kept), initial=0.0)
    return BestK(
        tuple(
            (1 + drafting * length) / (1 + (cost - 1) * at / k) for at, length in enumerate(lengths)
        )
    )


_DRAFTED = ("drafts", "draft_tokens", "accepted_per_position")
