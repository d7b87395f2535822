"""The guard in words: its state, as JSON has it, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from specwatch.wording import figures
from specwatch.wording.guard import Json, notes, phase, standing, trial
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

Line = tuple[str, str]
"""Text and style."""

_STYLES = {
    "held": "red", "rolling_back": "red", "suspect": "yellow", "confirmed": "yellow",
    "draining": "yellow", "restarting": "yellow", "verifying": "yellow", "trial": "yellow",
}  # fmt: skip
_NOTES = {"wrong": "red", "waiting": ""}
"""The styles of notes on it; of all others yellow."""
_TABLE = {
    "target": 20, "state": 12, "for": 7, "wanted": 6, "guarded by": 12, "trial": 7, "actions": 7,
}  # fmt: skip
"""Headers and widths; with a space between them, 77 columns."""


def moment(time: float) -> str:
    """A Unix time as the clock on the wall shows it: ``2026-11-19 14:33:05``."""
    return f"{datetime.fromtimestamp(time, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def style(name: str) -> str:
    """The style of a phase."""
    return _STYLES.get(name, "")


def details(state: Json, now: float) -> Iterator[Line]:
    """Yield what is waited for or wrong, a pause, and an order that is not done yet."""
    for said, kind in notes(state, now, moment):
        yield from wrapped(f"  {said}", _NOTES.get(kind, "yellow"))


def target_lines(guard: Json | None, now: float) -> Iterator[Line]:
    """Yield lines on the guard of one target, as the daemon's API gives it; None is no guard."""
    if guard is None:
        return
    state = guard["state"]
    yield from wrapped(f"guard: {standing(guard, now)}", style(state["phase"]) if state else "")
    if state is not None:
        yield from details(state, now)
    if guard["error"]:
        yield from wrapped(f"guard failing: {shown(guard['error'], LONGEST_SENTENCE)}", "red")


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
        figures.UNKNOWN if one["trial_in"] is None else trial(state, now),
        f"{one['actions_today']}{most}",
    ]


def _row(cells: Sequence[str]) -> str:
    from specwatch.cli.terminal import row

    widths = list(_TABLE.values())
    texts = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
    return row(texts).rstrip()
