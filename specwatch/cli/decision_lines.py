"""Whether speculation pays, and what the rules say, as lines of at most 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from specwatch.wording import figures, speculation
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
    if known is None or known["speedup"] is None:
        return
    yield from wrapped(speculation.speedup(known))
    yield from wrapped(speculation.break_even(known, window))
    best = known["best_k"]
    if best is not None and best["k"] != len(best["speedups"]) - 1:
        now, then = best["speedups"][-1], best["speedups"][best["k"]]
        if then > 1.01 * now:
            said = f"best k: {best['k']} of {len(best['speedups']) - 1}, with a predicted speedup"
            yield from wrapped(f"{said} of {then:.2f}, against {now:.2f}")


def rule_lines(findings: list[dict[str, Any]], now: float) -> Lines:
    """Yield what the rules say of one model: breaches, what may become one, and how many pass."""
    breaches = [each for each in findings if each["verdict"] == "breach"]
    pending = [
        each for each in findings if each["verdict"] != "breach" and each["pending"] is not None
        and each["seen"] == "breach"
    ]  # fmt: skip
    for each in sorted(breaches, key=lambda one: one["since"]):
        since = f"{speculation.breach(each)}, for {figures.span(now - each['since'])}"
        if each["seen"] == "pass":
            since += ", about to clear"
        elif each["seen"] == "no_data":
            since += ", no data now"
        yield from wrapped(f"breach: {since}", "red" if each["severity"] in _URGENT else "yellow")
    for each in pending[:_MOST_PENDING]:
        said = f"pending: {speculation.breach(each)}, for {figures.span(now - each['pending'])}"
        yield from wrapped(said, "dim")
    if findings:
        counts = Counter(each["verdict"] for each in findings)
        words = {"breach": "in breach", "pass": "pass", "no_data": "without data"}
        parts = [f"{counts[name]} {said}" for name, said in words.items() if counts[name]]
        yield f"rules: {', '.join(parts)}", "dim"


def slo_lines(slos: Iterable[dict[str, Any]]) -> Lines:
    """Yield the objectives of one model that had requests."""
    for each in slos:
        left, burning = each["budget_left"], each["burn_rates"].get("1h")
        if left is None:
            continue
        said = f"objective {shown(each['name'])}: "
        if left < 0:
            said += f"{1 - left:.1f} times the error budget spent"
        else:
            said += f"{left:.0%} of the error budget left"
        if burning is not None:
            said += f", burn rate {burning:.1f}"
        yield from wrapped(said, "red" if left < 0 else "")
