"""The result of a calibration as JSON values; None means not known. Latencies are in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specwatch.domain import breakeven
from specwatch.domain.baseline import Baseline, BaselineKey, Measurement
from specwatch.domain.breakeven import Assessment
from specwatch.domain.buckets import order_of
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode, load_bin_label
from specwatch.domain.sample import total
from specwatch.loadtest.calibration import Stage
from specwatch.rules.decision_view import bin_view
from specwatch.rules.summary import acceptance_of, latency

Json = dict[str, Any]

PAYS, LOSES, UNDECIDED = "pays", "loses", "undecided"


def verdict_of(speedup: Interval | None) -> str | None:
    """Whether speculation pays, by the whole interval; None without one."""
    if speedup is None:
        return None
    if speedup.above(1.0):
        return PAYS
    return LOSES if speedup.below(1.0) else UNDECIDED


def assessment(assessed: Assessment) -> Json:
    """Speedup, break-even by load bin, temperatures, and the best k."""
    best = assessed.best_k
    return {
        "speedup": assessed.speedup,
        "verdict": verdict_of(assessed.speedup),
        "missing": assessed.missing,
        "samples": assessed.samples,
        "tokens": assessed.tokens,
        "covered": assessed.covered,
        "bins": [bin_view(load) for load in assessed.bins],
        "buckets": [
            {
                "temperature": label,
                "share": assessed.buckets[label].share,
                "acceptance_rate": assessed.buckets[label].acceptance_rate,
                "speedup": assessed.buckets[label].speedup,
                "verdict": verdict_of(assessed.buckets[label].speedup),
            }
            for label in sorted(assessed.buckets, key=order_of)
        ],
        "best_k": None if best is None else {"k": best.k, "speedups": list(best.speedups)},
        "best_k_unknown": assessed.best_k_unknown,
    }


def stage(one: Stage) -> Json:
    """One concurrency on one server: by its counters, and as clients saw it."""
    samples = one.samples
    paces = [pace for sample in samples if (pace := sample.pace) is not None]
    seconds = sum(pace.seconds for pace in paces)
    tokens = sum(pace.tokens for pace in paces)
    prompts = [answer.prompt_tokens for answer in one.answers if answer.prompt_tokens is not None]
    busy = sum(sample.gauges.sampled_seconds for sample in samples)
    running = sum(sample.gauges.running_seconds for sample in samples)
    return {
        "concurrency": one.concurrency,
        "mode": str(one.engine.mode),
        "slices": len(one.slices),
        "seconds": busy,
        "running_mean": running / busy if busy else None,
        "tokens": tokens,
        "seconds_per_token": seconds / tokens if tokens else None,
        "requests": len(one.answers),
        "errors": dict(sorted(one.errors.items())),
        "foreign_requests": one.foreign_requests,
        "shared": one.shared,
        "shortfall": one.shortfall,
        "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
        "prefix_cache_hits": one.total.prefix_cache_hits,
        "ttft": latency(one.total.ttft),
        "tpot": latency(one.total.tpot),
        **acceptance_of(total(samples)),
        "clients": _clients(one),
    }


def _clients(one: Stage) -> list[Json]:
    """TTFT and TPOT of each request, by temperature, on the clients' clock."""
    by_temperature: dict[float | None, list[Any]] = {}
    for answer in one.answers:
        if answer.ok:
            by_temperature.setdefault(answer.ask.temperature, []).append(answer)
    return [
        {
            "temperature": temperature,
            "ttft": [answer.ttft for answer in answers if answer.ttft is not None],
            "tpot": [answer.tpot for answer in answers if answer.tpot is not None],
        }
        for temperature, answers in sorted(by_temperature.items(), key=lambda item: item[0] or 0.0)
    ]


def measurement(one: Measurement) -> Json:
    """The baseline of one load bin."""
    seconds = sum(point.seconds for point in one.points)
    tokens = sum(point.tokens for point in one.points)
    return {
        "load_bin": load_bin_label(one.load_bin),
        "origin": str(one.origin),
        "at": one.at,
        "points": len(one.points),
        "tokens": tokens,
        "seconds_per_token": seconds / tokens if tokens else None,
        "ttft": latency(one.ttft),
        "tpot": latency(one.tpot),
    }


def comparison(stages: Iterable[Stage], measured: Sequence[Measurement]) -> Json:
    """The effect of speculation, over all stages with it and at each concurrency."""
    ran = [stage for stage in stages if stage.engine.mode is Mode.ON and stage.shortfall is None]
    baseline = Baseline({one.load_bin: one for one in measured})
    samples = [sample for run in ran for sample in run.samples]
    return {
        **assessment(breakeven.assess(samples, baseline)),
        "concurrencies": [
            {
                "concurrency": run.concurrency,
                **assessment(breakeven.assess(run.samples, baseline)),
            }
            for run in ran
        ],
    }


def report(key: BaselineKey, stages: Sequence[Stage], measured: Sequence[Measurement]) -> Json:
    """All stages and measurements; with a comparison if there are stages with speculation."""
    compared = any(one.engine.mode is Mode.ON for one in stages)
    return {
        "target": key.target,
        "model_name": key.model_name,
        "engine_version": key.engine_version,
        "configuration": key.configuration,
        "stages": [stage(one) for one in stages],
        "measurements": [measurement(one) for one in measured],
        "comparison": comparison(stages, measured) if compared else None,
    }
