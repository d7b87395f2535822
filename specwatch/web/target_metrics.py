"""The families of targets: what they are, and how reading them goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.domain.model import Mode
from specwatch.status import TargetStatus
from specwatch.web.decision_metrics import decisions_left_out
from specwatch.web.labels import add, label

_TARGET = ["target"]


def of_targets(
    targets: Sequence[TargetStatus], stuck: Collection[str], share: int
) -> Iterator[Metric]:
    """Yield the families, of up to ``share`` models of a target; ``stuck`` are names of targets."""
    yield from _identities(targets, share)
    yield from _scrapes(targets, frozenset(stuck))
    yield from _counts(targets)
    left_out = GaugeMetricFamily(
        "specwatch_series_left_out",
        "Models, series, verdicts and objectives of the target that are too many to be exported.",
        labels=_TARGET,
    )
    for target in targets:
        beyond = (len(target.models), len(target.recent))
        surplus = sum(max(0, count - share) for count in beyond)
        left_out.add_metric([target.name], surplus + decisions_left_out(target, share))
    yield left_out


def _identities(targets: Iterable[TargetStatus], share: int) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "specwatch_target_info",
        "Where the target is and what it runs, as far as is known; always 1.",
        labels=("target", "url", "engine_version"),
    )
    enabled = GaugeMetricFamily(
        "specwatch_speculation_enabled",
        "Whether the engine serves the model with speculation; absent where that is not known.",
        labels=("target", "model_name"),
    )
    for target in targets:
        version = label(target.engine_version or "")
        info.add_metric((target.name, label(target.url), version), 1)
        for model, mode in list(target.models.items())[:share]:
            if mode is not Mode.UNKNOWN:
                enabled.add_metric((target.name, label(model)), 0 if mode is Mode.OFF else 1)
    yield from (info, enabled)


def _scrapes(targets: Iterable[TargetStatus], stuck: Collection[str]) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "specwatch_target_up", "Whether the last scrape of the target succeeded.", labels=_TARGET
    )
    stands = GaugeMetricFamily(
        "specwatch_target_stuck",
        "Whether no scrape of the target ended, well or not, within three intervals.",
        labels=_TARGET,
    )
    interval = GaugeMetricFamily(
        "specwatch_scrape_interval_seconds", "How often the target is scraped.", labels=_TARGET
    )
    duration = GaugeMetricFamily(
        "specwatch_scrape_duration_seconds", "Duration of the last scrape.", labels=_TARGET
    )
    success = GaugeMetricFamily(
        "specwatch_last_scrape_success_timestamp_seconds",
        "When the target was last scraped with success, in Unix time.",
        labels=_TARGET,
    )
    closed = GaugeMetricFamily(
        "specwatch_last_window_timestamp_seconds",
        "End of the newest minute of the target that is closed, in Unix time.",
        labels=_TARGET,
    )
    for target in targets:
        labels = (target.name,)
        if target.last_scrape is not None:
            up.add_metric(labels, 0 if target.failure else 1)
        stands.add_metric(labels, int(target.name in stuck))
        interval.add_metric(labels, target.interval)
        add(duration, labels, target.scrape_seconds)
        add(success, labels, target.last_success)
        add(closed, labels, target.last_window)
    yield from (up, stands, interval, duration, success, closed)


def _counts(targets: Iterable[TargetStatus]) -> Iterator[Metric]:
    scrapes = CounterMetricFamily("specwatch_scrapes", "Scrapes, failed or not.", labels=_TARGET)
    skipped = CounterMetricFamily(
        "specwatch_scrapes_skipped",
        "Scrapes not begun because the one before was still under way.",
        labels=_TARGET,
    )
    failures = CounterMetricFamily(
        "specwatch_scrape_failures", "Failed scrapes.", labels=("target", "reason")
    )
    restarts = CounterMetricFamily(
        "specwatch_engine_restarts", "Restarts of the engine that were seen.", labels=_TARGET
    )
    for target in targets:
        labels = (target.name,)
        scrapes.add_metric(labels, target.scrapes)
        skipped.add_metric(labels, target.skipped)
        restarts.add_metric(labels, target.restarts)
        for reason, count in target.failures.items():
            failures.add_metric((target.name, reason), count)
    yield from (scrapes, skipped, failures, restarts)
