"""The speedup at each load, with the lines where it pays and where it is worth it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from specwatch.domain.experiments import LEAST_SPEEDUP, ComparedLevel, Estimate, Verdict
from specwatch.report.charts.drawing import (
    AXIS,
    FILLS,
    GREY,
    INK,
    LEFT,
    LINE,
    MEANING,
    RIGHT,
    SIZE,
    STROKES,
    TOP,
    WIDTH,
    Field,
    Ink,
    Marker,
    Scale,
    document,
    dot,
    legend,
    levels,
    rule,
    sentence,
    text_width,
    ticks,
    words,
)
from specwatch.report.estimates import Ratio
from specwatch.report.model import ModelReport, ReportLoad
from specwatch.wording.figures import finite
from specwatch.wording.text import shown

_GREATEST = 100.0
"""Speedups beyond this one are drawn at it."""
_INSET = 26.0
"""From the edges of the field to its outermost loads, where these lie on a scale."""
_BOTTOM = 196.0
_ROOM = 130
"""Width of the text beside a crossing."""
_NAME = 7
_ROW, _NAMES, _FIGURES = 24.0, 136.0, 50.0
"""Of the forest plot: the height of a row, and the widths of the names and of the figures."""
_LONGEST_TARGET = 17
_FIRST, _LAST = 8, 4
"""Rows of the forest plot, if there are more: so many fit a screen."""
_FOREST_TO = 4.0
"""Speedups beyond this one are drawn at it in the forest plot."""
_STEPS = 6
_SQUARE, _DIAMOND = "-5 -5h10v10h-10z", "0 -6.5l6 6.5l-6 6.5l-6 -6.5z"
_EVEN, _WORTH_IT = Ink(INK, 1, 1.6), Ink(GREY, 2, 1.4)
_WINS, _LOSES = Marker("wins", MEANING["good"]), Marker("loses", MEANING["bad"], _SQUARE)
_UNSURE, _ASSUMED = Marker("unsure", GREY, _DIAMOND), Marker("assumed", GREY, "ring")
_VERDICTS: dict[Verdict, Marker] = {
    "ship": Marker("ship", MEANING["good"]),
    "unknown": Marker("unsure", GREY, "ring"),
    "not_worth_it": Marker("not worth it", MEANING["warn"], _DIAMOND),
    "do_not": Marker("do not", MEANING["bad"], _SQUARE),
}


class _Point(NamedTuple):
    """A speedup; ``x`` is its place, and ``labels`` stand below it."""

    x: float
    value: float
    bounds: tuple[float, float] | None
    figure: str
    marker: Marker
    labels: tuple[str, ...]


class _Crossing(NamedTuple):
    """Where the speedup is 1, and what that means."""

    x: float
    text: str
    colour: int


def speedup_by_load(
    loads: Sequence[ReportLoad], crossing: float | None = None, prefix: str = "speedup"
) -> str:
    """A point for each load bin, with its interval where it was measured; ascending loads.

    ``crossing`` is the number of running requests at which the speedup is 1. A sentence where no
    speedup is known.
    """
    bins = [
        (load, ratio, value)
        for load in loads
        if (ratio := load.speedup) is not None
        and (value := finite(ratio.value)) is not None
        and value >= 0
    ]
    across = Scale(0, len(bins), LEFT, WIDTH - RIGHT)
    points, texts = [], []
    for number, (load, ratio, value) in enumerate(bins):
        bounds, measured = _bounds(ratio), ratio.basis == "measured"
        figure = _figure(value, 2 if measured else 1)
        share = finite(load.share)
        labels = shown(load.load, _NAME), "-" if share is None else f"{share:.0%}"
        x = across.at(number + 0.5)
        points.append(_Point(x, value, bounds, figure, _marker(ratio), labels))
        basis = "" if measured else f", {shown(ratio.basis)}"
        texts.append(f"at {shown(load.load)} running {figure}x{_interval(bounds)}{basis}")
    running = finite(crossing)
    crossings = []
    if running is not None:
        place = _between([load for load, _, _ in bins], running)
        if place is not None:
            crossings.append(
                _Crossing(across.at(place), f"loses from {running:.0f}", _LOSES.colour)
            )
    where = "" if running is None else f" It crosses 1 at about {running:.0f} running."
    return _chart(
        prefix,
        points,
        crossings,
        references={"break-even": (1.0, _EVEN)},
        axis="running requests, and their share of the tokens",
        title="Speedup by load, and the break-even line at 1",
        text=f"{'; '.join(texts)}.{where}",
    )


def speedup_by_concurrency(
    compared: Sequence[ComparedLevel],
    crossing: float | None = None,
    prefix: str = "bench",
    *,
    rising: float | None = None,
) -> str:
    """A point for each load, with its interval; a sentence where no speedup is known.

    ``crossing`` is the load at which the speedup falls to 1, ``rising`` the one at which it rises
    to 1. Loads lie on a logarithmic scale.
    """
    known = [
        (load, level.speedup, level.verdict)
        for level in compared
        if level.speedup is not None
        and (load := float(level.concurrency or level.rate or 0)) > 0
        and (finite(level.speedup.value) or 0) > 0
    ]
    known.sort(key=lambda point: point[0])
    least, most = (known[0][0], known[-1][0]) if known else (1.0, 1.0)
    across = Scale(least, most, LEFT + _INSET, WIDTH - RIGHT - _INSET, logarithmic=True)
    closed = any(level.concurrency is not None for level in compared)
    axis = "requests at once" if closed else "requests a second"
    points, texts = [], []
    for load, speedup, verdict in known:
        bounds, figure = _bounds(speedup), f"{_figure(speedup.value)}x"
        x, marker = across.at(load), _VERDICTS[verdict]
        points.append(_Point(x, speedup.value, bounds, figure, marker, (f"{load:g}",)))
        texts.append(f"at {load:g} {axis} {figure}{_interval(bounds)}")
    where, crossings = "", []
    for place, does, what, marker in (
        (finite(crossing), "falls", "slower", _VERDICTS["do_not"]),
        (finite(rising), "rises", "faster", _VERDICTS["ship"]),
    ):
        if place is not None:
            where += f" It {does} to 1 at about {place:.3g}."
            if least <= place <= most:
                text = f"{what} from {place:.3g}"
                crossings.append(_Crossing(across.at(place), text, marker.colour))
    worth_it = f"worth it: {LEAST_SPEEDUP:g}x"
    return _chart(
        prefix,
        points,
        crossings,
        references={"as fast": (1.0, _EVEN), worth_it: (LEAST_SPEEDUP, _WORTH_IT)},
        axis=axis,
        title=f"Speedup by {axis}, with the lines at 1 and {LEAST_SPEEDUP:g}",
        text=f"{'; '.join(texts)}.{where}",
    )


def forest(models: Sequence[ModelReport], prefix: str = "forest") -> str:
    """A row for each model with a speedup, in their order, with its interval and a line at 1.

    A model is called as its target, or by its own name where the target has several. Of more than
    twelve, the first eight and the last four that were measured are drawn. A sentence where no
    speedup is known.
    """
    times = Counter(model.target for model in models)
    rows = [
        (shown(model.target if times[model.target] == 1 else model.model_name), ratio)
        for model in models
        if (ratio := model.answer.speedup) is not None and (finite(ratio.value) or -1) >= 0
    ]
    if not rows:
        return sentence("No speedup is known.")
    left_out = 0
    if len(rows) > _FIRST + _LAST:
        rows = [row for row in rows if row[1].basis == "measured"] or rows
        left_out = max(len(rows) - _FIRST - _LAST, 0)
        rows = rows[:_FIRST] + rows[_FIRST + left_out :]
    bounds = itertools.chain.from_iterable(_bounds(ratio) or () for _, ratio in rows)
    values = [min(value, _FOREST_TO) for value in (1.0, *(r.value for _, r in rows), *bounds)]
    steps = ticks(min(values), max(values), _STEPS - 1)
    across = Scale(steps[0], steps[-1], _NAMES, WIDTH - _FIGURES)
    bottom = TOP + (len(rows) + bool(left_out)) * _ROW + 4
    drawn = []
    for value in steps:
        x = across.at(value)
        drawn.append(rule((x, TOP), (x, bottom)))
        drawn.append(words(f"{value:g}x", x, bottom + SIZE + 4, "middle"))
    drawn.append(_EVEN.drawn([[(across.at(1.0), TOP), (across.at(1.0), bottom)]]))
    texts = []
    for number, (name, ratio) in enumerate(rows):
        y = TOP + (number + 0.5 + (left_out > 0 and number >= _FIRST)) * _ROW
        marker, interval = _marker(ratio), _bounds(ratio)
        digits = 2 if ratio.basis == "measured" else 1
        figure = f"{_figure(ratio.value, digits)}x"
        if interval is not None:
            low, high = map(across.at, interval)
            drawn += [
                rule(start, end, **STROKES[marker.colour], stroke_width=2.4)
                for start, end in (
                    ((low, y), (high, y)),
                    ((low, y - 4), (low, y + 4)),
                    ((high, y - 4), (high, y + 4)),
                )
            ]
        drawn.append(marker.drawn(across.at(ratio.value), y))
        drawn.append(words(shown(name, _LONGEST_TARGET), 0, y + SIZE * 0.34))
        drawn.append(words(figure, WIDTH, y + SIZE * 0.34, "end", font_weight=600))
        basis = "" if ratio.basis == "measured" else f", {shown(ratio.basis)}"
        texts.append(f"{name} {figure}{_interval(interval)}{basis}")
    if left_out:
        y = TOP + (_FIRST + 0.5) * _ROW
        drawn.append(words(f"{left_out} more between", 0, y + SIZE * 0.34, font_style="italic"))
    markers = dict.fromkeys(_marker(ratio) for _, ratio in rows)
    listed, height = legend(
        [(_EVEN, "as fast as off"), *((one, one.name) for one in markers)], bottom + 2 * LINE + 6
    )
    title = "Speedup of each target, and the break-even line at 1"
    size = (WIDTH, round(height))
    return document(prefix, size, title, f"{'; '.join(texts)}.", [*drawn, listed])


def _chart(
    prefix: str,
    points: Sequence[_Point],
    crossings: Iterable[_Crossing],
    *,
    references: Mapping[str, tuple[float, Ink]],
    axis: str,
    title: str,
    text: str,
) -> str:
    """``references`` are horizontal lines by name, ``text`` is the chart in words."""
    if not points:
        return sentence("No speedup is known at any load.")
    bounds = itertools.chain.from_iterable(point.bounds or () for point in points)
    values = [value for value, _ in references.values()] + [point.value for point in points]
    values = [min(value, _GREATEST) for value in (*values, *bounds)]
    # With room for the figures of the highest and the lowest.
    steps = ticks(max(min(values) - 0.18, 0.0), max(values) * 1.08, _STEPS)
    down = Scale(steps[0], steps[-1], _BOTTOM, TOP + 14)
    field = Field(Scale(0, 1, LEFT, WIDTH - RIGHT), down)
    drawn = [*levels(field, steps, lambda value: f"{value:g}x")]
    for value, ink in references.values():
        y = down.at(value)
        drawn.append(ink.drawn([[(LEFT, y), (WIDTH - RIGHT, y)]]))
    for x, label, colour in crossings:
        top, beside = down.at(1.0), x < WIDTH - _ROOM
        drawn += [
            rule(
                (x, top), (x, _BOTTOM), **STROKES[colour], stroke_width=1.4, stroke_dasharray="2 3"
            ),
            dot((x, top), 3.0, **FILLS[colour]),
            words(label, x + (5 if beside else -5), _BOTTOM - 6, "start" if beside else "end"),
        ]
    free = [0.0] * len(points[0].labels)
    for point in points:
        drawn += _drawn(point, down)
        drawn.append(rule((point.x, _BOTTOM), (point.x, _BOTTOM + 4), **AXIS))
        for row, label in enumerate(point.labels):
            half = text_width(label) / 2
            if point.x - half >= free[row]:  # one that has no room is left out
                y = _BOTTOM + 5 + SIZE + row * LINE
                drawn.append(words(label, point.x, y, "middle"))
                free[row] = point.x + half + 4
    below = _BOTTOM + (1 + len(free)) * LINE + 2
    markers = dict.fromkeys(point.marker for point in points)
    entries: list[tuple[Ink | Marker, str]] = [
        *((ink, name) for name, (_, ink) in references.items()),
        *((marker, marker.name) for marker in markers),
    ]
    listed, height = legend(entries, below + LINE)
    drawn += [
        words(axis, WIDTH / 2, below, "middle"),
        rule((LEFT, _BOTTOM), (WIDTH - RIGHT, _BOTTOM), **AXIS),
        listed,
    ]
    return document(prefix, (WIDTH, round(height)), title, text, drawn)


def _drawn(point: _Point, down: Scale) -> Iterator[str]:
    """Yield the interval, the marker and the figure."""
    x, y, marker = point.x, down.at(point.value), point.marker
    low = top = y
    if point.bounds is not None:
        low, top = (down.at(bound) for bound in point.bounds)
        for start, end in (
            ((x, low), (x, top)),
            ((x - 5, low), (x + 5, low)),
            ((x - 5, top), (x + 5, top)),
        ):
            yield rule(start, end, **STROKES[marker.colour], stroke_width=2)
    yield marker.drawn(x, y)
    # On the side that is not the line's, and readable where it lies on another line.
    below = point.value < 1
    yield words(
        point.figure,
        x,
        low + SIZE + 4 if below else top - 7,
        "middle",
        stroke="#ffffff",
        stroke_width=3,
        paint_order="stroke",
        class_="c-ink c-halo",
    )


def _bounds(speedup: Ratio | Estimate) -> tuple[float, float] | None:
    lower, upper = finite(speedup.lower), finite(speedup.upper)
    if lower is None or upper is None:
        return None
    return max(min(lower, speedup.value), 0.0), max(upper, speedup.value)


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" ({bounds[0]:.2f} to {bounds[1]:.2f})"


def _figure(value: float, digits: int = 2) -> str:
    return f"{value:.3g}" if value >= 10 else f"{value:.{digits}f}"


def _marker(ratio: Ratio) -> Marker:
    """By the whole interval, where there is one."""
    if ratio.basis != "measured":
        return _ASSUMED
    bounds = _bounds(ratio)
    if bounds is None:
        return _UNSURE
    return _WINS if bounds[0] > 1 else _LOSES if bounds[1] < 1 else _UNSURE


def _between(bins: Sequence[ReportLoad], running: float) -> float | None:
    """Where so many running requests lie between the middles of bins, on the logarithm."""
    for number, (one, other) in enumerate(itertools.pairwise(bins)):
        low, high = finite(one.running), finite(other.running)
        if low is not None and high is not None and 0 < low <= running <= high and low < high:
            return number + 0.5 + math.log(running / low) / math.log(high / low)
    return None
