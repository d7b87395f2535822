"""Sends the exported metrics to a collector, by OTLP over HTTP, with OpenTelemetry's SDK.

What is on ``/metrics`` becomes the SDK's data: counters as cumulative sums since the daemon's
start, everything else as gauges, quantiles by their label.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import structlog
from prometheus_client.metrics_core import Metric

from specwatch.config.operation import Otlp
from specwatch.errors import ConfigError
from specwatch.status import DaemonStatus
from specwatch.web.exporter import DaemonCollector

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData, NumberDataPoint

_log = structlog.get_logger("specwatch.otlp")
_TIMEOUT = 10.0
"""Seconds that an export may take, retries included."""


class OtlpExport:
    """Exports every ``interval``, in its own thread; nothing without a section."""

    def __init__(
        self,
        status: Callable[[], DaemonStatus],
        *,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """``wait`` passes seconds between exports; True once the event is set."""
        self._status = status
        self._wait = wait
        self._section: Otlp | None = None
        self._ended = threading.Event()

    def configure(self, section: Otlp | None) -> None:
        """Export as this section says from now on.

        Raises ConfigError when the file of its headers has gone bad.
        """
        if section == self._section:
            return
        if section is not None:
            section.headers()
        self._ended.set()
        self._section, self._ended = section, threading.Event()
        if section is not None:
            threading.Thread(
                target=self._run,
                args=(section, self._ended),
                name="otlp",
                daemon=True,
            ).start()

    def _run(self, section: Otlp, ended: threading.Event) -> None:
        exporter, known = None, None
        while not self._wait(ended, section.interval):
            try:
                headers = section.headers()
                if exporter is None or headers != known:  # a token may be replaced
                    if exporter is not None:
                        exporter.shutdown()
                    exporter, known = _exporter(section, headers), headers
                exporter.export(metrics_data(self._status()))  # the SDK logs why it failed
            except ConfigError as error:
                _log.error("otlp_failed", detail=str(error))
            except Exception:
                _log.exception("otlp_failed")  # a defect must not end it
        if exporter is not None:
            exporter.shutdown()


def _exporter(section: Otlp, headers: Mapping[str, str]) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    # A line for each failure, without one for each attempt.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    return OTLPMetricExporter(
        endpoint=f"{section.endpoint}/v1/metrics",
        headers=dict(headers),
        timeout=min(_TIMEOUT, section.interval),
        compression=Compression.Gzip,
    )


def metrics_data(status: DaemonStatus) -> MetricsData:
    """The exported metrics of a status, in the SDK's own form."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    def data(family: Metric) -> export.Sum | export.Gauge:
        points = list(_points(family, status))
        if family.type == "counter":
            return export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return export.Gauge(points)

    metrics = [
        export.Metric(family.name, family.documentation, "", data(family))
        for family in DaemonCollector(lambda: status).collect()
        if family.samples
    ]
    resource = Resource.create(
        {
            "service.name": "specwatch",
            "service.version": status.version,
            # Those that stand by, and other shards, have the same name of a daemon.
            "service.instance.id": f"{status.daemon}@{socket.gethostname()}",
        }
    )
    scope = export.ScopeMetrics(InstrumentationScope("specwatch", status.version), metrics, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _points(family: Metric, status: DaemonStatus) -> Iterator[NumberDataPoint]:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    for sample in family.samples:
        yield NumberDataPoint(
            attributes={name: str(value) for name, value in sample.labels.items() if value != ""},
            start_time_unix_nano=int(status.started * 1e9),
            time_unix_nano=int(status.now * 1e9),
            value=float(sample.value),
        )
