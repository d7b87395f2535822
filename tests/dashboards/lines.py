"""Charts over time: lines, rows of colours, bands of states."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from tests.dashboards.canvas import Box, Canvas, text_width
from tests.dashboards.colours import ink_on
from tests.dashboards.fields import Field
from tests.dashboards.prometheus import Series
from tests.dashboards.units import formatted

_TICKS = (15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)
"""Seconds between two times on an axis, and the pixels that a time takes."""
_TICK_PIXELS = 80.0
GAP_STEPS = 1.5
"""Steps without a value after which a line is interrupted."""


@dataclass(frozen=True)
class Line:
    """A series with its looks, and its colour in the theme."""

    field: Field
    series: Series
    colour: str


@dataclass(frozen=True)
class Chart:
    """What every chart over time needs to know."""

    canvas: Canvas
    panel: Mapping[str, Any]
    start: float
    end: float
    step: float
    marks: Sequence[tuple[float, str]] = ()
    """Annotations: Unix seconds, and the name of a colour."""


def draw_lines(chart: Chart, box: Box, lines: Sequence[Line]) -> None:
    """A time series panel, but its legend."""
    left = [line for line in lines if line.field.custom.get("axisPlacement") != "right"]
    right = [line for line in lines if line not in left]
    axis = _units(left or lines)
    gutter = _gutter(left or lines, axis)
    beside = _gutter(right, _units(right)) if right else 8
    inner = box.inside(gutter, 4, beside, 26)
    axes = chart.canvas.axes(inner)
    _over_time(chart, axes, inner.width)
    _plot(chart, axes, left, stacked=_stacked(chart.panel))
    _bounds(chart, axes, left)
    if right:
        other = axes.twinx()
        for side in other.spines.values():
            side.set_visible(False)
        other.tick_params(length=0, labelsize=8, colors=chart.canvas.theme.faint)
        _plot(chart, other, right, stacked=False)
        _bounds(chart, other, right)
        other.set_xlim(_time(chart.start), _time(chart.end))
    for at, colour in chart.marks:
        shade = chart.canvas.theme.colour(colour)
        axes.axvline(_time(at), color=shade, linewidth=1, linestyle="--", alpha=0.8)


def _plot(chart: Chart, axes: Axes, lines: Sequence[Line], *, stacked: bool) -> None:
    theme = chart.canvas.theme
    named = {line.field.name: line for line in lines}
    base: dict[float, float] = {}
    for line in lines:
        custom = line.field.custom
        x, y = _with_gaps(line.series, chart.step)
        if stacked:
            below = np.array([base.get(at, 0.0) for at in x])
            y = y + below
            base.update({at: float(top) for at, top in zip(x, y, strict=True) if top == top})
        else:
            below = np.zeros_like(y)
        if custom.get("drawStyle") == "points" or len(line.series.points) == 1:
            axes.plot(x, y, ".", color=line.colour, markersize=4)
        style = "--" if (custom.get("lineStyle") or {}).get("fill") == "dash" else "-"
        axes.plot(x, y, style, color=line.colour, linewidth=0.75 * custom.get("lineWidth", 1))
        opacity = float(custom.get("fillOpacity", 0)) / 100
        other = named.get(str(custom.get("fillBelowTo")))
        if other is not None:
            known = dict(zip(*_with_gaps(other.series, chart.step), strict=True))
            below = np.array([known.get(at, math.nan) for at in x])
        if opacity and (other is not None or not custom.get("fillBelowTo")):
            axes.fill_between(x, below, y, color=line.colour, alpha=opacity, linewidth=0)
    mode = ((lines[0].field.custom if lines else {}).get("thresholdsStyle") or {}).get("mode")
    for step in lines[0].field.steps if lines and mode not in (None, "off") else ():
        if step["value"] is not None:
            shade = theme.colour(step["color"])
            axes.axhline(step["value"], color=shade, linewidth=1, linestyle=(0, (5, 4)))


def _with_gaps(series: Series, step: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x: list[float] = []
    y: list[float] = []
    for at, value in series.points:
        if x and at - series.points[0][0] and (at - _seconds(x[-1])) > GAP_STEPS * step:
            x.append(_time(at - step))
            y.append(math.nan)
        x.append(_time(at))
        y.append(value if math.isfinite(value) else math.nan)
    return np.array(x), np.array(y)


def _bounds(chart: Chart, axes: Axes, lines: Sequence[Line]) -> None:
    defaults = (chart.panel.get("fieldConfig") or {}).get("defaults") or {}
    unit = _units(lines)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=defaults.get("decimals") == 0))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: formatted(value, unit, defaults.get("decimals")))
    )
    low, high = axes.get_ylim()
    low = low if defaults.get("min") is None else float(defaults["min"])
    high = high if defaults.get("max") is None else float(defaults["max"])
    axes.set_ylim(low, high if high > low else low + 1)


def _over_time(chart: Chart, axes: Axes, width: float) -> None:
    axes.set_xlim(_time(chart.start), _time(chart.end))
    wanted = (chart.end - chart.start) * _TICK_PIXELS / width
    every = next((step for step in _TICKS if step >= wanted), _TICKS[-1])
    first = math.ceil(chart.start / every) * every
    ticks = [_time(at) for at in range(first, int(chart.end) + 1, every)]
    pattern = "%H:%M:%S" if every < 60 else "%H:%M"
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: time.strftime(pattern, time.gmtime(_seconds(at))))
    )


_EPOCH = math.floor(time.time() / 86400) * 86400 - 86400
"""Far from it matplotlib's numbers are too coarse for seconds."""


