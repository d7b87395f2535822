"""What the expression of a rule asks, so that it answers on a day on which nothing is wrong.

An alert's expression is empty as long as all is well, and so does not show that it could
fire. So comparisons are changed to return 0 or 1, ``absent(x)`` becomes x, and what ``unless``
excludes must exist under the same labels. Each alternative of an ``or`` is asked by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import promql_parser as promql
import yaml

_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
_PRIVATE = 0xE000
_ESCAPED = re.compile(r"\\\\([ -~])")
_HIDDEN = re.compile("[\ue020-\ue07e]")
_OFFSET = re.compile(r"\boffset\s+-?\w+")


def rules_in(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and expression of every rule in rule files."""
    for text in texts.values():
        for group in yaml.safe_load(text)["groups"]:
            for rule in group["rules"]:
                yield rule.get("alert") or rule["record"], " ".join(rule["expr"].split())


def evaluated_at_once(text: str) -> str:
    """A rule file whose groups are evaluated as often as all others: no test waits for them."""
    found = yaml.safe_load(text)
    for group in found["groups"]:
        group.pop("interval", None)
    return str(yaml.safe_dump(found))


def questions(expr: str, without: Collection[str] = ()) -> list[str]:
    """What to ask in place of an expression; every answer must be data.

    The alternatives that name one of the metrics ``without`` are left out where there is another.
    """
    # The parser does not write out backslashes that it read.
    now = _ESCAPED.sub(lambda match: chr(_PRIVATE + ord(match[1])), _OFFSET.sub("", expr))
    first = _Relaxed(without)
    found = [first.of(now)]
    found += [_Relaxed(without, number).of(now) for number in range(first.choices)]
    return [_HIDDEN.sub(_shown, query) for query in dict.fromkeys(found)]


def _shown(match: re.Match[str]) -> str:
    return rf"\\{chr(ord(match[0]) - _PRIVATE)}"


@dataclass
class _Relaxed:
    """Takes the first of all alternatives, but of the ``second``-th choice the other."""

    without: Collection[str]
    second: int = -1
    choices: int = field(default=0, init=False)

    def of(self, expr: str) -> str:
        return str(promql.transform(promql.parse(expr), post_visit=self._visit))

    def _visit(self, node: Any) -> Any:
        if isinstance(node, promql.BinaryExpr):
            return self._binary(node)
        if isinstance(node, promql.Call) and node.func.name.startswith("absent"):
            (argument,) = node.args
            return argument
        return None

    def _binary(self, node: Any) -> Any:
        operator = str(node.op)
        if operator == "or":
            return self._chosen(node)
        if operator == "unless":
            return promql.parse(f"({node.lhs}) and {_matching(node)} ({node.rhs})")
        if operator in _COMPARISONS:
            return promql.parse(f"({node.lhs}) {operator} bool {_matching(node)} ({node.rhs})")
        return None

    def _chosen(self, node: Any) -> Any:
        sides = [side for side in (node.lhs, node.rhs) if not self._is_gone(str(side))]
        if len(sides) < 2:
            return sides[0] if sides else node.lhs
        self.choices += 1
        return sides[self.choices - 1 == self.second]

    def _is_gone(self, expr: str) -> bool:
        return any(re.search(rf"(?<!\w){re.escape(name)}\b", expr) for name in self.without)


def _matching(node: Any) -> str:
    modifier = node.modifier
    if modifier is None or modifier.matching is None:
        return ""
    kept = modifier.matching.type == promql.LabelModifierType.Include
    words = [f"{'on' if kept else 'ignoring'} ({', '.join(modifier.matching.labels)})"]
    grouping = {"ManyToOne": "group_left", "OneToMany": "group_right"}
    side = grouping.get(str(modifier.card).rpartition(".")[2])
    if side and str(node.op) not in ("and", "or", "unless"):
        words.append(f"{side} ({', '.join(modifier.group_labels or ())})")
    return " ".join(words)


def named(exprs: Sequence[str]) -> set[str]:
    """The metrics that are named in expressions."""
    found: set[str] = set()

    def look(node: Any) -> bool:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql.VectorSelector) and selector.name:
            found.add(selector.name)
        return True

    for expr in exprs:
        promql.walk(promql.parse(expr), pre_visit=look)
    return found
