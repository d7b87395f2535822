"""The speedup at each load of a bench, beside the lines where it pays and where it is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.domain.experiments import LEAST_SPEEDUP, ComparedLevel, Estimate, Verdict
from specwatch.report.charts.frame import AXIS, LEFT, LINE, RIGHT, TOP, WIDTH, Field, levels
from specwatch.report.charts.scale import Scale, ticks
from specwatch.report.charts.style import FILLS, GREY, INK, STROKES
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
from specwatch.wording.figures import finite

_BOTTOM = 206.0
_GREATEST = 100.0
"""Speedups beyond this one are drawn at it."""
_INSET = 26.0
"""From the edges of the field to its outermost loads."""
_COLOURS: dict[Verdict, int] = {"ship": 0, "not_worth_it": 3, "do_not": 4, "unknown": 6}
_SHAPES: dict[Verdict, str] = {
    "not_worth_it": "0 -6.5l6 6.5l-6 6.5l-6 -6.5z", "do_not": "-5 -5h10v10h-10z",
}  # fmt: skip
_NAMES: dict[Verdict, str] = {
    "ship": "ship", "not_worth_it": "not worth it", "do_not": "do not", "unknown": "unsure",
}  # fmt: skip

_HALO = {"stroke": "#ffffff", "stroke_width": 3, "paint_order": "stroke"}
"""Around figures that may lie on a line."""

Point = tuple[ComparedLevel, Estimate]


def speedup_by_concurrency(
    found: Sequence[ComparedLevel],
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
        (each, each.speedup)
        for each in sorted(found, key=_load)
        if each.speedup is not None and _load(each) > 0 and (finite(each.speedup.value) or 0) > 0
    ]
    if not points:
        return sentence("No speedup is known at any load.")
    steps = _steps([speedup for _, speedup in points])
    across = Scale(
        _load(points[0][0]), _load(points[-1][0]), LEFT + _INSET, WIDTH - RIGHT - _INSET,
        logarithmic=True,
    )  # fmt: skip
    field = Field(across, Scale(steps[0], steps[-1], _BOTTOM, TOP + 14))
    closed = points[0][0].concurrency is not None
    axis = "requests at once" if closed else "requests a second"
    below = _BOTTOM + 2 * LINE + 2
    legend, end = _legend([each.verdict for each, _ in points], below + LINE)
    drawn = [
        *levels(Field(Scale(0, 1, LEFT, WIDTH - RIGHT), field.down), steps, lambda v: f"{v:g}x"),
        *_lines(field.down),
        *_crossing(field, points, finite(crossing), "slower", _COLOURS["do_not"]),
        *_crossing(field, points, finite(rising), "faster", _COLOURS["ship"]),
        *(mark for point in points for mark in _point(field, *point)),
        *_loads(field, points),
        words(axis, WIDTH / 2, below, "middle"),
        rule((LEFT, _BOTTOM), (WIDTH - RIGHT, _BOTTOM), **AXIS),
        *legend,
    ]
    where = "".join(
        f" It {does} to 1 at about {load:.3g}."
        for does, load in (("falls", finite(crossing)), ("rises", finite(rising)))
        if load is not None
    )
    told = "; ".join(f"at {_load(each):g} {axis} {_told(speedup)}" for each, speedup in points)
    return document(
        prefix, (WIDTH, round(end)),
        f"Speedup by {axis}, with the lines at 1 and {LEAST_SPEEDUP:g}", f"{told}.{where}", drawn,
    )  # fmt: skip


def _load(level: ComparedLevel) -> float:
    return float(level.concurrency or level.rate or 0)


def _bounds(speedup: Estimate) -> tuple[float, float] | None:
    lower, upper = finite(speedup.lower), finite(speedup.upper)
    if lower is None or upper is None:
        return None
    return min(max(lower, 0.0), _GREATEST), min(upper, _GREATEST)


def _steps(speedups: Sequence[Estimate]) -> list[float]:
    """Ticks that enclose both lines, all values and their intervals, with room for figures."""
    every = [1.0, LEAST_SPEEDUP, *(min(each.value, _GREATEST) for each in speedups)]
    every += [bound for each in speedups for bound in _bounds(each) or ()]
    return ticks(max(min(every) - 0.18, 0.0), max(every) * 1.08, 6)


def _lines(down: Scale) -> Iterator[str]:
    y = down.at(1.0)
    ends = LEFT, WIDTH - RIGHT
    yield rule((ends[0], y), (ends[1], y), **STROKES[INK], stroke_width=1.6, stroke_dasharray="6 3")
    y = down.at(LEAST_SPEEDUP)
    yield rule(
        (ends[0], y), (ends[1], y), **STROKES[GREY], stroke_width=1.4, stroke_dasharray="2 3"
    )


def _crossing(
    field: Field, points: Sequence[Point], load: float | None, what: str, colour: int
) -> Iterator[str]:
    if load is None or not _load(points[0][0]) <= load <= _load(points[-1][0]):
        return
    x, y = field.across.at(load), field.down.at(1.0)
    yield rule(
        (x, y), (x, field.bottom), **STROKES[colour], stroke_width=1.4,
        stroke_dasharray="2 3",
    )  # fmt: skip
    yield dot((x, y), 3.0, **FILLS[colour])
    after = x < WIDTH - 130
    text = f"{what} from {load:.3g}"
    yield words(text, x + (5 if after else -5), field.bottom - 6, "start" if after else "end")


def _point(field: Field, level: ComparedLevel, speedup: Estimate) -> Iterator[str]:
    colour = _COLOURS[level.verdict]
    value = min(speedup.value, _GREATEST)
    x, y = field.across.at(_load(level)), field.down.at(value)
    bounds = _bounds(speedup)
    low, top = (y, y) if bounds is None else (field.down.at(bounds[0]), field.down.at(bounds[1]))
    if bounds is not None:
        for start, end in (
            ((x, low), (x, top)), ((x - 5, low), (x + 5, low)), ((x - 5, top), (x + 5, top)),
        ):  # fmt: skip
            yield rule(start, end, **STROKES[colour], stroke_width=2)
    yield _marker(x, y, level.verdict)
    # On the side that is not the line's.
    label_y = low + SIZE + 4 if value < 1 else top - 7
    yield words(_figure(speedup.value), x, label_y, "middle", **_HALO)


def _marker(x: float, y: float, verdict: Verdict) -> str:
    """A shape for each verdict, so that colour alone says nothing."""
    colour = _COLOURS[verdict]
    if verdict == "unknown":
        stroke = STROKES[colour]["stroke"]
        return dot(
            (x, y), 4.5, class_=f"s{colour} c-ground", stroke=stroke, fill="#ffffff", stroke_width=2
        )
    if verdict == "ship":
        return dot((x, y), 5.0, **FILLS[colour])
    return element("path", d=f"M{place(x)} {place(y)}m{_SHAPES[verdict]}", **FILLS[colour])


def _loads(field: Field, points: Sequence[Point]) -> Iterator[str]:
    """Yield the labels of the horizontal axis; one that has no room is left out."""
    free = 0.0
    for each, _ in points:
        x, label = field.across.at(_load(each)), f"{_load(each):g}"
        yield rule((x, field.bottom), (x, field.bottom + 4), **AXIS)
        if x - text_width(label) / 2 >= free:
            yield words(label, x, field.bottom + 5 + SIZE, "middle")
            free = x + text_width(label) / 2 + 4


def _legend(verdicts: Sequence[Verdict], y: float) -> tuple[list[str], float]:
    """Samples of the lines and of the markers that there are; and where it ends."""
    drawn, x = [], 14.0
    for name, colour, dashes in (
        ("as fast", INK, "6 3"), (f"worth it: {LEAST_SPEEDUP:g}x", GREY, "2 3"),
    ):  # fmt: skip
        drawn.append(
            rule(
                (x, y - 4), (x + 22, y - 4), **STROKES[colour], stroke_width=1.6,
                stroke_dasharray=dashes,
            )
        )  # fmt: skip
        drawn.append(words(name, x + 28, y))
        x += 28 + text_width(name) + 18
    x, y = 20.0, y + LINE
    for verdict, name in _NAMES.items():
        if verdict in verdicts:
            drawn += [_marker(x, y - 4, verdict), words(name, x + 10, y)]
            x += 10 + text_width(name) + 22
    return drawn, y + 10


def _figure(value: float) -> str:
    return f"{value:.3g}x" if value >= 10 else f"{value:.2f}x"


def _told(speedup: Estimate) -> str:
    bounds = _bounds(speedup)
    sure = "" if bounds is None else f" ({bounds[0]:.2f} to {bounds[1]:.2f})"
    return f"{_figure(speedup.value)}{sure}"
