"""What charts have in common: the field with its axes, and the legend below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from specwatch.report.charts.scale import Scale, moments
from specwatch.report.charts.style import DASHES, STROKES
from specwatch.report.charts.svg import SIZE, Point, element, lines, rule, text_width, words

WIDTH = 400
LEFT, RIGHT, TOP = 56.0, 8.0, 10.0
_EDGE = 14.0
_SAMPLE = 24.0
"""Of a line, in the legend."""
LINE = 19.0
"""From one line of text to the next."""
AXIS = {"class_": "c-axis", "stroke": "#6b7580"}


@dataclass(frozen=True, slots=True)
class Field:
    """Where the values are drawn."""

    across: Scale
    down: Scale

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.down.start


def levels(field: Field, values: Iterable[float], label: Callable[[float], str]) -> Iterator[str]:
    """Yield horizontal lines at values of the vertical axis, with their labels."""
    for value in values:
        y = field.down.at(value)
        yield rule((field.across.start, y), (field.across.end, y))
        yield words(label(value), field.across.start - 6, y + SIZE * 0.34, "end")


def days(field: Field, since: float, until: float) -> Iterator[str]:
    """Yield the axis of time, in UTC; a label that has no room is left out."""
    bottom, free = field.bottom, -math.inf
    for time, label in moments(since, until):
        x, half = field.across.at(time), text_width(label) / 2
        yield rule((x, bottom), (x, bottom + 4), **AXIS)
        middle = min(max(x, half), WIDTH - half)
        if middle - half >= free:
            yield words(label, middle, bottom + 4 + SIZE, "middle")
            free = middle + half + 6
    yield rule((field.across.start, bottom), (field.across.end, bottom), **AXIS)


def broken(
    points: Iterable[tuple[float, float | None]], longest: float, field: Field
) -> list[list[Point]]:
    """Places of points of time and value, with a new piece where more than ``longest`` passed."""
    pieces: list[list[Point]] = []
    last = -math.inf
    for time, value in points:
        if value is None:
            last = -math.inf
            continue
        if time - last > longest:
            pieces.append([])
        pieces[-1].append((field.across.at(time), field.down.at(value)))
        last = time
    return pieces


@dataclass(frozen=True, slots=True)
class Ink:
    """How a line looks: the place of its colour and of its dashes, and its width."""

    colour: int
    dash: int = 0
    width: float = 1.8

    def drawn(self, pieces: Iterable[Sequence[Point]]) -> str:
        """The lines."""
        return lines(
            pieces, **STROKES[self.colour], stroke_width=self.width,
            stroke_dasharray=DASHES[self.dash], stroke_linejoin="round",
        )  # fmt: skip


def legend(entries: Sequence[tuple[Ink, str]], top: float) -> tuple[str, float]:
    """Samples of lines and their names, in as many rows as they need; and where it ends."""
    drawn, x, y = [], _EDGE, top
    for ink, name in entries:
        wide = _SAMPLE + 5 + text_width(name) + 14
        if x + wide > WIDTH and x > _EDGE:
            x, y = _EDGE, y + LINE
        drawn.append(ink.drawn([[(x, y), (x + _SAMPLE, y)]]))
        drawn.append(words(name, x + _SAMPLE + 5, y + SIZE * 0.34))
        x += wide
    return element("g", "".join(drawn)), y + LINE / 2 + 2
