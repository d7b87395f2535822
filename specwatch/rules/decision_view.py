"""The decision on a target as the HTTP API shows it: types, and how they are filled.

The daemon encodes them as JSON, the command line decodes them; an unknown is None. Times are Unix
seconds, durations seconds. Every speedup says whether it was measured or is assumed, and a measured
one whether it is current.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from specwatch.domain.interval import Interval
from specwatch.domain.model import Segment, load_bin_label
from specwatch.domain.speedup import mended_by_calibration
from specwatch.domain.units import format_duration
from specwatch.rules.decisions import ModelDecision, TargetDecision, leading
from specwatch.rules.summary import view_of

if TYPE_CHECKING:
    from specwatch.config.rules import Condition, Rule
    from specwatch.domain.breakeven import BinBreakEven
    from specwatch.rules.objectives import Goodput, SloStatus
    from specwatch.rules.reading import Reading
    from specwatch.rules.verdicts import Finding


class MeasuredSpeedup(Struct, frozen=True, tag_field="basis", tag="measured"):
    """A measured speedup with its confidence interval; ``samples`` is the number of windows."""

    value: float
    lower: float
    upper: float
    samples: int
    confidence: float


class AssumedSpeedup(Struct, frozen=True, tag_field="basis", tag="assumed"):
    """A speedup that follows from an assumed draft cost, without any baseline."""

    value: float


class BinView(Struct, frozen=True):
    """Break-even at one load; ``share`` is that of the generated tokens."""

    load_bin: str
    share: float
    acceptance_length: float
    speedup: Interval | None
    step_cost: Interval
    break_even_acceptance: Interval
    break_even_length: float
    simultaneous: float = 0.0


class SegmentSpeedupView(Struct, frozen=True):
    """One segment with its measured speedup; ``share`` is that of the drafts of its dimension."""

    segment: Segment
    share: float
    acceptance_rate: float | None
    speedup: Interval
    loses: bool


class BestKView(Struct, frozen=True):
    """The best number of draft tokens, and the predicted speedups from 0 draft tokens on."""

    k: int
    speedups: Sequence[float]


class MeasurementView(Struct, frozen=True):
    """A measurement without speculation at one load."""

    load_bin: str
    origin: str
    measured_at: float
    age: float
    points: int
    engine_version: str | None
    configuration: str | None


class HoldoutView(Struct, frozen=True):
    """A holdout that the model is compared with; ``pace`` is the time that it takes over that of
    this target at the same conditions, which is corrected for."""

    target: str
    pace: Interval | None


class RankView(Struct, frozen=True):
    """One data-parallel rank over the last hour: accepted over draft tokens, and drafts over
    generated tokens."""

    rank: str
    drafts: int
    acceptance: Interval | None
    drafting: Interval | None
    stands_out: bool


class BaselineView(Struct, frozen=True):
    """The baseline of a model; ``age`` is None without one."""

    age: float | None
    bins: list[MeasurementView]
    holdouts: list[HoldoutView] = []


class ModelView(Struct, frozen=True):
    """Whether speculation pays for one model, and how old the data behind it are.

    ``speedup`` is over the last hour, ``present`` over the last 6 minutes; ``losing_since`` is the
    Unix time since when it certainly loses, null if it does not lose now. ``unjudged_since`` is the
    one since when the speedup of most of the traffic cannot be known, for the reason ``missing``;
    null unless that lasts for half an hour.
    """

    speedup: MeasuredSpeedup | AssumedSpeedup | None
    present: Interval | None
    losing_since: float | None
    unjudged_since: float | None
    current: bool
    until: float | None
    objective: str | None
    per_token: Interval | None
    missing: str | None
    remedy: str | None
    minutes: int
    covered: float
    bins: list[BinView]
    assumed_acceptance: float | None
    segments: list[SegmentSpeedupView]
    best_k: BestKView | None
    best_k_unknown: str | None
    baseline: BaselineView
    simultaneous: float = 0.0
    """Share of the tokens that were compared with a holdout at the same time and at a like load."""
    draft_lengths: str | None = None
    """Why drafts vary in length; null if they do not."""
    ranks: list[RankView] = []
    """Data-parallel ranks over the last hour, of a server that has several."""


class ReadingView(Struct, frozen=True):
    """A condition of a rule, and the value of its metric over its window."""

    metric: str
    above: float | None
    below: float | None
    clear: float | None
    window: float
    value: float | None
    lower: float | None
    upper: float | None
    drafts: int
    requests: int
    basis: str
    missing: str | None
    note: str | None = None
    open_ended: bool = False

    @property
    def breached(self) -> bool:
        """Whether the value is beyond the threshold."""
        if self.value is None:
            return False
        if self.below is not None:
            return self.value < self.below
        return self.above is not None and self.value > self.above


class FindingView(Struct, frozen=True):
    """The verdict of a rule on one segment of a model; ``leading`` explains it best."""

    rule: str
    summary: str
    model_name: str
    segment: Segment
    verdict: str
    seen: str
    since: float
    pending: float | None
    severity: str
    action: str
    leading: ReadingView | None
    readings: list[ReadingView]


class SloView(Struct, frozen=True):
    """An objective of one model; ``burn_rates`` are by window, such as ``1h``."""

    name: str
    model_name: str
    metric: str
    threshold: float
    objective: float
    window: float
    good: float
    total: float
    unknown: float
    error_ratio: float | None
    budget_left: float | None
    burn_rates: dict[str, float | None]


class GoodputView(Struct, frozen=True):
    """Requests a second of one model that met all objectives: at least and at most."""

    watched_seconds: float
    offered_per_second: float | None
    lower_per_second: float | None
    upper_per_second: float | None


class DecisionView(Struct, frozen=True):
    """The decision on one target; ``goodput`` is by model and window, such as ``1h``."""

    models: dict[str, ModelView]
    findings: list[FindingView]
    slos: list[SloView]
    goodput: dict[str, dict[str, GoodputView]]


def target_view(decision: TargetDecision, now: float) -> DecisionView:
    """The decision on one target; ``now`` is a Unix time."""
    return DecisionView(
        {name: model_view(model, now) for name, model in decision.models.items()},
        [finding_view(finding) for finding in decision.findings],
        [slo_view(slo) for slo in decision.slos],
        {name: goodput_view(by_window) for name, by_window in decision.goodput.items()},
    )


def of_models(decision: TargetDecision, names: Collection[str]) -> TargetDecision:
    """The part of a decision that is about these models."""
    return TargetDecision(
        {name: model for name, model in decision.models.items() if name in names},
        tuple(finding for finding in decision.findings if finding.model_name in names),
        tuple(slo for slo in decision.slos if slo.model_name in names),
        {name: by_window for name, by_window in decision.goodput.items() if name in names},
    )


def model_view(known: ModelDecision, now: float) -> ModelView:
    """Whether speculation pays for one model; ``now`` is a Unix time."""
    assessment, missing, unjudged = known.assessment, known.missing(now), known.unjudged(now)
    calibrate = missing is not None and mended_by_calibration(missing)
    return view_of(
        ModelView,
        assessment,
        speedup=speedup_view(known),
        present=known.present.speedup,
        losing_since=known.present.losing_since,
        unjudged_since=unjudged and unjudged.since,
        current=known.current(now),
        objective=assessment.objective if assessment.measured else None,
        missing=missing,
        remedy="specwatch calibrate" if calibrate else None,
        minutes=assessment.samples,
        bins=[bin_view(bin_) for bin_ in assessment.bins],
        assumed_acceptance=None if known.prior is None else known.draft_cost_ratio,
        segments=[
            view_of(SegmentSpeedupView, speedup, segment=segment)
            for segment, speedup in assessment.segments.items()
        ],
        draft_lengths=known.draft_lengths and str(known.draft_lengths),
        ranks=[view_of(RankView, rank) for rank in known.ranks],
        best_k=assessment.best_k and view_of(BestKView, assessment.best_k),
        baseline=BaselineView(
            known.baseline.age(now),
            [
                view_of(
                    MeasurementView,
                    part,
                    part.key,
                    load_bin=load_bin_label(bin_),
                    measured_at=part.at,
                    age=now - part.at,
                    points=len(part.points),
                )
                for bin_, part in sorted(known.baseline.bins.items())
            ],
            [
                HoldoutView(name, pace and pace.ratio)
                for name, pace in sorted(
                    {part.holdout: part.pace for part in known.baseline.holdouts}.items()
                )
            ],
        ),
    )


def finding_view(finding: Finding) -> FindingView:
    """The verdict of a rule on one segment of a model, with its readings."""
    rule, best = finding.rule, leading(finding)
    return view_of(
        FindingView,
        finding,
        rule,
        rule=rule.name,
        leading=None if best is None else _reading(rule, *best),
        readings=[_reading(rule, *reading) for reading in finding.readings],
    )


def stored_inputs(finding: Finding, known: ModelDecision | None, now: float) -> dict[str, Any]:
    """The numbers that led to a finding, its rule, and the baseline's age, as they are stored."""
    rule = finding.rule
    return {
        "summary": rule.summary,
        "combine": rule.combine,
        "window": rule.window,
        "for": rule.for_,
        "clear_for": rule.clear_for,
        "min_drafts": rule.min_drafts,
        "min_requests": rule.min_requests,
        "readings": [to_builtins(_reading(rule, *reading)) for reading in finding.readings],
        "speedup": None if known is None else to_builtins(speedup_view(known)),
        "baseline_age": None if known is None else known.baseline.age(now),
        "attribution": None,
    }


