"""The dashboards are what Grafana's own types say, in each release that they are for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.generate.dashboards import dashboards
from tests.e2e import npm

RELEASES = {
    "grafana10": "10.4.19",
    "grafana11": "11.6.16",
    "grafana12": "12.4.11",
    "grafana13": "13.2.3",
}
"""Versions of @grafana/schema, the types that Grafana publishes with each release."""
TYPESCRIPT = "5.9"
PANELS = {
    "barchart": "BarChart",
    "heatmap": "Heatmap",
    "stat": "Stat",
    "table": "Table",
    "text": "Text",
    "state-timeline": "StateTimeline",
    "timeseries": "TimeSeries",
}
OF_ANNOTATIONS = ("expr", "target", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
"""Fields that belong to the data source, which the types of a dashboard leave open."""
FAULTS = {
    "hideControls": False,
    "panels/0/nullPointMode": "connected",
    "panels/0/options/sparkline": True,
    "panels/0/options/colorMode": "foreground",
    "panels/0/fieldConfig/defaults/thresholds/mode": "relative",
    "panels/0/targets/0/format": "lines",
    "templating/list/0/tagsQuery": "",
}
FAULTY = "faulty-"
PRELUDE = """\
// What TypeScript writes as an enumeration stands in JSON as its value.
type Plain<T> = 0 extends 1 & T ? T : T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
// Every panel takes the defaults of its type for what is not said.
type Part<T> = 0 extends 1 & T ? T : T extends string ? `${T}` : T extends (infer U)[] ? Part<U>[]
  : T extends object ? { [K in keyof T]?: Part<T[K]> } : T;
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with TypeScript, and in one for each release its types."""
    folder = tmp_path_factory.mktemp("schema")
    npm.package(folder, workspaces=list(RELEASES), dependencies={"typescript": TYPESCRIPT})
    for release, version in RELEASES.items():
        npm.package(folder / release, name=release, dependencies={"@grafana/schema": version})
    npm.install(folder)
    return folder


@pytest.fixture(scope="module")
def wrong(compiler: Path) -> frozenset[str]:
    """What TypeScript finds wrong in the dashboards, and in some that have a fault, as lines."""
    boards = source(*(json.loads(board) for board in dashboards().values()))
    faulty = {file(place): source(with_fault(place, value)) for place, value in FAULTS.items()}
    files = {
        f"{release}/{name}": text
        for release in RELEASES
        for name, text in {"boards.ts": boards, **faulty}.items()
    }
    for name, text in files.items():
        (compiler / name).write_text(text)
    done = subprocess.run(
        [
            compiler / "node_modules/.bin/tsc",
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--module",
            "esnext",
            "--moduleResolution",
            "bundler",
            *files,
        ],
        cwd=compiler,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = done.stdout.splitlines()
    assert found, f"it does not even find the faults: {done.stderr}"
    return frozenset(line for line in found if not line.startswith(" "))


def test_every_dashboard_has_the_types_of_every_release(wrong: frozenset[str]) -> None:
    assert {line for line in wrong if FAULTY not in line.partition("(")[0]} == set()


@pytest.mark.parametrize("place", FAULTS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_fault_is_found_in_every_release(wrong: frozenset[str], release: str, place: str) -> None:
    """Else the test above would pass for any dashboard."""
    assert [line for line in wrong if line.startswith(f"{release}/{file(place)}(")]


def file(place: str) -> str:
    """The file that has the fault at this place."""
    return f"{FAULTY}{place.rpartition('/')[2]}.ts"


def with_fault(place: str, value: object) -> dict[str, Any]:
    """A dashboard of one panel in which something is wrong at this place."""
    board = json.loads(dashboards()["specwatch-overview.json"])
    board["panels"] = [next(each for each in board["panels"] if each["type"] == "stat")]
    *inside, last = place.split("/")
    at: Any = board
    for key in inside:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return dict(board)


def source(*boards: dict[str, Any]) -> str:
    """A program that is right if these dashboards are."""
    declared = [
        line
        for number, board in enumerate(boards)
        for line in declarations(board, f"board{number}")
    ]
    return "\n".join([*imports(), PRELUDE, *declared])


def imports() -> Iterator[str]:
    yield "import type { Dashboard } from '@grafana/schema';"
    raw = "@grafana/schema/dist/esm/raw/composable"
    for kind, name in PANELS.items():
        path = f"{raw}/{kind.replace('-', '')}/panelcfg/x/{name}PanelCfg_types.gen"
        yield f"import type * as {name} from '{path}';"
    path = f"{raw}/prometheus/dataquery/x/PrometheusDataQuery_types.gen"
    yield f"import type * as Prometheus from '{path}';"


def declarations(board: dict[str, Any], name: str) -> Iterator[str]:
    """Lines of TypeScript that say of which type each part of a dashboard is."""
    marks = [
        {key: value for key, value in each.items() if key not in OF_ANNOTATIONS}
        for each in board["annotations"]["list"]
    ]
    yield declaration(name, "Plain<Dashboard>", {**board, "annotations": {"list": marks}})
    queries = [each["target"] for each in board["annotations"]["list"]]
    for panel in board["panels"]:
        for each in (panel, *panel.get("panels", ())):
            if each["type"] != "row":
                yield from of_panel(each, f"{name}_{each['id']}")
                queries += each.get("targets", ())
    for number, query in enumerate(queries):
        yield declaration(f"{name}_query{number}", "Part<Prometheus.PrometheusDataQuery>", query)


def of_panel(panel: dict[str, Any], name: str) -> Iterator[str]:
    kind = PANELS[panel["type"]]
    yield declaration(f"{name}_options", f"Part<{kind}.Options>", panel["options"])
    custom = panel["fieldConfig"]["defaults"].get("custom")
    if custom:
        yield declaration(f"{name}_custom", f"Part<{kind}.FieldConfig>", custom)


def declaration(name: str, kind: str, value: Any) -> str:
    return f"export const {name}: {kind} = {json.dumps(value, indent=1)};"
