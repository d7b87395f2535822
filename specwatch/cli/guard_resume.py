"""``specwatch guard resume``: end a pause, or a hold."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from specwatch.cli import guard_books, options
from specwatch.guard import orders
from specwatch.guard.state import Phase
from specwatch.wording.text import LONGEST_SENTENCE, shown


@click.command(name="resume")
@guard_books.target_argument
@guard_books.by_option
@guard_books.book_options
def command(
    target: str | None, by: str, file: Path | None, database: str | None, as_json: bool
) -> None:
    """End a pause of the guard of TARGET, or a hold: it looks at the server anew.

    Where there is neither, nothing changes, and that is said.
    """
    now = time.time()
    with guard_books.opened(database, file) as book:
        before = guard_books.chosen(book, target).state
        state = book.change(
            before.target,
            lambda found: orders.resume(found, by=by, now=now),
            now,
            by=guard_books.DAEMON,
        )
    changed = state != before
    if as_json:
        options.print_json(
            {"target": state.target, "resumed": changed, "state": msgspec.to_builtins(state)}
        )
        return
    if not changed:
        click.echo(f"{shown(state.target)} is neither paused nor held")
        return
    click.echo(f"{shown(state.target)} is resumed by {shown(by)}")
    if before.phase is Phase.HELD:
        click.echo(shown(f"it was held: {before.why}", LONGEST_SENTENCE))
