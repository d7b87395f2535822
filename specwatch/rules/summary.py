"""Tallies, windows and pages as the HTTP API and ``--json`` show them.

An unknown is None. Quantiles come from merged counts and are never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from specwatch.domain import acceptance, buckets, histogram, merge
from specwatch.domain.model import Histogram, Series, Source, Tally, Window, load_bin_label
from specwatch.engines.families import mode_of
from specwatch.scrape import tally

ACCEPTANCE_QUANTILES: Mapping[str, float] = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "tpot", "inter_token", "e2e")


class LatencyView(Struct, frozen=True):
    """Count, sum and quantiles, in the unit of the histogram.

    ``open_ended``: a quantile lies beyond the last bound, whose value it has; the real value is
    greater. Any other quantile is interpolated within its bucket, whose bounds ``buckets`` has.
    Without bounds (only the mean is known) quantiles are None.
    """

    count: int
    sum: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    open_ended: bool
    buckets: dict[str, tuple[float, float]]


class RequestAcceptance(Struct, frozen=True):
    """Quantiles of the acceptance rates of single requests."""

    count: int
    p10: float | None
    p50: float | None
    p90: float | None


class CoverageView(Struct, frozen=True, kw_only=True):
    """How much of a model's drafts a tap saw, and why it missed requests."""

    source: str
    drafts: int
    coverage: float | None
    records: dict[str, int]
    uncovered: dict[str, int]


class ScrapedTap(CoverageView, frozen=True, kw_only=True):
    """The tap on one page."""

    failures: int


class BucketView(Struct, frozen=True, kw_only=True):
    """One temperature bucket of one page."""

    temperature: str
    share: float | None
    requests: dict[str, int]
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    ttft: LatencyView | None
    tpot: LatencyView | None
    request_acceptance: RequestAcceptance | None


class ScrapedModel(Struct, frozen=True, kw_only=True):
    """One model of one page: totals since the engine started."""

    model_name: str
    engine_count: int
    speculation: str
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    running: int | None
    waiting: int | None
    kv_cache_usage: float | None
    preemptions: int | None
    ttft: LatencyView | None
    tpot: LatencyView | None
    inter_token: LatencyView | None
    tap: ScrapedTap | None
    temperatures: list[BucketView]


class WindowView(Struct, frozen=True, kw_only=True):
    """A window. Times are Unix seconds, durations seconds."""

    daemon: str
    target: str
    model_name: str
    temperature: str
    start: int
    length: int
    mode: str
    source: str
    coverage: float | None
    server_drafts: int | None
    source_drafts: int | None
    engine_version: str | None
    fingerprint: str | None
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    request_acceptance: RequestAcceptance | None
    records: dict[str, int]
    uncovered: dict[str, int]
    requests: dict[str, int]
    prompt_tokens: int | None
    generation_tokens: int | None
    preemptions: int | None
    prefix_cache_queries: int | None
    prefix_cache_hits: int | None
    ttft: LatencyView | None
    tpot: LatencyView | None
    inter_token: LatencyView | None
    e2e: LatencyView | None
    output_length: LatencyView | None
    load_bin: str | None
    running_mean: float | None
    running_max: int
    waiting_mean: float | None
    waiting_max: int
    kv_cache_usage_max: float | None
    gpu_memory_used_max: int | None
    gpu_memory_total: int | None
    observed_seconds: float
    down_seconds: float
    scrapes_ok: int
    scrapes_failed: int
    restarts: int


def latency(observed: Histogram | None) -> LatencyView | None:
    """Count, sum and quantiles of a histogram."""
    if observed is None:
        return None
    quantiles = {name: histogram.quantile(observed, q) for name, q in QUANTILES.items()}
    known = {name: quantile for name, quantile in quantiles.items() if quantile is not None}
    return LatencyView(
        count=observed.count,
        sum=observed.sum,
        **{
            name: None if quantile is None else quantile.value
            for name, quantile in quantiles.items()
        },
        open_ended=any(
            quantile.open_ended and quantile.value is not None for quantile in known.values()
        ),
        buckets={
            name: (quantile.lower, quantile.upper)
            for name, quantile in known.items()
            if not quantile.open_ended
        },
    )


def request_acceptance(observed: Histogram | None) -> RequestAcceptance | None:
    """How the acceptance rates of single requests are distributed."""
    if observed is None:
        return None
    quantiles = (histogram.quantile(observed, q) for q in ACCEPTANCE_QUANTILES.values())
    values = (None if quantile is None else quantile.value for quantile in quantiles)
    return RequestAcceptance(observed.count, *values)


def acceptance_of(counted: Tally) -> dict[str, Any]:
    """Drafts and what became of them, by the names of the API."""
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
        "accepted_length_histogram": lengths,
        "accepted_per_position": positions,
    }


