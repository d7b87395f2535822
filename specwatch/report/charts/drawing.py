"""What charts are drawn with: pieces of SVG, scales, ticks at round values, axes, the legend.

Pieces of SVG are strings in which texts and values are escaped.

The hues are those that M. Okabe and K. Ito (*Color Universal Design*, 2008) chose for people with
every kind of colour vision, from cold to hot. Their lightness is changed until each has a contrast
of 3 to its background. Lines differ by their dashes too, for prints without colour. Colours are
attributes, which need no style on a white page; :data:`STYLE` is for a dark one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from specwatch.report.layout import Style
from specwatch.wording.figures import finite
from specwatch.wording.text import shown

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
_PICTURE_FONT = "DejaVu Sans"
"""In pictures, where the machine has it."""
SIZE = 13.5
"""Of text: 11 pixels where a chart of 400 is 330 pixels wide."""
_CHARACTER = 0.56
"""Mean width of a character, in font sizes."""

LIGHT = ("#0067a8", "#2b8fc9", "#00866a", "#b87700", "#b8390e", "#a0508a", "#6b7280", "#1f2933")
DARK = ("#4aa8ea", "#8fd3ff", "#2fc79c", "#f0b429", "#ff8a5c", "#e59bd0", "#9aa4b1", "#f0f3f6")
DASHES = (None, "7 2.5", "3 2", "9 2.5 2 2.5", "1.5 1.8", "12 3", "2 4", None)

STROKES = tuple({"class_": f"s{i}", "stroke": colour} for i, colour in enumerate(LIGHT))
"""Attributes of lines in each colour."""
FILLS = tuple({"class_": f"f{i}", "fill": colour} for i, colour in enumerate(LIGHT))
"""Attributes of areas in each colour."""
MEANING: dict[Style, int] = {"good": 2, "bad": 4, "warn": 3, "": 0}
"""The place of the colour of what a badge of that style says."""
INK = len(LIGHT) - 1
"""The place of the colour that is about that of the text."""
GREY = INK - 1

STYLE = "\n".join(
    [
        ".chart, .sparkline { display: block; max-width: 100%; height: auto; }",
        "@media screen and (prefers-color-scheme: dark) {",
        ".c-ink { fill: #c6ced8; }",
        ".c-grid { stroke: #333c47; }",
        ".c-axis { stroke: #8b96a3; }",
        ".c-ground { fill: #15191e; }",
        ".c-halo { stroke: #15191e; }",
        *(f".s{i} {{ stroke: {ink}; }} .f{i} {{ fill: {ink}; }}" for i, ink in enumerate(DARK)),
        "}",
        # Lines and areas keep the colours that tell them apart.
        "@media (forced-colors: active) {",
        f".c-ink, .f{INK} {{ fill: CanvasText; }}",
        f".c-axis, .s{INK} {{ stroke: CanvasText; }}",
        ".c-ground { fill: Canvas; }",
        ".c-halo { stroke: Canvas; }",
        "}",
    ]
)
"""Rules for a page that has charts."""

WIDTH = 400
LEFT, RIGHT, TOP = 56.0, 8.0, 10.0
_EDGE = 14.0
_SAMPLE, _MARKER = 24.0, 12.0
"""Widths of a line and of a marker in the legend."""
LINE = 19.0
"""From one line of text to the next."""
AXIS = {"class_": "c-axis", "stroke": "#6b7580"}
_HOUR, _DAY = 3600, 86400
_STEPS_OF_TIME = (
    60,
    120,
    300,
    600,
    900,
    1800,
    _HOUR,
    2 * _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    2 * _DAY,
    7 * _DAY,
    14 * _DAY,
    28 * _DAY,
    91 * _DAY,
    364 * _DAY,
)
_MONDAY = 4 * _DAY
"""The first Monday after the epoch: longer steps begin on one."""
_LATEST = 250e9
"""The last time of about which the calendar knows the day."""

Point = tuple[float, float]


def text_width(text: str, size: float = SIZE) -> float:
    """About how wide a text is."""
    return len(text) * size * _CHARACTER


def place(value: float) -> str:
    """A coordinate, to a tenth: never ``nan``, never ``1e+20``."""
    rounded = f"{finite(value) or 0.0:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def element(name: str, content: str | None = None, /, **attributes: object) -> str:
    """One element; ``class_`` is ``class``, ``_`` becomes ``-``, numbers become places.

    None leaves an attribute out. The content is markup already.
    """
    text = []
    for key, value in attributes.items():
        if value is None:
            continue
        shown_value = place(value) if isinstance(value, float) else str(value)
        text.append(f' {key.rstrip("_").replace("_", "-")}="{escape(shown_value)}"')
    opened = f"<{name}{''.join(text)}"
    return f"{opened}/>" if content is None else f"{opened}>{content}</{name}>"


def words(text: str, x: float, y: float, anchor: str = "start", **attributes: object) -> str:
    """A text; ``anchor`` is ``start``, ``middle`` or ``end``."""
    defaults: dict[str, object] = {
        "x": float(x),
        "y": float(y),
        "class_": "c-ink",
        "fill": "#414b57",
        "text_anchor": None if anchor == "start" else anchor,
    }
    return element("text", escape(shown(text)), **{**defaults, **attributes})


def rule(start: Point, end: Point, **attributes: object) -> str:
    """A straight line."""
    defaults: dict[str, object] = {"class_": "c-grid", "stroke": "#dde1e6", "stroke_width": 1}
    ends = {"x1": float(start[0]), "y1": float(start[1]), "x2": float(end[0]), "y2": float(end[1])}
    return element("line", **{**ends, **defaults, **attributes})


def lines(pieces: Iterable[Sequence[Point]], **attributes: object) -> str:
    """Broken lines in one path; a piece of one point is a dot."""
    drawn, dots = [], []
    for piece in pieces:
        if len(piece) > 1:
            drawn.append("M" + "L".join([f"{x:.1f} {y:.1f}" for x, y in piece]))
        elif piece:
            dots.append(piece[0])
    made = element("path", d="".join(drawn), fill="none", **attributes) if drawn else ""
    ink = str(attributes.get("class_", "")).replace("s", "f", 1)
    return made + "".join(dot(point, class_=ink, fill=attributes.get("stroke")) for point in dots)


def dot(point: Point, radius: float = 2.0, **attributes: object) -> str:
    """A filled circle."""
    return element("circle", cx=float(point[0]), cy=float(point[1]), r=radius, **attributes)


def document(
    prefix: str, size: tuple[int, int], title: str, description: str, content: Iterable[str]
) -> str:
    """A whole SVG, as wide as there is room, with a title and a description for screen readers.

    ``prefix`` begins its ids, and differs for each chart of a page.
    """
    width, height = size
    id_ = re.sub(r"[^A-Za-z0-9_-]+", "-", prefix)[:80] or "chart"
    text = element("title", escape(title), id=f"{id_}-title") + element(
        "desc", escape(description), id=f"{id_}-desc"
    )
    return element(
        "svg",
        text + "".join(content),
        xmlns="http://www.w3.org/2000/svg",
        class_="chart",
        viewBox=f"0 0 {width} {height}",
        width="100%",
        role="img",
        aria_labelledby=f"{id_}-title {id_}-desc",
        font_family=FONT,
        font_size=SIZE,
    )


def png(svg: str, width: int) -> bytes:
    """A picture of a chart on white, ``width`` pixels wide, for programs that show no SVG."""
    import resvg_py  # a daemon that sends nothing does not need it

    return resvg_py.svg_to_bytes(
        svg_string=svg,
        background="#ffffff",
        width=width,
        font_family=_PICTURE_FONT,
        sans_serif_family=_PICTURE_FONT,
    )


@functools.cache
def has_fonts() -> bool:
    """Whether pictures have text: on a machine without any font they have none."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text y="9">{}</text></svg>'
    return png(svg.format("x"), 9) != png(svg.format(""), 9)


