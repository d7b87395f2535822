"""The acceptance rate and the latency over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from specwatch.report.charts.frame import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Field,
    Ink,
    Scale,
    broken,
    days,
    known,
    legend,
    levels,
    logarithmic_ticks,
    moment,
    ticks,
)  # fmt: skip
from specwatch.report.charts.svg import GREY, INK, document, sentence
from specwatch.report.model import AcceptancePoint, LatencyPoint, ReportSeries
from specwatch.wording.figures import bounded, finite, percent, seconds
from specwatch.wording.text import shown

_MOST = 6
"""Lines of buckets: more cannot be told apart."""
_ALL = "all"
_BOTTOM = 190.0
_NAME = 24


def acceptance(series: ReportSeries, since: float, until: float, prefix: str = "acceptance") -> str:
    """Lines from ``since`` to ``until`` (Unix seconds), broken where there was no traffic.

    A sentence where nothing was drafted. Where there are more than six buckets, those with the
    most drafts are drawn.
    """
    chosen = _chosen(series.acceptance)
    if not chosen:
        return sentence("No drafts, so no acceptance over time.")
    top = ticks(0, max(_rates(chosen[0][1]) + [r for _, p in chosen for r in _rates(p)]), 5)[-1]
    field = Field(Scale(since, until, LEFT, WIDTH - RIGHT), Scale(0, min(top, 1.0), _BOTTOM, TOP))
    drawn = [
        *levels(field, ticks(0, min(top, 1.0), 5), lambda value: f"{value:.0%}"),
        *days(field, since, until),
    ]
    entries = []
    for number, (label, points) in enumerate(chosen):
        ink = Ink(INK, 0, 2.4) if label == _ALL else Ink(number, number)
        places = ((point.start + series.step / 2, finite(point.rate)) for point in points)
        drawn.append(ink.drawn(broken(places, 1.5 * series.step, field)))
        entries.append((ink, shown(label, _NAME)))
    listed, bottom = legend(entries, _BOTTOM + 36)
    title = "Acceptance rate over time, by temperature"
    text = "; ".join(_told_rates(label, points) for label, points in chosen)
    between = f"{moment(since)} to {moment(until)} UTC"
    return document(prefix, (WIDTH, round(bottom)), title, f"{between}. {text}.", [*drawn, listed])


def _chosen(
    by_bucket: Mapping[str, Sequence[AcceptancePoint]],
) -> list[tuple[str, Sequence[AcceptancePoint]]]:
    """The buckets to draw, in their order, ``all`` last: on top of the others."""
    some = {label: points for label, points in by_bucket.items() if _rates(points)}
    busiest = sorted(
        (label for label in some if label != _ALL),
        key=lambda label: -sum(drafted.drafts for drafted in some[label]),
    )[:_MOST]
    names = [label for label in some if label in busiest]
    # The only bucket is all of it: one line, not two.
    if _ALL in some and len(names) != 1:
        names.append(_ALL)
    return [(label, some[label]) for label in names]


def _rates(points: Sequence[AcceptancePoint]) -> list[float]:
    return known(point.rate for point in points)


def _told_rates(label: str, points: Sequence[AcceptancePoint]) -> str:
    rates = _rates(points)
    drafts = sum(point.drafts for point in points if finite(point.rate) is not None)
    whole = sum(point.drafts * (finite(point.rate) or 0.0) for point in points)
    mean = whole / drafts if drafts > 0 else sum(rates) / len(rates)
    name = "all temperatures" if label == _ALL else f"temperature {shown(label)}"
    return f"{name}: {percent(mean)} on average, {percent(min(rates))} to {percent(max(rates))}"


Metric = Literal["ttft", "tpot"]

_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token"}
_MODES = {"on": 0, "off": 4, "mixed": GREY}
"""Modes, as they are listed, and the places of their colours."""
_LOGARITHMIC_FROM = 25.0
"""The ratio of the greatest to the least from which on a level scale would hide the least."""

Read = Callable[[LatencyPoint], float | None]


class _Line(NamedTuple):
    mode: str
    quantile: str
    points: list[tuple[float, float | None]]
    beyond: bool
    """Whether some of it lies beyond the last bound of its histogram."""

    @property
    def ink(self) -> Ink:
        thin = self.quantile == "P99"
        return Ink(_MODES.get(self.mode, GREY), 2 if thin else 0, 1.4 if thin else 2.2)

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.points if value is not None]

    @property
    def greatest(self) -> float:
        """The greatest of them."""
        return max(self.values)


def latency(
    series: ReportSeries, metric: Metric, since: float, until: float, prefix: str = "latency"
) -> str:
    """P50 and P99 from ``since`` to ``until`` (Unix seconds), the modes in colours of their own.

    A sentence where no latency is known.
    """
    lines = list(_lines(series, metric))
    values = [value for line in lines for value in line.values]
    if not values:
        return sentence(f"{_NAMES[metric]} is not known, so there is no chart of it.")
    steps, down = _scale(values)
    field = Field(Scale(since, until, LEFT, WIDTH - RIGHT), down)
    drawn = [*levels(field, steps, _short), *days(field, since, until)]
    # The medians are drawn last: on top.
    for line in sorted(lines, key=lambda one: one.quantile, reverse=True):
        drawn.append(line.ink.drawn(broken(line.points, 1.5 * series.step, field)))
    entries = [
        (
            line.ink,
            f"{line.quantile} {shown(line.mode, 12)}"
            + (f" (> {_short(line.greatest)})" if line.beyond else ""),
        )
        for line in lines
    ]
    listed, bottom = legend(entries, _BOTTOM + 36)
    text = "; ".join(_told(line) for line in lines)
    scale = " The scale is logarithmic." if down.logarithmic else ""
    between = f"{moment(since)} to {moment(until)} UTC"
    return document(
        prefix, (WIDTH, round(bottom)),
        f"{_NAMES[metric]} over time, with speculation on and off",
        f"{between}. {text}.{scale}", [*drawn, listed],
    )  # fmt: skip


def _lines(series: ReportSeries, metric: Metric) -> Iterator[_Line]:
    """Yield those that have a value."""
    readers: dict[str, Read] = (
        {"P50": lambda point: point.ttft_p50, "P99": lambda point: point.ttft_p99}
        if metric == "ttft"
        else {"P50": lambda point: point.tpot_p50, "P99": lambda point: point.tpot_p99}
    )
    for mode in _MODES:
        points: Sequence[LatencyPoint] = [point for point in series.latency if point.mode == mode]
        for name, read in readers.items():
            line = _Line(
                mode,
                name,
                [(point.start + series.step / 2, _positive(read(point))) for point in points],
                any(f"{metric}_{name.lower()}" in point.beyond for point in points),
            )
            if line.values:
                yield line


def _positive(value: float | None) -> float | None:
    number = finite(value)
    return number if number is not None and number > 0 else None


def _scale(values: Sequence[float]) -> tuple[list[float], Scale]:
    least, most = min(values), max(values)
    if most / least <= _LOGARITHMIC_FROM:
        steps = ticks(0, most, 5)
        return steps, Scale(steps[0], steps[-1], _BOTTOM, TOP)
    steps = logarithmic_ticks(least, most)
    low, high = min(least, steps[0]), max(most, steps[-1])
    return steps, Scale(low, high, _BOTTOM, TOP, logarithmic=True)


def _short(value: float) -> str:
    """``20 ms``, ``1.5 s``: without the digits that a round value has not."""
    if value >= 10_000 or 0 < value < 1e-6:
        return f"{value:.0e} s"
    return f"{value:g} s" if value >= 1 or not value else f"{value * 1000:.4g} ms"


def _told(line: _Line) -> str:
    values = sorted(line.values)
    middle = values[len(values) // 2]
    return (
        f"{line.quantile} with speculation {line.mode}: {seconds(values[0])} to"
        f" {bounded(values[-1], beyond=line.beyond)}, mostly about {seconds(middle)}"
    )
