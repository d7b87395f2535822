"""The guard in words: states, steps, incidents, plans and costs, in lines of 80 columns."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specwatch.cli.terminal import Columns, Lines, Terminal, table
from specwatch.config.guard import Guard
from specwatch.config.service import SystemdService
from specwatch.config.target import Target
from specwatch.domain.model import ALL_TEMPERATURES, HOUR, MINUTE
from specwatch.domain.units import format_duration
from specwatch.guard.plan import FileChange, Plan
from specwatch.guard.state import GuardState
from specwatch.guard.status import GuardView
from specwatch.rules.decision_view import MeasuredSpeedup, ReadingView
from specwatch.wording import figures, speculation
from specwatch.wording.guard import notes, phase, sentence, standing, trial
from specwatch.wording.rules import amount
from specwatch.wording.text import (
    LONGEST_NAME,
    LONGEST_SENTENCE,
    MOST_COLUMNS,
    clean,
    shown,
    wrapped,
)

if TYPE_CHECKING:
    from specwatch.cli.guard_store import DisableCost, ModelSaving
    from specwatch.store.guard_records import Entry, StepRecord

Line = tuple[str, str]
"""Text and style."""

_STYLES = {
    "held": "red", "rolling_back": "red", "suspect": "yellow", "confirmed": "yellow",
    "draining": "yellow", "restarting": "yellow", "verifying": "yellow", "trial": "yellow",
}  # fmt: skip
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
_NOWHERE = "/dev/null"
_DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def moment(time: float) -> str:
    """A Unix time as the clock on the wall shows it: ``2026-11-19 14:33:05``."""
    return f"{datetime.fromtimestamp(time, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def style(name: str) -> str:
    """The style of a phase."""
    return _STYLES.get(name, "")


def details(state: GuardState, now: float) -> Iterator[Line]:
    """Yield what is waited for or wrong, a pause, and an order that is not done yet."""
    for note, kind in notes(state, now, moment):
        yield from wrapped(f"  {note}", _NOTES.get(kind, "yellow"))


def target_lines(guard: GuardView | None, now: float) -> Iterator[Line]:
    """Yield lines on the guard of one target; nothing without a guard."""
    if guard is None:
        return
    state = guard.state
    yield from wrapped(f"guard: {standing(guard, now)}", style(state.phase) if state else "")
    if state is not None:
        yield from details(state, now)
    if guard.error:
        yield from wrapped(f"guard failing: {shown(guard.error, LONGEST_SENTENCE)}", "red")


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


def print_status(rows: Sequence[GuardRow], policy: Guard | None, now: float) -> None:
    """Print a table of guards, each with its details."""
    terminal = Terminal()
    if policy is not None and policy.mode != "act":
        terminal.line(f"guard.mode is {policy.mode}: the guard does not restart a server by itself")
    terminal.lines(_table(rows, now))


def print_steps(
    steps: Sequence[StepRecord], *, limit: int | None = None, bare: bool = False
) -> None:
    """Print steps, oldest first; with incidents, and with targets if there is more than one.

    ``bare`` leaves incidents out; ``limit`` is the number requested, if there are more.
    """
    terminal = Terminal()
    if limit is not None:
        terminal.line((f"the last {limit} steps; more with --limit", "dim"))
    several = len({step.target for step in steps}) > 1
    for step in steps:
        terminal.line(*_step_line(step, target=several, incident=not bare))


def print_incident(steps: Sequence[StepRecord], state: GuardState | None, now: float) -> None:
    """Print the steps of an incident, with the state of the guard while it lasts."""
    Terminal().lines(_incident_lines(steps, state, now))


def print_plan(target: Target, plan: Plan, cost: DisableCost) -> None:
    """Print what switching speculation off would do and cost."""
    terminal = Terminal()
    terminal.line((shown(target.name), "bold underline"), f"  {clean(service_name(target))}")
    terminal.lines((shown(line, 100 * LONGEST_SENTENCE), style) for line, style in plan_lines(plan))
    terminal.lines(_cost_lines(cost))


def service_name(target: Target) -> str:
    """The service of a target in a few words."""
    service = target.service
    if isinstance(service, SystemdService):
        user = " of the user" if service.scope == "user" else ""
        return f"unit {service.unit}{user}"
    return "no service" if service is None else f"{service.kind} service"


def _table(guards: Sequence[GuardRow], now: float) -> Lines:
    """Yield a table of guards: a line each, and details."""

    def actions(guard: GuardRow) -> str:
        most = guard.max_actions_per_day
        return f"{guard.actions_today}{'' if most is None else f' of {most}'}"

    columns: Columns[GuardRow] = {
        "target": lambda guard: shown(guard.target),
        "state": lambda guard: phase(guard.state.phase),
        "for": lambda guard: figures.span(now - guard.state.since),
        "wanted": lambda guard: guard.state.goal or figures.UNKNOWN,
        "guarded by": lambda guard: shown(guard.daemon, 12) or "no daemon",
        "trial": lambda guard: trial(guard.state, now) or figures.UNKNOWN,
        "actions": actions,
    }
    header, *lines = table(columns, guards, style=lambda guard: style(guard.state.phase))
    yield header
    for guard, line in zip(guards, lines, strict=True):
        yield line
        if not guard.daemon:
            yield "  no daemon guards it now: this is its last known state", "red"
        yield from details(guard.state, now)
        incident = guard.state.incident
        if incident is not None:
            yield f"  specwatch guard explain {shown(incident.id)}", "dim"


def _step_line(step: StepRecord, *, target: bool, incident: bool) -> Sequence[Line]:
    """One step as parts of a line, with its target and incident if wanted."""
    whose = f"{shown(step.target)}  " if target else ""
    which = f"  [{shown(step.incident)}]" if incident and step.incident else ""
    return (
        (f"{moment(step.at)}  {whose}", ""),
        (f"{phase(step.phase):12}  ", style(step.phase) if _changed(step) else "dim"),
        (shown(step.reason, LONGEST_SENTENCE), ""),
        (which, "dim"),
    )


def _changed(step: StepRecord) -> bool:
    return step.phase != step.phase_before


def _incident_lines(steps: Sequence[StepRecord], state: GuardState | None, now: float) -> Lines:
    first, last = steps[0], steps[-1]
    yield f"{shown(first.incident)} of {shown(first.target)}", "bold underline"
    if state is not None:
        yield f"began {moment(first.at)}, and is not over", ""
        yield f"now {sentence(state, now)}", style(state.phase)
        yield from details(state, now)
    else:
        yield f"began {moment(first.at)}, over after {figures.span(last.at - first.at)}", ""
    yield ()
    for step in steps:
        yield from _step_parts(step)
        yield from _numbers(step.inputs)


def _step_parts(step: StepRecord) -> Lines:
    """When, into which phase, and why: in one line if it fits, else in several."""
    time = f"{moment(step.at)}  "
    styled = f"bold {style(step.phase)}" if _changed(step) else "dim"
    title = f"{phase(step.phase):12}"
    reason = shown(step.reason, LONGEST_SENTENCE)
    if len(time) + len(title) + 2 + len(reason) <= MOST_COLUMNS:
        yield (time, ""), (title, styled), (f"  {reason}", "")
    else:
        yield (time, ""), (title, styled)
        yield from wrapped(f"    {reason}")


def _numbers(inputs: Mapping[str, Any]) -> Lines:
    """Yield the numbers behind a step."""
    rest = dict(inputs)
    if "readings" in rest and "rule" in rest:
        yield from _finding_lines(rest)
        return
    speedups = [
        (name, value)
        for name, value in rest.items()
        if isinstance(value, Mapping) and value.keys() >= {"value", "lower", "upper", "samples"}
    ]
    yield from table(_SPEEDUPS, speedups, indent="    ")
    for name, _ in speedups:
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


def _finding_lines(finding: Mapping[str, Any]) -> Lines:
    where = f"model {shown(finding['model_name'])}"
    if finding["temperature"] != ALL_TEMPERATURES:
        where += f", temperature {shown(finding['temperature'])}"
    summary = clean(finding.get("summary") or "")
    yield from wrapped(f"    {where}{f': {summary}' if summary else ''}")
    if finding.get("since") is not None:
        yield f"    in breach since {moment(finding['since'])}", ""
    stored = map(speculation.stored_reading, finding["readings"])
    readings = [reading for reading in stored if reading is not None]
    if not readings:
        return
    header, *rows = table(_READINGS, readings, indent="    ")
    yield header
    for reading, row in zip(readings, rows, strict=True):
        yield row
        scope = [f"over {figures.span(reading.window)}"]
        for count, noun in ((reading.drafts, "draft"), (reading.requests, "request")):
            if count:
                scope.append(figures.counted(count, noun))
        scope += [text for text in (reading.basis, reading.missing, reading.note) if text]
        yield from wrapped(f"      {shown(', '.join(scope), LONGEST_SENTENCE)}", "dim")


def _reading_interval(reading: ReadingView) -> str:
    if reading.lower is None:
        return figures.UNKNOWN
    low, high = (amount(reading.metric, bound) for bound in (reading.lower, reading.upper))
    return f"{low} to {high}"


def _reading_fires(reading: ReadingView) -> str:
    side, line = ("below", reading.below) if reading.above is None else ("above", reading.above)
    return f"{side} {amount(reading.metric, line)}"


_READINGS: Columns[ReadingView] = {
    "metric": lambda reading: shown(reading.metric),
    "value": lambda reading: amount(reading.metric, reading.value),
    "interval": _reading_interval,
    "fires": _reading_fires,
}


def plan_lines(plan: Plan) -> Iterator[Line]:
    """Yield commands, files and steps; commands and files are not wrapped, to be copied."""
    if plan.before:
        yield "the command now", "bold"
        yield f"  {clean(shlex.join(plan.before))}", ""
    if plan.after:
        yield "the command without speculation", "bold"
        yield f"  {clean(shlex.join(plan.after))}", ""
        removed, added = _words_changed(plan)
        for title, words, style in (("removed", removed, "red"), ("added", added, "green")):
            if words:
                yield f"  {title}: {clean(shlex.join(words))}", style
    for change in plan.files:
        yield from _diff(change)
    yield "steps", "bold"
    for number, step in enumerate(plan.steps, 1):
        yield from wrapped(f"  {number}. {step}")
    for note in plan.notes:
        yield from wrapped(f"note: {note}", "yellow")


def _diff(change: FileChange) -> Iterator[Line]:
    """Yield a change of a file as a unified diff."""
    old, new = (text.splitlines() if text else [] for text in (change.before, change.after))
    source = _NOWHERE if change.before is None else change.path
    result = _NOWHERE if change.after is None else change.path
    for number, line in enumerate(difflib.unified_diff(old, new, source, result, lineterm="")):
        yield clean(line), "bold" if number < 2 else _DIFF_STYLES.get(line[:1], "")


def _words_changed(plan: Plan) -> tuple[Sequence[str], Sequence[str]]:
    """The words that go from the command, and those that come."""
    removed: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, plan.before, plan.after, autojunk=False)
    for kind, start, end, new, new_end in matcher.get_opcodes():
        if kind != "equal":
            removed += plan.before[start:end]
            added += plan.after[new:new_end]
    return removed, added


def plan_summary(plan: Plan) -> str:
    """A sentence: what goes from the command, and the steps."""
    clauses = []
    removed, added = _words_changed(plan) if plan.after else ((), ())
    if removed:
        clauses.append(f"without {shlex.join(removed)}")
    if added:
        clauses.append(f"with {shlex.join(added)}")
    return "; ".join([*clauses, *plan.steps, *plan.notes])


def _cost_lines(cost: DisableCost) -> Iterator[Line]:
    """Yield lines and their styles for what it would cost."""
    yield "cost", "bold"
    count = cost.restarts_measured
    basis = f"the median of {figures.counted(count, 'restart')}" if count else "assumed"
    seconds = figures.span(cost.restart_seconds)
    drain = format_duration(cost.drain_seconds)
    yield from wrapped(f"  {seconds} without service, {basis}, after draining for at most {drain}")
    if cost.requests is not None:
        yield f"  {figures.counted(cost.requests, 'request')} running or waiting now", ""
    for model in cost.models:
        yield from wrapped(f"  {_saving(model, cost.restart_seconds)}")
    for note in cost.notes:
        yield from wrapped(f"  {shown(note, LONGEST_SENTENCE)}", "dim")


def _saving(model: ModelSaving, restart: float) -> str:
    speedup, name = model.speedup, shown(model.model_name)
    if model.saves_seconds_per_hour is None or not isinstance(speedup, MeasuredSpeedup):
        return f"{name}: the saving is not known: the speedup is assumed, not measured"
    saved = model.saves_seconds_per_hour["value"]
    why = f"the speedup is {speedup.value:.2f} ({speedup.lower:.2f} to {speedup.upper:.2f})"
    change = f"{name}: what takes an hour now would take {figures.span(abs(saved))}"
    if saved <= 0:
        return f"{change} longer, as {why}"
    paid = figures.span(restart / saved * HOUR)
    return f"{change} less, as {why}; the restart is paid for after {paid}"
