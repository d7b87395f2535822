"""The families of the decision on our own metrics page.

Nothing that is assumed bears the name of something measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.domain import histogram
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL_TEMPERATURES, load_bin_label
from specwatch.rules.decisions import ModelDecision, leading
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.status import JudgingStatus, TargetStatus
from specwatch.web.labels import add, label, shown_quantile

_MODEL = ("target", "model_name")
_SERIES = (*_MODEL, "temperature")
_VALUES = {Verdict.PASS: 0, Verdict.BREACH: 1, Verdict.NO_DATA: -1}
LEAST_FINDINGS = 32
"""Verdicts that each of however many targets may have."""
_MOST_BUCKETS = 12
_QUANTILES = (0.5, 0.95, 0.99)


def of_decisions(
    targets: Iterable[TargetStatus], judging: JudgingStatus, share: int, now: float
) -> Iterator[Metric]:
    """Yield the families, of up to ``share`` models of a target; ``now`` is a Unix time."""
    targets = list(targets)
    models = [
        (target.name, label(name), one)
        for target in targets
        for name, one in islice(target.decision.models.items(), share)
    ]
    yield from _speedups(models)
    yield from _lines(models)
    age = GaugeMetricFamily(
        "specwatch_baseline_age_seconds",
        "Time since the oldest part of the baseline in use was measured.",
        labels=_MODEL,
    )
    for target, model, one in models:
        add(age, (target, model), one.baseline.age(now))
    yield age
    yield _baseline_latencies(models)
    yield from _verdicts(targets, share)
    yield from _judging(judging)


def decisions_left_out(target: TargetStatus, share: int) -> int:
    """Verdicts and objectives of a target that are too many to be exported."""
    decision = target.decision
    surplus = max(0, len(decision.findings) - max(share, LEAST_FINDINGS))
    return surplus + max(0, len(decision.slos) - share)


def _speedups(models: Iterable[tuple[str, str, ModelDecision]]) -> Iterator[Metric]:
    speedup = GaugeMetricFamily(
        "specwatch_speedup_ratio",
        "Speedup by speculation over the last hour, measured against the baseline at equal load.",
        labels=_SERIES,
    )
    lower = GaugeMetricFamily(
        "specwatch_speedup_ratio_lower",
        "Lower end of the 95 % confidence interval of specwatch_speedup_ratio.",
        labels=_SERIES,
    )
    upper = GaugeMetricFamily(
        "specwatch_speedup_ratio_upper",
        "Upper end of the 95 % confidence interval of specwatch_speedup_ratio.",
        labels=_SERIES,
    )
    measured = GaugeMetricFamily(
        "specwatch_speedup_measured",
        "Whether the speedup over the last hour is measured.",
        labels=_MODEL,
    )
    assumed = GaugeMetricFamily(
        "specwatch_assumed_speedup_ratio",
        "Speedup suggested by the acceptance and an assumed draft cost, without a baseline.",
        labels=_MODEL,
    )
    line = GaugeMetricFamily(
        "specwatch_assumed_break_even_acceptance_ratio",
        "Acceptance rate at which specwatch_assumed_speedup_ratio is 1, by the same draft cost.",
        labels=_MODEL,
    )
    for target, model, one in models:
        assessment = one.assessment
        measured.add_metric((target, model), int(assessment.measured))
        if one.prior is not None:
            assumed.add_metric((target, model), one.prior)
            line.add_metric((target, model), one.draft_cost_ratio)
        for temperature, interval in _by_temperature(one):
            labels = (target, model, label(temperature))
            speedup.add_metric(labels, interval.value)
            lower.add_metric(labels, interval.lower)
            upper.add_metric(labels, interval.upper)
    yield from (speedup, lower, upper, measured, assumed, line)


def _by_temperature(one: ModelDecision) -> Iterator[tuple[str, Interval]]:
    if one.assessment.speedup is not None:
        yield ALL_TEMPERATURES, one.assessment.speedup
    for temperature, bucket in islice(one.assessment.buckets.items(), _MOST_BUCKETS):
        yield temperature, bucket.speedup


def _lines(models: Iterable[tuple[str, str, ModelDecision]]) -> Iterator[Metric]:
    line = GaugeMetricFamily(
        "specwatch_break_even_acceptance_ratio",
        "Acceptance rate below which speculation loses at a load, as measured.",
        labels=(*_MODEL, "load_bin"),
    )
    cost = GaugeMetricFamily(
        "specwatch_step_cost_ratio",
        "Time of a speculative step over that of a plain one at a load, as measured.",
        labels=(*_MODEL, "load_bin"),
    )
    for target, model, one in models:
        for load in one.assessment.bins:
            labels = (target, model, load_bin_label(load.load_bin))
            line.add_metric(labels, load.acceptance.value)
            cost.add_metric(labels, load.step_cost.value)
    yield from (line, cost)


def _baseline_latencies(models: Iterable[tuple[str, str, ModelDecision]]) -> Metric:
    latency = GaugeMetricFamily(
        "specwatch_baseline_latency_seconds",
        "Latency quantiles of the model's own traffic without speculation, at the loads of the"
        " last hour with it: what rules compare latencies with.",
        labels=("target", "model_name", "metric", "quantile"),
    )
    latency.type = "summary"
    for target, model, one in models:
        for metric, observed in one.baseline_latencies.items():
            for q in _QUANTILES:
                value = shown_quantile(histogram.quantile(observed, q))
                add(latency, (target, model, metric, str(q)), value)
    return latency


def _verdicts(targets: Sequence[TargetStatus], share: int) -> Iterator[Metric]:
    verdict = GaugeMetricFamily(
        "specwatch_rule_verdict",
        "What a rule says: 0 pass, 1 breach, -1 no data; breaches are confirmed ones.",
        labels=("rule", *_SERIES),
    )
    value = GaugeMetricFamily(
        "specwatch_rule_value",
        "The metric that represents a rule best, as the rule sees it and in its own unit.",
        labels=("rule", *_SERIES, "metric"),
    )
    threshold = GaugeMetricFamily(
        "specwatch_rule_threshold",
        "What specwatch_rule_value is compared with.",
        labels=("rule", *_SERIES, "metric"),
    )
    for target in targets:
        # Where not all can be shown, breaches are.
        ordered = sorted(target.decision.findings, key=_is_no_breach)
        for finding in ordered[: max(share, LEAST_FINDINGS)]:
            labels = (
                finding.rule.name,
                target.name,
                label(finding.model_name),
                label(finding.temperature),
            )
            verdict.add_metric(labels, _VALUES[finding.verdict])
            for metric, reading, line in _told(finding):
                value.add_metric((*labels, metric), reading)
                threshold.add_metric((*labels, metric), line)
    yield from (verdict, value, threshold)


def _told(finding: Finding) -> Iterator[tuple[str, float, float]]:
    """The metric that a finding is best told by, its value and its threshold, where known."""
    value = leading(finding)
    if value is not None and value[1].value is not None:
        yield value[0].metric, value[1].value, value[0].threshold


def _is_no_breach(finding: Finding) -> bool:
    return finding.verdict is not Verdict.BREACH


def _judging(judging: JudgingStatus) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "specwatch_judging_failures",
        "Defects of specwatch itself in judging, or in showing what was judged.",
        judging.defects,
    )
    yield CounterMetricFamily(
        "specwatch_store_verdicts_dropped",
        "Changes of verdicts given up because too many waited for the database.",
        judging.dropped,
    )
    yield GaugeMetricFamily(
        "specwatch_store_verdicts_queued",
        "Changes of verdicts that wait for the database.",
        judging.queued,
    )
