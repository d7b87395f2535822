"""Whether speculation pays, and what the rules say, as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from specwatch.wording import speculation
from specwatch.wording.text import shown, wrapped

_MOST_PENDING = 5
_URGENT = ("critical", "warning")

Lines = Iterator[tuple[str, str]]


def in_breach(target: dict[str, Any]) -> bool:
    """Whether a rule of which somebody has to know is in breach."""
    return any(
        each["verdict"] == "breach" and each["severity"] in _URGENT
        for each in target["decision"]["findings"]
    )


def pay_lines(known: dict[str, Any] | None, window: dict[str, Any] | None) -> Lines:
    """Yield the speedup of a model and its break-even line at the load of a window.

    Both as the API gives them; nothing where nothing was generated with speculation.
    """
    if known is None or (known["speedup"] is None and not known["minutes"]):
        return
    yield from wrapped(speculation.speedup(known))
    yield from wrapped(speculation.break_even(known, window))
    best = speculation.best_k(known)
    if best is not None:
        yield from wrapped(best)


def rule_lines(findings: list[dict[str, Any]], now: float) -> Lines:
    """Yield what the rules say of one model: breaches, what may become one, and how many pass."""
    breaches = [each for each in findings if each["verdict"] == "breach"]
    for each in sorted(breaches, key=lambda one: one["since"]):
        style = "red" if each["severity"] in _URGENT else "yellow"
        yield from wrapped(f"breach: {speculation.confirmed(each, now)}", style)
    for each in list(filter(speculation.may_become, findings))[:_MOST_PENDING]:
        yield from wrapped(f"pending: {speculation.pending(each, now)}", "dim")
    if findings:
        yield f"rules: {speculation.counts(findings)}", "dim"


def slo_lines(slos: Iterable[dict[str, Any]], goodput: dict[str, Any]) -> Lines:
    """Yield the objectives of one model that had requests, and its goodput."""
    for each in slos:
        said = speculation.objective(each)
        if said is not None:
            style = "red" if each["budget_left"] < 0 else ""
            yield from wrapped(f"objective {shown(each['name'])}: {said}", style)
    met = speculation.goodput(goodput)
    if met is not None:
        yield from wrapped(f"goodput: {met}")
