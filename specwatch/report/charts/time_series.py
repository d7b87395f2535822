"""The acceptance rate and the latency over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from specwatch.report import layout
from specwatch.report.charts.drawing import (
    FILLS,
    GREY,
    INK,
    LEFT,
    MEANING,
    RIGHT,
    TOP,
    WIDTH,
    Field,
    Ink,
    Scale,
    broken,
    days,
    document,
    element,
    known,
    legend,
    levels,
    logarithmic_ticks,
    sentence,
    ticks,
)
from specwatch.report.layout import Style
from specwatch.report.model import AcceptancePoint, ReportIncident, ReportSegment, ReportSeries
from specwatch.report.sections.answer import speedups_in_words
from specwatch.wording.figures import bounded, finite, moment, percent, seconds
from specwatch.wording.text import shown

_MOST = 6
"""Lines of buckets: more cannot be distinguished."""
_ALL = "all"
_BOTTOM = 190.0
_NAME = 24
_METRICS = {"ttft": "Time to first token", "tpot": "Time per output token"}
_MODES = {"on": 0, "off": GREY}
"""Modes and the places of their colours."""
_VERDICTS: dict[Style, str] = {"good": " pays", "bad": " loses"}
_SPEEDUP_TO = 5.0
"""Speedups beyond this one are drawn at it."""
_OFF, _INCIDENT = Ink(GREY, 0, 11.0, 0.3), Ink(MEANING["warn"], 0, 7.0)
_LOGARITHMIC_FROM = 25.0
"""The ratio of the greatest to the least from which on a level scale would hide the least."""


class _Line(NamedTuple):
    """Points of time and value with a name; ``text`` has the figures in words."""

    name: str
    ink: Ink
    points: Sequence[tuple[float, float | None]]
    text: str


def acceptance(
    series: ReportSeries,
    since: float,
    until: float,
    prefix: str = "acceptance",
    *,
    segments: Sequence[ReportSegment] = (),
) -> str:
    """Lines from ``since`` to ``until`` (Unix seconds), broken where there was no traffic.

    Buckets at which speculation is measured to pay, and those at which it loses, have the colours
    of that; their dashes differ. If there are more than six buckets, those with the most drafts are
    drawn. A sentence where nothing was drafted.
    """
    chosen = _chosen(series.acceptance)
    if not chosen:
        return sentence("No drafts, so no acceptance over time.")
    verdicts = {one.segment.value: layout.verdict(one.speedup) for one in segments}
    lines = []
    for number, (label, points) in enumerate(chosen.items()):
        verdict = verdicts.get(label, "")
        ink = Ink(INK, 0, 2.4) if label == _ALL else Ink(MEANING[verdict] or number % 2, number)
        name = f"{shown(label, _NAME)}{_VERDICTS.get(verdict, '') if label != _ALL else ''}"
        places = [(point.start + series.step / 2, finite(point.rate)) for point in points]
        lines.append(_Line(name, ink, places, _rates_in_words(label, points)))
    highest = max(rate for points in chosen.values() for rate in _rates(points))
    steps = ticks(0, min(ticks(0, highest, 5)[-1], 1.0), 5)
    down = Scale(0, steps[-1], _BOTTOM, TOP)
    title = "Acceptance rate over time, by temperature"
    return _chart(prefix, title, lines, (since, until, series.step), down, steps, "{:.0%}".format)


def speedup_over_time(
    series: ReportSeries,
    incidents: Sequence[ReportIncident],
    since: float,
    until: float,
    prefix: str = "speedup-over-time",
) -> str:
    """A bar from 1 to each speedup from ``since`` to ``until`` (Unix seconds), in the colour of
    gain or loss; times without speculation are shaded, and incidents are a strip above.

    A sentence where no speedup was measured.
    """
    points = [
        (one.start, value) for one in series.speedup if (value := finite(one.value)) is not None
    ]
    if not points:
        return sentence("No speedup was measured over time.")
    values = [min(value, _SPEEDUP_TO) for _, value in points]
    steps = ticks(min(*values, 1.0), max(*values, 1.0), 5)
    field = Field(
        Scale(since, until, LEFT, WIDTH - RIGHT), Scale(steps[0], steps[-1], _BOTTOM, TOP + 12)
    )
    even = field.down.at(1.0)
    drawn = [*levels(field, steps, lambda value: f"{value:g}x"), *days(field, since, until)]
    for gap in series.off:
        begin, end = field.across.at(gap.start), field.across.at(gap.end)
        fill = FILLS[GREY]
        drawn.append(
            element(
                "rect",
                x=begin,
                y=TOP + 12,
                width=end - begin,
                height=_BOTTOM - TOP - 12,
                **fill,
                fill_opacity=_OFF.opacity,
            )
        )
    looks: dict[Ink, str] = {}
    for start, value in points:
        begin, end = (field.across.at(time) for time in (start, start + series.speedup_step))
        y, meaning = field.down.at(value), MEANING["good" if value >= 1 else "bad"]
        looks[Ink(meaning, 0, 9.0)] = "faster than off" if value >= 1 else "slower than off"
        drawn.append(
            element(
                "rect",
                x=begin + 0.3,
                y=min(y, even),
                width=max(end - begin - 0.6, 1.0),
                height=max(abs(y - even), 0.8),
                **FILLS[meaning],
            )
        )
    drawn.append(Ink(INK, 0, 1.4).drawn([[(LEFT, even), (WIDTH - RIGHT, even)]]))
    for incident in incidents:
        # In this order NaN gives way.
        times = (max(since, incident.began), min(until, incident.ended or until))
        begin, end = map(field.across.at, times)
        drawn.append(_INCIDENT.drawn([[(begin, TOP + 4), (max(end, begin + 3), TOP + 4)]]))
    entries = [*looks.items(), *([(_OFF, "off")] if series.off else [])]
    entries += [(_INCIDENT, "incident of the guard")] if incidents else []
    listed, bottom = legend(entries, _BOTTOM + 36)
    title = "Speedup over time, with times without speculation and incidents"
    text = f"{moment(since)} to {moment(until)}. {speedups_in_words(series)}"
    return document(prefix, (WIDTH, round(bottom)), title, text, [*drawn, listed])


def _chosen(
    by_bucket: Mapping[str, Sequence[AcceptancePoint]],
) -> dict[str, Sequence[AcceptancePoint]]:
    """The buckets to draw, in their order, ``all`` last."""
    some = {label: points for label, points in by_bucket.items() if _rates(points)}
    busiest = sorted(
        (label for label in some if label != _ALL),
        key=lambda label: -sum(point.drafts for point in some[label]),
    )[:_MOST]
    names = [label for label in some if label in busiest]
    # The only bucket is all of it: one line, not two.
    if _ALL in some and len(names) != 1:
        names.append(_ALL)
    return {label: some[label] for label in names}


def _rates(points: Sequence[AcceptancePoint]) -> list[float]:
    return known(point.rate for point in points)


def _rates_in_words(label: str, points: Sequence[AcceptancePoint]) -> str:
    rates = _rates(points)
    drafts = sum(point.drafts for point in points if finite(point.rate) is not None)
    accepted = sum(point.drafts * (finite(point.rate) or 0.0) for point in points)
    mean = accepted / drafts if drafts > 0 else sum(rates) / len(rates)
    name = "all temperatures" if label == _ALL else f"temperature {shown(label)}"
    return f"{name}: {percent(mean)} on average, {percent(min(rates))} to {percent(max(rates))}"


def latency(
    series: ReportSeries,
    metric: Literal["ttft", "tpot"],
    since: float,
    until: float,
    prefix: str = "latency",
) -> str:
    """P50 and P99 from ``since`` to ``until`` (Unix seconds), each mode in another colour.

    A sentence where no latency is known.
    """
    lines = list(_latencies(series, metric))
    values = known(value for line in lines for _, value in line.points)
    if not values:
        return sentence(f"{_METRICS[metric]} is not known, so there is no chart of it.")
    least, most = min(values), max(values)
    title = f"{_METRICS[metric]} over time, with speculation on and off"
    period = (since, until, series.step)
    if most / least <= _LOGARITHMIC_FROM:
        steps = ticks(0, most, 5)
        return _chart(
            prefix, title, lines, period, Scale(steps[0], steps[-1], _BOTTOM, TOP), steps, _short
        )
    steps = logarithmic_ticks(least, most)
    low, high = min(least, steps[0]), max(most, steps[-1])
    down = Scale(low, high, _BOTTOM, TOP, logarithmic=True)
    return _chart(prefix, title, lines, period, down, steps, _short)


def load(series: ReportSeries, since: float, until: float, prefix: str = "load") -> str:
    """The mean number of running requests from ``since`` to ``until`` (Unix seconds).

    A sentence where it is not known.
    """
    points = [(point.start + series.step / 2, finite(point.running)) for point in series.load]
    values = known(value for _, value in points)
    if not values:
        return sentence("The number of running requests is not known.")
    steps = ticks(0, max(*values, 1.0), 5)
    text = f"{min(values):.1f} to {max(values):.1f} running"
    line = _Line("running requests", Ink(0, 0, 2.0), points, text)
    down = Scale(steps[0], steps[-1], _BOTTOM, TOP)
    title = "Running requests over time"
    return _chart(prefix, title, [line], (since, until, series.step), down, steps, "{:g}".format)


def _latencies(series: ReportSeries, metric: str) -> Iterator[_Line]:
    """Yield those that have a value."""
    for mode, colour in _MODES.items():
        own = [point for point in series.latency if point.mode == mode]
        for quantile, ink in (("P50", Ink(colour, 0, 2.2)), ("P99", Ink(colour, 2, 1.4))):
            field = f"{metric}_{quantile.lower()}"
            points = [
                (point.start + series.step / 2, _positive(getattr(point, field))) for point in own
            ]
            values = sorted(known(value for _, value in points))
            if not values:
                continue
            beyond = any(field in point.beyond for point in own)
            name = f"{quantile} {mode}{f' (> {_short(values[-1])})' if beyond else ''}"
            text = (
                f"{quantile} with speculation {mode}: {seconds(values[0])} to"
                f" {bounded(values[-1], beyond=beyond)}, mostly about"
                f" {seconds(values[len(values) // 2])}"
            )
            yield _Line(name, ink, points, text)


def _positive(value: float | None) -> float | None:
    number = finite(value)
    return number if number is not None and number > 0 else None


def _short(value: float) -> str:
    """``20 ms``, ``1.5 s``: without the digits that a round value has not."""
    if value >= 10_000 or 0 < value < 1e-6:
        return f"{value:.0e} s"
    return f"{value:g} s" if value >= 1 or not value else f"{value * 1000:.4g} ms"


def _chart(
    prefix: str,
    title: str,
    lines: Sequence[_Line],
    period: tuple[float, float, float],
    down: Scale,
    steps: Sequence[float],
    label: Callable[[float], str],
) -> str:
    """``period`` is its begin, its end and the seconds of a point."""
    since, until, step = period
    field = Field(Scale(since, until, LEFT, WIDTH - RIGHT), down)
    drawn = [*levels(field, steps, label), *days(field, since, until)]
    # The broadest are drawn last: on top.
    for line in sorted(lines, key=lambda line: line.ink.width):
        drawn.append(line.ink.drawn(broken(line.points, 1.5 * step, field)))
    listed, bottom = legend([(line.ink, line.name) for line in lines], _BOTTOM + 36)
    text = f"{moment(since)} to {moment(until)}. {'; '.join(line.text for line in lines)}."
    if down.logarithmic:
        text += " The scale is logarithmic."
    return document(prefix, (WIDTH, round(bottom)), title, text, [*drawn, listed])
