"""The decision as JSON.

Unknown values are None. Every speedup says whether it was measured or is assumed, and a measured
one whether it is current.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from specwatch.domain.model import load_bin_label
from specwatch.domain.speedup import NOT_SEEN, mended_by_calibration
from specwatch.domain.units import format_duration
from specwatch.rules.evidence import LATELY

if TYPE_CHECKING:
    from specwatch.config.rules import Condition, Rule
    from specwatch.domain.baseline import Baseline, Measurement
    from specwatch.domain.breakeven import Assessment, BinBreakEven
    from specwatch.domain.interval import Interval
    from specwatch.rules.equal_load import BaselineLatencies
    from specwatch.rules.objectives import Goodput, SloStatus
    from specwatch.rules.readings import Reading
    from specwatch.rules.verdicts import Finding

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """A change of a confirmed verdict with its inputs, as it is stored.

    ``at`` is the Unix time in seconds from which on it holds.
    """

    daemon: str
    target: str
    model_name: str
    temperature: str
    rule: str
    at: float
    verdict: str
    severity: str
    action: str
    inputs: Json


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """Whether speculation pays for one model, and what that rests on.

    ``prior`` is an assumed speedup, where there is no baseline at all; it follows from
    ``draft_cost_ratio``, the cost of a draft token in steps of the target, which is the assumed
    break-even acceptance too.
    ``baseline_latencies`` are those of :meth:`specwatch.rules.judge.Judge.baseline_latencies`.
    """

    assessment: Assessment
    baseline: Baseline
    prior: float | None = None
    draft_cost_ratio: float = 0.1
    baseline_latencies: BaselineLatencies = field(default_factory=dict)

    def current(self, now: float) -> bool:
        """Whether there is a measured speedup that is current at ``now`` (Unix seconds)."""
        until = self.assessment.until
        return until is not None and until >= now - LATELY

    def missing(self, now: float) -> str | None:
        """Why there is no current measured speedup, as words; None if there is one."""
        if self.current(now):
            return None
        return self.assessment.missing or self.assessment.missing_lately or NOT_SEEN


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """The decision on one target; ``goodput`` is by model and seconds of the window."""

    models: Mapping[str, ModelDecision] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    slos: tuple[SloStatus, ...] = ()
    goodput: Mapping[str, Mapping[int, Goodput]] = field(default_factory=dict)


def decision(one: Decision) -> Json:
    """A stored change as the API shows it."""
    return asdict(one)


def target(decision: TargetDecision, now: float) -> Json:
    """All about one target as the API shows it; ``now`` is a Unix time."""
    return {
        "models": {name: model(one, now) for name, one in decision.models.items()},
        "findings": [finding(one) for one in decision.findings],
        "slos": [slo(one) for one in decision.slos],
        "goodput": {name: goodput(one) for name, one in decision.goodput.items()},
    }


def of_models(decision: TargetDecision, names: Collection[str]) -> TargetDecision:
    """The part of a decision that is about these models."""
    return TargetDecision(
        {name: one for name, one in decision.models.items() if name in names},
        tuple(one for one in decision.findings if one.model_name in names),
        tuple(one for one in decision.slos if one.model_name in names),
        {name: one for name, one in decision.goodput.items() if name in names},
    )


def model(one: ModelDecision, now: float) -> Json:
    """Whether speculation pays for one model, with the ages of what that rests on."""
    assessment, missing = one.assessment, one.missing(now)
    calibrate = missing is not None and mended_by_calibration(missing)
    return {
        "speedup": _speedup(one),
        "current": one.current(now),
        "until": assessment.until,
        "objective": str(assessment.objective) if assessment.measured else None,
        "per_token": interval(assessment.per_token),
        "missing": missing,
        "remedy": "specwatch calibrate" if calibrate else None,
        "minutes": assessment.samples,
        "covered": assessment.covered,
        "bins": [_bin(estimate) for estimate in assessment.bins],
        "assumed_acceptance": None if one.prior is None else one.draft_cost_ratio,
        "buckets": [
            {
                "temperature": label,
                "share": bucket.share,
                "acceptance_rate": bucket.acceptance_rate,
                "speedup": interval(bucket.speedup),
                "loses": bucket.loses,
            }
            for label, bucket in assessment.buckets.items()
        ],
        "best_k": assessment.best_k
        and {"k": assessment.best_k.k, "speedups": list(assessment.best_k.speedups)},
        "best_k_unknown": assessment.best_k_unknown,
        "baseline": {
            "age": one.baseline.age(now),
            "bins": [
                _measurement(measurement, now)
                for _, measurement in sorted(one.baseline.bins.items())
            ],
        },
    }


def finding(one: Finding) -> Json:
    """A rule's finding on one model and temperature; ``leading`` is its main reading."""
    leading_finding = leading(one)
    return {
        "rule": one.rule.name,
        "summary": one.rule.summary,
        "model_name": one.model_name,
        "temperature": one.temperature,
        "verdict": str(one.verdict),
        "seen": str(one.seen),
        "since": one.since,
        "pending": one.pending,
        "severity": one.rule.severity,
        "action": one.rule.action,
        "leading": None if leading_finding is None else _reading(one.rule, *leading_finding),
        "readings": [_reading(one.rule, *reading) for reading in one.readings],
    }


