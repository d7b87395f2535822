"""What people ask the database with SQL works word by word: the dashboard, and the manual."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.domain.model import HOUR, Histogram, Window
from specwatch.generate.dashboards import of_database
from specwatch.store import views
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.store.examples import T0, batch, fill_tables, minute

MANUAL = Path(__file__).parents[2] / "docs" / "dashboards.md"
STATEMENTS = re.findall(r"```sql\n(.*?)```", MANUAL.read_text(), re.DOTALL)
(BOARD,) = map(json.loads, of_database().values())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def filled(store: Store) -> Store:
    """A store with some minutes of three temperatures, an hour, and a row in every table.

    One temperature had a request of one token, and so no draft. Another daemon watches, too.
    """
    minutes = [
        _with_acceptance(minute(T0 + 60 * n, temperature=temperature, drafts=100 + n))
        for n in range(5)
        for temperature in ("all", "0", ">1", "output=text")
    ]
    minutes.append(minute(T0, temperature="(0,0.3]", drafts=0))
    minutes += [minute(T0, daemon="production", temperature=each) for each in ("all", "0")]
    store.write([batch(*minutes)], now=0)
    store.roll_up(T0 + 2 * HOUR)
    fill_tables(store, T0 + 2.0 * HOUR)
    return store


def _with_acceptance(window: Window) -> Window:
    tpot = Histogram((0.01, 0.02), (10, 80, 10), 1.5)
    acceptance = Histogram((0.5, 0.75), (10, 80, 10), 60.0)
    return replace(window, tally=replace(window.tally, tpot=tpot, request_acceptance=acceptance))


def asked(store: Store, statement: str) -> list[dict[str, Any]]:
    with store.connected() as connection:
        return [dict(row._mapping) for row in connection.exec_driver_sql(statement)]


@each_database
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_statements_of_the_manual_find_something(store: Store, statement: str) -> None:
    assert asked(filled(store), statement)


@each_database
def test_the_views_have_the_documented_columns_and_exact_figures(store: Store) -> None:
    filled(store)
    for view in views.VIEWS:
        query = f"SELECT * FROM {view} WHERE value = '0' AND daemon = 'left' ORDER BY start LIMIT 1"
        (row,) = asked(store, query)
        assert list(row) == [column.name for column in views.COLUMNS]
        times = 5 if view == "hours" else 1
        drafts = 510 if view == "hours" else 100
        time = row["time"]  # of Postgres in the zone of its client
        assert time == "2023-11-14T22:00:00Z" or time.timestamp() == T0
        assert (row["dimension"], row["value"], row["mode"]) == ("temperature", "0", "on")
        assert (row["drafts"], row["draft_tokens"]) == (drafts, 3 * drafts)
        assert (row["requests"], row["load"]) == (drafts + times, 1.0)
        assert (row["acceptance"], row["tau"]) == (pytest.approx(2 / 3), 3.0)
        found = [row[f"acceptance_p{q}"] for q in (10, 50, 90)]
        assert found == [0.5, 0.625, 0.75]
        assert [row[f"tpot_p{q}"] for q in (50, 95, 99)] == [0.015, 0.02, 0.02]
        assert row["coverage"] is None


@each_database
def test_accepted_lengths_are_those_of_the_positions(store: Store) -> None:
    """And null where the counters contradict each other, or are not known by position."""
    torn = minute(T0 + 60)
    torn = replace(torn, tally=replace(torn.tally, accepted_per_position=(100, 120, 5)))
    unknown = minute(T0 + 120)
    unknown = replace(unknown, tally=replace(unknown.tally, drafts=None))
    whole = minute(T0 + 180)
    whole = replace(whole, tally=replace(whole.tally, accepted_per_position=None))
    store.write([batch(minute(T0, drafts=100), torn, unknown, whole)], now=0)
    found = asked(store, "SELECT accepted_lengths FROM minutes ORDER BY start")
    lengths = [row["accepted_lengths"] for row in found]
    if isinstance(lengths[0], str):
        lengths = [None if text is None else json.loads(text) for text in lengths]
    assert lengths == [[0, 50, 25, 25], None, None, None]


def _as_grafana_asks(sql: str) -> str:
    sql = re.sub(r"\$__unixEpochFilter\((\w+)\)", rf"\1 >= {T0} AND \1 <= {T0 + 9 * HOUR}", sql)
    for name, value in (("daemon", "left"), ("target", "chat"), ("model", "llama")):
        sql = sql.replace(f"${{{name}:sqlstring}}", f"'{value}'")
    return sql


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_the_dashboard_of_the_database_finds_something(
    request: pytest.FixtureRequest, open_store: OpenStore, panel: dict[str, Any]
) -> None:
    store = filled(open_store(request.getfixturevalue("postgres").new_url()))
    for target in panel["targets"]:
        rows = asked(store, _as_grafana_asks(target["rawSql"]))
        assert rows, target["rawSql"]
        if target["format"] == "time_series":
            first, *others = rows[0]
            assert first == "time"
            assert others[0] == "metric" or len(others) == 2
        else:
            fields = [
                override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]
            ]
            assert len(fields) == len(rows[0])


def test_the_variables_of_the_dashboard_are_daemons_targets_and_models(
    request: pytest.FixtureRequest, open_store: OpenStore
) -> None:
    store = filled(open_store(request.getfixturevalue("postgres").new_url()))
    _, daemon, target, model = BOARD["templating"]["list"]
    assert asked(store, daemon["query"]) == [{"daemon": "left"}, {"daemon": "production"}]
    assert asked(store, _as_grafana_asks(target["query"])) == [{"target": "chat"}]
    assert asked(store, _as_grafana_asks(model["query"])) == [{"model_name": "llama"}]


@each_database
def test_the_load_of_each_value_is_that_of_the_server(store: Store) -> None:
    store.write([batch(minute(T0), minute(T0, temperature="0"))], now=0)
    assert [row["load"] for row in asked(store, "SELECT load FROM minutes")] == [1.0, 1.0]
    (column,) = [column for column in views.COLUMNS if column.name == "load"]
    assert "whole server" in column.help


def test_every_query_of_minutes_in_the_dashboard_is_of_one_daemon() -> None:
    """Two daemons of different names may watch one target."""
    queries = [target["rawSql"] for panel in PANELS for target in panel["targets"]]
    queries += [variable["query"] for variable in BOARD["templating"]["list"][2:]]
    tables = [sql for sql in queries if "FROM guard_steps" not in sql]  # guards are of targets
    assert all("daemon = ${daemon:sqlstring}" in sql for sql in tables)
