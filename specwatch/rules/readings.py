"""Reading a metric off the evidence: its value over a window, or why it has no value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from specwatch.config.rules.metrics import MEASURES
from specwatch.domain import histogram, quantile
from specwatch.domain.acceptance import acceptance_change, acceptance_rate, mean_acceptance_length
from specwatch.domain.breakeven import DRAFT_COST_RATIO, assumed_speedup, prior_speedup
from specwatch.domain.draft_lengths import CAUSES
from specwatch.domain.facts import Fact
from specwatch.domain.finishes import LEAST_REQUESTS, finish_change
from specwatch.domain.group import LEAST_COMPARED
from specwatch.domain.model import (
    ALL,
    EVENTS,
    HOUR,
    TEMPERATURE,
    Histogram,
    Segment,
)
from specwatch.domain.quantile import QuantileEstimate
from specwatch.domain.ranks import Rank
from specwatch.domain.sample import counted_in
from specwatch.domain.shares import share_of
from specwatch.domain.speedup import LEAST_SHARE, TOO_FEW
from specwatch.domain.switchback import LAUNCH, TUNED
from specwatch.domain.switchback_results import fastest_other
from specwatch.rules.evidence import Evidence
from specwatch.rules.reading import Query, Reading, finished_in, no_value, value_or
from specwatch.rules.summary import QUANTILES

SHORT_OUTPUT = 20
"""Tokens up to which an output gains little from speculation."""

_BY_POSITION = 0.9
"""Share of the accepted tokens that have to be known by position: some of them may be of a server
or a tap that does not say."""
_FEW = "too few requests"
_MOST_NAMED = 3
"""Ranks that are named where several stand out."""


def read(
    metric: str,
    evidence: Evidence,
    *,
    window: float,
    segment: Segment = ALL,
    draft_cost_ratio: float = DRAFT_COST_RATIO,
) -> Reading:
    """Read any of :data:`specwatch.config.rules.metrics.MEASURES` over the last ``window`` seconds.

    A metric that is not known of the segment is that of all. What is read from minutes with
    speculation has no value while the newest minute is not one of them. A substitute for another
    metric has no value once there was a baseline, acceptance none where drafts vary in length.
    ``draft_cost_ratio`` is the cost of a draft token in steps of the target, for what is assumed.
    Raises KeyError for another metric.
    """
    measure = MEASURES[metric]
    where = segment if measure.known_of(segment.dimension) else ALL
    query = Query(evidence, window, where, draft_cost_ratio, measure.read_from == "usable")
    reading = _varying(evidence) if measure.fixed_length else None
    if reading is None and measure.instead_of:
        reading = _measured_instead(evidence, window)
    reading = reading or _READERS[metric](query)
    counted = query.tally
    reading = reading._replace(drafts=counted.drafts or 0, requests=finished_in(counted))
    if reading.value is None:
        return reading
    if not evidence.speculating and measure.read_from != "any_mode":
        missing = "speculation was off in the newest minute"
    elif not math.isfinite(reading.value):
        missing = "it is not a number"
    else:
        return reading
    return Reading(None, None, reading.drafts, reading.requests, reading.basis, missing)


_Reader = Callable[[Query], Reading]


def _speedup(query: Query) -> Reading:
    if query.segment == ALL:
        return _compared(query)
    assessed = query.evidence.assessment(query.window)
    bucket = assessed.segments.get(query.segment)
    if bucket is not None:
        return Reading(bucket.speedup.value, bucket.speedup, basis="measured")
    where = "at this temperature" if query.segment.dimension == TEMPERATURE else "of this segment"
    return no_value(assessed.missing or f"{TOO_FEW} {where}", "measured")


def _compared(query: Query, *, adjusted: bool = True) -> Reading:
    compared = query.evidence.compared(query.window, adjusted=adjusted)
    interval = compared.interval()
    if interval is None:
        return no_value(compared.missing or TOO_FEW, "measured")
    stretches = query.evidence.stretches(query.window, adjusted=adjusted) or ()
    return Reading(interval.value, interval, basis="measured", stretches=stretches)


def _experiment_speedup(query: Query) -> Reading:
    experiment = query.evidence.experiment
    if experiment is None:
        return no_value("the target has no experiment", "measured", moot=True)
    if query.evidence.now - experiment.state.counted > HOUR:
        return no_value("the experiment does not run", "measured", moot=True)
    fastest = fastest_other(experiment.state, experiment.design, LAUNCH)
    if fastest is None:
        return no_value("the experiment has too few episodes", "measured")
    arm, interval = fastest
    note = "of the tuned schedule" if arm == TUNED else f"of {arm} draft tokens"
    return Reading(interval.value, interval, basis="measured", note=note)


def _unjudged(query: Query) -> Reading:
    unjudged = query.evidence.unjudged
    if unjudged is None:
        return Reading(0.0)
    return Reading(query.evidence.now - unjudged.since, note=unjudged.missing)


def _acceptance(query: Query) -> Reading:
    return value_or(acceptance_rate(query.tally), _no_drafts(query))


def _no_drafts(query: Query) -> str:
    """Why the acceptance is unknown."""
    counted = query.tally
    if counted.drafts and counted.draft_tokens is None:
        return "the engine counts no draft tokens"
    generated = counted.drafts == 0 and counted.generation_tokens
    return "no drafts, although tokens were generated" if generated else "no drafts"


def _varying(evidence: Evidence) -> Reading | None:
    """Why acceptance tells nothing; None if drafts do not vary in length by design."""
    if evidence.draft_lengths is None:
        return None
    cause = CAUSES[evidence.draft_lengths]
    missing = f"drafts vary in length {cause}, so that only a measured speedup tells"
    return no_value(missing, moot=True)


def _first_position(query: Query) -> Reading:
    counted = query.tally
    if not counted.drafts:
        return no_value(_no_drafts(query))
    by_position = counted.accepted_per_position
    if not by_position or sum(by_position) < _BY_POSITION * (counted.accepted_tokens or 0):
        return no_value("not all accepted tokens are counted by position", moot=True)
    return Reading(by_position[0] / counted.drafts)


def _measured_instead(evidence: Evidence, window: float) -> Reading | None:
    """Why an assumption is not used; None if it is: without a baseline, or at conditions that the
    baseline does not cover."""
    if evidence.baseline:
        compared = evidence.compared(window)
        if compared.minutes and compared.covered < LEAST_SHARE:
            return None
        return no_value("there is a baseline to measure by", "assumed", moot=True)
    if evidence.baseline.expired:
        # An assumption would be worse than the expired measurement.
        missing = "the baseline has expired; run specwatch calibrate"
        return no_value(missing, "assumed", moot=True)
    return None


def _request_speedup_assumed(query: Query) -> Reading:
    rate, counted = _request_acceptance(0.1)(query), query.tally
    if rate.value is None or not counted.drafts or not counted.draft_tokens:
        return no_value(rate.missing or _no_drafts(query), "assumed")
    k = counted.draft_tokens / counted.drafts
    speedup = prior_speedup(1 + k * rate.value, k, query.draft_cost_ratio)
    return Reading(speedup, basis="assumed")


def _acceptance_change(query: Query) -> Reading:
    change = acceptance_change(query.samples, query.evidence.reference)
    if isinstance(change, str):
        return no_value(change)
    return Reading(change.interval.value, change.interval, note=change.note)


def _request_acceptance(q: float) -> _Reader:
    return lambda query: _quantile(
        query.tally.request_acceptance, q, "no acceptance of single requests"
    )


def _losing_share(query: Query) -> Reading:
    assessment = query.evidence.assessment(query.window)
    buckets = [one for of, one in assessment.segments.items() if of.dimension == TEMPERATURE]
    if not buckets:
        missing = assessment.missing or "no measured speedup of any temperature"
        return no_value(missing, "measured", moot=not query.evidence.baseline.known)
    losing = math.fsum(bucket.share for bucket in buckets if bucket.loses)
    return Reading(losing, basis="measured")


def _latency(metric: str, rank: str) -> _Reader:
    return lambda query: _quantile(
        getattr(query.tally, metric), QUANTILES[rank], f"no {metric.upper()}"
    )


def _quantile(observed: Histogram | None, q: float, missing: str) -> Reading:
    value = None if observed is None else histogram.quantile(observed, q)
    if value is None or value.value is None:
        return no_value(missing)
    note = "greater than the last bound of the histogram" if value.open_ended else None
    return Reading(value.value, note=note, open_ended=value.open_ended)


def _tail(query: Query) -> Reading:
    slow, usual = (_latency("tpot", rank)(query) for rank in ("p99", "p50"))
    if slow.value is None or not usual.value:
        return no_value(slow.missing or "no TPOT")
    if usual.open_ended:
        return no_value("the median lies beyond the last bound of the histogram")
    return slow._replace(value=slow.value / usual.value)


def _against_baseline(metric: str, *ranks: str) -> _Reader:
    """The quantile of the first rank over that of the baseline; if there is a second, each over
    its own quantile of that one."""

    def reader(query: Query) -> Reading:
        compared = query.evidence.at_equal_load(metric, query.window)
        if isinstance(compared, str):
            return no_value(compared, "measured")
        over: list[QuantileEstimate] = []
        under: list[QuantileEstimate] = []
        for rank in ranks:
            now, before = compared.estimates(QUANTILES[rank])
            if now is None or before is None:
                return no_value("the histogram has no bounds", "measured")
            # Of the second rank the baseline's is above the line.
            over.append(before if over else now)
            under.append(now if under else before)
        ratio = quantile.ratio_of(over, under, len(compared.parts))
        if ratio is None:
            return no_value("beyond the last bound of the histogram", "measured")
        interval, open_ended = ratio
        note = "the upper limit is greater than shown" if open_ended else None
        return Reading(interval.value, interval, basis="measured", note=note, open_ended=open_ended)

    return reader


def _kv_cache(query: Query) -> Reading:
    usage = [usage for e in query.samples if (usage := e.gauges.kv_cache_usage_max) is not None]
    return value_or(max(usage, default=None), "no KV-cache usage")


def _event(fact: Fact) -> _Reader:
    def reader(query: Query) -> Reading:
        count = getattr(query.tally, fact.name)
        return value_or(None if count is None else float(count), f"no count of {fact.event}s")

    return reader


def _mean_of(gauge: str) -> _Reader:
    def reader(query: Query) -> Reading:
        window = query.evidence.window(query.window)
        sampled = [sample.gauges for sample in window if sample.sound]
        seconds = math.fsum(gauges.sampled_seconds for gauges in sampled)
        if not seconds:
            return no_value(f"no count of {gauge} requests")
        requests = math.fsum(getattr(gauges, f"{gauge}_seconds") for gauges in sampled)
        return Reading(requests / seconds)

    return reader


def _short_outputs(query: Query) -> Reading:
    lengths = query.tally.output_length
    if lengths is None or not lengths.count or not lengths.bounds:
        return no_value("no lengths of outputs")
    return Reading(1 - quantile.above(lengths, SHORT_OUTPUT) / lengths.count)


def _loops(query: Query) -> Reading:
    if query.requests < LEAST_REQUESTS:
        return no_value(_FEW)
    endings = [counted_in(sample, query.segment).endings for sample in query.samples]
    share = share_of([(ended.get("loop", 0), sum(ended.values())) for ended in endings])
    if share is None:
        return no_value("no tap counts loops", moot=True)
    interval = share.interval()
    if interval is None or share.of < LEAST_REQUESTS:
        return no_value("too few requests with an exact record of their acceptance")
    return Reading(interval.value, interval)


def _finish_change(reason: str, *, more: bool) -> _Reader:
    """By how much a share has certainly become greater, or smaller; 0 if that is not certain."""

    def reader(query: Query) -> Reading:
        hours = query.evidence.finished
        if not any(hour.without for hour in hours):
            return no_value("speculation was not off within a day", "measured", moot=True)
        if query.requests < LEAST_REQUESTS:
            return no_value(_FEW, "measured")
        if reason == "tool_calls" and not any(sample.buckets for sample in query.samples):
            return no_value("no tap sees tool calls", "measured", moot=True)
        change = finish_change(reason, query.samples, hours)
        if isinstance(change, str):
            return no_value(change, "measured", moot=True)
        least = change.lower if more else -change.upper
        return Reading(max(least, 0.0), basis="measured", note=f"by estimate {change.value:+.1%}")

    return reader


def _outlier_ranks(query: Query) -> Reading:
    ranks = query.evidence.ranks
    if not ranks:
        return no_value("the server does not count by data-parallel ranks", moot=True)
    if sum(rank.drafting is not None for rank in ranks) < LEAST_COMPARED:
        return no_value("too few ranks generate enough to be compared")
    outliers = [rank for rank in ranks if rank.stands_out]
    named = [_of_ranks(f"rank {rank.rank}", [rank]) for rank in outliers[:_MOST_NAMED]]
    if len(outliers) > _MOST_NAMED:
        named.append(f"{len(outliers) - _MOST_NAMED} more")
    note = f"{', '.join(named)}; {_of_ranks('the median', ranks)}" if outliers else None
    return Reading(float(len(outliers)), note=note)


def _of_ranks(name: str, ranks: Sequence[Rank]) -> str:
    """``rank 3: 12.0% accepted, 0.42 drafts a token``, the medians of several."""
    accepted = [rank.acceptance.value for rank in ranks if rank.acceptance]
    drafting = [rank.drafting.value for rank in ranks if rank.drafting]
    parts = [f"{median(accepted):.1%} accepted"] if accepted else []
    parts += [f"{median(drafting):.2f} drafts a token"] if drafting else []
    return f"{name}: {', '.join(parts)}"


def _coverage(query: Query) -> Reading:
    samples = [sample for sample in query.samples if sample.tally.drafts]
    if all(sample.coverage is None for sample in samples):
        return no_value("no drafts" if not samples else "no temperature is known")
    covered = math.fsum((sample.coverage or 0.0) * (sample.tally.drafts or 0) for sample in samples)
    return Reading(covered / sum(sample.tally.drafts or 0 for sample in samples))


_LATENCIES = [(metric, rank) for metric in ("ttft", "tpot") for rank in QUANTILES]
_READERS: Mapping[str, _Reader] = {
    "speedup_ratio": _speedup,
    "speedup_ratio_unadjusted": lambda query: _compared(query, adjusted=False),
    "experiment_speedup_ratio": _experiment_speedup,
    "unjudged": _unjudged,
    "acceptance_ratio": _acceptance,
    "speedup_ratio_assumed": lambda query: value_or(
        assumed_speedup(query.tally, query.draft_cost_ratio), _no_drafts(query), "assumed"
    ),
    "acceptance_ratio_unmeasured": lambda query: _acceptance(query)._replace(basis="assumed"),
    "acceptance_change": _acceptance_change,
    "acceptance_length": lambda query: value_or(
        mean_acceptance_length(query.tally), _no_drafts(query)
    ),
    "first_position_acceptance": _first_position,
    "request_acceptance_p10": _request_acceptance(0.1),
    "request_acceptance_p50": _request_acceptance(0.5),
    "request_speedup_p10_assumed": _request_speedup_assumed,
    "losing_draft_share": _losing_share,
    **{f"{metric}_{rank}": _latency(metric, rank) for metric, rank in _LATENCIES},
    **{f"{metric}_{rank}_ratio": _against_baseline(metric, rank) for metric, rank in _LATENCIES},
    "tpot_tail": _tail,
    "tpot_tail_ratio": _against_baseline("tpot", "p99", "p50"),
    "kv_cache_usage": _kv_cache,
    **{fact.name: _event(fact) for fact in EVENTS},
    "running": _mean_of("running"),
    "waiting": _mean_of("waiting"),
    "short_output_share": _short_outputs,
    "loop_share": _loops,
    "length_finish_excess": _finish_change("length", more=True),
    "tool_call_shortfall": _finish_change("tool_calls", more=False),
    "outlier_ranks": _outlier_ranks,
    "coverage_ratio": _coverage,
}
"""What reads each of the metrics."""