def inputs(one: Finding, known: ModelDecision | None, now: float) -> Json:
    """Inputs of a finding, stored with it: its numbers, its rule, the baseline's age."""
    rule = one.rule
    return {
        "summary": rule.summary,
        "combine": rule.combine,
        "window": rule.window,
        "for": rule.for_,
        "clear_for": rule.clear_for,
        "min_drafts": rule.min_drafts,
        "min_requests": rule.min_requests,
        "readings": [_reading(rule, *reading) for reading in one.readings],
        "speedup": None if known is None else _speedup(known),
        "baseline_age": None if known is None else known.baseline.age(now),
        "attribution": None,
    }


def leading(one: Finding) -> tuple[Condition, Reading] | None:
    """The condition that represents a finding: of ``any`` the first that is met."""
    if one.rule.combine == "any":
        for condition, read in one.readings:
            if read.value is not None and _met(condition, read.value):
                return condition, read
    return one.readings[0] if one.readings else None


def slo(one: SloStatus) -> Json:
    """An objective of one model."""
    return {
        "name": one.slo.name,
        "model_name": one.model_name,
        "metric": one.slo.metric,
        "threshold": one.slo.threshold,
        "objective": one.slo.objective,
        "window": one.slo.window,
        "good": one.good,
        "total": one.total,
        "unknown": one.unknown,
        "error_ratio": one.error_ratio,
        "budget_left": one.budget_left,
        "burn_rates": {format_duration(seconds): rate for seconds, rate in one.burn_rates.items()},
    }


def goodput(by_window: Mapping[int, Goodput]) -> Json:
    """Requests a second of one model that met all objectives, at least and at most, by window."""
    return {
        format_duration(window): {
            "watched_seconds": one.watched,
            "offered_per_second": one.rate(one.requests),
            "lower_per_second": one.rate(one.lower),
            "upper_per_second": one.rate(one.upper),
        }
        for window, one in by_window.items()
    }


def interval(one: Interval | None) -> Json | None:
    """An estimate with its bounds."""
    return None if one is None else asdict(one)


def _met(condition: Condition, value: float) -> bool:
    return value > condition.threshold if condition.below is None else value < condition.threshold


def _speedup(one: ModelDecision) -> Json | None:
    measured = one.assessment.speedup
    if measured is not None:
        return {"basis": "measured", **asdict(measured)}
    return None if one.prior is None else {"basis": "assumed", "value": one.prior}


def _bin(one: BinBreakEven) -> Json:
    return {
        "load_bin": load_bin_label(one.load_bin),
        "share": one.share,
        "acceptance_length": one.acceptance_length,
        "speedup": interval(one.speedup),
        "step_cost": interval(one.step_cost),
        "break_even_acceptance": interval(one.acceptance),
        "break_even_length": one.step_cost.value,
    }


def _measurement(one: Measurement, now: float) -> Json:
    return {
        "load_bin": load_bin_label(one.load_bin),
        "origin": str(one.origin),
        "measured_at": one.at,
        "age": now - one.at,
        "points": len(one.points),
        "engine_version": one.key.engine_version,
        "configuration": one.key.configuration,
    }


def _reading(rule: Rule, condition: Condition, read: Reading) -> Json:
    bounds = read.interval
    return {
        "metric": condition.metric,
        "above": condition.above,
        "below": condition.below,
        "clear": condition.clear,
        "window": rule.window_of(condition),
        "value": read.value,
        "lower": None if bounds is None else bounds.lower,
        "upper": None if bounds is None else bounds.upper,
        "drafts": read.drafts,
        "requests": read.requests,
        "basis": read.basis,
        "missing": read.missing,
        "note": read.note,
        "open_ended": read.open_ended,
    }
