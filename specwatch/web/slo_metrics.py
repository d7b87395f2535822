"""The families of service-level objectives, and of the requests that met them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.domain.units import format_duration
from specwatch.status import TargetStatus
from specwatch.web.labels import add, label

_NAMES = ("slo", "target", "model_name")


def of_slos(targets: Iterable[TargetStatus], share: int) -> Iterator[Metric]:
    """Yield the families, of up to ``share`` objectives and models of a target."""
    objective = GaugeMetricFamily(
        "specwatch_slo_objective_ratio",
        "Share of the requests that the objective wants to be fast enough.",
        labels=_NAMES,
    )
    errors = GaugeMetricFamily(
        "specwatch_slo_error_ratio",
        "Share of the requests in the window of the objective that were too slow.",
        labels=_NAMES,
    )
    budget = GaugeMetricFamily(
        "specwatch_slo_budget_left_ratio",
        "Share of the error budget that is left: 1 untouched, below 0 overspent.",
        labels=_NAMES,
    )
    burn = GaugeMetricFamily(
        "specwatch_slo_burn_rate",
        "How many times faster than evenly the error budget burned over a window.",
        labels=(*_NAMES, "window"),
    )
    requests = GaugeMetricFamily(
        "specwatch_slo_requests",
        "Requests of a window that the objective was held against.",
        labels=(*_NAMES, "window"),
    )
    watched = GaugeMetricFamily(
        "specwatch_slo_watched_ratio",
        "Share of a window in which the requests of an objective were counted.",
        labels=(*_NAMES, "window"),
    )
    met = GaugeMetricFamily(
        "specwatch_goodput_requests_per_second",
        "Requests a second of a window that met all objectives: a lower and an upper bound, as"
        " latency histograms do not say which request missed which objective.",
        labels=("target", "model_name", "window", "bound"),
    )
    offered = GaugeMetricFamily(
        "specwatch_offered_requests_per_second",
        "Requests a second of a window that the objectives were held against, met or not.",
        labels=("target", "model_name", "window"),
    )
    for target in targets:
        for name, windows in islice(target.decision.goodput.items(), share):
            for seconds, goodput in windows.items():
                place = (target.name, label(name), format_duration(seconds))
                add(offered, place, goodput.rate(goodput.requests))
                add(met, (*place, "lower"), goodput.rate(goodput.lower))
                add(met, (*place, "upper"), goodput.rate(goodput.upper))
        for slo in target.decision.slos[:share]:
            labels = (slo.slo.name, target.name, label(slo.model_name))
            objective.add_metric(labels, slo.slo.objective)
            add(errors, labels, slo.error_ratio)
            add(budget, labels, slo.budget_left)
            for seconds, rate in slo.burn_rates.items():
                window = format_duration(seconds)
                add(burn, (*labels, window), rate)
                requests.add_metric((*labels, window), slo.requests[seconds])
                watched.add_metric((*labels, window), min(slo.watched[seconds] / seconds, 1.0))
    yield from (objective, errors, budget, burn, requests, watched, met, offered)