def slo_view(status: SloStatus) -> SloView:
    """An objective of one model."""
    rates = {format_duration(span): rate for span, rate in status.burn_rates.items()}
    return view_of(SloView, status.slo, status, burn_rates=rates)


def goodput_view(by_window: Mapping[int, Goodput]) -> dict[str, GoodputView]:
    """Requests a second of one model that met all objectives, by window."""
    return {
        format_duration(window): GoodputView(
            goodput.watched,
            goodput.rate(goodput.requests),
            goodput.rate(goodput.lower),
            goodput.rate(goodput.upper),
        )
        for window, goodput in by_window.items()
    }


def speedup_view(known: ModelDecision) -> MeasuredSpeedup | AssumedSpeedup | None:
    """The speedup of a model, measured or else assumed."""
    measured = known.assessment.speedup
    if measured is not None:
        return view_of(MeasuredSpeedup, measured)
    return None if known.prior is None else AssumedSpeedup(known.prior)


def bin_view(bin_: BinBreakEven) -> BinView:
    """Break-even at one load."""
    return view_of(
        BinView,
        bin_,
        load_bin=load_bin_label(bin_.load_bin),
        break_even_acceptance=bin_.acceptance,
        break_even_length=bin_.step_cost.value,
    )


def _reading(rule: Rule, condition: Condition, reading: Reading) -> ReadingView:
    bounds = reading.interval
    return view_of(
        ReadingView,
        reading,
        condition,
        window=rule.window_of(condition),
        lower=None if bounds is None else bounds.lower,
        upper=None if bounds is None else bounds.upper,
    )
