"""The daemon's own metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specwatch.status import DaemonStatus
from specwatch.web.exported_metrics import EXPORTED


class DaemonCollector(Collector):
    """Collects from the status of each moment."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry does not check names against other collectors by collecting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the table, with its samples."""
        status = self._status()
        subjects = {metric.subject for metric in EXPORTED}
        items = {subject: list(subject.items(status)) for subject in subjects}
        for metric in EXPORTED:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            names = (*metric.subject.labels, *metric.labels)
            family: CounterMetricFamily | GaugeMetricFamily = kind(
                metric.name, metric.help, labels=names
            )
            family.type = metric.kind
            for labels, item in items[metric.subject]:
                values = metric.read(item)
                further = values.items() if isinstance(values, Mapping) else [((), values)]
                for label, value in further:
                    if value is not None:
                        own = label if isinstance(label, tuple) else (str(label),)
                        family.add_metric((*labels, *own), value)
                        family.samples[-1].labels.update(metric.further(item))
            yield family


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