def models_of(
    samples: Mapping[Series, float],
    problems: list[str],
    *,
    unnamed: str = "",
    drafting: bool | None = None,
) -> list[ScrapedModel]:
    """What one page says, per model: totals since the engine started.

    ``unnamed`` is what to call a model that the page does not name, ``drafting`` what its server
    says of itself (see :func:`specwatch.engines.families.mode_of`). ``problems`` gets a sentence
    about each thing that had to be left out. Raises PageError for totals that are not numbers.
    """
    parts = tally.parts_of(samples)
    taps = _taps(parts, problems) if parts.tap and parts.models else {}
    return [
        _model(name or unnamed, part, problems, drafting, *taps.get(name, (None, [])))
        for name, part in sorted(parts.models.items())
    ]


def _taps(
    parts: tally.Parts, problems: list[str]
) -> dict[str, tuple[ScrapedTap, list[BucketView]]]:
    """What the tap on a page counted, by model of the engine."""
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
) -> tuple[ScrapedTap, list[BucketView]]:
    total = merge.sum_tallies(tallies.values())
    drafts = total.drafts or 0
    tap = ScrapedTap(
        source=str(Source.TAP),
        drafts=drafts,
        coverage=drafts / server_drafts if server_drafts else None,
        records=dict(total.records),
        uncovered=dict(total.uncovered),
        failures=failures,
    )
    ordered = sorted(tallies, key=buckets.order_of)
    return tap, [_bucket(label, tallies[label], drafts) for label in ordered]


def _bucket(temperature: str, counted: Tally, of_drafts: int) -> BucketView:
    return BucketView(
        temperature=temperature,
        share=(counted.drafts or 0) / of_drafts if of_drafts else None,
        requests=dict(counted.requests),
        **acceptance_of(counted),
        ttft=latency(counted.ttft),
        tpot=latency(counted.tpot),
        request_acceptance=request_acceptance(counted.request_acceptance),
    )


def _model(
    name: str,
    samples: Mapping[Series, float],
    problems: list[str],
    drafting: bool | None,
    tap: ScrapedTap | None,
    temperatures: list[BucketView],
) -> ScrapedModel:
    gauges = tally.sampled(samples)
    counted = tally.tally_of(samples, problems)
    accepted = acceptance_of(counted)
    if accepted["acceptance_rate"] is None:
        accepted["acceptance_rate"] = gauges.lifetime_acceptance_rate
    return ScrapedModel(
        model_name=name,
        engine_count=len({series.engine for series in samples}),
        speculation=str(mode_of(samples, drafting)),
        **accepted,
        running=None if gauges.running is None else int(gauges.running),
        waiting=None if gauges.waiting is None else int(gauges.waiting),
        kv_cache_usage=gauges.kv_cache_usage,
        preemptions=counted.preemptions,
        ttft=latency(counted.ttft),
        tpot=latency(counted.tpot),
        inter_token=latency(counted.inter_token),
        tap=tap,
        temperatures=temperatures,
    )


def window_view(window: Window) -> WindowView:
    """A window."""
    series, gauges, counted = window.series, window.gauges, window.tally
    return WindowView(
        daemon=series.daemon,
        target=series.target,
        model_name=series.model_name,
        temperature=series.temperature,
        start=window.start,
        length=window.length,
        mode=str(window.mode),
        source=str(window.source),
        coverage=window.coverage,
        server_drafts=window.server_drafts,
        source_drafts=window.source_drafts,
        engine_version=window.environment.engine_version,
        fingerprint=window.environment.fingerprint,
        **acceptance_of(counted),
        request_acceptance=request_acceptance(counted.request_acceptance),
        records=dict(counted.records),
        uncovered=dict(counted.uncovered),
        requests=dict(counted.requests),
        prompt_tokens=counted.prompt_tokens,
        generation_tokens=counted.generation_tokens,
        preemptions=counted.preemptions,
        prefix_cache_queries=counted.prefix_cache_queries,
        prefix_cache_hits=counted.prefix_cache_hits,
        ttft=latency(counted.ttft),
        tpot=latency(counted.tpot),
        inter_token=latency(counted.inter_token),
        e2e=latency(counted.e2e),
        output_length=latency(counted.output_length),
        load_bin=None if window.load_bin is None else load_bin_label(window.load_bin),
        running_mean=gauges.running_mean,
        running_max=gauges.running_max,
        waiting_mean=gauges.waiting_mean,
        waiting_max=gauges.waiting_max,
        kv_cache_usage_max=gauges.kv_cache_usage_max,
        gpu_memory_used_max=gauges.gpu_memory_used_max,
        gpu_memory_total=gauges.gpu_memory_total,
        observed_seconds=window.observed_seconds,
        down_seconds=window.down_seconds,
        scrapes_ok=window.scrapes_ok,
        scrapes_failed=window.scrapes_failed,
        restarts=window.restarts,
    )
