"""What dashboards ask Prometheus for exists, under the labels that it has."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specwatch.generate.dashboards.build import BOARDS
from tests.generate.boards import boards, queries
from tests.web.exported import page
from tests.web.test_exporter import FULL

DATA = Path(__file__).parents[1] / "data"
BOARD = pytest.mark.parametrize("uid", [board.uid for board in BOARDS])
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus gives to all that it scrapes."""
ENUMERATED = {"metric", "quantile", "state", "cause"}
"""Labels whose values are known beforehand."""
INTERVAL = re.compile(r"\$__(rate_interval|interval|range)\b")
MAKE_LABELS = {"label_replace", "label_join"}

Labels = Mapping[str, set[str]]


@cache
def exist() -> Mapping[str, Labels]:
    """Labels, each with its values, of every metric that we export or that vLLM was seen to."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    pages = [path.read_text() for path in sorted(DATA.rglob("*vllm*.prom"))]
    for text in (page(FULL), *pages):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                of = found[sample.name]
                for label, value in sample.labels.items():
                    of[label].add(value)
    return {**found, "up": {}}


@BOARD
def test_every_query_asks_for_what_exists(uid: str) -> None:
    asked = list(queries(boards()[uid]))
    assert asked
    for place, expr, legend in asked:
        found = parsed(expr)
        assert list(problems(found)) == [], f"{place}: {expr}"
        unknown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)) - labels_of(found)
        assert not unknown, f"{place}: {legend}"


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        ("specwatch_speedup", "specwatch_speedup does not exist"),
        ("vllm:num_requests_runing", "vllm:num_requests_runing does not exist"),
        ('specwatch_speedup_ratio{model="a"}', "specwatch_speedup_ratio has no model"),
        ('specwatch_guard_state{state="asleep"}', "state is never asleep"),
        ("sum by (modle) (specwatch_speedup_ratio)", "nothing here has modle"),
        ("specwatch_speedup_ratio * on (host) specwatch_target_up", "nothing here has host"),
        ("rate(specwatch_speedups_total[$__rate_interval])", "specwatch_speedups_total does not"),
    ],
)
def test_a_query_for_what_does_not_exist_is_found(expr: str, problem: str) -> None:
    assert "; ".join(problems(parsed(expr))).startswith(problem)


def parsed(expr: str) -> Any:
    """The syntax tree; raises ValueError for what is no PromQL."""
    return promql_parser.parse(INTERVAL.sub("5m", expr))


def problems(node: Any) -> Iterator[str]:
    """All that a query names and that is not there."""
    if isinstance(node, promql_parser.VectorSelector):
        yield from _of_selector(node)
    for label in _grouped_by(node):
        if label not in labels_of(node, grouped=False):
            yield f"nothing here has {label}"
    for operand in inside(node):
        yield from problems(operand)


def labels_of(node: Any, *, grouped: bool = True) -> set[str]:
    """Labels that the result can have; not ``grouped``, that the operands of ``node`` can."""
    if isinstance(node, promql_parser.VectorSelector):
        return OF_PROMETHEUS | set(exist().get(node.name, ()))
    below: set[str] = set().union(*(labels_of(operand) for operand in inside(node)))
    if isinstance(node, promql_parser.Call) and node.func.name in MAKE_LABELS:
        below.add(node.args[1].val)
    if grouped and isinstance(node, promql_parser.AggregateExpr):
        modifier = node.modifier
        if modifier is None:
            return set()
        named = set(modifier.labels)
        by = modifier.type == promql_parser.AggModifierType.By
        return below & named if by else below - named
    return below


def _of_selector(node: Any) -> Iterator[str]:
    known = exist().get(node.name)
    if known is None:
        yield f"{node.name} does not exist"
        return
    for matcher in node.matchers.matchers:
        if matcher.name not in known and matcher.name not in OF_PROMETHEUS:
            yield f"{node.name} has no {matcher.name}"
        elif _is_one(matcher) and matcher.value not in known[matcher.name]:
            yield f"{matcher.name} is never {matcher.value}"


def _is_one(matcher: Any) -> bool:
    equal = matcher.op == promql_parser.MatchOp.Equal
    return equal and matcher.name in ENUMERATED and "$" not in matcher.value


def _grouped_by(node: Any) -> Iterable[str]:
    modifier = getattr(node, "modifier", None)
    if modifier is None:
        return ()
    if isinstance(node, promql_parser.AggregateExpr):
        return list(modifier.labels)
    on = modifier.matching.labels if modifier.matching is not None else []
    return [*on, *(modifier.group_labels or ())]


def inside(node: Any) -> list[Any]:
    """The operands of a node of the syntax tree."""
    named = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    return [
        operand for operand in (*named, *(getattr(node, "args", None) or ())) if operand is not None
    ]
