"""Small charts: how many tokens of a draft are accepted, and a line as small as a word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from specwatch.report import layout
from specwatch.report.charts.drawing import (
    AXIS,
    FILLS,
    MEANING,
    SIZE,
    STROKES,
    WIDTH,
    Point,
    Scale,
    document,
    dot,
    element,
    known,
    lines,
    rule,
    sentence,
    ticks,
    words,
)
from specwatch.report.model import ReportSegment
from specwatch.wording.figures import finite
from specwatch.wording.text import shown

_MOST = 9
_IN_A_ROW = 3
_LEFT, _HIGH, _HEAD, _FOOT, _GAP = 48.0, 72.0, 22.0, 22.0, 12.0
_NAME = 14
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 28
_EDGE = 3.0


def histogram(segments: Sequence[ReportSegment], prefix: str = "histogram") -> str:
    """The share of drafts by how many tokens were accepted; at most nine buckets are drawn.

    Buckets at which speculation is measured to pay, and those at which it loses, have the colours
    of that. A sentence where no histogram is known.
    """
    drawn = [
        (one.segment.value, shares, layout.verdict(one.speedup))
        for one in segments
        if (shares := _shares(one.acceptance.histogram))
    ]
    if len(drawn) == 2 and drawn[0][0] == "all":
        drawn = drawn[1:]  # the only bucket is all of it
    drawn = drawn[:_MOST]
    if not drawn:
        return sentence("How many tokens of a draft are accepted is not known.")
    steps = ticks(0, max(max(shares) for _, shares, _ in drawn), 3)
    row = _HEAD + _HIGH + _FOOT
    wide = (WIDTH - _LEFT - _GAP * (_IN_A_ROW - 1) - 4) / _IN_A_ROW
    content: list[str] = []
    for number, (label, shares, verdict) in enumerate(drawn):
        left = _LEFT + number % _IN_A_ROW * (wide + _GAP)
        top = number // _IN_A_ROW * row + _HEAD
        down = Scale(0, steps[-1], top + _HIGH, top)
        for value in steps:
            y = down.at(value)
            content.append(rule((left, y), (left + wide, y), **(AXIS if not value else {})))
            if number % _IN_A_ROW == 0:
                content.append(words(f"{value:.0%}", left - 5, y + SIZE * 0.34, "end"))
        content += _bars(shares, down, left, wide, MEANING[verdict])
        content.append(words(shown(label, _NAME), left, top - 7, font_weight=600))
    height = math.ceil(len(drawn) / _IN_A_ROW) * row
    texts = []
    for label, shares, _ in drawn:
        listed = ", ".join(f"{length} in {share:.0%}" for length, share in enumerate(shares[:17]))
        more = "" if len(shares) <= 17 else ", and so on"
        name = "all temperatures" if label == "all" else f"temperature {shown(label)}"
        texts.append(f"{name}: {listed}{more} of the drafts")
    title = "Share of drafts by the number of tokens accepted, by temperature"
    size = (WIDTH, round(height + 4))
    return document(prefix, size, title, f"{'; '.join(texts)}.", content)


def _shares(counts: Sequence[int] | None) -> list[float]:
    total = sum(max(count, 0) for count in counts or ())
    return [max(count, 0) / total for count in counts or ()] if total else []


def _bars(
    shares: Sequence[float], down: Scale, left: float, wide: float, colour: int
) -> Iterator[str]:
    width = wide / len(shares)
    every = max(1, math.ceil(len(shares) * 18 / wide))
    for number, share in enumerate(shares):
        x, top = left + number * width, down.at(share)
        yield element(
            "rect",
            x=x + width * 0.1,
            y=top,
            width=width * 0.8,
            height=down.start - top,
            **FILLS[colour],
        )
        if number % every == 0:
            yield words(str(number), x + width / 2, down.start + SIZE + 2, "middle")


def sparkline(
    points: Sequence[tuple[float, float | None]],
    label: str,
    *,
    edges: tuple[float, float] = (0.0, 1.0),
    line: float | None = None,
) -> str:
    """Points of time and a value, in order; None breaks the line. ``label`` describes it in words.

    Its ``edges`` are fixed, so that the lines of a table compare; the scale is logarithmic where
    the lower is above 0. ``line`` is a value at which a line is drawn.
    """
    if not known(value for _, value in points):
        return f'<span class="nothing">{escape(label)}</span>'
    times = known(time for time, _ in points)
    across = Scale(min(times, default=0), max(times, default=0), _EDGE, _SPARK_WIDTH - _EDGE)
    down = Scale(*edges, _SPARK_HEIGHT - _EDGE, _EDGE, logarithmic=edges[0] > 0)
    pieces: list[list[Point]] = [[]]
    for time, value in points:
        x, y = finite(time), finite(value)
        if y is None:
            pieces.append([])
        elif x is not None:
            pieces[-1].append((across.at(x), down.at(y)))
    drawn = "" if line is None else rule((0, down.at(line)), (_SPARK_WIDTH, down.at(line)), **AXIS)
    drawn += lines(pieces, **STROKES[0], stroke_width=1.6, stroke_linejoin="round")
    last = next((piece[-1] for piece in reversed(pieces) if piece), None)
    if last is not None:
        drawn += dot(last, 2.4, **FILLS[0])
    return element(
        "svg",
        element("title", escape(label)) + drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="sparkline",
        viewBox=f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}",
        width=_SPARK_WIDTH,
        height=_SPARK_HEIGHT,
        role="img",
        aria_label=label,
    )
