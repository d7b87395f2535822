"""What a collector of OpenTelemetry receives, by the protocol's own messages."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from specwatch.config.loading import parse
from specwatch.config.operation import Otlp
from specwatch.errors import ConfigError
from specwatch.status import DaemonStatus
from specwatch.web.exporter import DaemonCollector
from specwatch.web.otlp import OtlpExport
from tests.web.statuses import NOW, daemon
from tests.web.test_exporter import FULL

CUMULATIVE = 2
"""In the protocol's AggregationTemporality."""


class Collector(ThreadingHTTPServer):
    """Receives metrics; ``status`` is what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.received: list[ExportMetricsServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Encoding"] == "gzip"
        self.server.received.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
        self.server.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def points(request: ExportMetricsServiceRequest) -> dict[tuple[str, frozenset[Any]], float]:
    """The value of each point by the name of its metric and its attributes."""
    ((scope,),) = [resource.scope_metrics for resource in request.resource_metrics]
    return {
        (
            metric.name,
            frozenset((a.key, a.value.string_value) for a in point.attributes),
        ): point.as_double
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }


def export(
    section: Otlp, status: Callable[[], DaemonStatus], *before: Callable[[], object]
) -> None:
    """Let the daemon's thread export once after each of these, without its pauses."""
    turns = iter(before)
    pauses: list[float] = []

    def wait(_ended: threading.Event, seconds: float) -> bool:
        pauses.append(seconds)
        turn = next(turns, None)
        if turn is not None:
            turn()
        return turn is None

    OtlpExport(status, wait=wait).configure(section)
    for thread in threading.enumerate():
        if thread.name == "otlp":
            thread.join(30)
    assert pauses == [section.interval] * (len(before) + 1)


def nothing() -> None:
    """Before an export that needs no preparation."""


def test_a_collector_receives_every_sample_of_the_page(collector: Collector) -> None:
    export(Otlp(endpoint=collector.url, interval="9s"), lambda: FULL, nothing)
    (request,) = collector.received
    expected = {
        (
            family.name,
            frozenset((k, str(v)) for k, v in sample.labels.items() if v != ""),
        ): float(sample.value)
        for family in DaemonCollector(lambda: FULL).collect()
        for sample in family.samples
    }
    assert len(expected) > 200
    assert points(request) == pytest.approx(expected, nan_ok=True)
    (resource,) = request.resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "specwatch"
    # Processes that stand by have the name of the daemon, too.
    assert attributes["service.instance.id"] == f"{FULL.daemon}@{socket.gethostname()}"
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    scrapes = metrics["specwatch_scrapes"].sum
    assert scrapes.is_monotonic
    assert scrapes.aggregation_temporality == CUMULATIVE
    assert scrapes.data_points[0].start_time_unix_nano == int(FULL.started * 1e9)
    assert scrapes.data_points[0].time_unix_nano == int(NOW * 1e9)
    assert metrics["specwatch_speedup_ratio"].WhichOneof("data") == "gauge"
    assert collector.asked[0][0] == "/v1/metrics"


def test_headers_are_those_of_the_file(collector: Collector, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("authorization=Bearer abc,x-tenant=gpu\n")
    section = Otlp(endpoint=f"{collector.url}/tenant/", headers_file=file)
    export(section, daemon, nothing, lambda: file.write_text("authorization=Bearer renewed\n"))
    (path, headers), (_, renewed) = collector.asked
    assert (path, headers["authorization"], headers["x-tenant"]) == (
        "/tenant/v1/metrics",
        "Bearer abc",
        "gpu",
    )
    assert renewed["authorization"] == "Bearer renewed"


def test_it_goes_on_when_a_collector_or_a_reading_fails(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def status() -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise ZeroDivisionError
        return FULL

    collector.status = 400
    export(Otlp(endpoint=collector.url), status, nothing, nothing, nothing)
    assert len(collector.received) == 2
    assert any("400" in record.getMessage() for record in caplog.records)


def test_a_section_without_an_endpoint_or_with_a_bad_file_is_refused(tmp_path: Path) -> None:
    def problems(text: str) -> str:
        with pytest.raises(ConfigError) as refused:
            parse(f"targets: [{{url: 'http://h'}}]\notlp: {text}", "f", environ={}, hostname="h")
        return str(refused.value)

    assert "endpoint" in problems("{}")
    assert "does not begin with http://" in problems("{endpoint: collector}")
    missing = problems(f"{{endpoint: 'http://c:4318', headers_file: {tmp_path}/none}}")
    assert "cannot read" in missing
    assert "outside 1s to 1h" in problems("{endpoint: 'http://c:4318', interval: 0.5s}")


def test_it_ends_with_its_section() -> None:
    ended: list[bool] = []

    def wait(event: threading.Event, seconds: float) -> bool:
        ended.append(event.wait(30))
        return True

    exporting = OtlpExport(daemon, wait=wait)
    exporting.configure(Otlp(endpoint="http://127.0.0.1:1"))
    (thread,) = [each for each in threading.enumerate() if each.name == "otlp"]
    exporting.configure(None)
    thread.join(30)
    assert ended == [True]
