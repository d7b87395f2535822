"""Temperatures relative to the break-even line, as words."""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.domain.experiments import Estimate, Line, ProbeTemperature, Zone
from specwatch.wording import figures

LABELS: dict[Zone, str] = {
    "wins": "wins",
    "near": "near the line",
    "loses": "loses",
    "unknown": "not clear",
}
"""Zones in tables, the best first."""
_VERBS: dict[Zone, str] = {
    "wins": "pays",
    "near": "is near break-even",
    "loses": "loses",
    "unknown": "does not clearly pay or lose",
}


def line_sentence(line: Line) -> str:
    """The break-even line as a sentence."""
    if line.basis == "assumed":
        return f"break-even: about {line.acceptance.value:.0%}, by the assumed draft cost"
    source = f"break-even at load {line.load}, measured"
    if line.acceptance.value <= 0:
        return f"{source}: a step costs no more than a plain one, so any acceptance gains"
    if line.acceptance.value >= 1:
        return f"{source}: {figures.percent(line.acceptance.value)}, beyond what drafts can reach"
    return f"{source}: {percents(line.acceptance)}"


def answer(temperatures: Sequence[ProbeTemperature], line: Line) -> str:
    """At which temperatures speculation pays, and the break-even line, as a sentence."""
    parts = []
    for zone, verb in _VERBS.items():
        where = [f"{one.temperature:g}" for one in temperatures if one.zone == zone]
        if where:
            every = len(where) == len(temperatures) > 1
            which = "every temperature" if every else f"temperature {', '.join(where)}"
            parts.append(f"{verb} at {which}")
    return f"Speculation {'; '.join([*parts, line_sentence(line)])}."


def percents(estimate: Estimate | None) -> str:
    """``81.2% (79.0-83.1)``."""
    if estimate is None:
        return figures.UNKNOWN
    value = figures.percent(estimate.value)
    if estimate.lower is None or estimate.upper is None:
        return value
    return f"{value} ({100 * estimate.lower:.1f}-{100 * estimate.upper:.1f})"
