"""Dashboards are whole, explained, and of what Grafana 10 to 13 know, and nothing else."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafanalib import core

import specwatch
from specwatch.generate.dashboards import of_database, provisioning
from specwatch.generate.dashboards.build import (
    BOARDS,
    DIMENSION,
    OVERVIEW,
    STOCK,
    Band,
    arrange,
)
from specwatch.generate.dashboards.panels import text
from tests.generate.boards import Json, boards, everything, generated, shown, variables_in

RUNBOOK = "${specwatch_url:raw}/runbook"
"""At the address that the daemon exports."""
FOLDER = Path(__file__).parents[2] / "dashboards"
BOARD = pytest.mark.parametrize("uid", [board.uid for board in BOARDS])
MODERN = {
    "timeseries",
    "stat",
    "heatmap",
    "state-timeline",
    "table",
    "barchart",
    "text",
    "row",
}
HUES = ("red", "orange", "yellow", "green", "blue", "purple")
COLORS = {"text", "transparent", "gray"} | {
    shade + hue for hue in HUES for shade in ("", "super-light-", "light-", "semi-dark-", "dark-")
}
LEFT_OPEN = {
    # Of a query, which the types leave to the data source.
    *(f"/annotations/list/{field}" for field in ("titleFormat", "textFormat", "tagKeys")),
    "/annotations/list/useValueForTime",
    *(
        f"/annotations/list/target/{field}"
        for field in (
            "refId",
            "datasource",
            "editorMode",
            "expr",
            "format",
            "instant",
            "range",
            "legendFormat",
        )
    ),
    # Null in a dashboard that was never saved.
    "/id",
    # A heatmap of 10.1 knows only whether there is a tooltip, later ones of which kind.
    "/panels/options/tooltip/mode",
    "/panels/panels/options/tooltip/mode",
}
"""What the types of 10.1 do not have, with the reason."""


@pytest.fixture(scope="module", autouse=True)
def _types() -> None:
    plugins.register_default_plugins()


@BOARD
def test_no_panel_overlaps_another_or_the_edge(uid: str) -> None:
    board = boards()[uid]
    for group in (board["panels"], *(row.get("panels", ()) for row in board["panels"])):
        places = [(panel["title"], panel["gridPos"]) for panel in group]
        for title, at in places:
            assert at["x"] >= 0, title
            assert at["x"] + at["w"] <= 24, title
        for (one, a), (other, b) in itertools.combinations(places, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
            assert beside or below, f"{one} overlaps {other}"


@BOARD
def test_ids_titles_and_letters_of_queries_are_unique(uid: str) -> None:
    panels = list(everything(boards()[uid]))
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in shown(boards()[uid])]
    assert len(set(titles)) == len(titles)
    for panel in panels:
        letters = [query["refId"] for query in panel.get("targets", ())]
        assert len(set(letters)) == len(letters), panel["title"]


@BOARD
def test_every_panel_is_modern_and_says_what_it_shows(uid: str) -> None:
    for panel in everything(boards()[uid]):
        assert panel["type"] in MODERN
    for panel in shown(boards()[uid]):
        title = panel["title"]
        assert title, panel
        assert len(panel["description"]) > 30, title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"], title
        for queried in (panel, *panel["targets"]):
            assert queried["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title


@BOARD
def test_thresholds_ascend_from_the_lowest_of_all_values(uid: str) -> None:
    steps = [thresholds["steps"] for thresholds in values_of(boards()[uid], "thresholds")]
    assert steps
    for thresholds in steps:
        values = [step["value"] for step in thresholds]
        assert values[0] is None
        assert values[1:] == sorted(set(values[1:]))


@BOARD
def test_every_color_is_a_name_that_suits_dark_and_light(uid: str) -> None:
    board = boards()[uid]
    named = [
        *values_of(board, "color"),
        *values_of(board, "fixedColor"),
        *values_of(board, "iconColor"),
    ]
    assert {color for color in named if isinstance(color, str)} <= COLORS | {"rgba(255,0,255,0.7)"}


@BOARD
def test_variables_are_defined_used_and_escaped_as_they_must_be(uid: str) -> None:
    board = boards()[uid]
    defined = {variable["name"]: variable for variable in board["templating"]["list"]}
    used = variables_in(
        {key: board[key] for key in ("annotations", "links", "panels", "templating")}
    )
    assert used == set(defined)
    for expr in values_of(board, "expr"):
        is_escaped(expr, defined)
    for query in asked(board).values():
        is_escaped(query, defined)


def is_escaped(expr: str, defined: Mapping[str, Json]) -> None:
    for name, (operator, value) in chosen(expr):
        escaped = defined[name]["multi"] or f"${{{name}:regex}}" in value
        assert escaped is ("~" in operator), f"{operator}{value} in {expr}"


def asked(board: Json) -> dict[str, str]:
    """The queries of the variables that have one."""
    variables = board["templating"]["list"]
    return {
        variable["name"]: variable["query"]["query"]
        for variable in variables
        if variable["type"] == "query"
    }


def test_values_to_choose_from_are_those_of_the_model() -> None:
    """Else there would be groups without data, of the values of other models."""
    of_model = {"target", "model_name"}
    assert variables_in(asked(boards()[OVERVIEW.uid])["temperature"]) == of_model
    assert variables_in(asked(boards()[DIMENSION.uid])["dimension"]) == of_model
    assert variables_in(asked(boards()[DIMENSION.uid])["value"]) == {*of_model, "dimension"}


@BOARD
def test_a_number_is_of_now(uid: str) -> None:
    """A range query would show the last one there was, hours after all is gone."""
    numbers = [panel for panel in shown(boards()[uid]) if panel["type"] == "stat"]
    for panel in numbers:
        assert panel["options"]["graphMode"] == "none", "a graph needs a range"
        for query in panel["targets"]:
            assert (query["instant"], query["range"]) == (True, False), panel["title"]
            assert "vector(" not in query["expr"], f"{panel['title']} is 0 where all is gone"


def chosen(expr: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Variables in the matchers of a query, with the operator and the whole value."""
    for operator, value in re.findall(r'(=~|!~|!=|=)\s*"([^"]*\$[^"]*)"', expr):
        for name in variables_in(value):
            yield name, (operator, value)


