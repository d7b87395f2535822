"""The variables of dashboards.

A variable that can be one value only stands in a query as ``target="$target"``; one that can be
many, as ``target=~"$target"``: only these are escaped for a regular expression by Grafana.
"""

from __future__ import annotations

from typing import Any

from grafanalib import core

from specwatch.generate.dashboards.panels import DATA_SOURCE

_KEYS = (
    "name", "label", "type", "datasource", "query", "regex", "refresh", "sort", "multi",
    "includeAll", "allValue", "options", "current", "hide",
)  # fmt: skip
_FIRST = {"selected": False, "text": "", "value": ""}
"""Nothing is chosen yet: Grafana takes the first."""
_ALL = {"selected": True, "text": ["All"], "value": ["$__all"]}
_ANY = ".+"


def data_source() -> dict[str, Any]:
    """``${datasource}``: which Prometheus to ask."""
    template = core.Template("datasource", "prometheus", type="datasource", label="Data source")
    return _lean(template) | {"current": _FIRST}


def target(*, multi: bool = False, metric: str = "specwatch_target_up") -> dict[str, Any]:
    """``$target``: one target, or with ``multi`` any number, all of them at first."""
    return query("target", "Target", f"label_values({metric}, target)", multi=multi)


def model_name(*, multi: bool = True, metric: str = "") -> dict[str, Any]:
    """``$model_name``: models of the target; all of them at first."""
    of = metric or 'specwatch_acceptance_ratio{target=~"$target"}'
    return query("model_name", "Model", f"label_values({of}, model_name)", multi=multi)


def temperature(*, multi: bool = True) -> dict[str, Any]:
    """``$temperature``: buckets of the one model, without "all", which no query may rely on.

    Where all are chosen it stands for anything, so queries exclude "all" themselves.
    """
    model = 'target="$target", model_name="$model_name"'
    of = f'specwatch_acceptance_ratio{{{model}, temperature!="all"}}'
    return query("temperature", "Temperature", f"label_values({of}, temperature)", multi=multi)


def query(name: str, label: str, expr: str, *, multi: bool) -> dict[str, Any]:
    """A variable with the values that a query of Grafana, such as ``label_values()``, finds."""
    template = core.Template(
        name,
        {"qryType": 1, "query": expr, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        label=label,
        dataSource=DATA_SOURCE,
        multi=multi,
        includeAll=multi,
        allValue=_ANY if multi else None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )
    return _lean(template) | {"current": _ALL if multi else _FIRST}


def _lean(template: Any) -> dict[str, Any]:
    found = template.to_json_data()
    return {key: found[key] for key in _KEYS if found[key] is not None}
