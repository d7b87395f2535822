"""``specwatch guard status``: where the guard of each target is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from specwatch.cli import guard_books, options
from specwatch.config.guard import Guard
from specwatch.guard.state import Phase

if TYPE_CHECKING:
    from specwatch.store.guard_records import Entry


@click.command(name="status")
@guard_books.target_argument
@guard_books.book_options
def command(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show where the guard of each target is, or that of TARGET, and what it waits for.

    Exit code 1 when one is held: something failed, and a person has to look.
    """
    loaded = guard_books.configured(database, file)
    with guard_books.opened(database, file) as book:
        if target is None:
            entries = list(guard_books.guards(book, loaded).values())
        else:
            entries = [guard_books.chosen(book, target, loaded)]
    if not entries:
        raise guard_books.unguarded(None)
    now = time.time()
    policy = None if loaded is None else loaded.guard
    found = [_known(entry, policy, now) for entry in entries]
    held = any(entry.state.phase is Phase.HELD for entry in entries)
    if as_json:
        options.print_json({"held": held, "mode": policy and policy.mode, "guards": found})
    else:
        _show(found, policy, now)
    if held:
        raise click.exceptions.Exit(1)


def _known(entry: Entry, policy: Guard | None, now: float) -> dict[str, Any]:
    state = entry.state
    return {
        "target": state.target,
        "daemon": entry.daemon if entry.left > 0 else "",
        "actions_today": len(state.acted(now)),
        "max_actions_per_day": policy and policy.max_actions_per_day,
        "trial_in": None if state.rearm_at is None else max(state.rearm_at - now, 0.0),
        "state": msgspec.to_builtins(state),
    }


def _show(found: list[dict[str, Any]], policy: Guard | None, now: float) -> None:
    from specwatch.cli import guard_words
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    if policy is not None and policy.mode != "act":
        terminal.line(f"guard.mode is {policy.mode}: of its own accord the guard restarts nothing")
    for line, style in guard_words.table(found, now):
        terminal.line((line, style))
