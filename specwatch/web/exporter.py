"""The daemon's own metrics page.

A quantile beyond the last bound of its histogram is shown as +Inf: the real value is greater than
any known bound. However many models a page has and whatever their names, ours stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specwatch.status import DaemonStatus
from specwatch.web.decision_metrics import of_decision
from specwatch.web.exported_metrics import ExportedSample, families
from specwatch.web.target_metrics import of_guard, of_tap, of_target
from specwatch.web.window_metrics import of_windows

MOST_SERIES = 2000
"""Series that are exported, shared evenly by the targets: one of them cannot crowd out others."""
_LEAST_SERIES = 12
"""Series that each target may have, however many targets there are."""


class DaemonCollector(Collector):
    """Collects from the status of each moment."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry does not check names against other collectors by collecting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from families(_samples(self._status()))


def registry(status: Callable[[], DaemonStatus], *, proc: str | None = None) -> CollectorRegistry:
    """A registry with the daemon's metrics.

    ``proc`` is where the kernel shows processes (``/proc``): with it, the daemon's own CPU, memory
    and files are exported too, under the names that Prometheus has for any process.
    """
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(DaemonCollector(status))
    if proc is not None:
        ProcessCollector(proc=proc, registry=collectors)
    return collectors


def _samples(status: DaemonStatus) -> Iterator[ExportedSample]:
    yield ExportedSample("specwatch_build_info", (status.version, status.daemon), 1)
    share = max(_LEAST_SERIES, MOST_SERIES // max(1, len(status.targets)))
    for target in status.targets:
        yield from of_windows(target.recent[:share])
        yield from of_tap(target, share)
        yield from of_target(target, share, stuck=target.name in status.stuck)
        yield from of_decision(target, share, status.now)
        yield from of_guard(target, status.now)
    yield from _of_daemon(status)


def _of_daemon(status: DaemonStatus) -> Iterator[ExportedSample]:
    store, judging = status.store, status.judging
    since = status.now if store.behind_since is None else store.behind_since
    for name, value in (
        ("specwatch_judging_failures", judging.defects),
        ("specwatch_store_verdicts_dropped", judging.dropped),
        ("specwatch_store_verdicts_queued", judging.queued),
        ("specwatch_store_write_failures", store.failures),
        ("specwatch_store_windows_written", store.written),
        ("specwatch_store_windows_dropped", store.dropped),
        ("specwatch_store_windows_queued", store.queued),
        ("specwatch_store_damaged_rows", store.damaged),
        ("specwatch_store_behind_seconds", max(0.0, status.now - since)),
    ):
        yield ExportedSample(name, (), value)
    for pager in status.pagers:
        yield ExportedSample("specwatch_alertmanager_up", (pager.url,), pager.error is None)
        for reason, count in sorted(pager.failures.items()):
            yield ExportedSample("specwatch_alertmanager_failures", (pager.url, reason), count)
    for delivery in status.deliveries:
        place = (delivery.channel,)
        last = "specwatch_report_last_delivery_timestamp_seconds"
        yield ExportedSample(last, place, delivery.last_delivery)
        yield ExportedSample("specwatch_report_undelivered", place, delivery.undelivered)