@BOARD
def test_links_lead_to_dashboards_and_set_variables_that_these_have(uid: str) -> None:
    board = boards()[uid]
    urls = [*addresses(board), *re.findall(r"\]\((/d/[^)]*)\)", json.dumps(board))]
    inner = [url for url in urls if url.startswith("/d/")]
    outer = {url.partition("#")[0] for url in urls if url not in inner}
    assert outer == (set() if uid == STOCK.uid else {RUNBOOK})
    for url in inner:
        path, _, query = url.partition("?")
        there = boards()[path.removeprefix("/d/")]
        names = {variable["name"] for variable in there["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", query)) <= names, url


@BOARD
def test_links_take_what_is_chosen_along_but_never_many_to_where_one_is_shown(uid: str) -> None:
    """ "All" would stand there as the name of a target or a model, for which there is no data."""
    many = several(boards()[uid])
    for link in boards()[uid]["links"]:
        path, _, query = link["url"].partition("?")
        if path.startswith("/d/"):
            there = several(boards()[path.removeprefix("/d/")])
            fits = not any(many[name] and not there[name] for name in many.keys() & there.keys())
            assert link["includeVars"] is fits, path
            assert query == ("" if fits else "${datasource:queryparam}"), path


def several(board: Json) -> dict[str, bool]:
    """Whether each variable can be many."""
    return {
        variable["name"]: bool(variable.get("multi")) for variable in board["templating"]["list"]
    }


@BOARD
def test_every_dashboard_links_all_others_and_the_runbook(uid: str) -> None:
    others = {f"/d/{board.uid}" for board in BOARDS if board.uid != uid}
    linked = [board["url"].partition("?")[0] for board in boards()[uid]["links"]]
    assert set(linked) - others == (set() if uid == STOCK.uid else {RUNBOOK})
    assert others <= set(linked)


