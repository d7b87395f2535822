"""Two daemons may watch one server under one name: panels show it once, and their queries join."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from specwatch.generate.dashboards.build import DIMENSION, FLEET, GUARD, OVERVIEW
from tests.generate.boards import boards, queries
from tests.generate.test_dashboard_queries import OF_PROMETHEUS, inside, labels_of, parsed

OWN = {
    "specwatch_actions_total",
    "specwatch_alertmanager_failures_total",
    "specwatch_group_speedup_ratio",
    "specwatch_group_measured_seconds",
    "specwatch_group_targets",
}
"""What each daemon did itself, and its part of a group: to be summed. All else that they count is
of the target."""
ADDS = {"sum", "count", "avg"}


@pytest.mark.parametrize("uid", [board.uid for board in (OVERVIEW, DIMENSION, FLEET, GUARD)])
def test_no_query_doubles_or_fails_where_two_daemons_watch_a_target(uid: str) -> None:
    """Each series is one for all daemons, or its legend says of which daemon it is."""
    for place, expr, legend in queries(boards()[uid]):
        found = parsed(expr)
        assert list(doubled(found)) == [], f"{place}: {expr}"
        if "{{instance}}" not in legend:
            assert not labels_of(found) & OF_PROMETHEUS, f"{place}: {expr}"


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        (
            "specwatch_guard_actions_limit"
            " - on (target) max by (target) (specwatch_guard_actions_today)",
            "joined: specwatch_guard_actions_limit",
        ),
        (
            "max by (target) (specwatch_target_info)"
            " * on (target) group_left () specwatch_scrape_interval_seconds",
            "joined: specwatch_scrape_interval_seconds",
        ),
        (
            "specwatch_scrape_duration_seconds / min by (target) (specwatch_target_up)",
            "joined: specwatch_scrape_duration_seconds",
        ),
        ("sum(specwatch_rule_verdict == bool 1)", "added up: specwatch_rule_verdict"),
        ("1 - sum(rate(specwatch_scrapes_total[5m]))", "added up: specwatch_scrapes_total"),
        ("sum by (target) (specwatch_target_up)", "added up: specwatch_target_up"),
        ("count without (job) (specwatch_target_up)", "added up: specwatch_target_up"),
    ],
)
def test_a_query_that_doubles_or_fails_is_found(expr: str, problem: str) -> None:
    assert list(doubled(parsed(expr))) == [problem]


@pytest.mark.parametrize(
    "expr",
    [
        "specwatch_scrape_duration_seconds / specwatch_scrape_interval_seconds",
        "sum by (target, instance, job) (rate(specwatch_scrapes_total[5m]))",
        "sum by (target) (rate(specwatch_actions_total[5m]))",
        "2 * (specwatch_target_stuck == 1) or specwatch_target_up",
        "sum(max by (target) (specwatch_target_up))",
        "process_open_fds * on (instance, job) group_left (daemon) specwatch_build_info",
    ],
)
def test_a_query_that_keeps_daemons_apart_is_not_found(expr: str) -> None:
    assert list(doubled(parsed(expr))) == []


def doubled(node: Any) -> Iterator[str]:
    """What a query joins or adds up although each daemon has one of it."""
    if isinstance(node, promql_parser.BinaryExpr) and str(node.op) != "or":
        yield from _joined(node)
    if isinstance(node, promql_parser.AggregateExpr) and str(node.op) in ADDS:
        lost = (labels_of(node.expr) - labels_of(node)) & OF_PROMETHEUS
        if lost and not names(node.expr) <= OWN:
            yield f"added up: {', '.join(sorted(names(node.expr)))}"
    for operand in inside(node):
        yield from doubled(operand)


def _joined(node: Any) -> Iterator[str]:
    sides = [side for side in (node.lhs, node.rhs) if names(side)]
    if len(sides) < 2:
        return
    matching = node.modifier.matching if node.modifier is not None else None
    by_name = matching is not None and matching.type == promql_parser.LabelModifierType.Include
    matched = set(matching.labels) if by_name else set.intersection(*map(labels_of, sides))
    for side in sides:
        if labels_of(side) & OF_PROMETHEUS - matched:
            yield f"joined: {', '.join(sorted(names(side)))}"


def names(node: Any) -> set[str]:
    """Metrics that a part of a query asks for."""
    own = {node.name} if isinstance(node, promql_parser.VectorSelector) else set()
    return own.union(*(names(operand) for operand in inside(node)))
