"""A dashboard's JSON, and every query in it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards"
"""Where the dashboards are committed."""


class Kind(enum.StrEnum):
    """Who asks."""

    PANEL = "panel"
    VARIABLE = "variable"
    ANNOTATION = "annotation"


@dataclass(frozen=True)
class Query:
    """A query as it is committed, variables and all. ``place`` says in which of what kind it is."""

    board: str
    kind: Kind
    place: str
    ref: str
    expr: str
    legend: str = ""
    instant: bool = False
    repeat: str = ""
    """The variable for each of whose values it is asked, of one value at a time."""

    def __str__(self) -> str:
        return f"{self.board} / {self.kind} {self.place!r} / {self.ref}: {self.expr}"


class Board:
    """One dashboard, with all its rows open."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.json: dict[str, Any] = json.loads(text)
        panels = self.json.get("panels", ())
        self.json["panels"] = [one for row in panels for one in (row, *row.get("panels", ()))]

    @property
    def title(self) -> str:
        """What it is called."""
        return str(self.json["title"])

    @property
    def variables(self) -> list[dict[str, Any]]:
        """In their order."""
        return list(self.json.get("templating", {}).get("list", ()))

    @property
    def annotations(self) -> list[dict[str, Any]]:
        """Those that ask a data source of ours."""
        found = self.json.get("annotations", {}).get("list", ())
        return [annotation for annotation in found if not annotation.get("builtIn")]

    def panels(self) -> Iterator[tuple[dict[str, Any], str]]:
        """All but rows, each with the variable that repeats its row."""
        repeat = ""
        for panel in in_order(self.json["panels"]):
            if panel["type"] == "row":
                repeat = panel.get("repeat") or ""
            else:
                yield panel, repeat

    def queries(self) -> Iterator[Query]:
        """Every query, of whatever asks one."""
        for variable in self.variables:
            if variable["type"] == "query":
                text = variable["query"]["query"]
                yield Query(self.name, Kind.VARIABLE, variable["name"], "", text)
        for annotation in self.annotations:
            expr = annotation["target"]["expr"]
            yield Query(self.name, Kind.ANNOTATION, annotation["name"], "", expr)
        for panel, repeat in self.panels():
            yield from panel_queries(self.name, panel, repeat)


def in_order(panels: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """From the top, and from the left."""
    return sorted(map(dict, panels), key=lambda p: (p["gridPos"]["y"], p["gridPos"]["x"]))


def panel_queries(board: str, panel: Mapping[str, Any], repeat: str = "") -> list[Query]:
    """Those of one panel, in their order."""
    return [
        Query(
            board,
            Kind.PANEL,
            panel["title"],
            target["refId"],
            target["expr"],
            target.get("legendFormat") or "",
            bool(target.get("instant")),
            repeat,
        )
        for target in panel.get("targets") or ()
    ]


def boards(folder: Path = FOLDER) -> list[Board]:
    """Those of Prometheus in a folder, by file name."""
    files = (file for file in sorted(folder.glob("*.json")) if file.stem != "specwatch-sql")
    return [Board(file.stem, file.read_text()) for file in files]
