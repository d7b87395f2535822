"""The dashboard that needs only the Postgres of specwatch: its queries are SQL.

Its YAML file is as those of :mod:`.build`, with SQL for expressions and variables.
"""

from __future__ import annotations

import json
from typing import Any

from grafanalib import core

from specwatch.generate.dashboards import build

DATA_SOURCE = {"type": "grafana-postgresql-datasource", "uid": "${datasource}"}
BOARD = build.Board("specwatch-sql", "Speculation from the database")


def dashboard() -> str:
    """JSON of the dashboard."""
    document = build.document(f"{BOARD.uid}.yml")
    source = core.Template("datasource", DATA_SOURCE["type"], type="datasource", label="Postgres")
    board = core.Dashboard(
        uid=BOARD.uid,
        title=BOARD.title,
        description=f"{document['description']} {build.HEADER}",
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        panels=build.arrange(*(build.band(fields, {}) for fields in document["bands"])),
        refresh="1m",
        schemaVersion=build.SCHEMA_VERSION,
        tags=["specwatch"],
        templating=core.Templating(
            list=[
                build.variable_json(source, build.NOT_CHOSEN),
                *(_variable(**fields) for fields in document["variables"]),
            ]
        ),
        time=core.Time("now-24h", "now"),
        timezone="browser",
        version=1,
    )
    modern = build.modern(json.loads(json.dumps(board, default=lambda part: part.to_json_data())))
    for panel in modern["panels"]:
        if "targets" in panel:
            panel["datasource"] = DATA_SOURCE
            panel["targets"] = [_target(target, panel["type"]) for target in panel["targets"]]
    return json.dumps(modern, indent=2) + "\n"


def _variable(name: str, label: str, sql: str) -> dict[str, Any]:
    template = core.Template(
        name, sql, label=label, dataSource=DATA_SOURCE, refresh=core.REFRESH_ON_TIME_RANGE_CHANGE
    )
    return build.variable_json(template, build.NOT_CHOSEN)


def _target(target: dict[str, Any], kind: str) -> dict[str, Any]:
    """A query of Prometheus as one of Postgres."""
    return {
        "refId": target["refId"],
        "datasource": DATA_SOURCE,
        "editorMode": "code",
        "format": "table" if kind == "table" else "time_series",
        "rawQuery": True,
        "rawSql": target["expr"],
    }
