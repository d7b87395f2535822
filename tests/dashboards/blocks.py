"""What is not over time: large numbers, tables, bars, words, legends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from tests.dashboards.canvas import Box, Canvas, fitted, text_width, wrapped
from tests.dashboards.colours import ink_on
from tests.dashboards.fields import Field
from tests.dashboards.lines import Line
from tests.dashboards.tables import Row

ROW = 24
LEGEND_ROW = 19
CALCULATIONS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "lastNotNull": ("Last *", lambda v: v[-1]),
    "max": ("Max", max),
    "min": ("Min", min),
}


def draw_stats(canvas: Canvas, box: Box, lines: Sequence[Line], options: dict[str, str]) -> None:
    """A tile a series; side by side where that is wider than high."""
    theme, mode = canvas.theme, options.get("textMode", "auto")
    across = box.width / len(lines) > 60 and box.width > box.height * 0.9
    for number, line in enumerate(lines):
        share = 1 / len(lines)
        tile = (
            Box(box.x + number * share * box.width, box.y, share * box.width - 4, box.height)
            if across
            else Box(box.x, box.y + number * share * box.height, box.width, share * box.height - 3)
        )
        value = line.series.last
        colour = theme.colour(line.field.colour_of(value))
        text = line.field.text(value)
        ink = colour
        if options.get("colorMode") == "background":
            canvas.frame(tile, colour)
            ink = ink_on(colour)
        named = mode == "value_and_name" or (mode == "auto" and len(lines) > 1)
        shown = line.field.name if mode == "name" else text
        room = tile.height * (0.55 if named else 0.8)
        size = min(room * 0.6, 34.0)
        while size > 7 and text_width(shown, size, "bold") > tile.width - 12:
            size -= 1
        middle = tile.x + tile.width / 2
        canvas.write(
            middle, tile.y + tile.height * (0.64 if named else 0.5), shown,
            size=size, colour=ink, weight="bold", align="center", width=tile.width,
        )  # fmt: skip
        if named:
            small = min(9.5, tile.height * 0.22)
            label = fitted(line.field.name, small, tile.width - 8)
            own = theme.text if ink == colour else ink
            canvas.write(middle, tile.y + tile.height * 0.2, label, size=small, colour=own,
                         align="center")  # fmt: skip


def draw_table(canvas: Canvas, box: Box, rows: Sequence[Row], fields: dict[str, Field]) -> None:
    """The columns share what room those of a given width leave; what is too long is cut."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    given = {name: fields[name].custom.get("width") for name in columns}
    fixed = sum(width for width in given.values() if width)
    free = sum(1 for width in given.values() if not width)
    rest = max(60.0, (box.width - fixed) / free) if free else 0.0
    x = box.x
    for name in columns:
        width = float(given[name] or rest)
        texts = [name, *(fields[name].text(row.get(name)) for row in rows)]
        numbers = any(isinstance(row.get(name), float) for row in rows)
        for number, text in enumerate(texts):
            y = box.y + ROW * (number + 0.5)
            if y > box.y + box.height:
                break
            colour = canvas.theme.faint
            if number:
                colour = _cell(canvas, fields[name], rows[number - 1].get(name))
            at, align = (x + width - 8, "right") if numbers else (x + 6, "left")
            weight = "bold" if not number else "normal"
            canvas.write(at, y, text, size=8.5, colour=colour, width=width - 12, align=align,
                         weight=weight)  # fmt: skip
        x += width
    hidden = len(rows) - int(box.height / ROW - 1)
    if hidden > 0:
        text = f"▼ {hidden} more rows by scrolling"
        canvas.write(box.x + box.width - 6, box.y + box.height - 4, text, size=7, align="right")


def _cell(canvas: Canvas, field: Field, value: float | str | None) -> str:
    if field.links:
        return canvas.theme.colour("blue")
    kind = (field.custom.get("cellOptions") or {}).get("type", "auto")
    return canvas.theme.colour(field.colour_of(value) if kind.startswith("color") else None)


