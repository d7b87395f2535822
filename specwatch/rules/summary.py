"""Tallies, windows and pages as JSON.

Unknown values are None. Quantiles come from merged counts and are
never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwatch.domain import acceptance, buckets, histogram, merge
from specwatch.domain.model import Histogram, Series, Source, Tally, Window, load_bin_label
from specwatch.scrape import tally

ACCEPTANCE_QUANTILES: Mapping[str, float] = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "tpot", "inter_token", "e2e")

Json = dict[str, Any]


def latency(observed: Histogram | None) -> Json | None:
    """Count, sum and quantiles, in the unit of the histogram.

    ``open_ended`` is true when a quantile lies beyond the last bound, which is then given: the
    real value is greater. Any other is interpolated in its bucket, and ``buckets`` has
    the bounds between which it really is. Without bounds (only a mean is known) quantiles are None.
    """
    if observed is None:
        return None
    quantiles = {name: histogram.quantile(observed, q) for name, q in QUANTILES.items()}
    return {
        "count": observed.count,
        "sum": observed.sum,
        **_values(quantiles),
        "open_ended": any(
            quantile is not None and quantile.open_ended and quantile.value is not None
            for quantile in quantiles.values()
        ),
        "buckets": {
            name: [quantile.lower, quantile.upper]
            for name, quantile in quantiles.items()
            if quantile is not None and not quantile.open_ended
        },
    }


def request_acceptance(observed: Histogram | None) -> Json | None:
    """Distribution of the acceptance rates of single requests."""
    if observed is None:
        return None
    quantiles = {name: histogram.quantile(observed, q) for name, q in ACCEPTANCE_QUANTILES.items()}
    return {
        "count": observed.count,
        **_values(quantiles),
    }


def _values(quantiles: Mapping[str, histogram.Quantile | None]) -> Json:
    return {name: None if one is None else one.value for name, one in quantiles.items()}


def acceptance_of(counted: Tally) -> Json:
    """Drafts and accepted tokens."""
    positions = counted.accepted_per_position
    lengths = acceptance.accepted_length_histogram(
        counted.drafts, positions, counted.accepted_tokens
    )
    return {
        "drafts": counted.drafts,
        "draft_tokens": counted.draft_tokens,
        "accepted_tokens": counted.accepted_tokens,
        "acceptance_rate": acceptance.acceptance_rate(counted),
        "mean_acceptance_length": acceptance.mean_acceptance_length(counted),
        "accepted_length_histogram": None if lengths is None else list(lengths),
        "accepted_per_position": None if positions is None else list(positions),
    }


def models_of(
    samples: Mapping[Series, float],
    problems: list[str],
    *,
    unnamed: str = "",
    drafting: bool | None = None,
) -> list[Json]:
    """The content of one page, per model: totals since the engine started.

    ``unnamed`` is what to call a model that the page does not name, ``drafting`` what its server
    says of itself (see :func:`specwatch.scrape.tally.mode_of`). ``problems`` gets a sentence about
    each thing that had to be left out. Raises PageError for totals that are not numbers.
    """
    parts = tally.parts_of(samples)
    tap = _tap(parts, problems) if parts.tap and parts.models else {}
    return [
        {
            **_model(name or unnamed, part, problems, drafting),
            **tap.get(name, {"tap": None, "temperatures": []}),
        }
        for name, part in sorted(parts.models.items())
    ]


def _tap(parts: tally.Parts, problems: list[str]) -> dict[str, Json]:
    """The counts of the tap on a page, per model of the engine."""
    failures = sum(value for one, value in parts.tap.items() if one.quantity == "tap_failures")
    counted: dict[str, dict[str, Tally]] = {name: {} for name in parts.models}
    strangers: set[str] = set()
    for (name, temperature), samples in buckets.by_bucket(parts.tap, problems).items():
        model = buckets.matching(name, parts.models, "")
        if model is None:
            strangers.add(name)
            continue
        before = counted[model].get(temperature, Tally())
        part = tally.tally_of(samples, problems)
        counted[model][temperature] = merge.merge_tallies(before, part)
    if strangers:
        problems.append(buckets.unknown_models(strangers))
    return {
        model: _tap_of_model(
            tallies, tally.tally_of(parts.models[model], []).drafts, failures=int(failures)
        )
        for model, tallies in counted.items()
    }


def _tap_of_model(
    tallies: Mapping[str, Tally], server_drafts: int | None, *, failures: int
) -> Json:
    total = merge.sum_tallies(tallies.values())
    drafts = total.drafts or 0
    tap = {
        "source": str(Source.TAP),
        "drafts": drafts,
        "coverage": drafts / server_drafts if server_drafts else None,
        "records": dict(total.records),
        "uncovered": dict(total.uncovered),
        "failures": failures,
    }
    ordered = sorted(tallies, key=buckets.order_of)
    return {
        "tap": tap,
        "temperatures": [_bucket(label, tallies[label], drafts) for label in ordered],
    }


def _bucket(temperature: str, counted: Tally, of_drafts: int) -> Json:
    return {
        "temperature": temperature,
        "share": (counted.drafts or 0) / of_drafts if of_drafts else None,
        "requests": dict(counted.requests),
        **acceptance_of(counted),
        "ttft": latency(counted.ttft),
        "tpot": latency(counted.tpot),
        "request_acceptance": request_acceptance(counted.request_acceptance),
    }


def _model(
    name: str, samples: Mapping[Series, float], problems: list[str], drafting: bool | None
) -> Json:
    gauges = tally.sampled(samples)
    counted = tally.tally_of(samples, problems)
    shown = acceptance_of(counted)
    if shown["acceptance_rate"] is None:
        shown["acceptance_rate"] = gauges.lifetime_acceptance_rate
    return {
        "model_name": name,
        "engine_count": len({series.engine for series in samples}),
        "speculation": str(tally.mode_of(samples, drafting)),
        **shown,
        "running": _whole(gauges.running),
        "waiting": _whole(gauges.waiting),
        "kv_cache_usage": gauges.kv_cache_usage,
        "preemptions": counted.preemptions,
        "ttft": latency(counted.ttft),
        "tpot": latency(counted.tpot),
        "inter_token": latency(counted.inter_token),
    }


def window(one: Window) -> Json:
    """A window as the API shows it."""
    gauges, counted = one.gauges, one.tally
    return {
        "daemon": one.series.daemon,
        "target": one.series.target,
        "model_name": one.series.model_name,
        "temperature": one.series.temperature,
        "start": one.start,
        "length": one.length,
        "mode": str(one.mode),
        "source": str(one.source),
        "coverage": one.coverage,
        "server_drafts": one.server_drafts,
        "source_drafts": one.source_drafts,
        "engine_version": one.environment.engine_version,
        "fingerprint": one.environment.fingerprint,
        **acceptance_of(counted),
        "request_acceptance": request_acceptance(counted.request_acceptance),
        "records": dict(counted.records),
        "uncovered": dict(counted.uncovered),
        "requests": dict(counted.requests),
        "prompt_tokens": counted.prompt_tokens,
        "generation_tokens": counted.generation_tokens,
        "preemptions": counted.preemptions,
        "prefix_cache_queries": counted.prefix_cache_queries,
        "prefix_cache_hits": counted.prefix_cache_hits,
        **{name: latency(getattr(counted, name)) for name in LATENCIES},
        "output_length": latency(counted.output_length),
        "load_bin": None if one.load_bin is None else load_bin_label(one.load_bin),
        "running_mean": gauges.running_mean,
        "running_max": gauges.running_max,
        "waiting_mean": gauges.waiting_mean,
        "waiting_max": gauges.waiting_max,
        "kv_cache_usage_max": gauges.kv_cache_usage_max,
        "gpu_memory_used_max": gauges.gpu_memory_used_max,
        "gpu_memory_total": gauges.gpu_memory_total,
        "observed_seconds": one.observed_seconds,
        "down_seconds": one.down_seconds,
        "scrapes_ok": one.scrapes_ok,
        "scrapes_failed": one.scrapes_failed,
        "restarts": one.restarts,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
