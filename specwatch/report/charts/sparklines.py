"""A line as small as a word."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specwatch.report.charts.scale import Scale, known
from specwatch.report.charts.style import FILLS, STROKES
from specwatch.report.charts.svg import Point, dot, element, lines
from specwatch.wording.figures import finite

WIDTH, HEIGHT = 120, 28
_EDGE = 3.0
_LEAST_SPAN = 0.1
"""Of the greatest value: what changes by less is drawn as about level."""


def sparkline(
    points: Sequence[tuple[float, float | None]],
    label: str,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Points of time and value, in order; None breaks the line. ``label`` tells it in words.

    ``low`` and ``high`` are the values of its edges, where they are not to be those of the points.
    """
    values = known(value for _, value in points)
    if not values:
        return f'<span class="nothing">{escape(label) if label else "nothing to show"}</span>'
    bottom, top = _edges(values, finite(low), finite(high))
    times = known(time for time, _ in points)
    across = Scale(min(times, default=0), max(times, default=0), _EDGE, WIDTH - _EDGE)
    down = Scale(bottom, top, HEIGHT - _EDGE, _EDGE)
    pieces: list[list[Point]] = [[]]
    for time, value in points:
        at, found = finite(time), finite(value)
        if found is None:
            pieces.append([])
        elif at is not None:
            pieces[-1].append((across.at(at), down.at(found)))
    drawn = lines(pieces, **STROKES[0], stroke_width=1.6, stroke_linejoin="round")
    last = next((piece[-1] for piece in reversed(pieces) if piece), None)
    if last is not None:
        drawn += dot(last, 2.4, **FILLS[0])
    return element(
        "svg", element("title", escape(label)) + drawn, xmlns="http://www.w3.org/2000/svg",
        class_="sparkline", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT,
        role="img", aria_label=label,
    )  # fmt: skip


def _edges(values: Sequence[float], low: float | None, high: float | None) -> tuple[float, float]:
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    least = max(abs(top), abs(bottom)) * _LEAST_SPAN
    if top - bottom < least:
        middle = (top + bottom) / 2
        bottom, top = middle - least / 2, middle + least / 2
    return bottom, top
