"""Panels for Grafana 10 to 13: additions to those of grafanalib.

Every function returns a panel of grafanalib without id and place, which :mod:`.build` adds.
Their arguments are the keys of a panel in our YAML files.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from grafanalib import core

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Panel = Any
"""A panel of grafanalib, which has no types."""
Query = str | Mapping[str, str]
"""An expression, or one with its legend as the key; letters follow the order, from "A"."""
Thresholds = Mapping[float | None, str]
"""Named colours of Grafana by the value from which they hold; None is below all of them."""
Mappings = Mapping[float | str | None, Sequence[str]]
"""Words and colour for a value; None is "no data"."""
_NONE: Mapping[Any, Any] = {}


def target(
    ref: str, query: Query, *, instant: bool = False, format_: str = "time_series"
) -> dict[str, Any]:
    """A query of a panel; ``ref`` is its letter."""
    ((legend, expr),) = [("", query)] if isinstance(query, str) else query.items()
    return {
        "refId": ref,
        "datasource": DATA_SOURCE,
        "editorMode": "code",
        "expr": expr,
        "format": format_,
        "instant": instant,
        "range": not instant,
        "legendFormat": legend,
    }


def timeseries(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    thresholds: Thresholds = _NONE,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
    stack: bool = False,
    fill: int = 0,
    styles: Sequence[Mapping[str, Any]] = (),
    legend_values: Sequence[str] = ("lastNotNull",),
    legend_right: bool = False,
    points: bool = False,
) -> Panel:
    """Lines over time; each threshold above the first is drawn as a dashed line.

    ``styles`` are arguments of :func:`_style`, one for each series. A legend of many lines belongs
    on the right, where it scrolls and takes no height.
    """
    return core.TimeSeries(
        **_common(title, description, queries, thresholds),
        unit=unit,
        valueDecimals=decimals,
        lineWidth=2,
        fillOpacity=fill,
        drawStyle="points" if points else "line",
        showPoints="always" if points else "auto",
        stacking={"mode": "normal" if stack else "none", "group": "A"},
        thresholdsStyleMode="dashed" if len(thresholds) > 1 else "off",
        legendDisplayMode="table" if legend_values else "list",
        legendCalcs=list(legend_values),
        legendPlacement="right" if legend_right else "bottom",
        tooltipMode="multi",
        tooltipSort="desc",
        overrides=[_style(**series) for series in styles],
        extraJson={
            # grafanalib accepts only integers for bounds, and has no showLegend.
            "fieldConfig": {"defaults": {"min": minimum, "max": maximum}},
            "options": {"legend": {"showLegend": True}},
        },
    )


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    thresholds: Thresholds = _NONE,
    mappings: Mappings = _NONE,
    decimals: int | None = None,
    text_mode: str = "auto",
    color_mode: str = "value",
    styles: Sequence[Mapping[str, Any]] = (),
    no_value: str = "no data",
) -> Panel:
    """The current value of each series, in large type; ``no_value`` if it is not exported.

    ``styles`` are as those of :func:`timeseries`.
    """
    return core.Stat(
        **_common(title, description, queries, thresholds, instant=True),
        format=unit,
        decimals=decimals,
        color={"mode": "thresholds"},
        mappings=_mappings(mappings),
        noValue=no_value,
        overrides=[_style(**series) for series in styles],
        textMode=text_mode,
        colorMode=color_mode,
        graphMode="none",
        reduceCalc="lastNotNull",
    )


def heatmap(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    minimum: float | None = 0,
    maximum: float | None = None,
) -> Panel:
    """One row for each series, in the order of the queries; the value is the colour."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": unit},
        "color": {
            "mode": "scheme",
            "scheme": "Viridis",
            "scale": "exponential",
            "exponent": 1,
            "steps": 64,
            "reverse": False,
            "fill": "dark-orange",
            "min": minimum,
            "max": maximum,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        # By default a cell of 0 is left out.
        "filterValues": {"le": -1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "auto",
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False},
    }
    custom = {
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
        "scaleDistribution": {"type": "linear"},
    }
    return core.Heatmap(
        **_common(title, description, queries),
        options=options,
        extraJson={"fieldConfig": {"defaults": {"unit": unit, "custom": custom}, "overrides": []}},
    )


def state_timeline(
    title: str, description: str, queries: Sequence[Query], *, mappings: Mappings
) -> Panel:
    """One band for each series, coloured by its state."""
    return core.StateTimeline(
        **_common(title, description, queries),
        mappings=_mappings(mappings),
        showValue="auto",
        extraJson={
            "fieldConfig": {"defaults": {"unit": "none"}},
            "options": {"legend": {"showLegend": False}, "tooltip": {"sort": "none"}},
        },
    )


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    columns: Sequence[Mapping[str, Any]],
    sort_by: str | None = None,
    sort_descending: bool = False,
    order_by: str = "",
) -> Panel:
    """One row for each label set, from instant queries that must all have the same labels.

    ``columns`` are arguments of :func:`_column`. Fields without a column are hidden; ``sort_by``
    is the shown name of one. ``order_by`` is a field, as of a column, that may be hidden: its
    greatest value comes first; a click on a column sorts by that one.
    """
    fields = {_field(column["field"], len(queries)): column["name"] for column in columns}
    organize = {
        "excludeByName": {},
        "indexByName": {field: index for index, field in enumerate(fields)},
        "renameByName": fields,
    }
    # An empty list means: not sorted.
    order = [] if sort_by is None else [{"displayName": sort_by, "desc": sort_descending}]
    key = {"field": _field(order_by, len(queries)), "desc": sort_descending}
    ordered = [{"id": "sortBy", "options": {"fields": {}, "sort": [key]}}] if order_by else []
    return core.Table(
        **_common(title, description, queries, instant=True, format_="table"),
        unit="none",
        overrides=[_column(**column) for column in columns],
        transformations=[
            {"id": "merge", "options": {}},
            *ordered,
            {"id": "filterFieldsByName", "options": {"include": {"names": list(fields)}}},
            {"id": "organize", "options": organize},
        ],
        extraJson={
            "fieldConfig": {
                "defaults": {"custom": {"cellOptions": {"type": "auto"}, "inspect": False}}
            },
            "options": {"cellHeight": "sm", "sortBy": order},
        },
    )


