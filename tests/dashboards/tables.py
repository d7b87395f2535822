"""The rows of a table panel: what Grafana's transformations make of instant queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.dashboards.prometheus import Series

Row = dict[str, float | str]


def table(panel: Mapping[str, Any], answers: Mapping[str, Sequence[Series]]) -> list[Row]:
    """Rows by the names of their columns, in the order of these; answers are by letter."""
    frames = [_frame(ref, series, len(answers) > 1) for ref, series in answers.items()]
    rows = [row for frame in frames for row in frame]
    for step in panel.get("transformations") or ():
        options = step["options"]
        if step["id"] == "merge":
            rows = _merged(frames)
        elif step["id"] == "sortBy":
            by = [{"displayName": key["field"], "desc": key["desc"]} for key in options["sort"]]
            rows = _sorted(rows, by)
        elif step["id"] == "filterFieldsByName":
            names = options["include"]["names"]
            rows = [{name: row[name] for name in names if name in row} for row in rows]
        elif step["id"] == "organize":
            rows = [_organized(row, options) for row in rows]
        else:
            raise ValueError(f"a transformation that is not understood: {step['id']}")
    return _sorted(rows, (panel.get("options") or {}).get("sortBy") or ())


def _frame(ref: str, series: Sequence[Series], many: bool) -> list[Row]:
    value = f"Value #{ref}" if many else "Value"
    return [{"Time": one.points[-1][0], **one.labels, value: one.last} for one in series]


def _merged(frames: Sequence[list[Row]]) -> list[Row]:
    """One row of those that agree in all columns that every frame has."""
    frames = [frame for frame in frames if frame]
    if not frames:
        return []
    columns = [{name for row in frame for name in row} for frame in frames]
    shared = sorted(set.intersection(*columns))
    if len(frames) == 1:
        return frames[0]
    merged: dict[tuple[object, ...], Row] = {}
    for frame in frames:
        for row in frame:
            merged.setdefault(tuple(row.get(name) for name in shared), {}).update(row)
    return list(merged.values())


def _organized(row: Row, options: Mapping[str, Any]) -> Row:
    place = options.get("indexByName") or {}
    kept = [name for name in row if not (options.get("excludeByName") or {}).get(name)]
    kept.sort(key=lambda name: place.get(name, len(place)))
    return {(options.get("renameByName") or {}).get(name) or name: row[name] for name in kept}


def _sorted(rows: list[Row], order: Sequence[Mapping[str, Any]]) -> list[Row]:
    for column in reversed(order):
        name, descending = column["displayName"], bool(column.get("desc"))
        known = [row for row in rows if name in row]
        known.sort(key=lambda row: _sortable(row[name]), reverse=descending)
        rows = known + [row for row in rows if name not in row]
    return rows


def _sortable(value: float | str) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")
