"""The families of the report's delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.status import DeliveryStatus


def of_deliveries(deliveries: Sequence[DeliveryStatus]) -> Iterator[Metric]:
    """Yield the families."""
    last = GaugeMetricFamily(
        "specwatch_report_last_delivery_timestamp_seconds",
        "When a report was delivered last.",
        labels=("channel",),
    )
    undelivered = GaugeMetricFamily(
        "specwatch_report_undelivered",
        "Whether the last report has not reached all that it is for.",
        labels=("channel",),
    )
    for delivery in deliveries:
        undelivered.add_metric((delivery.channel,), delivery.undelivered)
        if delivery.last_delivery is not None:
            last.add_metric((delivery.channel,), delivery.last_delivery)
    yield last
    yield undelivered
