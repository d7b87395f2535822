"""The questions that each dashboard answers, apart from how it looks."""

from __future__ import annotations

import re

import pytest

from specwatch.generate.dashboards.build import (
    DIMENSION,
    FLEET,
    GUARD,
    OVERVIEW,
    STOCK,
    Board,
)
from specwatch.generate.dashboards.queries import (
    accepted_lengths,
    in_order,
    value_order,
    worst_first,
)
from tests.generate.boards import Json, boards, queries, shown

OURS = [OVERVIEW, DIMENSION, FLEET, GUARD]


def expressions(board: Board) -> str:
    """All queries of a dashboard."""
    return "\n".join(expr for _, expr, _ in queries(boards()[board.uid]))


def panel(board: Board, title: str) -> Json:
    (match,) = (part for part in shown(boards()[board.uid]) if part["title"] == title)
    return match


def link_of(table: Json, column: str) -> str:
    """Where a cell of a column leads to."""
    (override,) = (
        override
        for override in table["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == column
    )
    ((link,),) = (field["value"] for field in override["properties"] if field["id"] == "links")
    return str(link["url"])


@pytest.mark.parametrize("board", OURS, ids=lambda board: board.uid)
def test_ours_show_what_specwatch_says_and_not_what_it_read(board: Board) -> None:
    assert "vllm:" not in expressions(board)
    assert "specwatch_" in expressions(board)


def test_the_stock_one_works_for_who_has_no_specwatch() -> None:
    board = boards()[STOCK.uid]
    assert "specwatch_" not in expressions(STOCK) + str(board["templating"])
    assert board["annotations"]["list"] == []
    assert {variable["name"] for variable in board["templating"]["list"]} == {
        "datasource",
        "instance",
        "model_name",
    }


def test_stock_ratios_leave_out_idle_servers() -> None:
    """0/0 is NaN, which would be shown: every whole must be more than nothing."""
    for place, expr, _ in queries(boards()[STOCK.uid]):
        divisors = re.findall(r"/ (?:on \(\) group_left \(\) )?(.)", re.sub(r"\s+", " ", expr))
        assert set(divisors) <= {"("}, place
        assert expr.count(" / ") <= expr.count(" > 0)"), place


def test_stock_quantiles_are_of_merged_counts() -> None:
    asked = [expr for _, expr, _ in queries(boards()[STOCK.uid]) if "quantile" in expr]
    assert len(asked) > 10
    for expr in asked:
        assert "avg" not in expr
        for inner in re.findall(r"histogram_quantile\([\d.]+, (.{12})", expr):
            assert inner == "sum by (le) "


def test_older_names_of_vllm_stand_behind_the_newer() -> None:
    for newer, older in (
        ("vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket"),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    ):
        pattern = f"{newer}\\{{[^}}]*\\}}[^ ]* or (?:rate\\()?{older}\\{{"
        assert re.search(pattern, expressions(STOCK)), newer


def test_accepted_lengths_are_differences_of_positions() -> None:
    none, one, two = accepted_lengths('x="y"', 2).split("\n")[1:-1]
    assert re.findall(r'position="(\d+)"|(drafts)', none) == [("", "drafts"), ("0", "")]
    assert re.findall(r'position="(\d+)"', one) == ["0", "1", "0"]
    assert re.findall(r'position="(\d+)"', two) == ["1", "2", "1"]
    for accepted, term in enumerate((none, one, two)):
        assert f'"accepted", "{accepted}"' in term


def test_each_row_of_the_fleet_leads_to_its_target_and_model() -> None:
    table = panel(FLEET, "Servers, the worst first")
    for column, board in (("Target", OVERVIEW), ("Model", DIMENSION)):
        url = link_of(table, column)
        assert url.startswith(f"{board.url}?")
        assert 'var-target=${__data.fields["Target"]:percentencode}' in url
        assert 'var-model_name=${__data.fields["Model"]:percentencode}' in url
        assert "${__url_time_range}" in url


@pytest.mark.parametrize("board", [OVERVIEW, FLEET], ids=lambda board: board.uid)
def test_the_worst_target_comes_first_by_a_column_that_is_hidden(board: Board) -> None:
    (table,) = (part for part in shown(boards()[board.uid]) if "the worst first" in part["title"])
    steps = {step["id"]: step["options"] for step in table["transformations"]}
    (key,) = steps["sortBy"]["sort"]
    assert key["desc"] is True
    assert key["field"] not in steps["filterFieldsByName"]["include"]["names"]
    letter = key["field"].removeprefix("Value #")
    (query,) = (query["expr"] for query in table["targets"] if query["refId"] == letter)
    assert query == worst_first('target=~"$target"')
    assert table["options"]["sortBy"] == []


def test_temperatures_are_in_the_order_of_numbers() -> None:
    asked = in_order({"{{value}}": "max by (value) (x{<< lines >>})"})
    assert [re.findall('value[=!~]+"[^"]*"', *query.values()) for query in asked] == [
        [f"value{matcher}"] for matcher in ('="0"', '!~"0|all"', '="all"')
    ]
    assert len(in_order({"{{value}}": "x{<< buckets >>}"})) == 2
    for query in ("x", {"{{rule}}": "x{<< lines >>}"}):
        assert in_order(query) == [query]
    for place, expr, legend in queries(boards()[DIMENSION.uid]):
        if legend == "{{value}}":
            assert re.search(r'value(=|!~)"(0|all|0\|all)"', expr), place


def test_the_table_of_buckets_is_in_the_order_of_numbers() -> None:
    """By what Prometheus makes of its replacements, the last of which to match counts."""
    query = value_order("x")
    steps = re.findall(r'"order", "([^"]*)", "value", "([^"]*)"', query)
    labels = ["0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1", "all"]
    keys = []
    for label in labels:
        for order, pattern in steps:
            if match := re.fullmatch(pattern, label):
                key = match.expand(order.replace("$", "\\"))
        keys.append(key)
    assert keys == sorted(keys)
    steps_of_table = panel(DIMENSION, "Values in numbers")["transformations"]
    assert {"fields": {}, "sort": [{"field": "order", "desc": False}]} in [
        step["options"] for step in steps_of_table
    ]


def test_dashboards_of_many_servers_repeat_what_would_mix_them() -> None:
    """A figure of all of them together is of none."""
    for board, variable in ((OVERVIEW, "target"), (STOCK, "model_name")):
        rows = [part for part in boards()[board.uid]["panels"] if part["type"] == "row"]
        repeated = [row for row in rows if row.get("repeat") == variable]
        assert len(repeated) == len([row for row in rows if row["title"].startswith("$")]) > 4


def test_all_columns_of_the_fleet_join_by_target_and_model() -> None:
    """One query with other labels would give rows of its own."""
    for query in panel(FLEET, "Servers, the worst first")["targets"]:
        assert re.match(r"(max|min|sum|1 / min) by \(target, model_name\) \(", query["expr"])
