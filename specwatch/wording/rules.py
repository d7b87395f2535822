"""Rules and readings in words."""

from __future__ import annotations

from specwatch.config.rules import Condition, Rule, Scope
from specwatch.config.rules.metrics import MEASURES
from specwatch.config.rules.rule import POSITIVE
from specwatch.domain.model import Segment
from specwatch.domain.units import format_amount, format_duration
from specwatch.wording import figures
from specwatch.wording.figures import counted
from specwatch.wording.segments import kind_title, where
from specwatch.wording.text import shown

_LONG = 600.0
"""Seconds from which on an amount of them is written as a span."""


def amount(metric: str, value: float | None) -> str:
    """A value of a metric, as thresholds are written: ``0.832``, ``235 ms``."""
    if value is None:
        return figures.UNKNOWN
    measure = MEASURES.get(metric)  # none for one that only a newer daemon knows
    if measure is None or measure.unit != "seconds":
        return f"{value:.3g}"
    return figures.span(value) if value >= _LONG else figures.seconds(value)


def metric_words(metric: str) -> str:
    """A metric as an alert calls it: ``speedup``, ``P99 of TTFT``."""
    return _METRIC_WORDS.get(metric) or shown(metric).replace("_", " ")


_METRIC_WORDS = {
    "speedup_ratio": "speedup",
    "speedup_ratio_unadjusted": "speedup at today's step time",
    "experiment_speedup_ratio": "speedup of the best other number of draft tokens",
    "speedup_ratio_assumed": "speedup by the assumed draft cost",
    "unjudged": "unjudged for",
    "acceptance_ratio": "acceptance",
    "acceptance_ratio_unmeasured": "acceptance",
    "acceptance_change": "change of acceptance against the day before",
    "acceptance_length": "tokens per step",
    "request_acceptance_p10": "P10 of the requests' acceptance",
    "request_acceptance_p50": "median of the requests' acceptance",
    "request_speedup_p10_assumed": "speedup at P10 of the requests, by the assumed draft cost",
    "losing_draft_share": "share of drafts that lose",
    "tpot_tail": "P99 over P50 of TPOT",
    "tpot_tail_ratio": "P99 over P50 of TPOT, relative to the baseline",
    "kv_cache_usage": "KV cache usage",
    "running": "running requests",
    "waiting": "waiting requests",
    "short_output_share": "share of outputs of at most 20 tokens",
    "loop_share": "share of requests that look like a loop",
    "length_finish_excess": "more requests at their limit of length than without speculation",
    "tool_call_shortfall": "fewer requests with a tool call than without speculation",
    "coverage_ratio": "share of drafts of known temperature",
    **{
        f"{latency}_{rank}{suffix}": f"{rank.upper()} of {latency.upper()}{words}"
        for latency in ("ttft", "tpot")
        for rank in ("p50", "p90", "p95", "p99")
        for suffix, words in (("", ""), ("_ratio", " relative to the baseline"))
    },
}


def comparison(condition: Condition) -> str:
    """``below 1``, the threshold as the configuration has it."""
    unit = MEASURES[condition.metric].unit
    way = "below" if condition.above is None else "above"
    return f"{way} {format_amount(condition.threshold, unit)}"


def conditions(rule: Rule) -> str:
    """When it fires: ``speedup_ratio below 1 over 5m or .., for 3m``."""
    sentence = f" {'and' if rule.combine == 'all' else 'or'} ".join(
        f"{part.metric} {comparison(part)} over {format_duration(rule.window_of(part))}"
        for part in rule.conditions
    )
    return f"{sentence}, for {format_duration(rule.for_)}" if rule.for_ else sentence


def clearing(rule: Rule) -> str:
    """When the breach is over: ``speedup_ratio back at 1.02, for 5m``."""
    ends = dict.fromkeys(
        f"{part.metric} back at {format_amount(part.clearing, MEASURES[part.metric].unit)}"
        for part in rule.conditions
    )
    sentence = " and ".join(ends) if rule.combine == "any" else " or ".join(ends)
    return f"{sentence}, for {format_duration(rule.clear_for)}" if rule.clear_for else sentence


def traffic(rule: Rule) -> str | None:
    """The least traffic that it needs; None where it needs none."""
    least = [(rule.min_drafts, "draft"), (rule.min_requests, "request")]
    return " and ".join(counted(count, noun) for count, noun in least if count) or None


def scope(rule: Rule) -> str | None:
    """Whom it is for; None for all."""
    chosen, every = rule.scope, Scope()
    sentences = [
        f"{name} {value}"
        for name, value in (("target", chosen.target), ("model", chosen.model_name))
        if value != "*"
    ]
    if chosen.dimension != every.dimension:
        title = kind_title(chosen.dimension)
        each = {every.value: title, POSITIVE: f"{title} above 0"}.get(chosen.value)
        one = where(Segment(chosen.dimension, chosen.value)).lstrip()
        sentences.append(f"each {each} by itself" if each else one)
    return ", ".join(sentences) or None
