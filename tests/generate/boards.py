"""The generated dashboards, read as Grafana reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from specwatch.generate.dashboards import dashboards

Json = dict[str, Any]
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|([a-zA-Z_]\w*))")


@cache
def generated() -> dict[str, str]:
    """What is generated, by file: once, as it takes a quarter of a second."""
    return dict(dashboards())


@cache
def boards() -> dict[str, Json]:
    """Every dashboard by its uid."""
    found = [json.loads(text) for text in generated().values()]
    return {board["uid"]: board for board in found}


def everything(board: Json) -> Iterator[Json]:
    """Every panel, rows and those in collapsed rows too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def shown(board: Json) -> Iterator[Json]:
    """Every panel that shows data."""
    return (panel for panel in everything(board) if panel["type"] not in ("row", "text"))


def queries(board: Json) -> Iterator[tuple[str, str, str]]:
    """Every query with where it stands and its legend, those of annotations too."""
    for panel in shown(board):
        for query in panel["targets"]:
            yield f"{panel['title']} {query['refId']}", query["expr"], query["legendFormat"]
    for annotation in board["annotations"]["list"]:
        assert annotation["expr"] == annotation["target"]["expr"]
        yield (
            annotation["name"],
            annotation["expr"],
            annotation["titleFormat"] + annotation["textFormat"],
        )


def variables_in(value: Any) -> set[str]:
    """Names of variables in a text, or in all texts of a structure, but not Grafana's own."""
    found = VARIABLE.findall(value if isinstance(value, str) else json.dumps(value))
    return {name for pair in found for name in pair if name and not name.startswith("__")}
