"""The guard in words: its state, as JSON has it, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

Json = Mapping[str, Any]
Line = tuple[str, str]
"""Text and style."""

_STYLES = {
    "held": "red", "rolling_back": "red", "suspect": "yellow", "confirmed": "yellow",
    "draining": "yellow", "restarting": "yellow", "verifying": "yellow", "trial": "yellow",
}  # fmt: skip
_TABLE = {
    "target": 20, "state": 12, "for": 7, "wanted": 6, "guarded by": 12, "trial": 7, "actions": 7,
}  # fmt: skip
"""Headers and widths; with a space between them, 77 columns."""


def moment(time: float) -> str:
    """A Unix time as the clock on the wall shows it: ``2026-11-19 14:33:05``."""
    return f"{datetime.fromtimestamp(time, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def phase(name: str) -> str:
    """``rolling back``."""
    return shown(name).replace("_", " ")


def style(name: str) -> str:
    """The style of a phase."""
    return _STYLES.get(name, "")


def sentence(state: Json, now: float) -> str:
    """``disabled for 3 h, a trial in 2 h``."""
    said = f"{phase(state['phase'])} for {figures.span(now - state['since'])}"
    if state["phase"] != "disabled":
        return said
    if state["rearm_at"] is None:
        return f"{said}, until a person enables it"
    ordered = state["incident"] is not None and state["incident"]["cause"] == "person"
    return f"{said}, {'speculation comes back' if ordered else 'a trial'} {_trial(state, now)}"


def details(state: Json, now: float) -> Iterator[Line]:
    """Yield what is waited for or wrong, a pause, and an order that is not done yet."""
    if state["why"] and state["phase"] in ("held", "rolling_back"):
        yield from _indented(state["why"], "red")
    if state["waiting"]:
        yield from _indented(f"waiting: {state['waiting']}", "")
    pause = state["pause"]
    if pause is not None and now < pause["until"]:
        until = f"until {moment(pause['until'])}, {figures.span(pause['until'] - now)} left"
        yield from _indented(f"paused by {pause['by']} {until}{_because(pause)}", "yellow")
    order = state["order"]
    if order is not None:
        yield from _indented(f"not done yet: {ordered(order)}", "yellow")


def ordered(order: Json) -> str:
    """``ann wants speculation off until 2026-11-19 14:33:05: it garbles``."""
    until = "" if order["until"] is None else f" until {moment(order['until'])}"
    return f"{order['by']} wants speculation {order['goal']}{until}{_because(order)}"


def target_lines(guard: Json | None, now: float) -> Iterator[Line]:
    """Yield lines on the guard of one target, as the daemon's API gives it; None is no guard."""
    if guard is None:
        return
    state = guard["state"]
    if state is None:
        yield "guard: not known yet", ""
    else:
        mode = "" if guard["mode"] == "act" else f" (guard.mode is {shown(guard['mode'])})"
        said = f"guard: {sentence(state, now)}{mode}"
        if not guard["ours"]:
            said += f"; {by_whom(guard['holder'])}"
        yield from wrapped(said, style(state["phase"]))
        yield from details(state, now)
    if guard["error"]:
        yield from wrapped(f"guard failing: {shown(guard['error'], LONGEST_SENTENCE)}", "red")


def by_whom(holder: str) -> str:
    """Which daemon guards it."""
    return f"guarded by {shown(holder)}" if holder else "no daemon guards it now"


def table(guards: Sequence[Json], now: float) -> Iterator[Line]:
    """Yield a table of guards as ``guard status --json`` has them: a line each, and details."""
    yield _row(list(_TABLE)), "dim"
    for one in guards:
        state, name = one["state"], shown(one["target"])
        if len(name) > _TABLE["target"]:
            yield name, ""
            name = ""
        yield _row([name, *_cells(one, state, now)]), style(state["phase"])
        if not one["daemon"]:
            yield "  no daemon guards it now: what is stored is what was known last", "red"
        yield from details(state, now)
        incident = state["incident"]
        if incident is not None:
            yield f"  specwatch guard explain {shown(incident['id'])}", "dim"


def step_line(step: Json, *, target: bool = False, incident: bool = False) -> Sequence[Line]:
    """One step as parts of a line, with its target and incident where those are to be told."""
    whose = f"{shown(step['target'])}  " if target else ""
    which = f"  [{shown(step['incident'])}]" if incident and step["incident"] else ""
    changed = step["phase"] != step["phase_before"]
    return (
        (f"{moment(step['at'])}  {whose}", ""),
        (f"{phase(step['phase']):12}  ", style(step["phase"]) if changed else "dim"),
        (shown(step["reason"], LONGEST_SENTENCE), ""),
        (which, "dim"),
    )


def _cells(one: Json, state: Json, now: float) -> list[str]:
    most = "" if one["max_actions_per_day"] is None else f" of {one['max_actions_per_day']}"
    return [
        phase(state["phase"]),
        figures.span(now - state["since"]),
        state["goal"] or figures.UNKNOWN,
        shown(one["daemon"], _TABLE["guarded by"]) or "nobody",
        figures.UNKNOWN if one["trial_in"] is None else _trial(state, now),
        f"{one['actions_today']}{most}",
    ]


def _row(cells: Sequence[str]) -> str:
    widths = list(_TABLE.values())
    texts = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
    return " ".join(texts).rstrip()


def _trial(state: Json, now: float) -> str:
    left = state["rearm_at"] - now
    return "due" if left <= 0 else f"in {figures.span(left)}"


def _because(of: Json) -> str:
    return f": {of['why']}" if of["why"] else ""


def _indented(said: str, style: str) -> Iterator[Line]:
    yield from wrapped(f"  {shown(said, LONGEST_SENTENCE)}", style)