def draw_bars(canvas: Canvas, box: Box, bars: Sequence[tuple[str, float]], field: Field) -> None:
    """A bar a name, its value above it."""
    axes = canvas.axes(box.inside(44, 14, 8, 22))
    axes.grid(False, axis="x")
    colour = canvas.theme.colour(field.colour or "green")
    values = [value if math.isfinite(value) else 0.0 for _, value in bars]
    axes.bar(range(len(bars)), values, color=colour, alpha=0.85, width=0.7)
    wide = (box.width - 52) / len(bars)
    axes.set_xticks(range(len(bars)), [fitted(name, 8, wide - 4) for name, _ in bars])
    axes.yaxis.set_major_formatter(lambda value, _: field.text(value))
    for at, (_, value) in enumerate(bars):
        axes.text(at, value, field.text(value), ha="center", va="bottom", fontsize=8,
                  color=canvas.theme.text)  # fmt: skip


def draw_words(canvas: Canvas, box: Box, markdown: str) -> None:
    """Markdown, as far as one sees its headings, lists and links."""
    y = box.y + 10
    for paragraph in markdown.splitlines():
        heading = re.match(r"#+\s+", paragraph)
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph.lstrip("# "))
        plain = re.sub(r"^[-*]\s+", "•  ", plain)
        plain = re.sub(r"(\*\*|[*`])(.+?)\1", r"\2", plain)
        for line in wrapped(plain, 9.5, box.width - 20):
            if y < box.y + box.height:
                weight = "bold" if heading else "normal"
                canvas.write(box.x + 8, y, line, size=9.5, weight=weight)
            y += 18
    if y - 18 > box.y + box.height:
        canvas.write(box.x + box.width - 6, box.y + box.height - 4, "▼ more by scrolling", size=7,
                     align="right")  # fmt: skip


def legend_height(panel_height: float, lines: Sequence[Line], options: dict[str, object]) -> float:
    """Pixels that Grafana gives to a legend below: a table scrolls within a third of the panel."""
    if options.get("displayMode") == "table" and options.get("calcs"):
        return min(LEGEND_ROW * (len(lines) + 1), panel_height * 0.35)
    return float(LEGEND_ROW)


def draw_legend(
    canvas: Canvas, box: Box, lines: Sequence[Line], options: dict[str, object]
) -> None:
    """Names, and what was calculated of each."""
    calculations = options.get("calcs") or []
    assert isinstance(calculations, list)
    if options.get("displayMode") != "table" or not calculations:
        _legend_line(canvas, box, lines)
        return
    x = box.x + box.width - 8
    for place, name in enumerate(calculations):
        word, _ = CALCULATIONS[name]
        canvas.write(x - 90 * (len(calculations) - 1 - place), box.y + 9, word, size=8,
                     colour=canvas.theme.colour("blue"), align="right")  # fmt: skip
    for number, line in enumerate(lines, start=1):
        y = box.y + LEGEND_ROW * (number + 0.5)
        if y > box.y + box.height:
            canvas.write(box.x + 4, box.y + 9, f"▼ {len(lines) - number + 1} more by scrolling",
                         size=7, colour=canvas.theme.faint)  # fmt: skip
            return
        canvas.frame(Box(box.x + 6, y - 1.5, 14, 3), line.colour)
        room = box.width - 40 - 90 * len(calculations)
        canvas.write(box.x + 26, y, line.field.name, size=8.5, width=room)
        values = [value for _, value in line.series.points if not math.isnan(value)]
        for place, name in enumerate(calculations):
            found = CALCULATIONS[name][1](values) if values else math.nan
            canvas.write(x - 90 * (len(calculations) - 1 - place), y, line.field.text(found),
                         size=8.5, align="right")  # fmt: skip


def _legend_line(canvas: Canvas, box: Box, lines: Sequence[Line]) -> None:
    x, y = box.x + 8, box.y + 9
    for line in lines:
        width = text_width(line.field.name, 8.5) + 34
        if x + width > box.x + box.width:
            canvas.write(x, y, "…", size=9)
            return
        canvas.frame(Box(x, y - 1.5, 14, 3), line.colour)
        canvas.write(x + 18, y, line.field.name, size=8.5)
        x += width
