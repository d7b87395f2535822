"""What grafanalib writes, without what only releases of Grafana before 10 know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DASHBOARD = frozenset(
    {"annotations", "description", "editable", "graphTooltip", "id", "links", "panels", "refresh",
     "schemaVersion", "tags", "templating", "time", "timezone", "title", "uid", "version"}
)  # fmt: skip
_PANEL = frozenset(
    {"id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig",
     "options", "transformations", "links", "repeat", "collapsed", "panels"}
)  # fmt: skip
_EMPTY_IS_ABSENT = frozenset({"links", "transformations", "targets"})
_CUSTOM_OF_TABLE = frozenset({"displayMode"})


def dashboard(found: Mapping[str, Any]) -> dict[str, Any]:
    """A dashboard that Grafana 10 to 13 take as it is; ``id`` is null, as it was never saved."""
    kept = {key: value for key, value in found.items() if key in _DASHBOARD}
    return {
        **_without_nothing(kept),
        "id": None,
        "panels": [_panel(each) for each in kept["panels"]],
        "timepicker": {},
    }


def _panel(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = _without_nothing({key: value for key, value in found.items() if key in _PANEL})
    kept = {key: each for key, each in kept.items() if each or key not in _EMPTY_IS_ABSENT}
    if found["type"] == "row":
        kept.pop("fieldConfig", None)
        kept["panels"] = [_panel(each) for each in found["panels"]]
        return kept
    defaults = kept["fieldConfig"]["defaults"]
    defaults["thresholds"] = found["fieldConfig"]["defaults"]["thresholds"]
    if found["type"] == "text":
        kept["fieldConfig"] = {"defaults": {}, "overrides": []}
    if found["type"] == "table":
        custom = defaults["custom"]
        defaults["custom"] = {k: each for k, each in custom.items() if k not in _CUSTOM_OF_TABLE}
    return kept


def _without_nothing(value: Any) -> Any:
    """Without nulls, save those in thresholds: there it is the lowest of all values."""
    if isinstance(value, Mapping):
        is_step = value.keys() == {"color", "value"}
        return {
            key: _without_nothing(each)
            for key, each in value.items()
            if each is not None or is_step
        }
    if isinstance(value, list):
        return [_without_nothing(each) for each in value]
    return value
