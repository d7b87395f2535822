"""Writing samples in the Prometheus text format, the way prometheus-client does."""

from __future__ import annotations

import itertools

from prometheus_client.utils import floatToGoString

from specwatch.simulator.counters import SimulatedHistogram


def number(value: float) -> str:
    """A sample value as prometheus-client writes it."""
    if type(value) is int and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def escaped(value: str) -> str:
    """A label value with backslash, quote and line feed escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def labelled(*labels: str) -> str:
    """Label pairs in the order of a page: sorted, without the empty ones; empty for none."""
    present = sorted(label for label in labels if label)
    return "{" + ",".join(present) + "}" if present else ""


class HistogramText:
    """The series of one histogram, formatted anew only after an observation."""

    def __init__(self, histogram: SimulatedHistogram, name: str, *labels: str) -> None:
        self._histogram = histogram
        bounds = [*(number(bound) for bound in histogram.bounds), "+Inf"]
        lines = [f"{name}_bucket{labelled(*labels, _le(bound))}" for bound in bounds]
        lines += [f"{name}_{part}{labelled(*labels)}" for part in ("count", "sum")]
        self._template = "".join(line.replace("%", "%%") + " %s\n" for line in lines)
        self._count = -1
        self._text = ""

    def __call__(self) -> str:
        """The lines at this moment."""
        histogram = self._histogram
        if histogram.count != self._count:
            values = [number(count) for count in itertools.accumulate(histogram.counts)]
            values += (number(histogram.count), number(float(histogram.sum)))
            self._text = self._template % tuple(values)
            self._count = histogram.count
        return self._text


def _le(bound: str) -> str:
    return f'le="{bound}"'
