"""Colours of the charts: on white as attributes, which need no style; the dark has :data:`STYLE`.

The hues are those that M. Okabe and K. Ito (*Color Universal Design*, 2008) chose to be told apart
by everybody, from cold to hot, with lightness changed until each has a contrast of 3 to its ground.
Lines differ by their dashes too, so that they can be told apart where there is no colour at all.
"""

from __future__ import annotations

LIGHT = ("#0067a8", "#2b8fc9", "#00866a", "#b87700", "#b8390e", "#a0508a", "#6b7280", "#1f2933")
DARK = ("#4aa8ea", "#8fd3ff", "#2fc79c", "#f0b429", "#ff8a5c", "#e59bd0", "#9aa4b1", "#f0f3f6")
DASHES = (None, "7 2.5", "3 2", "9 2.5 2 2.5", "1.5 1.8", "12 3", "2 4", None)

STROKES = tuple({"class_": f"s{i}", "stroke": each} for i, each in enumerate(LIGHT))
"""Attributes of lines in each colour."""
FILLS = tuple({"class_": f"f{i}", "fill": each} for i, each in enumerate(LIGHT))
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
    *(f".s{i} {{ stroke: {each}; }} .f{i} {{ fill: {each}; }}" for i, each in enumerate(DARK)),
    "}",
])  # fmt: skip
"""Rules for a page that has charts."""
