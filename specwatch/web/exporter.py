"""The daemon's own metrics page.

What a target did is shown over its last minutes; a quantile beyond the last bound of its histogram
is shown as +Inf, because the real value is greater than anything that can be said. However many
models a page makes up and whatever it calls them, ours stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specwatch.status import DaemonStatus, DeliveryStatus
from specwatch.web.decision_metrics import of_decisions
from specwatch.web.guard_metrics import of_guards, of_pagers
from specwatch.web.slo_metrics import of_slos
from specwatch.web.store_metrics import of_store
from specwatch.web.tap_metrics import of_taps
from specwatch.web.target_metrics import of_targets
from specwatch.web.window_metrics import of_windows

MOST_SERIES = 2000
"""Series that are exported, shared evenly by the targets: one of them cannot crowd out others."""
_LEAST_SERIES = 12
"""Series that each of however many targets may have."""


class DaemonCollector(Collector):
    """Collects from a status, taken anew for each page."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against other collectors by collecting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family, targets first."""
        status = self._status()
        build = GaugeMetricFamily(
            "specwatch_build_info", "Version of specwatch; always 1.", labels=("version", "daemon")
        )
        build.add_metric((status.version, status.daemon), 1)
        yield build
        targets = status.targets
        share = max(_LEAST_SERIES, MOST_SERIES // max(1, len(targets)))
        yield from of_windows([window for target in targets for window in target.recent[:share]])
        yield from of_taps(targets, share)
        yield from of_targets(targets, status.stuck, share)
        yield from of_decisions(targets, status.judging, share, status.now)
        yield from of_slos(targets, share)
        yield from of_guards(targets, status.now)
        yield from of_pagers(status.pagers)
        yield from of_store(status.store, status.now)
        yield from _of_deliveries(status.deliveries)


def _of_deliveries(deliveries: Sequence[DeliveryStatus]) -> Iterator[Metric]:
    """Yield the families of the report's delivery."""
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


def registry(status: Callable[[], DaemonStatus], *, proc: str | None = None) -> CollectorRegistry:
    """A registry with the daemon's metrics.

    ``proc`` is where the kernel shows processes (``/proc``): with it there is also what ours
    costs, under the names that Prometheus has for any process.
    """
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(DaemonCollector(status))
    if proc is not None:
        ProcessCollector(proc=proc, registry=collectors)
    return collectors
