"""The guard in words: states, steps and incidents, in lines of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.config.guard import Guard
from specwatch.domain.model import MINUTE, Segment
from specwatch.guard.state import GuardState
from specwatch.guard.status import GuardView
from specwatch.rules.decision_view import ReadingView
from specwatch.store.guard_records import StepRecord
from specwatch.store.guard_rows import Entry
from specwatch.wording import figures, speculation
from specwatch.wording.guard import notes, phase, sentence, standing, state_word, trial
from specwatch.wording.rules import amount
from specwatch.wording.segments import where
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown

_STYLES = {
    "held": "red",
    "rolling_back": "red",
    "suspect": "yellow",
    "confirmed": "yellow",
    "draining": "yellow",
    "restarting": "yellow",
    "verifying": "yellow",
    "trial": "yellow",
}
"""By phase."""
_NOTES = {"wrong": "red", "waiting": ""}
"""The styles of notes on it; of all others yellow."""
_NAMES = {
    "speedup": "measured speedup",
    "speedup_before": "speedup that it had before",
    "predicted_speedup": "speedup predicted for now",
}
_SPEEDUPS: Columns[tuple[str, Mapping[str, Any]]] = {
    "": lambda row: _NAMES.get(row[0], shown(row[0])),
    "value": lambda row: f"{row[1]['value']:.2f}",
    "interval": lambda row: f"{row[1]['lower']:.2f} to {row[1]['upper']:.2f}",
    "over": lambda row: figures.span(row[1]["samples"] * MINUTE),
}
_OTHER_NUMBERS: Mapping[str, Callable[[float], str]] = {
    "speedup_before": lambda ratio: f"{ratio:.2f} was the speedup by the earlier baseline",
    "slowdown": lambda ratio: (
        f"{ratio:.2f} times as long as it says takes serving without speculation"
    ),
    "requests": lambda count: f"{figures.counted(count, 'request')} ran or waited then",
    "seconds": lambda time: f"{figures.seconds(time)} from the restart until it was healthy",
}


def target_lines(guard: GuardView | None, now: float) -> Lines:
    """Yield lines on the guard of one target; nothing without a guard."""
    if guard is None:
        return
    state = guard.state
    style = _STYLES.get(state.phase, "") if state else ""
    yield from paragraph(f"guard: {standing(guard, now)}", style)
    if state is not None:
        yield from _notes(state, now)
    if guard.error:
        yield from paragraph(f"guard failing: {shown(guard.error, LONGEST_SENTENCE)}", "red")


def _notes(state: GuardState, now: float) -> Lines:
    """Yield what is waited for or wrong, a pause, and an order that is not done yet."""
    for note, kind in notes(state, now):
        yield from paragraph(f"  {note}", _NOTES.get(kind, "yellow"))


@dataclass(frozen=True, slots=True)
class GuardRow:
    """A guard as ``guard status --json`` has it; ``trial_in`` is in seconds."""

    target: str
    daemon: str
    actions_today: int
    max_actions_per_day: int | None
    trial_in: float | None
    state: GuardState


def status_row(entry: Entry, policy: Guard | None, now: float) -> GuardRow:
    """The guard that a database entry is."""
    state = entry.state
    return GuardRow(
        state.target,
        entry.daemon if entry.left > 0 else "",
        len(state.acted(now)),
        None if policy is None else policy.max_actions_per_day,
        None if state.rearm_at is None else max(state.rearm_at - now, 0.0),
        state,
    )


def print_status(guards: Sequence[GuardRow], policy: Guard | None, now: float) -> None:
    """Print a table of guards, each with its details."""
    terminal = Terminal()
    if policy is not None and policy.mode != "act":
        terminal.line(f"guard.mode is {policy.mode}: the guard does not restart a server by itself")

    def actions(guard: GuardRow) -> str:
        most = guard.max_actions_per_day
        return f"{guard.actions_today}{'' if most is None else f' of {most}'}"

    columns: Columns[GuardRow] = {
        "target": lambda guard: shown(guard.target),
        "state": lambda guard: state_word(guard.state),
        "for": lambda guard: figures.span(now - guard.state.since),
        "wanted": lambda guard: guard.state.goal or figures.UNKNOWN,
        "guarded by": lambda guard: shown(guard.daemon, 12) or "no daemon",
        "trial": lambda guard: trial(guard.state, now) or figures.UNKNOWN,
        "actions": actions,
    }

    def details(guard: GuardRow) -> Lines:
        if not guard.daemon:
            yield "  no daemon guards it now: this is its last known state", "red"
        yield from _notes(guard.state, now)
        if guard.state.incident is not None:
            yield f"  specwatch guard explain {shown(guard.state.incident.id)}", "dim"

    def style(guard: GuardRow) -> str:
        return _STYLES.get(guard.state.phase, "")

    terminal.lines(table(columns, guards, style=style, details=details))


def print_steps(
    steps: Sequence[StepRecord], *, limit: int | None = None, incidents: bool = True
) -> None:
    """Print steps, oldest first; with targets if there is more than one.

    ``limit`` is the number requested, if there are more.
    """
    terminal = Terminal()
    if limit is not None:
        terminal.line((f"the last {limit} steps; more with --limit", "dim"))
    several = len({step.target for step in steps}) > 1
    for step in steps:
        where = f"{shown(step.target)}  " if several else ""
        terminal.line(
            f"{figures.moment(step.at, seconds=True)}  {where}",
            (f"{phase(step.phase):12}  ", _style(step)),
            shown(step.reason, LONGEST_SENTENCE),
            (f"  [{shown(step.incident)}]" if incidents and step.incident else "", "dim"),
        )


def _style(step: StepRecord) -> str:
    return _STYLES.get(step.phase, "") if step.phase != step.phase_before else "dim"


def print_incident(steps: Sequence[StepRecord], state: GuardState | None, now: float) -> None:
    """Print the steps of an incident, with the state of the guard while it lasts."""
    terminal = Terminal()
    first, last = steps[0], steps[-1]
    terminal.line((f"{shown(first.incident)} of {shown(first.target)}", "bold underline"))
    if state is not None:
        terminal.line(f"began {figures.moment(first.at)}, and is not over")
        terminal.line((f"now {sentence(state, now)}", _STYLES.get(state.phase, "")))
        terminal.lines(_notes(state, now))
    else:
        terminal.line(
            f"began {figures.moment(first.at)}, over after {figures.span(last.at - first.at)}"
        )
    terminal.line()
    for step in steps:
        time, title = f"{figures.moment(step.at, seconds=True)}  ", f"{phase(step.phase):12}"
        reason = shown(step.reason, LONGEST_SENTENCE)
        fits = len(time) + len(title) + 2 + len(reason) <= terminal.width
        style = _style(step)
        styled = (title, style if style == "dim" else f"bold {style}")
        terminal.line(time, styled, f"  {reason}" if fits else "")
        if not fits:
            terminal.lines(paragraph(f"    {reason}"))
        terminal.lines(_numbers(step.inputs))


def _numbers(inputs: Mapping[str, Any]) -> Lines:
    """Yield the numbers behind a step."""
    if "readings" in inputs and "rule" in inputs:
        yield from _finding_lines(inputs)
        return
    speedups = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Mapping) and value.keys() >= {"value", "lower", "upper", "samples"}
    }
    yield from table(_SPEEDUPS, speedups.items(), indent="    ")
    rest = {name: value for name, value in inputs.items() if name not in speedups}
    for name, words in _OTHER_NUMBERS.items():
        if isinstance(rest.get(name), int | float):
            yield f"    {words(rest.pop(name))}", ""
    for name, value in rest.items():
        yield f"    {shown(name)}: {shown(str(value))}", ""


def _finding_lines(finding: Mapping[str, Any]) -> Lines:
    of = f"model {shown(finding['model_name'])}{where(Segment(**finding['segment']))}"
    summary = clean(finding.get("summary") or "")
    yield from paragraph(f"    {of}{f': {summary}' if summary else ''}")
    if finding.get("since") is not None:
        yield f"    in breach since {figures.moment(finding['since'])}", ""
    stored = map(speculation.stored_reading, finding["readings"])
    readings = [reading for reading in stored if reading is not None]

    def scope(reading: ReadingView) -> Lines:
        parts = [f"over {figures.span(reading.window)}"]
        for count, noun in ((reading.drafts, "draft"), (reading.requests, "request")):
            if count:
                parts.append(figures.counted(count, noun))
        parts += [text for text in (reading.basis, reading.missing, reading.note) if text]
        yield from paragraph(f"      {shown(', '.join(parts), LONGEST_SENTENCE)}", "dim")

    yield from table(_READINGS, readings, indent="    ", details=scope)


_READINGS: Columns[ReadingView] = {
    "metric": lambda reading: shown(reading.metric),
    "value": lambda reading: amount(reading.metric, reading.value),
    "interval": lambda reading: speculation.bounds(reading) or figures.UNKNOWN,
    "fires": speculation.threshold,
}
