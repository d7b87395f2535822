"""A dashboard as an HTML page: panels at their places, with what Prometheus answered in them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from tests.dashboards.asking import Asker
from tests.dashboards.board import in_order, panel_queries
from tests.dashboards.fields import Field, field_of, legend
from tests.dashboards.prometheus import Series
from tests.dashboards.tables import table
from tests.dashboards.units import formatted

POINTS = 400
"""Points across a panel."""
_HUES = {
    "red": "#F2495C",
    "orange": "#FF9830",
    "yellow": "#FADE2A",
    "green": "#73BF69",
    "blue": "#5794F2",
    "purple": "#B877D9",
    "gray": "#808080",
}
_PALETTE = tuple(_HUES)[3::-1] + tuple(_HUES)[4:]
_STYLE = """
body { background: #111217; color: #ccccdc; font: 13px sans-serif }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 30px; gap: 8px }
section { background: #181b1f; border: 1px solid #2c3235; padding: 6px; overflow: auto }
h2 { font-size: 13px; margin: 0 0 4px } svg { width: 100%; height: calc(100% - 90px) }
td, th { text-align: left; padding: 2px 8px } .stat { font-size: 26px; font-weight: bold }
"""
Panel = Mapping[str, Any]


class Line(NamedTuple):
    """A series with its looks."""

    field: Field
    series: Series
    colour: str


def page(asker: Asker) -> tuple[str, list[str]]:
    """The page, and the titles of its panels that show no data."""
    marks = list(_annotations(asker))
    parts, empty = [], []
    for panel, own_asker in unfolded(asker):
        title = own_asker.shown_text(panel.get("title") or "")
        body = _body(panel, own_asker, marks)
        if body is None:
            defaults = (panel.get("fieldConfig") or {}).get("defaults") or {}
            empty.append(title)
            body = escape(defaults.get("noValue") or "No data")
        at = panel["gridPos"]
        place = f"grid-area: {at['y'] + 1} / {at['x'] + 1} / span {at['h']} / span {at['w']}"
        hint = escape(panel.get("description") or "")
        parts.append(
            f'<section style="{place}"><h2 title="{hint}">{escape(title)}</h2>{body}</section>'
        )
    chosen = "; ".join(
        f"{name}: {', '.join(value.chosen) or '(none)'}" for name, value in asker.values.items()
    )
    heading = f"<h1>{escape(asker.board.title)}</h1><p>{escape(chosen)}</p>"
    head = f"<!doctype html><meta charset=utf-8><title>{escape(asker.board.title)}</title>"
    return f"{head}<style>{_STYLE}</style>{heading}<main>{''.join(parts)}</main>", empty


def _body(panel: Panel, asker: Asker, marks: Sequence[tuple[float, str]]) -> str | None:
    """What is in a panel; None without data."""
    kind = panel["type"]
    if kind == "row":
        return ""
    if kind == "text":
        text = asker.shown_text(panel["options"]["content"])
        return f'<div style="white-space: pre-wrap">{escape(text)}</div>'
    queries = {query.ref: query for query in panel_queries(asker.board.name, panel)}
    answers = {ref: asker.answer(query, POINTS) for ref, query in queries.items()}
    if not any(answers.values()):
        return None
    if kind == "table":
        return _table(panel, answers)
    lines: list[Line] = []
    for ref, answer in answers.items():
        for series in answer:
            field = field_of(panel, legend(queries[ref].legend, series))
            fixed = field.colour if field.colour_mode == "fixed" else None
            lines.append(Line(field, series, colour(fixed or _PALETTE[len(lines) % 7])))
    if kind == "stat":
        return "".join(map(_stat, lines))
    if kind == "barchart":
        return _bars(lines)
    if kind == "timeseries":
        return _chart(asker, _lines(panel, asker, lines, marks)) + _legend(lines)
    if kind in ("state-timeline", "heatmap"):
        return _chart(asker, _cells(asker, lines, heat=kind == "heatmap")) + _legend(lines)
    raise ValueError(f"a panel that cannot be drawn: {kind}")


def colour(name: str | None) -> str:
    """The hex code of one of Grafana's colours, all shades of a hue alike; else that of text."""
    return _HUES.get((name or "").rpartition("-")[2], "#ccccdc")


def _stat(line: Line) -> str:
    value = line.series.last
    style = f"color: {colour(line.field.colour_of(value))}"
    text = escape(line.field.text(value))
    return f'<p class="stat" style="{style}">{text}</p><p>{escape(line.field.name)}</p>'


def _table(panel: Panel, answers: Mapping[str, Sequence[Series]]) -> str:
    rows = table(panel, answers)
    fields = {name: field_of(panel, name) for row in rows for name in row}
    head = "".join(f"<th>{escape(name)}</th>" for name in fields)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="color: {colour(field.colour_of(row.get(name)))}">'
            f"{escape(field.text(row.get(name)))}</td>"
            for name, field in fields.items()
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _bars(lines: Sequence[Line]) -> str:
    most = max((line.series.last for line in lines if math.isfinite(line.series.last)), default=0)
    return "".join(
        f'<p><span style="display: inline-block; height: 10px; background: {line.colour};'
        f' width: {60 * line.series.last / most if most else 0:.1f}%"></span>'
        f" {escape(line.field.name)}: {escape(line.field.text(line.series.last))}</p>"
        for line in lines
    )


def _chart(asker: Asker, shapes: Iterator[str]) -> str:
    """Shapes over time on a plane of 1000 by 100, with the times of its ends."""
    ends = [time.strftime("%H:%M", time.gmtime(at)) for at in (asker.span.start, asker.span.end)]
    drawn = "".join(shapes)
    return (
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none">{drawn}</svg>'
        f"<div>{ends[0]} to {ends[1]} UTC</div>"
    )


def _x(asker: Asker, at: float) -> float:
    return 1000 * (at - asker.span.start) / asker.span.seconds


def _lines(
    panel: Panel, asker: Asker, lines: Sequence[Line], marks: Sequence[tuple[float, str]]
) -> Iterator[str]:
    defaults = (panel.get("fieldConfig") or {}).get("defaults") or {}
    values = [v for line in lines for _, v in line.series.points if math.isfinite(v)]
    low, high = (
        float(configured if configured is not None else found)
        for configured, found in (
            (defaults.get("min"), min(values, default=0)),
            (defaults.get("max"), max(values, default=1)),
        )
    )
    height = 100 / (high - low) if high > low else 100.0
    line_of = '<path d="{}" stroke="{}" {} fill="none" vector-effect="non-scaling-stroke"/>'
    for at, name in marks:
        yield line_of.format(f"M{_x(asker, at):.1f} 0V100", colour(name), 'stroke-dasharray="4"')
    for step in defaults.get("thresholds", {}).get("steps", ())[1:]:
        y = 100 - height * (step["value"] - low)
        yield line_of.format(f"M0 {y:.1f}H1000", colour(step["color"]), 'stroke-dasharray="6"')
    for line in lines:
        dash = (line.field.custom.get("lineStyle") or {}).get("fill") == "dash"
        path, last = "", -math.inf
        for at, value in line.series.points:
            if math.isfinite(value):
                move = at - last > 1.5 * asker.span.step(POINTS)
                y = 100 - height * (value - low)
                path += f"{'M' if move else 'L'}{_x(asker, at):.1f} {y:.1f}"
                last = at
        yield line_of.format(path, line.colour, 'stroke-dasharray="8 6"' if dash else "")
    unit = lines[0].field.unit
    yield f"<title>{escape(formatted(low, unit))} to {escape(formatted(high, unit))}</title>"


def _cells(asker: Asker, lines: Sequence[Line], *, heat: bool) -> Iterator[str]:
    """A band for each series: its states by their colours, or its values by their opacity."""
    most = max((abs(v) for line in lines for _, v in line.series.points if v == v), default=0) or 1
    height, width = 100 / len(lines), 1000 * asker.span.step(POINTS) / asker.span.seconds
    for row, line in enumerate(lines):
        for at, value in line.series.points:
            fill = "#FADE2A" if heat else colour(line.field.colour_of(value))
            opacity = abs(value) / most if heat else 1.0
            yield (
                f'<rect x="{_x(asker, at):.1f}" y="{row * height:.1f}" width="{width + 0.5:.1f}"'
                f' height="{0.9 * height:.1f}" fill="{fill}" opacity="{opacity:.2f}">'
                f"<title>{escape(line.field.text(value))}</title></rect>"
            )


def _legend(lines: Sequence[Line]) -> str:
    return " ".join(
        f'<span style="color: {line.colour}">▬</span> {escape(line.field.name)}:'
        f" {escape(line.field.text(line.series.last))}"
        for line in lines
    )


def _annotations(asker: Asker) -> Iterator[tuple[float, str]]:
    span = asker.span
    for annotation in asker.board.annotations:
        expr = asker.query_text(annotation["target"]["expr"])
        for series in asker.prometheus.query_range(expr, span.start, span.end, span.step(POINTS)):
            as_value = annotation.get("useValueForTime")
            for at in {value / 1000 if as_value else at for at, value in series.points}:
                if span.start <= at <= span.end:
                    yield at, annotation.get("iconColor") or "blue"


def unfolded(asker: Asker) -> Iterator[tuple[Panel, Asker]]:
    """All panels from the top, rows open and repeated, and who asks for each."""
    groups: list[tuple[Panel | None, list[Panel]]] = []
    for below in in_order(asker.board.json["panels"]):
        if below["type"] == "row":
            groups.append((below, []))
        elif groups:
            groups[-1][1].append(below)
        else:
            groups.append((None, [below]))
    shift = 0
    for row, inner in groups:
        askers = asker.repeated((row or {}).get("repeat") or "")
        top, head = (row["gridPos"]["y"], 1) if row else (0, 0)
        first = min((panel["gridPos"]["y"] for panel in inner), default=top + head)
        bottom = max((at["y"] + at["h"] for at in (p["gridPos"] for p in inner)), default=first)
        for number, own_asker in enumerate(askers):
            down = shift + number * (head + bottom - first)
            if row:
                yield _moved(row, down), own_asker
            for panel in inner:
                yield _moved(panel, down + top + head - first), own_asker
        shift += (len(askers) - 1) * (head + bottom - first)


def _moved(panel: Panel, down: int) -> Panel:
    place = panel["gridPos"]
    return {**panel, "gridPos": {**place, "y": place["y"] + down}}