def bar_chart(title: str, description: str, queries: Sequence[Query], *, unit: str) -> Panel:
    """One bar for each series, with its last value."""
    return core.BarChart(
        **_common(title, description, queries, instant=True),
        showValue="auto",
        thresholdSteps=_steps(_NONE),
        tooltipMode="single",
        legendCalcs=[],
        transformations=[
            {"id": "reduce", "options": {"reducers": ["lastNotNull"], "labelsToFields": False}}
        ],
        showLegend=False,
        extraJson={
            "fieldConfig": {"defaults": {"unit": unit, "color": {"fixedColor": "blue"}}},
            "options": {"fullHighlight": False},
        },
    )


def text(title: str, markdown: str) -> Panel:
    """Markdown text."""
    return core.Text(
        title=title,
        content=markdown,
        mode="markdown",
        maxDataPoints=None,
        extraJson={"fieldConfig": {"overrides": []}},
    )


def row(title: str, *, collapsed: bool = False, repeat: str = "") -> Panel:
    """The head of a group of panels, repeated for each value of the variable ``repeat``."""
    repeated = core.Repeat(variable=repeat or None)
    return core.RowPanel(title=title, collapsed=collapsed, repeat=repeated, maxDataPoints=None)


def _style(
    name: str,
    *,
    regex: bool = False,
    color: str = "",
    dashed: bool = False,
    width: int | None = None,
    fill_below: str = "",
    unit: str = "",
    right_axis: bool = False,
) -> dict[str, Any]:
    """Style of the series with this legend; ``fill_below`` names a series to fill down to."""
    properties: list[dict[str, Any]] = []
    if color:
        properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": color}})
    if dashed:
        line = {"fill": "dash", "dash": [8, 6]}
        properties.append({"id": "custom.lineStyle", "value": line})
    if width is not None:
        properties.append({"id": "custom.lineWidth", "value": width})
    if fill_below:
        properties.append({"id": "custom.fillBelowTo", "value": fill_below})
        properties.append({"id": "custom.fillOpacity", "value": 15})
    if unit:
        properties.append({"id": "unit", "value": unit})
    if right_axis:
        properties.append({"id": "custom.axisPlacement", "value": "right"})
    return _override(name, properties, matcher="byRegexp" if regex else "byName")


def _common(
    title: str,
    description: str,
    queries: Sequence[Query],
    thresholds: Thresholds = _NONE,
    *,
    instant: bool = False,
    format_: str = "time_series",
) -> dict[str, Any]:
    return {
        "title": title,
        "description": description,
        "dataSource": DATA_SOURCE,
        "maxDataPoints": None,
        "targets": [
            target(letter, query, instant=instant, format_=format_)
            for letter, query in zip(string.ascii_uppercase, queries, strict=False)
        ],
        "thresholds": _steps(thresholds),
    }


def _steps(thresholds: Thresholds) -> list[dict[str, Any]]:
    steps = thresholds if None in thresholds else {None: "text", **thresholds}
    return [{"color": color, "value": value} for value, color in steps.items()]


def _mappings(mappings: Mappings) -> list[dict[str, Any]]:
    values: dict[str, Any] = {}
    special: list[dict[str, Any]] = []
    for index, (value, (words, color)) in enumerate(mappings.items()):
        shown = {"text": words, "color": color, "index": index}
        if value is None:
            special.append({"type": "special", "options": {"match": "null+nan", "result": shown}})
        else:
            values[value if isinstance(value, str) else f"{value:g}"] = shown
    return ([{"type": "value", "options": values}] if values else []) + special


def _field(field: str, queries: int) -> str:
    if len(field) == 1 and field in string.ascii_uppercase:
        return f"Value #{field}" if queries > 1 else "Value"
    return field


def _column(
    name: str,
    field: str,
    *,
    unit: str = "string",
    thresholds: Thresholds = _NONE,
    link: str = "",
    mappings: Mappings = _NONE,
    decimals: int | None = None,
    width: int | None = None,
) -> dict[str, Any]:
    """A column of a table.

    ``field`` is a label, or the letter of the query whose values are shown; ``link`` is a URL in
    which ``${__data.fields.NAME}`` is another column of the row, by its shown name.
    """
    properties: list[dict[str, Any]] = [{"id": "unit", "value": unit}]
    if thresholds:
        steps = {"mode": "absolute", "steps": _steps(thresholds)}
        properties.append({"id": "thresholds", "value": steps})
    if mappings:
        properties.append({"id": "mappings", "value": _mappings(mappings)})
    if thresholds or mappings:
        properties.append({"id": "color", "value": {"mode": "thresholds"}})
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    if decimals is not None:
        properties.append({"id": "decimals", "value": decimals})
    if width is not None:
        properties.append({"id": "custom.width", "value": width})
    if link:
        links = [{"title": name, "url": link, "targetBlank": False}]
        properties.append({"id": "links", "value": links})
    return _override(name, properties)


def _override(
    name: str, properties: list[dict[str, Any]], matcher: str = "byName"
) -> dict[str, Any]:
    return {"matcher": {"id": matcher, "options": name}, "properties": properties}
