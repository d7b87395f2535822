"""An incident as lines of at most 80 columns: its steps, and the numbers that led to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwatch.cli import guard_words
from specwatch.cli.guard_words import Line
from specwatch.domain.model import ALL_TEMPERATURES, MINUTE
from specwatch.wording import figures, guard
from specwatch.wording.guard import Json
from specwatch.wording.rules import amount
from specwatch.wording.text import (
    LONGEST_NAME,
    LONGEST_SENTENCE,
    MOST_COLUMNS,
    clean,
    shown,
    wrapped,
)

_READINGS = {"metric": 27, "value": 8, "interval": 18, "fires": 13}
_SPEEDUPS = {"": 27, "value": 8, "interval": 18, "over": 8}
"""Headers and widths; with two spaces between them and an indent of four, 76 columns."""
_NAMES = {
    "speedup": "measured speedup",
    "speedup_before": "speedup that it had before",
    "predicted_speedup": "speedup predicted for now",
}


def lines(found: Json, now: float) -> Iterator[Sequence[Line]]:
    """Yield lines, each as its parts, for an incident as ``guard explain --json`` has it."""
    steps = found["steps"]
    yield ((f"{shown(found['incident'])} of {shown(found['target'])}", "bold underline"),)
    began = guard_words.moment(found["began"])
    if found["ended"] is None:
        yield ((f"began {began}, and is not over", ""),)
        state = found["state"]
        yield ((f"now {guard.sentence(state, now)}", guard_words.style(state["phase"])),)
        yield from ((line,) for line in guard_words.details(state, now))
    else:
        lasted = figures.span(found["ended"] - found["began"])
        yield ((f"began {began}, over after {lasted}", ""),)
    yield (("", ""),)
    for step in steps:
        yield from _told(step)
        yield from ((line,) for line in _numbers(step["inputs"]))


def _told(step: Json) -> Iterator[Sequence[Line]]:
    """When, into which phase, and why: in a line where it has room, else in several."""
    at = f"{guard_words.moment(step['at'])}  "
    changed = step["phase"] != step["phase_before"]
    style = f"bold {guard_words.style(step['phase'])}" if changed else "dim"
    title = f"{guard.phase(step['phase']):12}"
    said = shown(step["reason"], LONGEST_SENTENCE)
    if len(at) + len(title) + 2 + len(said) <= MOST_COLUMNS:
        yield (at, ""), (title, style), (f"  {said}", "")
    else:
        yield (at, ""), (title, style)
        yield from ((line,) for line in wrapped(f"    {said}"))


def _numbers(inputs: Json) -> Iterator[Line]:
    """Yield what is known of the numbers behind a step."""
    rest = dict(inputs)
    if "readings" in rest and "rule" in rest:
        yield from _finding(rest)
        return
    speedups = {
        name: value for name, value in rest.items() if isinstance(value, Mapping) and _is(value)
    }
    if speedups:
        yield _row(list(_SPEEDUPS), _SPEEDUPS), "dim"
    for name, value in speedups.items():
        minutes = figures.span(value["samples"] * MINUTE)
        between = f"{value['lower']:.2f} to {value['upper']:.2f}"
        cells = [_NAMES.get(name, shown(name)), f"{value['value']:.2f}", between, minutes]
        yield _row(cells, _SPEEDUPS), ""
        del rest[name]
    if isinstance(before := rest.pop("speedup_before", None), float):
        yield f"    {before:.2f} was the speedup by the earlier baseline", ""
    if isinstance(slower := rest.pop("slowdown", None), float):
        yield f"    {slower:.2f} times as long as it says takes serving without speculation", ""
    if "requests" in rest:
        count = rest.pop("requests")
        yield f"    {figures.counted(count, 'request')} ran or waited then", ""
    if "seconds" in rest:
        away = figures.seconds(rest.pop("seconds"))
        yield f"    {away} from the restart until it was healthy", ""
    for name, value in rest.items():
        yield f"    {shown(name)}: {shown(str(value), LONGEST_NAME)}", ""


def _finding(found: dict[str, Any]) -> Iterator[Line]:
    where = f"model {shown(found['model_name'])}"
    if found["temperature"] != ALL_TEMPERATURES:
        where += f", temperature {shown(found['temperature'])}"
    summary = clean(found.get("summary") or "")
    yield from wrapped(f"    {where}{f': {summary}' if summary else ''}")
    if found.get("since") is not None:
        yield f"    in breach since {guard_words.moment(found['since'])}", ""
    if not found["readings"]:
        return
    yield _row(list(_READINGS), _READINGS), "dim"
    for read in found["readings"]:
        yield from _reading(read)


def _reading(read: Json) -> Iterator[Line]:
    metric = shown(read["metric"])
    low, high = (amount(metric, read[name]) for name in ("lower", "upper"))
    between = figures.UNKNOWN if read["lower"] is None else f"{low} to {high}"
    side, line = ("below", read["below"]) if read["above"] is None else ("above", read["above"])
    fires = f"{side} {amount(metric, line)}"
    yield _row([metric, amount(metric, read["value"]), between, fires], _READINGS), ""
    facts = [f"over {figures.span(read['window'])}"]
    for name in ("drafts", "requests"):
        if read[name]:
            facts.append(figures.counted(read[name], name.removesuffix("s")))
    facts += [str(read[name]) for name in ("basis", "missing", "note") if read[name]]
    yield from wrapped(f"      {shown(', '.join(facts), LONGEST_SENTENCE)}", "dim")


def _is(value: Mapping[str, Any]) -> bool:
    """Whether it is an interval."""
    return value.keys() >= {"value", "lower", "upper", "samples"}


def _row(cells: Sequence[str], columns: Mapping[str, int]) -> str:
    from specwatch.cli.terminal import row

    widths = list(columns.values())
    right = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return row([f"    {cells[0]:{widths[0]}}", *right], "  ")
