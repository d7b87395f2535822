"""The speedup at each load, beside the line where speculation stops to pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from specwatch.report.charts.frame import AXIS, LEFT, LINE, RIGHT, TOP, WIDTH, Field, levels
from specwatch.report.charts.scale import Scale, known, ticks
from specwatch.report.charts.style import FILLS, INK, STROKES
from specwatch.report.charts.svg import (
    SIZE,
    document,
    dot,
    element,
    place,
    rule,
    sentence,
    text_width,
    words,
)
from specwatch.report.model import Load, Ratio
from specwatch.wording.figures import finite
from specwatch.wording.text import shown

_BOTTOM = 186.0
_WINS, _EVEN, _LOSES = 0, 6, 4
_GREATEST = 100.0
"""Speedups beyond this one are drawn at it."""
_NAME = 7


def speedup_by_load(
    loads: Sequence[Load], crossing: float | None = None, prefix: str = "speedup"
) -> str:
    """A point for each load bin, with its interval where it was measured; ascending loads.

    ``crossing`` is the number of running requests at which the speedup is 1. A sentence where no
    speedup is known.
    """
    bins = [each for each in loads if each.speedup is not None and _value(each.speedup) is not None]
    if not bins:
        return sentence("No speedup is known at any load.")
    steps = _steps([each.speedup for each in bins if each.speedup is not None])
    field = Field(
        Scale(0, len(bins), LEFT, WIDTH - RIGHT), Scale(steps[0], steps[-1], _BOTTOM, TOP + 14)
    )
    drawn = [*levels(field, steps, lambda value: f"{value:g}x"), *_break_even(field)]
    drawn += _crossing(field, bins, finite(crossing))
    for number, each in enumerate(bins):
        drawn += _bin(field, number, each)
    bottom = _BOTTOM + 3 * LINE + 2
    drawn += [
        words("running requests, and their share of the tokens", WIDTH / 2, bottom, "middle"),
        rule((LEFT, _BOTTOM), (WIDTH - RIGHT, _BOTTOM), **AXIS),
        *_legend(bins, bottom + LINE),
    ]
    bottom += LINE
    told = "; ".join(map(_told, bins))
    where = "" if finite(crossing) is None else f" It crosses 1 at about {crossing:.0f} running."
    return document(
        prefix, (WIDTH, round(bottom + 8)), "Speedup by load, and the break-even line at 1",
        f"{told}.{where}", drawn,
    )  # fmt: skip


def _value(ratio: Ratio) -> float | None:
    found = finite(ratio.value)
    return found if found is not None and found >= 0 else None


def _bounds(ratio: Ratio) -> tuple[float, float] | None:
    lower, upper = finite(ratio.lower), finite(ratio.upper)
    value = _value(ratio)
    if lower is None or upper is None or value is None:
        return None
    return max(min(lower, value), 0.0), max(upper, value)


def _steps(ratios: Sequence[Ratio]) -> list[float]:
    """Ticks that enclose 1, all values and their intervals."""
    every = [1.0, *known(_value(each) for each in ratios)]
    every += itertools.chain.from_iterable(b for b in map(_bounds, ratios) if b is not None)
    shown_ = [min(each, _GREATEST) for each in every]
    # With room for the figures of the highest and the lowest.
    return ticks(max(min(shown_) - 0.18, 0.0), max(shown_) * 1.08, 5)


def _break_even(field: Field) -> Iterator[str]:
    y = field.down.at(1.0)
    yield rule(
        (field.across.start, y), (field.across.end, y), **STROKES[INK], stroke_width=1.6,
        stroke_dasharray="6 3",
    )  # fmt: skip


def _crossing(field: Field, bins: Sequence[Load], running: float | None) -> Iterator[str]:
    """Yield the mark of the crossing, between the bins it lies between on the logarithm."""
    place = None if running is None else _between(bins, running)
    if place is None or running is None:
        return
    x = field.across.at(place)
    yield rule(
        (x, field.down.end - 14), (x, field.bottom), **STROKES[_LOSES], stroke_width=1.4,
        stroke_dasharray="2 3",
    )  # fmt: skip
    after = x < WIDTH - 110
    yield words(
        f"loses from {running:.0f}", x + (5 if after else -5), field.down.end - 5,
        "start" if after else "end",
    )  # fmt: skip


def _between(bins: Sequence[Load], running: float) -> float | None:
    if running <= 0:
        return None
    for number, (one, other) in enumerate(itertools.pairwise(bins)):
        low, high = finite(one.running), finite(other.running)
        if low is not None and high is not None and 0 < low <= running <= high and low < high:
            share = (math.log(running) - math.log(low)) / (math.log(high) - math.log(low))
            return number + 0.5 + share
    return None


def _bin(field: Field, number: int, each: Load) -> Iterator[str]:
    ratio = each.speedup
    value = None if ratio is None else _value(ratio)
    if ratio is None or value is None:
        return
    bounds = _bounds(ratio)
    x, y = field.across.at(number + 0.5), field.down.at(value)
    colour = _colour(ratio)
    low, top = y, y
    if bounds is not None:
        low, top = field.down.at(bounds[0]), field.down.at(bounds[1])
        for start, end in (((x, low), (x, top)), ((x - 5, low), (x + 5, low))):
            yield rule(start, end, **STROKES[colour], stroke_width=2)
        yield rule((x - 5, top), (x + 5, top), **STROKES[colour], stroke_width=2)
    yield _marker(x, y, colour, measured=ratio.basis == "measured")
    # On the side that is not the line's.
    label_y = low + SIZE + 4 if value < 1 else top - 7
    yield words(_figure(ratio, value), x, label_y, "middle")
    yield words(shown(each.load, _NAME), x, field.bottom + 5 + SIZE, "middle")
    share = finite(each.share)
    yield words(
        "-" if share is None else f"{share:.0%}", x, field.bottom + 5 + SIZE + LINE, "middle"
    )


def _figure(ratio: Ratio, value: float) -> str:
    if value >= 10:
        return f"{value:.3g}"
    return f"{value:.2f}" if ratio.basis == "measured" else f"{value:.1f}"


def _colour(ratio: Ratio) -> int:
    bounds = _bounds(ratio)
    if bounds is None or ratio.basis != "measured":
        return _EVEN
    return _WINS if bounds[0] > 1 else _LOSES if bounds[1] < 1 else _EVEN


def _marker(x: float, y: float, colour: int, *, measured: bool) -> str:
    """A disc that wins, a square that loses, a diamond between; hollow where it is assumed."""
    if not measured:
        stroke = STROKES[colour]["stroke"]
        return dot(
            (x, y), 4.5, class_=f"s{colour} c-ground", stroke=stroke, fill="#ffffff", stroke_width=2
        )
    if colour == _WINS:
        return dot((x, y), 5.0, **FILLS[colour])
    shape = "-5 -5h10v10h-10z" if colour == _LOSES else "0 -6.5l6 6.5l-6 6.5l-6 -6.5z"
    return element("path", d=f"M{place(x)} {place(y)}m{shape}", **FILLS[colour])


def _legend(bins: Sequence[Load], y: float) -> Iterator[str]:
    """Yield samples of the markers that there are, and their names."""
    kinds = {_kind(each.speedup) for each in bins if each.speedup is not None}
    x = 14.0
    yield rule(
        (x, y - 4), (x + 22, y - 4), **STROKES[INK], stroke_width=1.6, stroke_dasharray="6 3"
    )
    yield words("break-even", x + 28, y)
    x += 28 + text_width("break-even") + 22
    for name, colour, measured in _KINDS:
        if name in kinds:
            yield _marker(x, y - 4, colour, measured=measured)
            yield words(name, x + 10, y)
            x += 10 + text_width(name) + 22


_KINDS = (
    ("wins", _WINS, True), ("unsure", _EVEN, True), ("loses", _LOSES, True),
    ("assumed", _EVEN, False),
)  # fmt: skip


def _kind(ratio: Ratio) -> str:
    mark = (_colour(ratio), ratio.basis == "measured")
    return next(name for name, *each in _KINDS if (each[0], each[1]) == mark)


def _told(each: Load) -> str:
    ratio = each.speedup
    value = None if ratio is None else _value(ratio)
    if ratio is None or value is None:
        raise AssertionError("bins without a speedup are left out")
    bounds = _bounds(ratio)
    sure = f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds is not None else ""
    basis = "" if ratio.basis == "measured" else f", {shown(ratio.basis)}"
    return f"at {shown(each.load)} running {_figure(ratio, value)}x{sure}{basis}"
