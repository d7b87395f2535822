"""A whole dashboard on one picture: panels at their places, with what was answered in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.dashboards import blocks, lines
from tests.dashboards.asking import Asker
from tests.dashboards.board import in_order, panel_queries
from tests.dashboards.canvas import Box, Canvas, text_width
from tests.dashboards.colours import Theme
from tests.dashboards.fields import field_of, legend
from tests.dashboards.lines import Chart, Line
from tests.dashboards.prometheus import Series
from tests.dashboards.tables import table

WIDTH = 1600
UNIT, GAP, COLUMNS = 30, 8, 24
"""Height of one unit of the grid and what lies between two, in pixels; units of its width."""
HEAD, BAR = 34, 44
"""Height of a panel's title, and of the line with title and variables above all."""

Panel = Mapping[str, Any]


class Screen:
    """Draws one dashboard with what its queries answer."""

    def __init__(self, asker: Asker, theme: Theme) -> None:
        self._asker = asker
        self._rows = list(unfolded(asker))
        self._theme = theme
        self._width = WIDTH
        self._column = (WIDTH - GAP) / COLUMNS
        bottom = max(bottom_of(panel) for panel, _ in self._rows)
        self.canvas = Canvas(WIDTH, round(BAR + bottom * (UNIT + GAP) + GAP), theme)
        self.empty: list[str] = []
        """Titles of the panels that show no data."""

    def draw(self) -> Canvas:
        """All of it."""
        self._bar()
        marks = list(self._marks())
        for panel, asker in self._rows:
            self._asker = asker
            if panel["type"] == "row":
                self._row(panel)
            else:
                self._panel(panel, marks)
        return self.canvas

    def _bar(self) -> None:
        x = 16.0
        self.canvas.write(x, BAR / 2, self._asker.board.title, size=13, weight="bold")
        x += text_width(self._asker.board.title, 13, "bold") + 30
        for variable in self._asker.board.variables:
            value = self._asker.values[variable["name"]]
            shown = "All" if variable.get("includeAll") else ", ".join(value.chosen)
            text = f"{variable.get('label') or variable['name']}:  {shown or '(none)'}"
            width = text_width(text, 9) + 16
            self.canvas.frame(Box(x, 10, width, 24), self._theme.panel, self._theme.border)
            self.canvas.write(x + 8, BAR / 2, text, size=9)
            x += width + 10
        words = [str(link["title"]) for link in self._asker.board.json.get("links") or ()]
        self.canvas.write(self._width - 16, BAR / 2, "   ".join(words), size=9, align="right",
                          colour=self._theme.colour("blue"))  # fmt: skip

    def _place(self, panel: Panel) -> Box:
        place = panel["gridPos"]
        return Box(
            GAP + place["x"] * self._column, BAR + place["y"] * (UNIT + GAP),
            place["w"] * self._column - GAP, place["h"] * (UNIT + GAP) - GAP,
        )  # fmt: skip

    def _row(self, panel: Panel) -> None:
        box = self._place(panel)
        text = f"▾ {self._text(panel.get('title') or '')}"
        self.canvas.write(box.x + 4, box.y + box.height / 2, text, size=11, weight="bold")

    def _text(self, text: str) -> str:
        return self._asker.shown_text(text)

    def _panel(self, panel: Panel, marks: Sequence[tuple[float, str]]) -> None:
        box = self._place(panel)
        self.canvas.frame(box, self._theme.panel, self._theme.border)
        if title := self._text(panel.get("title") or ""):
            room = box.width - 40
            self.canvas.write(box.x + 10, box.y + 17, title, size=10, weight="bold", width=room)
            if panel.get("description"):
                x = box.x + 14 + min(room, text_width(title, 10, "bold"))
                self.canvas.write(x, box.y + 17, "(i)", size=8, colour=self._theme.faint)
        inner = box.inside(8, HEAD if title else 8, 8, 6)
        if panel["type"] == "text":
            blocks.draw_words(self.canvas, inner, self._text(panel["options"]["content"]))
            return
        points = max(50, round(panel.get("maxDataPoints") or box.width))
        queries = panel_queries(self._asker.board.name, panel)
        answers = {query.ref: self._asker.answer(query, points) for query in queries}
        if not any(answers.values()):
            self.empty.append(title)
            text = ((panel.get("fieldConfig") or {}).get("defaults") or {}).get("noValue")
            middle = inner.x + inner.width / 2, inner.y + inner.height / 2
            self.canvas.write(*middle, text or "No data", size=11, align="center",
                              colour=self._theme.faint)  # fmt: skip
            return
        span = self._asker.span
        drawn = _lines(panel, {query.ref: query for query in queries}, answers, self._theme)
        chart = Chart(self.canvas, panel, span.start, span.end, span.step(points), marks)
        self._draw(chart, inner, drawn, answers)

    def _draw(
        self,
        chart: Chart,
        box: Box,
        drawn: Sequence[Line],
        answers: Mapping[str, Sequence[Series]],
    ) -> None:
        panel, kind = chart.panel, chart.panel["type"]
        options = panel.get("options") or {}
        if kind == "timeseries":
            below = options.get("legend") or {}
            high = blocks.legend_height(box.height, drawn, below)
            lines.draw_lines(chart, box.inside(bottom=high), drawn)
            foot = Box(box.x, box.y + box.height - high, box.width, high)
            blocks.draw_legend(self.canvas, foot, drawn, below)
        elif kind == "heatmap":
            lines.draw_heatmap(chart, box, drawn)
        elif kind == "state-timeline":
            lines.draw_states(chart, box, drawn)
        elif kind == "stat":
            blocks.draw_stats(self.canvas, box, drawn, options)
        elif kind == "table":
            rows = table(panel, answers)
            names = {name for row in rows for name in row}
            fields = {name: field_of(panel, name) for name in names}
            blocks.draw_table(self.canvas, box, rows, fields)
        elif kind == "barchart":
            bars = [(line.field.name, line.series.last) for line in drawn]
            blocks.draw_bars(self.canvas, box, bars, field_of(panel, ""))
        else:
            raise ValueError(f"a panel that cannot be drawn: {kind}")

    def _marks(self) -> Iterator[tuple[float, str]]:
        span = self._asker.span
        for annotation in self._asker.board.annotations:
            expr = self._asker.query_text(annotation["target"]["expr"])
            for series in self._asker.prometheus.query_range(
                expr, span.start, span.end, span.step(1000)
            ):
                ats = {value / 1000 if annotation.get("useValueForTime") else at
                       for at, value in series.points}  # fmt: skip
                for at in ats:
                    if span.start <= at <= span.end:
                        yield at, annotation.get("iconColor") or "blue"


