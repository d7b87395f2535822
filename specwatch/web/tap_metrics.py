"""The families of taps: whether they count, and how much of the traffic they see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.domain.model import ALL_TEMPERATURES, UNCOVERED, Source
from specwatch.scrape.taps import LEAVES_OUT
from specwatch.status import TargetStatus
from specwatch.web.labels import add, label


def of_taps(targets: Iterable[TargetStatus], share: int) -> Iterator[Metric]:
    """Yield the families, of up to ``share`` models of a target."""
    up = GaugeMetricFamily(
        "specwatch_tap_up",
        "Whether a tap, on the target's page or a proxy's, counts what can be taken as it is.",
        labels=["target"],
    )
    coverage = GaugeMetricFamily(
        "specwatch_coverage_ratio",
        "Share of the server's drafts of the last minutes that its tap saw, and which tap.",
        labels=("target", "model_name", "temperature", "source"),
    )
    uncovered = GaugeMetricFamily(
        "specwatch_uncovered_requests",
        "Requests of the last minutes whose acceptance the tap does not know, by why.",
        labels=("target", "model_name", "reason"),
    )
    for target in targets:
        tap = target.tap
        if target.last_scrape is not None:
            failing = tap.source is Source.PROXY and tap.proxy is not None and tap.proxy.failure
            doubted = any(trouble.kind in LEAVES_OUT for trouble in tap.trouble)
            up.add_metric([target.name], 0 if tap.source is None or failing or doubted else 1)
        for model, seen in list(tap.models.items())[:share]:
            name = label(model)
            add(coverage, (target.name, name, ALL_TEMPERATURES, seen.source), seen.coverage)
            for reason in UNCOVERED:
                if reason in seen.uncovered:
                    uncovered.add_metric((target.name, name, reason), seen.uncovered[reason])
    yield from (up, coverage, uncovered)
