"""Reading a metric off the evidence: its value over a window, or why it has no value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from specwatch.config.rules.metrics import MEASURES
from specwatch.domain import histogram, quantile
from specwatch.domain.acceptance import acceptance_change, acceptance_rate, mean_acceptance_length
from specwatch.domain.breakeven import DRAFT_COST_RATIO, assumed_speedup, prior_speedup
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL_TEMPERATURES, Histogram, Tally
from specwatch.domain.speedup import LEAST_SHARE, TOO_FEW, Comparison
from specwatch.rules.equal_load import at_equal_load
from specwatch.rules.evidence import Evidence
from specwatch.rules.summary import QUANTILES

SHORT_OUTPUT = 20
"""Tokens up to which an output gains little from speculation."""

Basis = Literal["measured", "assumed", "counted"]
"""Measured against a baseline, assumed without one, or simply counted."""


class Reading(NamedTuple):
    """A metric over a window; ``value`` is in the unit of the metric, and never NaN."""

    value: float | None
    interval: Interval | None = None
    drafts: int = 0
    requests: int = 0
    """Finished requests; like ``drafts`` of the window and temperature."""
    basis: Basis = "counted"
    missing: str | None = None
    """Why there is no value, in words."""
    note: str | None = None
    """A remark on the value, in words."""
    open_ended: bool = False
    """Whether the value, or the upper end of its interval, is really greater than given."""
    moot: bool = False
    """Whether the metric does not apply now, and so has no value."""
    stretches: tuple[Interval, ...] = ()
    """Of a speedup, over stretches that end now, shortest first, each with an interval that is
    valid when looking every minute. If there are any, they decide."""

    def deciding(self, below: float) -> Interval | None:
        """The shortest stretch whose whole interval is below a threshold, else the whole window."""
        return next((stretch for stretch in self.stretches if stretch.below(below)), self.interval)


class _Asked(NamedTuple):
    evidence: Evidence
    window: float
    temperature: str
    draft_cost_ratio: float

    def tally(self, *, sound: bool = False) -> Tally:
        return self.evidence.tally(self.window, self.temperature, sound=sound)


def read(
    metric: str,
    evidence: Evidence,
    *,
    window: float,
    temperature: str = ALL_TEMPERATURES,
    draft_cost_ratio: float = DRAFT_COST_RATIO,
) -> Reading:
    """Read any of :data:`specwatch.config.rules.metrics.MEASURES` over the last ``window`` seconds.

    A metric that is not known by temperature is that of all. Latencies and gauges are those of
    sound samples, counts of drafts those of all with speculation on: what is read of these has no
    value while the newest minute is not one of them. A substitute for another metric has no value
    once there was a baseline. ``draft_cost_ratio`` is the cost of a draft token in steps of the
    target, for what is assumed. Raises KeyError for another metric.
    """
    measure = MEASURES[metric]
    where = temperature if measure.by_temperature else ALL_TEMPERATURES
    asked = _Asked(evidence, window, where, draft_cost_ratio)
    reader, sound = _READERS[metric]
    counted = asked.tally(sound=sound)
    reading = _measured_instead(evidence, window) if measure.instead_of else None
    reading = reading or reader(asked)
    reading = reading._replace(drafts=counted.drafts or 0, requests=_requests(counted))
    if reading.value is None:
        return reading
    if not evidence.speculating and metric not in _OF_ANY_MODE:
        return reading._replace(
            value=None,
            interval=None,
            note=None,
            open_ended=False,
            stretches=(),
            missing="speculation was off in the newest minute",
        )
    if math.isfinite(reading.value):
        return reading
    return reading._replace(value=None, interval=None, missing="it is not a number")


def _requests(counted: Tally) -> int:
    finished = sum(counted.requests.values())
    return finished or (counted.ttft.count if counted.ttft else 0)


def _none(missing: str, basis: Basis = "counted") -> Reading:
    return Reading(None, basis=basis, missing=missing)


def _value(value: float | None, missing: str, basis: Basis = "counted") -> Reading:
    return _none(missing, basis) if value is None else Reading(value, basis=basis)


def _speedup(asked: _Asked) -> Reading:
    if asked.temperature != ALL_TEMPERATURES:
        assessed = asked.evidence.assessment(asked.window)
        bucket = assessed.buckets.get(asked.temperature)
        if bucket is not None:
            return Reading(bucket.speedup.value, bucket.speedup, basis="measured")
        missing = assessed.missing or f"{TOO_FEW} at this temperature"
        return _none(missing, "measured")
    return _compared(asked.evidence.compared(asked.window), asked.evidence.now)


def _unadjusted_speedup(asked: _Asked) -> Reading:
    compared = asked.evidence.compared(asked.window, adjusted=False)
    return _compared(compared, asked.evidence.now)


def _compared(compared: Comparison, now: float) -> Reading:
    interval = compared.interval()
    if interval is None:
        return _none(compared.missing or TOO_FEW, "measured")
    return Reading(interval.value, interval, basis="measured", stretches=compared.stretches(now))


def _acceptance(asked: _Asked) -> Reading:
    return _value(acceptance_rate(asked.tally()), "no drafts")


def _measured_instead(evidence: Evidence, window: float) -> Reading | None:
    """Why an assumption is not used; None if it is: without a baseline, or at conditions that the
    baseline does not cover."""
    if evidence.baseline:
        compared = evidence.compared(window)
        if compared.minutes and compared.covered < LEAST_SHARE:
            return None
        return _none("there is a baseline to measure by", "assumed")._replace(moot=True)
    if evidence.baseline.expired:
        # An assumption would be worse than the expired measurement.
        return _none("the baseline has expired; run specwatch calibrate", "assumed")._replace(
            moot=True
        )
    return None


def _acceptance_unmeasured(asked: _Asked) -> Reading:
    return _acceptance(asked)._replace(basis="assumed")


def _speedup_assumed(asked: _Asked) -> Reading:
    speedup = assumed_speedup(asked.tally(), asked.draft_cost_ratio)
    return _value(speedup, "no drafts", "assumed")


def _request_speedup_assumed(asked: _Asked) -> Reading:
    rate, counted = _request_acceptance(0.1)(asked), asked.tally()
    if rate.value is None or not counted.drafts or not counted.draft_tokens:
        return _none(rate.missing or "no drafts", "assumed")
    k = counted.draft_tokens / counted.drafts
    speedup = prior_speedup(1 + k * rate.value, k, asked.draft_cost_ratio)
    return Reading(speedup, basis="assumed")


def _acceptance_change(asked: _Asked) -> Reading:
    samples = asked.evidence.speculative(asked.window)
    change = acceptance_change(samples, asked.evidence.reference)
    if isinstance(change, str):
        return _none(change)
    return Reading(change.interval.value, change.interval, note=change.note)


def _acceptance_length(asked: _Asked) -> Reading:
    return _value(mean_acceptance_length(asked.tally()), "no drafts")


def _request_acceptance(q: float) -> Callable[[_Asked], Reading]:
    def reader(asked: _Asked) -> Reading:
        return _quantile(asked.tally().request_acceptance, q, "no acceptance of single requests")

    return reader


def _losing_share(asked: _Asked) -> Reading:
    assessment = asked.evidence.assessment(asked.window)
    if not assessment.buckets:
        missing = assessment.missing or "no measured speedup of any temperature"
        return _none(missing, "measured")._replace(moot=not asked.evidence.baseline.known)
    losing = math.fsum(bucket.share for bucket in assessment.buckets.values() if bucket.loses)
    return Reading(losing, basis="measured")


def _latency(metric: str, q: float) -> Callable[[_Asked], Reading]:
    def reader(asked: _Asked) -> Reading:
        return _quantile(getattr(asked.tally(sound=True), metric), q, f"no {metric.upper()}")

    return reader


def _quantile(observed: Histogram | None, q: float, missing: str) -> Reading:
    value = None if observed is None else histogram.quantile(observed, q)
    if value is None or value.value is None:
        return _none(missing)
    note = "greater than the last bound of the histogram" if value.open_ended else None
    return Reading(value.value, note=note, open_ended=value.open_ended)


def _tail(asked: _Asked) -> Reading:
    slow, usual = (_latency("tpot", QUANTILES[rank])(asked) for rank in ("p99", "p50"))
    if slow.value is None or not usual.value:
        return _none(slow.missing or "no TPOT")
    if usual.open_ended:
        return _none("the median lies beyond the last bound of the histogram")
    return slow._replace(value=slow.value / usual.value)


def _against_baseline(metric: str, *ranks: str) -> Callable[[_Asked], Reading]:
    """The quantile of the first rank over that of the baseline; if there is a second, each over
    its own quantile of that one."""

    def reader(asked: _Asked) -> Reading:
        compared = at_equal_load(asked.evidence, metric, asked.window)
        if isinstance(compared, str):
            return _none(compared, "measured")
        now, before = ([side.estimate(QUANTILES[rank]) for rank in ranks] for side in compared)
        intervals = [bound for bound in (*now, *before) if bound is not None]
        if len(intervals) < 2 * len(ranks):
            return _none("the histogram has no bounds", "measured")
        over, under = (intervals[0], *intervals[len(ranks) + 1 :]), intervals[1 : len(ranks) + 1]
        ratio = quantile.ratio_of(over, under, len(compared[0].parts))
        if ratio is None:
            return _none("beyond the last bound of the histogram", "measured")
        interval, open_ended = ratio
        note = "the upper limit is greater than shown" if open_ended else None
        return Reading(interval.value, interval, basis="measured", note=note, open_ended=open_ended)

    return reader


def _kv_cache(asked: _Asked) -> Reading:
    samples = asked.evidence.speculative(asked.window, sound=True)
    usage = [usage for e in samples if (usage := e.gauges.kv_cache_usage_max) is not None]
    return _value(max(usage, default=None), "no KV-cache usage")


def _preemptions(asked: _Asked) -> Reading:
    count = asked.tally(sound=True).preemptions
    return _value(None if count is None else float(count), "no count of preemptions")


def _mean_of(gauge: str) -> Callable[[_Asked], Reading]:
    def reader(asked: _Asked) -> Reading:
        sampled = [gauges.gauges for gauges in asked.evidence.window(asked.window) if gauges.sound]
        seconds = math.fsum(gauges.sampled_seconds for gauges in sampled)
        if not seconds:
            return _none(f"no count of {gauge} requests")
        return Reading(
            math.fsum(getattr(gauges, f"{gauge}_seconds") for gauges in sampled) / seconds
        )

    return reader


def _short_outputs(asked: _Asked) -> Reading:
    lengths = asked.tally().output_length
    if lengths is None or not lengths.count or not lengths.bounds:
        return _none("no lengths of outputs")
    return Reading(1 - quantile.above(lengths, SHORT_OUTPUT) / lengths.count)


def _coverage(asked: _Asked) -> Reading:
    samples = [sample for sample in asked.evidence.speculative(asked.window) if sample.tally.drafts]
    if all(sample.coverage is None for sample in samples):
        return _none("no drafts" if not samples else "no temperature is known")
    covered = math.fsum((sample.coverage or 0.0) * (sample.tally.drafts or 0) for sample in samples)
    return Reading(covered / sum(sample.tally.drafts or 0 for sample in samples))


def _latency_readers() -> dict[str, tuple[Callable[[_Asked], Reading], bool]]:
    readers: dict[str, tuple[Callable[[_Asked], Reading], bool]] = {}
    for metric in ("ttft", "tpot"):
        for rank, q in QUANTILES.items():
            readers[f"{metric}_{rank}"] = (_latency(metric, q), True)
            ratio = f"{metric}_{rank}_ratio"
            readers[ratio] = (_against_baseline(metric, rank), True)
    return readers


_READERS: Mapping[str, tuple[Callable[[_Asked], Reading], bool]] = {
    "speedup_ratio": (_speedup, True),
    "speedup_ratio_unadjusted": (_unadjusted_speedup, True),
    "acceptance_ratio": (_acceptance, False),
    "speedup_ratio_assumed": (_speedup_assumed, False),
    "acceptance_ratio_unmeasured": (_acceptance_unmeasured, False),
    "acceptance_change": (_acceptance_change, False),
    "acceptance_length": (_acceptance_length, False),
    "request_acceptance_p10": (_request_acceptance(0.1), False),
    "request_acceptance_p50": (_request_acceptance(0.5), False),
    "request_speedup_p10_assumed": (_request_speedup_assumed, False),
    "losing_draft_share": (_losing_share, True),
    **_latency_readers(),
    "tpot_tail": (_tail, True),
    "tpot_tail_ratio": (_against_baseline("tpot", "p99", "p50"), True),
    "kv_cache_usage": (_kv_cache, True),
    "preemptions": (_preemptions, True),
    "running": (_mean_of("running"), False),
    "waiting": (_mean_of("waiting"), False),
    "short_output_share": (_short_outputs, False),
    "coverage_ratio": (_coverage, False),
}
"""Each metric with what reads it, and whether only sound samples count."""

_OF_ANY_MODE = {"running", "waiting"}
"""Metrics that are read from all samples, with speculation or without."""