def _lines(
    panel: Panel, queries: Mapping[str, Any], answers: Mapping[str, Sequence[Series]], theme: Theme
) -> list[Line]:
    found: list[Line] = []
    for ref, answer in answers.items():
        for series in answer:
            field = field_of(panel, legend(queries[ref].legend, series))
            own = field.colour if field.colour_mode == "fixed" else None
            colour = theme.colour(own) if own else theme.of_series(len(found))
            found.append(Line(field, series, colour))
    return found


def unfolded(asker: Asker) -> Iterator[tuple[Panel, Asker]]:
    """All panels from the top, rows open and repeated, and who asks for each."""
    shift = 0
    for row, inner in grouped(asker.board.json["panels"]):
        askers = asker.repeated((row or {}).get("repeat") or "")
        top = row["gridPos"]["y"] if row else 0
        head = 1 if row else 0
        first = min((panel["gridPos"]["y"] for panel in inner), default=top + head)
        height = max((bottom_of(panel) for panel in inner), default=first) - first
        for number, each_asker in enumerate(askers):
            down = shift + number * (head + height)
            if row:
                yield _moved(row, down), each_asker
            for panel in inner:
                yield _moved(panel, down + top + head - first), each_asker
        shift += (len(askers) - 1) * (head + height)


def grouped(panels: Sequence[Panel]) -> list[tuple[Panel | None, list[Panel]]]:
    """Each row with its panels; those before the first row have None."""
    groups: list[tuple[Panel | None, list[Panel]]] = []
    for panel in in_order(panels):
        if panel["type"] == "row":
            groups.append((panel, []))
        else:
            if not groups:
                groups.append((None, []))
            groups[-1][1].append(panel)
    return groups


def bottom_of(panel: Panel) -> int:
    """The first unit of the grid below a panel."""
    return int(panel["gridPos"]["y"] + panel["gridPos"]["h"])


def _moved(panel: Panel, down: int) -> Panel:
    place = panel["gridPos"]
    return {**panel, "gridPos": {**place, "y": place["y"] + down}}
