"""What the instrumented HTTP layer of vLLM's server counts, and its families on the page."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.simulator.counters import SimulatedHistogram
from specwatch.simulator.exposition import HistogramText, labelled, number

_FINE = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
_COARSE = (0.1, 0.5, 1.0)


class SimulatedHttpStats:
    """Requests to the API by handler, method and status class, their sizes and durations."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.request_bytes: dict[str, tuple[int, float]] = {}
        self.response_bytes: dict[str, tuple[int, float]] = {}
        self.fine = SimulatedHistogram(_FINE)
        self.coarse: dict[tuple[str, str], SimulatedHistogram] = {}

    def record(
        self, handler: str, method: str, status: int, received: int, sent: int, seconds: float
    ) -> None:
        """Count one answered request; ``received`` and ``sent`` are bytes of the bodies."""
        key = (handler, method, f"{status // 100}xx")
        self.requests[key] = self.requests.get(key, 0) + 1
        for sizes, size in ((self.request_bytes, received), (self.response_bytes, sent)):
            count, total = sizes.get(handler, (0, 0.0))
            sizes[handler] = (count + 1, total + size)
        self.fine.observe(seconds)
        self.coarse.setdefault((handler, method), SimulatedHistogram(_COARSE)).observe(seconds)

    def families(self, created: str | None) -> Iterator[str]:
        """Text of the ``http_*`` families; ``created`` is the value of ``_created`` series.

        Without it (the page of several processes) a family that has no samples is absent.
        """
        yield self._requests(created)
        yield _sizes("http_request_size_bytes", "incoming requests", self.request_bytes, created)
        yield _sizes("http_response_size_bytes", "outgoing responses", self.response_bytes, created)
        yield _durations(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate"
            " percentile calculations. ",
            {(): self.fine},
            created,
        )
        yield _durations(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by"
            " handler is important. ",
            {
                (f'handler="{handler}"', f'method="{method}"'): histogram
                for (handler, method), histogram in self.coarse.items()
            },
            created,
        )

    def _requests(self, created: str | None) -> str:
        counts = {
            labelled(f'handler="{handler}"', f'method="{method}"', f'status="{status}"'): count
            for (handler, method, status), count in self.requests.items()
        }
        samples = "".join(
            f"http_requests_total{labels} {number(count)}\n" for labels, count in counts.items()
        )
        return _family(
            "http_requests",
            "_total",
            "counter",
            "Total number of requests by method, status and handler.",
            samples,
            list(counts),
            created,
        )


def _sizes(name: str, what: str, sizes: dict[str, tuple[int, float]], created: str | None) -> str:
    by_handler = {labelled(f'handler="{handler}"'): size for handler, size in sizes.items()}
    samples = "".join(
        f"{name}_count{labels} {number(count)}\n{name}_sum{labels} {number(total)}\n"
        for labels, (count, total) in by_handler.items()
    )
    help_text = (
        f"Content length of {what} by handler. Only value of header is respected. Otherwise"
        " ignored. No percentile calculated. "
    )
    return _family(name, "", "summary", help_text, samples, list(by_handler), created)


def _durations(
    name: str,
    help_text: str,
    histograms: dict[tuple[()] | tuple[str, str], SimulatedHistogram],
    created: str | None,
) -> str:
    samples = "".join(
        HistogramText(values, name, *labels)() for labels, values in histograms.items()
    )
    series = [labelled(*labels) for labels in histograms]
    return _family(name, "", "histogram", help_text, samples, series, created)


def _family(
    name: str,
    suffix: str,
    kind: str,
    help_text: str,
    samples: str,
    series: list[str],
    created: str | None,
) -> str:
    if not samples and created is None:
        return ""
    text = f"# HELP {name}{suffix} {help_text}\n# TYPE {name}{suffix} {kind}\n{samples}"
    if samples and created is not None:
        text += f"# HELP {name}_created {help_text}\n# TYPE {name}_created gauge\n"
        text += "".join(f"{name}_created{labels} {created}\n" for labels in series)
    return text
