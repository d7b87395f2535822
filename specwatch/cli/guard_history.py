"""``specwatch guard history``: what the guard did, step by step."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from specwatch.cli import guard_books, guard_words, options


@click.command(name="history")
@guard_books.target_argument
@click.option(
    "--since", default="7d", show_default=True, callback=options.moment, metavar="WHEN",
    help=options.WHEN,
)  # fmt: skip
@click.option(
    "--limit", default=200, show_default=True, type=click.IntRange(1, 100_000), metavar="N",
    help="The newest so many.",
)  # fmt: skip
@guard_books.book_options
def command(
    target: str | None,
    since: float,
    limit: int,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show what the guard did and why, oldest first: of TARGET, or of all."""
    with guard_books.opened(database, file) as book:
        name = None if target is None else guard_books.chosen(book, target).state.target
        # One more than asked for tells whether there is more.
        found = book.history(target=name, since=since, limit=limit + 1)
    more = len(found) > limit
    steps = [asdict(step) for step in reversed(found[:limit])]
    if as_json:
        options.print_json({"steps": steps, "more": more})
        return
    if not steps:
        click.echo(f"the guard took no step since {guard_words.moment(since)}")
        return
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    if more:
        terminal.line((f"the last {limit} steps; more with --limit", "dim"))
    named = len({step["target"] for step in steps}) > 1
    for step in steps:
        terminal.line(*guard_words.step_line(step, target=named, incident=True))