@BOARD
def test_columns_of_tables_are_shown_by_their_names(uid: str) -> None:
    """A link or an order by a column that is not shown would silently do nothing."""
    for panel in (panel for panel in shown(boards()[uid]) if panel["type"] == "table"):
        steps = {step["id"]: step["options"] for step in panel["transformations"]}
        renamed = steps["organize"]["renameByName"]
        assert list(renamed) == steps["filterFieldsByName"]["include"]["names"]
        names = set(renamed.values())
        assert {
            override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]
        } == names
        assert {order["displayName"] for order in panel["options"]["sortBy"]} <= names
        used = re.findall(r'__data\.fields(?:\.(\w+)|\["([^"]*)"\])', " ".join(addresses(panel)))
        assert {name for pair in used for name in pair if name} <= names


@BOARD
def test_the_types_of_grafana_lose_and_change_nothing(uid: str) -> None:
    """A field that is misspelt, or that Grafana 10 does not know any more, would be lost."""
    board = boards()[uid]
    assert set(lost(board, through_types(board))) <= LEFT_OPEN


def test_what_grafana_does_not_know_is_lost() -> None:
    """Else the test above would pass for any dashboard."""
    board = json.loads(json.dumps(boards()[OVERVIEW.uid]))
    board["sharedCrosshair"] = True
    board["panels"][0]["options"]["sparkline"] = True
    board["panels"][0]["targets"][0]["step"] = 10
    assert set(lost(board, through_types(board))) - LEFT_OPEN == {
        "/sharedCrosshair",
        "/panels/options/sparkline",
        "/panels/targets/step",
    }


def through_types(board: Json) -> Json:
    return dict(json.loads(JSONEncoder().encode(Dashboard.from_json(board))))


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where something of ``before`` is not the same afterwards; defaults may be added."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from lost(one, other, path)
    elif before != after:
        yield path


def addresses(value: Any) -> Iterator[str]:
    """Where all links in it lead."""
    if isinstance(value, dict):
        if {"title", "url", "targetBlank"} <= set(value):
            yield value["url"]
        for part in value.values():
            yield from addresses(part)
    elif isinstance(value, list):
        for part in value:
            yield from addresses(part)


def values_of(value: Any, key: str) -> Iterator[Any]:
    """All that stands under a key, however deep."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for part in value.values():
            yield from values_of(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from values_of(part, key)


def test_a_band_that_does_not_fill_the_width_is_refused() -> None:
    with pytest.raises(ValueError, match="24 columns wide, not 12: Words"):
        arrange(Band(None, 3, [(12, text("Words", "Some."))]))


def test_panels_of_a_collapsed_group_are_inside_it() -> None:
    words = [text(name, "Some.") for name in ("One", "Two", "Three")]
    first, group, last = arrange(
        Band(None, 3, [(24, words[0])]),
        Band("Group", 4, [(24, words[1])], collapsed=True),
        Band("After", 5, [(24, words[2])], collapsed=True),
    )
    assert (first.title, group.title, last.title) == ("One", "Group", "After")
    assert [panel.title for panel in group.panels] == ["Two"]
    assert isinstance(group, core.RowPanel)


def test_the_folder_holds_what_is_generated_and_nothing_else() -> None:
    found = {
        str(path.relative_to(FOLDER)): path.read_text()
        for path in FOLDER.rglob("*")
        if path.is_file()
    }
    assert found == {**generated(), **of_database(), **provisioning()}
    assert "DO NOT EDIT" in found["provisioning/dashboards/specwatch.yml"].splitlines()[0]


def test_only_the_dashboards_need_grafanalib() -> None:
    """The daemon would hold its memory for nothing."""
    package = Path(specwatch.__file__).parent
    eager = re.compile(r"^(?:from|import) (?:grafanalib|specwatch\.generate\.dashboards)", re.M)
    importing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "grafanalib" in (text := path.read_text()) or "generate.dashboards" in text
        if eager.search(text)
    }
    assert importing > {"generate/kubernetes.py"}
    importing.remove("generate/kubernetes.py")  # which generates them too
    assert {str(Path(path).parent) for path in importing} == {"generate/dashboards"}
