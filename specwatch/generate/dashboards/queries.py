"""Queries that several panels have in common, or that are too long to be written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.guard.state import Phase


def guard_state(selector: str) -> str:
    """Query for the number of the current state of the guard of each target.

    The series of all other states are 0.
    """
    numbered = "\n  or ".join(
        f'{number} * specwatch_guard_state{{{selector}, state="{phase}"}}'
        for number, phase in enumerate(Phase)
    )
    return f"max by (target) (\n  {numbered}\n)"


def accepted_lengths(selector: str, longest: int) -> str:
    """Share of the drafts within the range that had 0, 1, ... tokens accepted, in this order.

    With S(p) the drafts whose token at position p was accepted: H(0) = drafts - S(0),
    H(j) = S(j-1) - S(j), and H(k) = S(k-1) where S(k) does not exist.
    """
    counter = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    drafts = f"sum(increase(vllm:spec_decode_num_drafts_total{{{selector}}}[$__range]))"
    accepted_at = [
        f'sum(increase({counter}{{{selector}, position="{position}"}}[$__range]))'
        for position in range(longest + 1)
    ]
    counts = [f"{drafts} - {accepted_at[0]}"]
    for before, position in itertools.pairwise(accepted_at):
        counts.append(f"{before} - ({position} or 0 * {before})")
    # Both counters are extrapolated separately: what should be 0 may be negative.
    named = "\n  or ".join(
        f'label_replace(clamp_min({count}, 0), "accepted", "{accepted}", "", "")'
        for accepted, count in enumerate(counts)
    )
    return f"(\n  {named}\n) / on () group_left () ({drafts} > 0)"


def of_each_model(query: str, selector: str, label: str = "") -> str:
    """A query by target as one by target and model, for a table whose rows are models.

    A target without a known model has one row. ``label`` is one of the query to keep.
    """
    by = "target, model_name" + (f", {label}" if label else "")
    models = f"max by (target, model_name) (specwatch_speculation_enabled{{{selector}}})"
    return (
        f"max by ({by}) (0 * {models} + on (target) group_left ({label}) ({query})"
        f" or on (target) ({query}))"
    )


def worst_first(selector: str) -> str:
    """Query for the order of targets and models: those that are down, then the measured ones by
    what speculation loses, then the others."""
    down = f"(100 * (min by (target) (specwatch_target_up{{{selector}}}) == bool 0) > 0)"
    loss = (
        "1 / min by (target, model_name)"
        f' (specwatch_speedup_ratio{{{selector}, dimension="all"}}) - 1'
    )
    rest = of_each_model(f"0 * min by (target) (specwatch_target_up{{{selector}}}) - 10", selector)
    return (
        f"max by (target, model_name) ({of_each_model(down, selector)}"
        f" or on (target, model_name) ({loss}) or on (target, model_name) ({rest}))"
    )


def highest(query: str, function: str = "topk") -> str:
    """The ten lines of a query that are highest at the end of the time shown."""
    at_end = query.replace("}", "} @ end()")
    return f"{query} and {function}(10, {at_end})"


def lowest(query: str) -> str:
    """The ten lines of a query that are lowest at the end of the time shown."""
    return highest(query, "bottomk")


def verdicts(selector: str) -> str:
    """Query for the verdicts of rules as numbers, a pending breach as 0.5."""
    return (
        f"0.5 * (specwatch_rule_pending{{{selector}}} == 1) or specwatch_rule_verdict{{{selector}}}"
    )


def value_order(query: str) -> str:
    """A query by value with a label ``order``, by which temperature buckets sort as numbers do."""
    for pattern, order in (("(.*)", "3"), (">.*", "2"), ("[(](.*),.*", "1 $1"), ("0", "0")):
        query = f'label_replace({query}, "order", "{order}", "value", "{pattern}")'
    return query


def in_order(query: Any) -> list[Any]:
    """A query of one line for each value as three: Grafana keeps the order of queries, and
    Prometheus would put ``(0,0.3]`` before ``0``."""
    if not isinstance(query, dict) or "{{value}}" not in query:
        return [query]
    (expr,) = query.values()
    return [
        {"{{value}}": re.sub("<< (values|lines) >>", rf"<< \1 >>, {matcher}", expr)}
        for matcher in ('value="0"', 'value!~"0|all"', 'value="all"')
        if matcher != 'value="all"' or "<< lines >>" in expr
    ]


FUNCTIONS: Mapping[str, object] = {
    "guard_state": guard_state,
    "value_order": value_order,
    "verdicts": verdicts,
    "highest": highest,
    "lowest": lowest,
    "of_each_model": of_each_model,
    "worst_first": worst_first,
    "accepted_lengths": accepted_lengths,
    "DRAFT_COST_RATIO": DRAFT_COST_RATIO,
}
"""By their name in our YAML files."""
