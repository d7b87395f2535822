"""The families of what was served over the last minutes: acceptance, traffic and latency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.domain import acceptance, histogram
from specwatch.domain.model import ALL_TEMPERATURES, Tally, Window
from specwatch.rules.summary import ACCEPTANCE_QUANTILES, LATENCIES
from specwatch.web.labels import add, label, shown_quantile

_MODEL = ("target", "model_name")
_SERIES = (*_MODEL, "temperature")
_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_MOST_LENGTHS = 65
"""Accepted lengths of one series, none included: no drafter proposes more than 64 tokens."""

_Seconds = Mapping[tuple[str, str], float]
"""The time of the counts of each model of each target."""


def of_windows(windows: Sequence[Window]) -> Iterator[Metric]:
    """Yield the families of windows, one for each series."""
    seconds = {
        (window.series.target, window.series.model_name): _span(window)
        for window in windows
        if window.series.temperature == ALL_TEMPERATURES
    }
    yield from _acceptance(windows)
    yield from _traffic(windows, seconds)
    yield from _latencies(windows)
    yield from _loads(
        [window for window in windows if window.series.temperature == ALL_TEMPERATURES]
    )


def _acceptance(windows: Iterable[Window]) -> Iterator[Metric]:
    rate = GaugeMetricFamily(
        "specwatch_acceptance_ratio",
        "Accepted tokens / draft tokens over the last minutes.",
        labels=_SERIES,
    )
    length = GaugeMetricFamily(
        "specwatch_acceptance_length",
        "Mean acceptance length over the last minutes, in tokens per step with the bonus token.",
        labels=_SERIES,
    )
    spread = GaugeMetricFamily(
        "specwatch_request_acceptance_quantile_ratio",
        "Quantiles of single requests' acceptance rates over the last minutes.",
        labels=(*_SERIES, "quantile"),
    )
    spread.type = "summary"
    lengths = GaugeMetricFamily(
        "specwatch_accepted_length_drafts",
        "Drafts of the last minutes by how many of their tokens were accepted.",
        labels=(*_SERIES, "accepted"),
    )
    positions = GaugeMetricFamily(
        "specwatch_position_acceptance_ratio",
        "Share of the drafts of the last minutes whose token at a position, from 0, was accepted.",
        labels=(*_SERIES, "position"),
    )
    for window in windows:
        labels, counted = _labels(window), window.tally
        add(rate, labels, acceptance.acceptance_rate(counted))
        add(length, labels, acceptance.mean_acceptance_length(counted))
        for accepted, drafts in enumerate(_lengths(counted)):
            lengths.add_metric((*labels, str(accepted)), drafts)
        for position, ratio in enumerate(_positions(counted)):
            positions.add_metric((*labels, str(position)), ratio)
        for q, quantile in _request_acceptance(counted):
            spread.add_metric((*labels, str(q)), quantile)
    yield from (rate, length, spread, lengths, positions)


def _traffic(windows: Iterable[Window], seconds: _Seconds) -> Iterator[Metric]:
    """Rates of a temperature are over the time of all, so that they add up to those of all."""
    drafts = GaugeMetricFamily(
        "specwatch_drafts_per_second", "Drafts a second over the last minutes.", labels=_SERIES
    )
    requests = GaugeMetricFamily(
        "specwatch_requests_per_second",
        "Requests that finished, a second, over the last minutes.",
        labels=_SERIES,
    )
    generated = GaugeMetricFamily(
        "specwatch_generation_tokens_per_second",
        "Tokens generated a second over the last minutes.",
        labels=_SERIES,
    )
    for window in windows:
        labels, counted = _labels(window), window.tally
        model = (window.series.target, window.series.model_name)
        span = seconds.get(model, _span(window))
        finished = sum(counted.requests.values()) if counted.requests else None
        add(drafts, labels, _rate(counted.drafts, span))
        add(requests, labels, _rate(finished, span))
        add(generated, labels, _rate(counted.generation_tokens, span))
    yield from (drafts, requests, generated)


def _latencies(windows: Iterable[Window]) -> Iterator[Metric]:
    latency = GaugeMetricFamily(
        "specwatch_latency_seconds",
        "Latency quantiles over the last minutes; +Inf beyond the last bound of the histogram.",
        labels=(*_SERIES, "metric", "quantile"),
    )
    latency.type = "summary"
    for window in windows:
        for metric, q, value in _quantiles(window.tally):
            latency.add_metric((*_labels(window), metric, str(q)), value)
    yield latency


def _loads(windows: Iterable[Window]) -> Iterator[Metric]:
    """What the engine counts without temperatures."""
    values = {
        "prompt_tokens_per_second": "Tokens of prompts a second over the last minutes.",
        "preemptions_per_second": "Preempted requests a second over the last minutes.",
        "running_requests": "Mean of the running requests over the last minutes.",
        "running_requests_max": "Most requests that ran at once in the last minutes.",
        "waiting_requests": "Mean of the waiting requests over the last minutes.",
        "kv_cache_usage_ratio": "Highest use of the KV cache in the last minutes, of one engine.",
        "prefix_cache_hit_ratio": "Tokens of the last minutes found in the prefix cache / asked.",
    }
    families = {
        name: GaugeMetricFamily(f"specwatch_{name}", value, labels=_MODEL)
        for name, value in values.items()
    }
    for window in windows:
        labels, counted, gauges = _labels(window)[:2], window.tally, window.gauges
        span, sampled = _span(window), gauges.running_mean is not None
        for name, value in (
            ("prompt_tokens_per_second", _rate(counted.prompt_tokens, span)),
            ("preemptions_per_second", _rate(counted.preemptions, span)),
            ("running_requests", gauges.running_mean),
            ("running_requests_max", gauges.running_max if sampled else None),
            ("waiting_requests", gauges.waiting_mean),
            ("kv_cache_usage_ratio", gauges.kv_cache_usage_max),
            ("prefix_cache_hit_ratio", _hit_ratio(counted)),
        ):
            add(families[name], labels, value)
    yield from families.values()


def _labels(window: Window) -> tuple[str, str, str]:
    series = window.series
    return series.target, label(series.model_name), label(series.temperature)


def _span(window: Window) -> float:
    """Outages included: a process that was only out of reach counted on."""
    return window.observed_seconds + window.down_seconds


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds


def _hit_ratio(counted: Tally) -> float | None:
    if not counted.prefix_cache_queries or counted.prefix_cache_hits is None:
        return None
    return counted.prefix_cache_hits / counted.prefix_cache_queries


def _request_acceptance(counted: Tally) -> Iterator[tuple[float, float]]:
    observed = counted.request_acceptance
    if observed is None:
        return
    for q in ACCEPTANCE_QUANTILES.values():
        quantile = histogram.quantile(observed, q)
        if quantile is not None and quantile.value is not None:
            yield q, quantile.value


def _lengths(counted: Tally) -> tuple[int, ...]:
    lengths = acceptance.accepted_length_histogram(
        counted.drafts, counted.accepted_per_position, counted.accepted_tokens
    )
    return lengths if lengths is not None and len(lengths) <= _MOST_LENGTHS else ()


def _positions(counted: Tally) -> Iterator[float]:
    """Known where the accepted lengths are, as they are the same counts."""
    positions = counted.accepted_per_position
    if counted.drafts and positions and _lengths(counted):
        yield from (accepted / counted.drafts for accepted in positions)


def _quantiles(counted: Tally) -> Iterator[tuple[str, float, float]]:
    for metric in LATENCIES:
        observed = getattr(counted, metric)
        for q in _QUANTILES if observed is not None else ():
            value = shown_quantile(histogram.quantile(observed, q))
            if value is not None:
                yield metric, q, value
