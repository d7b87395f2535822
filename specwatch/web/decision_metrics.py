"""Samples of the decision: speedups, break-even, rules and objectives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from specwatch.domain import histogram
from specwatch.domain.model import ALL_TEMPERATURES, load_bin_label
from specwatch.domain.units import format_duration
from specwatch.rules.decisions import ModelDecision, leading
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.status import TargetStatus
from specwatch.web.exported_metrics import ExportedSample, label, shown_quantile

_VALUES = {Verdict.PASS: 0, Verdict.BREACH: 1, Verdict.NO_DATA: -1}
LEAST_FINDINGS = 32
"""Verdicts that each target may have, however many targets there are."""
_MOST_BUCKETS = 12
_QUANTILES = (0.5, 0.95, 0.99)


def of_decision(target: TargetStatus, share: int, now: float) -> Iterator[ExportedSample]:
    """Yield the samples of up to ``share`` models and objectives; ``now`` is a Unix time."""
    for name, model in islice(target.decision.models.items(), share):
        labels = (target.name, label(name))
        yield from _speedups(labels, model)
        yield from _break_even(labels, model)
        yield ExportedSample("specwatch_baseline_age_seconds", labels, model.baseline.age(now))
        for metric, observed in model.baseline_latencies.items():
            for q in _QUANTILES:
                value = shown_quantile(histogram.quantile(observed, q))
                place = (*labels, metric, str(q))
                yield ExportedSample("specwatch_baseline_latency_seconds", place, value)
    # Breaches first: they are shown if there are too many verdicts.
    ordered = sorted(target.decision.findings, key=_is_no_breach)
    for finding in ordered[: max(share, LEAST_FINDINGS)]:
        yield from _finding(target.name, finding)
    yield from _objectives(target, share)
    yield from _goodput(target, share)


def decisions_left_out(target: TargetStatus, share: int) -> int:
    """Verdicts and objectives of a target that are too many to be exported."""
    decision = target.decision
    surplus = max(0, len(decision.findings) - max(share, LEAST_FINDINGS))
    return surplus + max(0, len(decision.slos) - share)


def _speedups(labels: tuple[str, str], model: ModelDecision) -> Iterator[ExportedSample]:
    assessment = model.assessment
    yield ExportedSample("specwatch_speedup_measured", labels, int(assessment.measured))
    if model.prior is not None:
        yield ExportedSample("specwatch_assumed_speedup_ratio", labels, model.prior)
        line = "specwatch_assumed_break_even_acceptance_ratio"
        yield ExportedSample(line, labels, model.draft_cost_ratio)
    speedups = [
        (temperature, bucket.speedup)
        for temperature, bucket in islice(assessment.buckets.items(), _MOST_BUCKETS)
    ]
    if assessment.speedup is not None:
        speedups.insert(0, (ALL_TEMPERATURES, assessment.speedup))
    for temperature, interval in speedups:
        place = (*labels, label(temperature))
        yield ExportedSample("specwatch_speedup_ratio", place, interval.value)
        yield ExportedSample("specwatch_speedup_ratio_lower", place, interval.lower)
        yield ExportedSample("specwatch_speedup_ratio_upper", place, interval.upper)


def _break_even(labels: tuple[str, str], model: ModelDecision) -> Iterator[ExportedSample]:
    for load in model.assessment.bins:
        place = (*labels, load_bin_label(load.load_bin))
        line = "specwatch_break_even_acceptance_ratio"
        yield ExportedSample(line, place, load.acceptance.value)
        yield ExportedSample("specwatch_step_cost_ratio", place, load.step_cost.value)


def _finding(target: str, finding: Finding) -> Iterator[ExportedSample]:
    labels = (finding.rule.name, target, label(finding.model_name), label(finding.temperature))
    yield ExportedSample("specwatch_rule_verdict", labels, _VALUES[finding.verdict])
    best = leading(finding)
    if best is not None and best[1].value is not None:
        condition, reading = best
        place = (*labels, condition.metric)
        yield ExportedSample("specwatch_rule_value", place, reading.value)
        yield ExportedSample("specwatch_rule_threshold", place, condition.threshold)


def _objectives(target: TargetStatus, share: int) -> Iterator[ExportedSample]:
    for status in target.decision.slos[:share]:
        labels = (status.slo.name, target.name, label(status.model_name))
        yield ExportedSample("specwatch_slo_objective_ratio", labels, status.slo.objective)
        yield ExportedSample("specwatch_slo_error_ratio", labels, status.error_ratio)
        yield ExportedSample("specwatch_slo_budget_left_ratio", labels, status.budget_left)
        for seconds, rate in status.burn_rates.items():
            place = (*labels, format_duration(seconds))
            watched = min(status.watched[seconds] / seconds, 1.0)
            yield ExportedSample("specwatch_slo_burn_rate", place, rate)
            yield ExportedSample("specwatch_slo_requests", place, status.requests[seconds])
            yield ExportedSample("specwatch_slo_watched_ratio", place, watched)


def _goodput(target: TargetStatus, share: int) -> Iterator[ExportedSample]:
    for name, by_window in islice(target.decision.goodput.items(), share):
        for seconds, goodput in by_window.items():
            place = (target.name, label(name), format_duration(seconds))
            offered = goodput.rate(goodput.requests)
            yield ExportedSample("specwatch_offered_requests_per_second", place, offered)
            for bound, requests in (("lower", goodput.lower), ("upper", goodput.upper)):
                met = "specwatch_goodput_requests_per_second"
                yield ExportedSample(met, (*place, bound), goodput.rate(requests))


def _is_no_breach(finding: Finding) -> bool:
    return finding.verdict is not Verdict.BREACH
