"""What the instrumented HTTP layer of vLLM's server counts, and its families on the page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    Summary,
    generate_latest,
)

_FINE = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    7.5,
    10.0,
    30.0,
    60.0,
)
_COARSE = (0.1, 0.5, 1.0)
_SIZE_HELP = (
    "Content length of {} by handler. Only value of header is respected. Otherwise ignored. No"
    " percentile calculated. "
)


class SimulatedHttpStats:
    """Requests to the API by handler, method and status class, their sizes and durations."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._rendered: dict[float | None, bytes] = {}
        """Pages since the last request was counted."""
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ("handler", "method", "status"),
            registry=self._registry,
        )
        self._received, self._sent = (
            Summary(name, _SIZE_HELP.format(what), ("handler",), registry=self._registry)
            for name, what in (
                ("http_request_size_bytes", "incoming requests"),
                ("http_response_size_bytes", "outgoing responses"),
            )
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate"
            " percentile calculations. ",
            buckets=_FINE,
            registry=self._registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by"
            " handler is important. ",
            ("handler", "method"),
            buckets=_COARSE,
            registry=self._registry,
        )

    def record(
        self, handler: str, method: str, status: int, received: int, sent: int, seconds: float
    ) -> None:
        """Count one answered request; ``received`` and ``sent`` are bytes of the bodies."""
        self._requests.labels(handler, method, f"{status // 100}xx").inc()
        self._received.labels(handler).observe(received)
        self._sent.labels(handler).observe(sent)
        self._fine.observe(seconds)
        self._coarse.labels(handler, method).observe(seconds)
        self._rendered.clear()

    def families(self, created: float | None) -> bytes:
        """The ``http_*`` families in text format; ``created`` is the value of ``_created`` series.

        Without it (the page of several processes) a family that has no samples is absent.
        """
        if created not in self._rendered:
            self._rendered[created] = generate_latest(_CreatedAt(self._registry, created))
        return self._rendered[created]


class _CreatedAt:
    """The families of a registry, as if all series had been created at one time (Unix time)."""

    def __init__(self, registry: CollectorRegistry, created: float | None) -> None:
        self._registry = registry
        self._created = created

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if self._created is None:
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            else:
                family.samples = [
                    s._replace(value=self._created) if s.name.endswith("_created") else s
                    for s in family.samples
                ]
            if family.samples or self._created is not None:
                yield family
