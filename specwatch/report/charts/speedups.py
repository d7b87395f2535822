"""The speedup at each load, beside the lines where it pays and where it is worth it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specwatch.domain.experiments import LEAST_SPEEDUP, ComparedLevel, Estimate, Verdict
from specwatch.report.charts.frame import (
    AXIS,
    LEFT,
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Field,
    Scale,
    levels,
    ticks,
)
from specwatch.report.charts.svg import (
    FILLS,
    GREY,
    INK,
    SIZE,
    STROKES,
    document,
    dot,
    element,
    place,
    rule,
    sentence,
    text_width,
    words,
)
from specwatch.report.estimates import Ratio
from specwatch.report.model import ReportLoad
from specwatch.wording.figures import finite
from specwatch.wording.text import shown

_GREATEST = 100.0
"""Speedups beyond this one are drawn at it."""
_INSET = 26.0
"""From the edges of the field to its outermost loads, where these lie on a scale."""
_NAME = 7
_HALO = {"stroke": "#ffffff", "stroke_width": 3, "paint_order": "stroke"}
"""Around figures that may lie on a line."""
_SQUARE, _DIAMOND = "-5 -5h10v10h-10z", "0 -6.5l6 6.5l-6 6.5l-6 -6.5z"


class _Look(NamedTuple):
    """A colour and a shape: colour alone says nothing. A disc has no path, a ring is hollow."""

    name: str
    colour: int
    shape: str = "disc"


_WINS, _LOSES = _Look("wins", 0), _Look("loses", 4, _SQUARE)
_UNSURE, _ASSUMED = _Look("unsure", 6, _DIAMOND), _Look("assumed", 6, "ring")
_VERDICTS: dict[Verdict, _Look] = {
    "ship": _Look("ship", 0), "not_worth_it": _Look("not worth it", 3, _DIAMOND),
    "do_not": _Look("do not", 4, _SQUARE), "unknown": _Look("unsure", 6, "ring"),
}  # fmt: skip


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
        if (ratio := load.speedup) is not None and (value := finite(ratio.value) or 0.0) >= 0
        if finite(ratio.value) is not None
    ]
    if not bins:
        return sentence("No speedup is known at any load.")
    values = [1.0, *(value for _, _, value in bins)]
    values += itertools.chain.from_iterable(_bounds(ratio) or () for _, ratio, _ in bins)
    steps, bottom = _steps(values, 5), 186.0
    down = Scale(steps[0], steps[-1], bottom, TOP + 14)
    field = Field(Scale(0, len(bins), LEFT, WIDTH - RIGHT), down)
    drawn = [*levels(field, steps, lambda value: f"{value:g}x"), _line(down, 1.0, INK, 1.6, "6 3")]
    running = finite(crossing)
    crossed = None if running is None else _between([load for load, _, _ in bins], running)
    if crossed is not None:
        x = field.across.at(crossed)
        tops = (down.end - 14, down.end - 5)
        drawn += _crossing(x, tops, bottom, f"loses from {running:.0f}", _LOSES.colour, 110)
    texts = []
    for number, (load, ratio, value) in enumerate(bins):
        x, bounds = field.across.at(number + 0.5), _bounds(ratio)
        measured = ratio.basis == "measured"
        figure = _figure(value, 2 if measured else 1)
        drawn += _point(down, x, value, bounds, figure, _look(ratio))
        drawn.append(words(shown(load.load, _NAME), x, bottom + 5 + SIZE, "middle"))
        share = finite(load.share)
        text = "-" if share is None else f"{share:.0%}"
        drawn.append(words(text, x, bottom + 5 + SIZE + LINE, "middle"))
        basis = "" if measured else f", {shown(ratio.basis)}"
        texts.append(f"at {shown(load.load)} running {figure}x{_interval(bounds)}{basis}")
    below = bottom + 3 * LINE + 2
    there = {_look(ratio) for _, ratio, _ in bins}
    lines, end = _lines([("break-even", INK, "6 3", 22.0)], below + LINE)
    drawn += [
        words("running requests, and their share of the tokens", WIDTH / 2, below, "middle"),
        rule((LEFT, bottom), (WIDTH - RIGHT, bottom), **AXIS),
        *lines,
        *_markers([look for look in (_WINS, _UNSURE, _LOSES, _ASSUMED) if look in there],
                  end, below + LINE),
    ]  # fmt: skip
    where = "" if running is None else f" It crosses 1 at about {running:.0f} running."
    return document(
        prefix, (WIDTH, round(below + LINE + 8)), "Speedup by load, and the break-even line at 1",
        f"{'; '.join(texts)}.{where}", drawn,
    )  # fmt: skip


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
    points = [
        (load, level.speedup, level.verdict)
        for level in compared
        if level.speedup is not None
        and (load := float(level.concurrency or level.rate or 0)) > 0
        and (finite(level.speedup.value) or 0) > 0
    ]
    if not points:
        return sentence("No speedup is known at any load.")
    points.sort(key=lambda point: point[0])
    closed = any(level.concurrency is not None for level in compared)
    axis = "requests at once" if closed else "requests a second"
    values = [1.0, LEAST_SPEEDUP, *(speedup.value for _, speedup, _ in points)]
    values += itertools.chain.from_iterable(_bounds(speedup) or () for _, speedup, _ in points)
    steps, bottom = _steps(values, 6), 206.0
    down = Scale(steps[0], steps[-1], bottom, TOP + 14)
    least, most = points[0][0], points[-1][0]
    across = Scale(least, most, LEFT + _INSET, WIDTH - RIGHT - _INSET, logarithmic=True)
    whole = Field(Scale(0, 1, LEFT, WIDTH - RIGHT), down)
    drawn = [*levels(whole, steps, lambda value: f"{value:g}x"), _line(down, 1.0, INK, 1.6, "6 3")]
    drawn.append(_line(down, LEAST_SPEEDUP, GREY, 1.4, "2 3"))
    where = ""
    for crossed, does, what, look in (
        (finite(crossing), "falls", "slower", _VERDICTS["do_not"]),
        (finite(rising), "rises", "faster", _VERDICTS["ship"]),
    ):
        if crossed is not None:
            where += f" It {does} to 1 at about {crossed:.3g}."
        if crossed is not None and least <= crossed <= most:
            x, top, text = across.at(crossed), down.at(1.0), f"{what} from {crossed:.3g}"
            drawn += _crossing(x, (top, bottom - 6), bottom, text, look.colour, 130)
            drawn.append(dot((x, top), 3.0, **FILLS[look.colour]))
    texts, labels, free = [], [], 0.0
    for load, speedup, verdict in points:
        x, bounds, figure = across.at(load), _bounds(speedup), f"{_figure(speedup.value)}x"
        value = min(speedup.value, _GREATEST)
        drawn += _point(down, x, value, bounds, figure, _VERDICTS[verdict], **_HALO)
        texts.append(f"at {load:g} {axis} {figure}{_interval(bounds)}")
        labels.append(rule((x, bottom), (x, bottom + 4), **AXIS))
        half = text_width(f"{load:g}") / 2
        if x - half >= free:  # one that has no room is left out
            labels.append(words(f"{load:g}", x, bottom + 5 + SIZE, "middle"))
            free = x + half + 4
    below = bottom + 2 * LINE + 2
    there = {verdict for _, _, verdict in points}
    lines, _ = _lines(
        [("as fast", INK, "6 3", 18.0), (f"worth it: {LEAST_SPEEDUP:g}x", GREY, "2 3", 18.0)],
        below + LINE,
    )
    drawn += [
        *labels,
        words(axis, WIDTH / 2, below, "middle"),
        rule((LEFT, bottom), (WIDTH - RIGHT, bottom), **AXIS),
        *lines,
        *_markers([look for name, look in _VERDICTS.items() if name in there],
                  20.0, below + 2 * LINE),
    ]  # fmt: skip
    return document(
        prefix, (WIDTH, round(below + 2 * LINE + 10)),
        f"Speedup by {axis}, with the lines at 1 and {LEAST_SPEEDUP:g}",
        f"{'; '.join(texts)}.{where}", drawn,
    )  # fmt: skip


def _bounds(speedup: Ratio | Estimate) -> tuple[float, float] | None:
    lower, upper = finite(speedup.lower), finite(speedup.upper)
    if lower is None or upper is None:
        return None
    return max(min(lower, speedup.value), 0.0), max(upper, speedup.value)


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" ({bounds[0]:.2f} to {bounds[1]:.2f})"


def _steps(values: Iterable[float], most: int) -> list[float]:
    """Ticks that enclose values, with room for the figures of the highest and the lowest."""
    drawn = [min(value, _GREATEST) for value in values]
    return ticks(max(min(drawn) - 0.18, 0.0), max(drawn) * 1.08, most)


def _figure(value: float, digits: int = 2) -> str:
    return f"{value:.3g}" if value >= 10 else f"{value:.{digits}f}"


def _look(ratio: Ratio) -> _Look:
    """A disc that wins, a square that loses, a diamond between; hollow where it is assumed."""
    if ratio.basis != "measured":
        return _ASSUMED
    bounds = _bounds(ratio)
    if bounds is None:
        return _UNSURE
    return _WINS if bounds[0] > 1 else _LOSES if bounds[1] < 1 else _UNSURE


def _line(down: Scale, value: float, colour: int, width: float, dashes: str) -> str:
    start, end = (LEFT, down.at(value)), (WIDTH - RIGHT, down.at(value))
    return rule(start, end, **STROKES[colour], stroke_width=width, stroke_dasharray=dashes)


def _crossing(
    x: float, tops: tuple[float, float], bottom: float, text: str, colour: int, room: float
) -> Iterator[str]:
    """Yield a vertical line, from the first of ``tops``, and its text, at the other."""
    yield rule((x, tops[0]), (x, bottom), **STROKES[colour], stroke_width=1.4,
               stroke_dasharray="2 3")  # fmt: skip
    after = x < WIDTH - room
    yield words(text, x + (5 if after else -5), tops[1], "start" if after else "end")


def _between(bins: Sequence[ReportLoad], running: float) -> float | None:
    """Where so many running requests lie between the middles of bins, on the logarithm."""
    for number, (one, other) in enumerate(itertools.pairwise(bins)):
        low, high = finite(one.running), finite(other.running)
        if low is not None and high is not None and 0 < low <= running <= high and low < high:
            return number + 0.5 + math.log(running / low) / math.log(high / low)
    return None


def _point(
    down: Scale, x: float, value: float, bounds: tuple[float, float] | None, figure: str,
    look: _Look, **halo: object,
) -> Iterator[str]:  # fmt: skip
    y = low = top = down.at(value)
    if bounds is not None:
        low, top = down.at(bounds[0]), down.at(bounds[1])
        for start, end in (
            ((x, low), (x, top)), ((x - 5, low), (x + 5, low)), ((x - 5, top), (x + 5, top)),
        ):  # fmt: skip
            yield rule(start, end, **STROKES[look.colour], stroke_width=2)
    yield _marker(x, y, look)
    # On the side that is not the line's.
    yield words(figure, x, low + SIZE + 4 if value < 1 else top - 7, "middle", **halo)


def _marker(x: float, y: float, look: _Look) -> str:
    if look.shape == "ring":
        stroke = STROKES[look.colour]["stroke"]
        ring = {"class_": f"s{look.colour} c-ground", "stroke": stroke, "fill": "#ffffff"}
        return dot((x, y), 4.5, **ring, stroke_width=2)
    if look.shape == "disc":
        return dot((x, y), 5.0, **FILLS[look.colour])
    return element("path", d=f"M{place(x)} {place(y)}m{look.shape}", **FILLS[look.colour])


def _lines(named: Iterable[tuple[str, int, str, float]], y: float) -> tuple[list[str], float]:
    """Samples of lines with their names, and where they end."""
    drawn, x = [], 14.0
    for name, colour, dashes, gap in named:
        drawn.append(rule((x, y - 4), (x + 22, y - 4), **STROKES[colour], stroke_width=1.6,
                          stroke_dasharray=dashes))  # fmt: skip
        drawn.append(words(name, x + 28, y))
        x += 28 + text_width(name) + gap
    return drawn, x


def _markers(looks: Iterable[_Look], x: float, y: float) -> Iterator[str]:
    """Yield samples of markers with their names."""
    for look in looks:
        yield _marker(x, y - 4, look)
        yield words(look.name, x + 10, y)
        x += 10 + text_width(look.name) + 22
