"""Samples of the last minutes of each series: acceptance, traffic, load and latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specwatch.domain import acceptance, histogram
from specwatch.domain.model import ALL_TEMPERATURES, Tally, Window
from specwatch.rules.summary import ACCEPTANCE_QUANTILES, LATENCIES
from specwatch.web.exported_metrics import ExportedSample, label, shown_quantile

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_MOST_LENGTHS = 65
"""Accepted lengths of one series, 0 included: no drafter proposes more than 64 tokens."""


def of_windows(windows: Sequence[Window]) -> Iterator[ExportedSample]:
    """Yield the samples of windows, one window for each series."""
    seconds = {
        (window.series.target, window.series.model_name): _span(window)
        for window in windows
        if window.series.temperature == ALL_TEMPERATURES
    }
    for window in windows:
        series = window.series
        labels = (series.target, label(series.model_name), label(series.temperature))
        yield from _acceptance(labels, window.tally)
        # Over the time of all temperatures, so that the rates of temperatures add up.
        span = seconds.get((series.target, series.model_name), _span(window))
        yield from _traffic(labels, window.tally, span)
        yield from _latencies(labels, window.tally)
        if series.temperature == ALL_TEMPERATURES:
            yield from _load(labels[:2], window)


def _acceptance(labels: tuple[str, ...], counted: Tally) -> Iterator[ExportedSample]:
    rate = acceptance.acceptance_rate(counted)
    yield ExportedSample("specwatch_acceptance_ratio", labels, rate)
    length = acceptance.mean_acceptance_length(counted)
    yield ExportedSample("specwatch_acceptance_length", labels, length)
    positions = counted.accepted_per_position
    lengths = acceptance.accepted_length_histogram(
        counted.drafts, positions, counted.accepted_tokens
    )
    if lengths is None or len(lengths) > _MOST_LENGTHS:
        lengths = positions = ()
    for accepted, drafts in enumerate(lengths):
        place = (*labels, str(accepted))
        yield ExportedSample("specwatch_accepted_length_drafts", place, drafts)
    for position, accepted in enumerate(positions or ()):
        place = (*labels, str(position))
        ratio = accepted / counted.drafts if counted.drafts else None
        yield ExportedSample("specwatch_position_acceptance_ratio", place, ratio)
    observed = counted.request_acceptance
    for q in ACCEPTANCE_QUANTILES.values():
        quantile = None if observed is None else histogram.quantile(observed, q)
        value = None if quantile is None else quantile.value
        name = "specwatch_request_acceptance_quantile_ratio"
        yield ExportedSample(name, (*labels, str(q)), value)


def _traffic(labels: tuple[str, ...], counted: Tally, span: float) -> Iterator[ExportedSample]:
    finished = sum(counted.requests.values()) if counted.requests else None
    for name, count in (
        ("specwatch_drafts_per_second", counted.drafts),
        ("specwatch_requests_per_second", finished),
        ("specwatch_generation_tokens_per_second", counted.generation_tokens),
    ):
        yield ExportedSample(name, labels, _rate(count, span))


def _latencies(labels: tuple[str, ...], counted: Tally) -> Iterator[ExportedSample]:
    for metric in LATENCIES:
        observed = getattr(counted, metric)
        for q in _QUANTILES if observed is not None else ():
            value = shown_quantile(histogram.quantile(observed, q))
            yield ExportedSample("specwatch_latency_seconds", (*labels, metric, str(q)), value)


def _load(labels: tuple[str, ...], window: Window) -> Iterator[ExportedSample]:
    """What the engine does not count by temperature."""
    counted, gauges, span = window.tally, window.gauges, _span(window)
    queries, hits = counted.prefix_cache_queries, counted.prefix_cache_hits
    values: Mapping[str, float | None] = {
        "specwatch_prompt_tokens_per_second": _rate(counted.prompt_tokens, span),
        "specwatch_preemptions_per_second": _rate(counted.preemptions, span),
        "specwatch_running_requests": gauges.running_mean,
        "specwatch_running_requests_max": (
            None if gauges.running_mean is None else gauges.running_max
        ),
        "specwatch_waiting_requests": gauges.waiting_mean,
        "specwatch_kv_cache_usage_ratio": gauges.kv_cache_usage_max,
        "specwatch_prefix_cache_hit_ratio": (
            hits / queries if queries and hits is not None else None
        ),
    }
    for name, value in values.items():
        yield ExportedSample(name, labels, value)


def _span(window: Window) -> float:
    """Outages included: a process that was only out of reach counted on."""
    return window.observed_seconds + window.down_seconds


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds
