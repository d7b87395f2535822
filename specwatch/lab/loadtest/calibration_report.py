"""The result of a calibration, as ``--json`` prints it; None means not known. Latencies are in
seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.domain import breakeven
from specwatch.domain.baseline import Baseline, BaselineKey, Measurement
from specwatch.domain.breakeven import Assessment
from specwatch.domain.buckets import order_of
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode, load_bin_label
from specwatch.domain.sample import total
from specwatch.lab.loadtest.calibration import Stage
from specwatch.lab.loadtest.requests import Answer
from specwatch.rules.decision_view import bin_view
from specwatch.rules.summary import acceptance_of, latency

Json = dict[str, Any]

PAYS, LOSES, UNDECIDED = "pays", "loses", "undecided"


def report(key: BaselineKey, stages: Sequence[Stage], measured: Sequence[Measurement]) -> Json:
    """All stages and measurements; with a comparison if there are stages with speculation."""
    return {
        "target": key.target,
        "model_name": key.model_name,
        "engine_version": key.engine_version,
        "configuration": key.configuration,
        "stages": [_stage(stage) for stage in stages],
        "measurements": [_measurement(measurement) for measurement in measured],
        "comparison": _comparison(
            [stage for stage in stages if stage.engine.mode is Mode.ON],
            Baseline({measurement.load_bin: measurement for measurement in measured}),
        ),
    }


def _comparison(stages: Sequence[Stage], baseline: Baseline) -> Json | None:
    """The effect of speculation, over all stages with it and at each concurrency."""
    if not stages:
        return None
    usable = [stage for stage in stages if stage.shortfall is None]
    samples = [sample for stage in usable for sample in stage.samples]
    return {
        **_assessment(breakeven.assess(samples, baseline)),
        "concurrencies": [
            {
                "concurrency": stage.concurrency,
                **_assessment(breakeven.assess(stage.samples, baseline)),
            }
            for stage in usable
        ],
    }


def _assessment(assessed: Assessment) -> Json:
    """Speedup, break-even by load bin, temperatures, and the best k."""
    best = assessed.best_k
    return {
        "speedup": assessed.speedup,
        "verdict": _verdict(assessed.speedup),
        "missing": assessed.missing,
        "samples": assessed.samples,
        "tokens": assessed.tokens,
        "covered": assessed.covered,
        "bins": [bin_view(load) for load in assessed.bins],
        "buckets": [
            {
                "temperature": segment.value,
                "share": bucket.share,
                "acceptance_rate": bucket.acceptance_rate,
                "speedup": bucket.speedup,
                "verdict": _verdict(bucket.speedup),
            }
            for segment, bucket in sorted(
                assessed.segments.items(), key=lambda item: order_of(item[0])
            )
        ],
        "best_k": None if best is None else {"k": best.k, "speedups": list(best.speedups)},
        "best_k_unknown": assessed.best_k_unknown,
    }


def _verdict(speedup: Interval | None) -> str | None:
    """Whether speculation pays, by the whole interval; None without one."""
    if speedup is None:
        return None
    if speedup.above(1.0):
        return PAYS
    return LOSES if speedup.below(1.0) else UNDECIDED


def _stage(stage: Stage) -> Json:
    """One concurrency on one server: by its counters, and as clients saw it."""
    samples = stage.samples
    counted = [sample.pace for sample in samples if sample.pace is not None]
    tokens = sum(pace.tokens for pace in counted)
    prompts = [answer.prompt_tokens for answer in stage.answers if answer.prompt_tokens is not None]
    seconds = sum(sample.gauges.sampled_seconds for sample in samples)
    running = sum(sample.gauges.running_seconds for sample in samples)
    clients: dict[float | None, list[Answer]] = {}
    for answer in stage.answers:
        if answer.ok:
            clients.setdefault(answer.ask.temperature, []).append(answer)
    return {
        "concurrency": stage.concurrency,
        "mode": str(stage.engine.mode),
        "slices": len(stage.slices),
        "seconds": seconds,
        "running_mean": running / seconds if seconds else None,
        "tokens": tokens,
        "seconds_per_token": sum(pace.seconds for pace in counted) / tokens if tokens else None,
        "requests": len(stage.answers),
        "errors": dict(sorted(stage.errors.items())),
        "foreign_requests": stage.foreign_requests,
        "shared": stage.shared,
        "shortfall": stage.shortfall,
        "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
        "prefix_cache_hits": stage.total.prefix_cache_hits,
        "ttft": latency(stage.total.ttft),
        "tpot": latency(stage.total.tpot),
        **acceptance_of(total(samples)),
        # TTFT and TPOT of each request, on the clients' clock.
        "clients": [
            {
                "temperature": temperature,
                "ttft": [answer.ttft for answer in answers if answer.ttft is not None],
                "tpot": [answer.tpot for answer in answers if answer.tpot is not None],
            }
            for temperature, answers in sorted(clients.items(), key=lambda item: item[0] or 0.0)
        ],
    }


def _measurement(measurement: Measurement) -> Json:
    """The baseline of one load bin."""
    seconds = sum(point.seconds for point in measurement.points)
    tokens = sum(point.tokens for point in measurement.points)
    return {
        "load_bin": load_bin_label(measurement.load_bin),
        "origin": str(measurement.origin),
        "at": measurement.at,
        "points": len(measurement.points),
        "tokens": tokens,
        "seconds_per_token": seconds / tokens if tokens else None,
        "ttft": latency(measurement.ttft),
        "tpot": latency(measurement.tpot),
    }