def _time(at: float) -> float:
    return at - _EPOCH


def _seconds(x: float) -> float:
    return x + _EPOCH


def _units(lines: Sequence[Line]) -> str:
    return lines[0].field.unit if lines else ""


def _stacked(panel: Mapping[str, Any]) -> bool:
    custom = ((panel.get("fieldConfig") or {}).get("defaults") or {}).get("custom") or {}
    return bool((custom.get("stacking") or {}).get("mode", "none") != "none")


def _gutter(lines: Sequence[Line], unit: str) -> float:
    values = [v for line in lines for _, v in line.series.points if math.isfinite(v)]
    shown = [formatted(value, unit) for value in (min(values, default=0), max(values, default=1))]
    return 16 + max(text_width(text, 8) for text in shown)


def draw_heatmap(chart: Chart, box: Box, lines: Sequence[Line]) -> None:
    """A row a series, its value as a colour, and the scale of colours below."""
    options = chart.panel["options"]
    scale = options.get("color") or {}
    names = [line.field.name for line in lines]
    inner = box.inside(14 + max(text_width(name, 8) for name in names), 2, 8, 44)
    axes = chart.canvas.axes(inner)
    axes.grid(False)
    values = [v for line in lines for _, v in line.series.points if math.isfinite(v)]
    least, most = scale.get("min"), scale.get("max")
    low = float(min(values, default=0) if least is None else least)
    high = float(max(values, default=1) if most is None else most)
    colours = matplotlib.colormaps["viridis"]
    bounds = Normalize(low, high if high > low else low + 1)
    ats = sorted({at for line in lines for at, _ in line.series.points})
    places = {at: number for number, at in enumerate(ats)}
    cells = np.full((len(lines), len(ats)), math.nan)
    for row, line in enumerate(lines):
        for at, value in line.series.points:
            cells[row, places[at]] = value
    edges = [_time(at - chart.step) for at in ats] + [_time(ats[-1])]
    rows = [row - 0.5 for row in range(len(lines) + 1)]
    axes.pcolormesh(edges, rows, cells, cmap=colours, norm=bounds)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.5, len(names) - 0.5)
    _over_time(chart, axes, inner.width)
    unit = (options.get("cellValues") or {}).get("unit", "")
    bar = Box(box.x + box.width - 260, box.y + box.height - 18, 200, 10)
    legend = chart.canvas.axes(bar)
    legend.imshow(np.linspace(0, 1, 100)[None, :], aspect="auto", cmap=colours)
    legend.axis("off")
    for x, value in ((bar.x - 6, low), (bar.x + bar.width + 50, high)):
        text = formatted(value, unit)
        chart.canvas.write(x, bar.y + 5, text, size=7.5, align="right")


def draw_states(chart: Chart, box: Box, lines: Sequence[Line]) -> None:
    """A band a series, of which what is alike and side by side is one piece."""
    theme = chart.canvas.theme
    names = [line.field.name for line in lines]
    inner = box.inside(14 + max(text_width(name, 8) for name in names), 2, 8, 20)
    axes = chart.canvas.axes(inner)
    axes.grid(False)
    for row, line in enumerate(reversed(lines)):
        for begin, end, value in _pieces(line.series, chart.step):
            shade = theme.colour(line.field.colour_of(value))
            left, width = _time(begin), end - begin
            axes.barh(row, width, left=left, height=0.9, color=shade, alpha=0.85)
            shown = line.field.text(value)
            room = width / (chart.end - chart.start) * inner.width
            if text_width(shown, 8) < room:
                at = left + 4 / inner.width * (chart.end - chart.start)
                axes.text(at, row, shown, fontsize=8, va="center", color=ink_on(shade))
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.5, len(names) - 0.5)
    _over_time(chart, axes, inner.width)


def _pieces(series: Series, step: float) -> list[tuple[float, float, float]]:
    pieces: list[tuple[float, float, float]] = []
    for at, value in series.points:
        if pieces and pieces[-1][2] == value and at - pieces[-1][1] < GAP_STEPS * step:
            pieces[-1] = (pieces[-1][0], at + step, value)
        else:
            pieces.append((at, at + step, value))
    return pieces
