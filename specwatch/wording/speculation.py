"""Whether speculation pays, and what is wrong with it, in sentences; all as the API gives it."""

from __future__ import annotations

from typing import Any

from specwatch.model import ALL_TEMPERATURES
from specwatch.wording import figures
from specwatch.wording.rules import amount
from specwatch.wording.text import LONGEST_SENTENCE, shown


def speedup(known: dict[str, Any]) -> str:
    """The speedup of a model, measured or assumed, and what that rests on."""
    found = known["speedup"]
    if found["basis"] == "measured":
        bounds = f"{found['lower']:.2f} to {found['upper']:.2f}"
        age = figures.span(known["baseline"]["age"] or 0.0)
        return f"speedup {found['value']:.2f} ({bounds}), measured against a baseline {age} old"
    missing = shown(str(known["missing"]), LONGEST_SENTENCE)
    remedy = "; run specwatch calibrate" if missing.startswith("no baseline") else ""
    return f"speedup about {found['value']:.1f}, assumed: {missing}{remedy}"


def break_even(known: dict[str, Any], window: dict[str, Any] | None) -> str:
    """The break-even line of a model at the load of a window, and where acceptance is now."""
    rate = None if window is None else window["acceptance_rate"]
    now = "" if rate is None else f", now {figures.percent(rate)}"
    if not known["bins"]:
        return f"break-even at {known['assumed_acceptance']:.0%} acceptance, assumed{now}"
    load = None if window is None else window["load_bin"]
    line = next(
        (each for each in known["bins"] if each["load_bin"] == load),
        max(known["bins"], key=lambda each: float(each["share"])),
    )
    cost, at = line["step_cost"]["value"], line["break_even_acceptance"]["value"]
    where = f"at {shown(line['load_bin'])} running"
    least = "any acceptance" if at <= 0 else f"{figures.percent(at)} acceptance"
    least = least if at <= 1 else "out of reach"
    return f"break-even {where}: {least}{now} (a step costs {cost:.2f}x)"


def breach(finding: dict[str, Any]) -> str:
    """``low-acceptance at (0,0.3]: acceptance_ratio 0.42, below 0.5``."""
    said = shown(finding["rule"])
    if finding["temperature"] != ALL_TEMPERATURES:
        said += f" at {shown(finding['temperature'])}"
    read = finding["leading"]
    if read is None:
        return said
    metric = str(read["metric"])
    value = f"{shown(metric)} {amount(metric, read['value'])}"
    if read["lower"] is not None and read["upper"] is not None:
        value += f" ({amount(metric, read['lower'])} to {amount(metric, read['upper'])})"
    side, line = ("below", read["below"]) if read["above"] is None else ("above", read["above"])
    return f"{said}: {value}, {side} {amount(metric, line)}"