def sentence(text: str) -> str:
    """A paragraph in place of a chart that has nothing to show."""
    return f'<p class="nothing">{escape(text)}</p>'


def known(values: Iterable[float | None]) -> list[float]:
    """The finite ones."""
    return [value for value in map(finite, values) if value is not None]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low`` to ``start`` and ``high`` to ``end``, and holds all else between them."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Where a value is; at an end for one beyond it, and for NaN."""
        low, high = self.low, self.high
        if high <= low:
            return (self.start + self.end) / 2
        value = min(max(low, value), high)
        if self.logarithmic:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten of which at most ``most`` fit into a span."""
    least = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values that enclose ``low`` to ``high``, about ``most`` of them, in ascending order."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = nice_step(high - low, most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def logarithmic_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values that enclose two positive ones: 1, 2 and 5 of each decade, or 1 where many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every: Sequence[float] = ()
    for digits in ((1, 2, 5), (1, 3), (1,)):
        every = [m * 10.0**decade for decade in decades for m in digits]
        first = max((i for i, tick in enumerate(every) if tick <= low * (1 + 1e-9)), default=0)
        last = next((i for i, tick in enumerate(every) if tick >= high * (1 - 1e-9)), len(every))
        every = every[first : last + 1]
        if len(every) <= most:
            break
    return list(every[:: max(1, math.ceil(len(every) / most))])


def moments(since: float, until: float, most: int = 7) -> list[tuple[float, str]]:
    """Round times in UTC with their labels: ``14:00``; ``Mon 2`` where they are days."""
    if finite(since) is None or finite(until) is None or until > _LATEST:
        return []
    span = max(until - since, 1.0)
    step = next((step for step in _STEPS_OF_TIME if span / step <= most), _STEPS_OF_TIME[-1])
    origin = _MONDAY if step > _DAY else 0
    first = origin + math.ceil((since - origin) / step) * step
    times = range(first, min(int(until), first + 2 * most * step) + 1, step)
    return [(float(time), _label(time, step, span)) for time in times]


def _label(time: int, step: int, span: float) -> str:
    day = datetime.fromtimestamp(time, UTC)
    if step < _DAY:
        return f"{day:%H:%M}"
    return f"{day:%a} {day.day}" if span <= 8 * _DAY else f"{day.day} {day:%b}"


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
    """How a line looks: the place of its colour and of its dashes, its width and opacity."""

    colour: int
    dash: int = 0
    width: float = 1.8
    opacity: float | None = None

    def drawn(self, pieces: Iterable[Sequence[Point]]) -> str:
        """The lines."""
        return lines(
            pieces,
            **STROKES[self.colour],
            stroke_width=self.width,
            stroke_dasharray=DASHES[self.dash],
            stroke_linejoin="round",
            stroke_opacity=self.opacity,
        )


@dataclass(frozen=True, slots=True)
class Marker:
    """A point with a colour and a shape, because colour alone says nothing.

    The shape is ``disc``, ``ring`` (hollow) or a path around the point.
    """

    name: str
    colour: int
    shape: str = "disc"

    def drawn(self, x: float, y: float) -> str:
        """The point."""
        fill, stroke = FILLS[self.colour], STROKES[self.colour]["stroke"]
        if self.shape == "disc":
            return dot((x, y), 5.0, **fill)
        if self.shape == "ring":
            ring = {"class_": f"s{self.colour} c-ground", "stroke": stroke, "fill": "#ffffff"}
            return dot((x, y), 4.5, **ring, stroke_width=2)
        return element("path", d=f"M{place(x)} {place(y)}m{self.shape}", **fill)


def legend(entries: Iterable[tuple[Ink | Marker, str]], top: float) -> tuple[str, float]:
    """Samples of lines and markers with their names, in as many rows as they need; its end."""
    drawn, x, y = [], _EDGE, top
    for look, name in entries:
        sample = _SAMPLE if isinstance(look, Ink) else _MARKER
        wide = sample + 5 + text_width(name) + 14
        if x + wide > WIDTH and x > _EDGE:
            x, y = _EDGE, y + LINE
        if isinstance(look, Ink):
            drawn.append(look.drawn([[(x, y), (x + sample, y)]]))
        else:
            drawn.append(look.drawn(x + sample / 2, y))
        drawn.append(words(name, x + sample + 5, y + SIZE * 0.34))
        x += wide
    return element("g", "".join(drawn)), y + LINE / 2 + 2
