"""Pieces of SVG as strings: texts and values are escaped.

The hues are those that M. Okabe and K. Ito (*Color Universal Design*, 2008) chose for people with
every kind of colour vision, from cold to hot. Their lightness is changed until each has a contrast
of 3 to its background. Lines differ by their dashes too, for prints without colour. Colours are
attributes, which need no style on a white page; :data:`STYLE` is for a dark one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from specwatch.wording.figures import finite
from specwatch.wording.text import shown

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
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
INK = len(LIGHT) - 1
"""The place of the colour that is about that of the text."""
GREY = INK - 1

STYLE = "\n".join([
    ".chart, .sparkline { display: block; max-width: 100%; height: auto; }",
    "@media screen and (prefers-color-scheme: dark) {",
    ".c-ink { fill: #c6ced8; }",
    ".c-grid { stroke: #333c47; }",
    ".c-axis { stroke: #8b96a3; }",
    ".c-ground { fill: #15191e; }",
    ".c-halo { stroke: #15191e; }",
    *(f".s{i} {{ stroke: {ink}; }} .f{i} {{ fill: {ink}; }}" for i, ink in enumerate(DARK)),
    "}",
])  # fmt: skip
"""Rules for a page that has charts."""

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
        "x": float(x), "y": float(y), "class_": "c-ink", "fill": "#414b57",
        "text_anchor": None if anchor == "start" else anchor,
    }  # fmt: skip
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
        "svg", text + "".join(content), xmlns="http://www.w3.org/2000/svg", class_="chart",
        viewBox=f"0 0 {width} {height}", width="100%", role="img",
        aria_labelledby=f"{id_}-title {id_}-desc", font_family=FONT, font_size=SIZE,
    )  # fmt: skip


def sentence(text: str) -> str:
    """A paragraph in place of a chart that has nothing to show."""
    return f'<p class="nothing">{escape(text)}</p>'
