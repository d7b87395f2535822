"""``specwatch guard explain``: an incident with the numbers that led to each step."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from specwatch.cli import guard_books, options
from specwatch.config.rules.condition import nearest
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError

if TYPE_CHECKING:
    from specwatch.store.guard_records import GuardBook, StepRecord

_LATEST = "latest"
_MOST_STEPS = 10_000
"""Steps that are looked through for incidents."""


@click.command(name="explain")
@click.argument("incident", metavar="INCIDENT|latest")
@click.option("--target", metavar="NAME", help="The latest of this target.")
@guard_books.book_options
def command(
    incident: str, target: str | None, file: Path | None, database: str | None, as_json: bool
) -> None:
    """Show all steps of an incident, with the numbers that led to them.

    `specwatch guard history` shows which incidents there were.
    """
    if target is not None and incident != _LATEST:
        raise click.UsageError("--target goes with latest; an incident has its target in its name")
    with guard_books.opened(database, file) as book:
        steps = _steps(book, incident, target)
        state = guard_books.chosen(book, steps[0].target).state
    current = state.incident is not None and state.incident.id == steps[0].incident
    found = {
        "incident": steps[0].incident,
        "target": steps[0].target,
        "began": steps[0].at,
        "ended": None if current else steps[-1].at,
        "steps": [asdict(step) for step in steps],
        "state": msgspec.to_builtins(state) if current else None,
    }
    if as_json:
        options.print_json(found)
        return
    from specwatch.cli.guard_story import lines
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    for line in lines(found, time.time()):
        terminal.line(*line)


def _steps(book: GuardBook, incident: str, target: str | None) -> list[StepRecord]:
    """The steps of one incident, oldest first."""
    if incident != _LATEST:
        found = book.history(incident=incident) if incident else []
        return found[::-1] or _unknown(book, incident)
    name = None if target is None else guard_books.chosen(book, target).state.target
    steps = book.history(target=name, limit=_MOST_STEPS)
    latest = next((step.incident for step in steps if step.incident), None)
    if latest is None:
        raise SpecwatchError("there was no incident yet")
    return [step for step in reversed(steps) if step.incident == latest]


def _unknown(book: GuardBook, incident: str) -> list[StepRecord]:
    steps = book.history(limit=_MOST_STEPS)
    known = list(dict.fromkeys(step.incident for step in steps if step.incident))
    if not known:
        raise SpecwatchError("there was no incident yet")
    raise click.BadParameter(
        f"there is no incident {quoted(incident)}; {nearest(incident, known[:10])}",
        param_hint="INCIDENT",
    )
