"""``specwatch guard pause``: have the guard begin nothing, for a while."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from specwatch.cli import guard_books, guard_words, options
from specwatch.guard import orders
from specwatch.guard.state import CALM, GuardState, Phase
from specwatch.wording.guard import phase
from specwatch.wording.text import LONGEST_SENTENCE, shown


@click.command(name="pause")
@guard_books.target_argument
@click.option(
    "--for", "seconds", default="24h", show_default=True, callback=options.duration,
    metavar="DURATION", help="For how long; then the guard goes on by itself.",
)  # fmt: skip
@guard_books.person_options
@guard_books.book_options
def command(
    target: str | None,
    seconds: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Have the guard of TARGET begin nothing of its own accord.

    It goes on judging, and what a person orders is done. What has not restarted vLLM yet is given
    up; a restart under way is brought to its end.
    """
    now = time.time()
    until = now + seconds
    with guard_books.opened(database, file) as book:
        name = guard_books.chosen(book, target).state.target
        state = book.change(
            name,
            lambda found: orders.pause(found, until=until, by=by, why=reason),
            now,
            by=guard_books.DAEMON,
        )
    if as_json:
        options.print_json({"target": name, "state": msgspec.to_builtins(state)})
        return
    click.echo(f"{shown(name)} is paused by {shown(by)} until {guard_words.moment(until)}")
    under_way = _under_way(state)
    if under_way:
        click.echo(shown(under_way, LONGEST_SENTENCE))


def _under_way(state: GuardState) -> str:
    if state.phase is Phase.HELD:
        return "it is held besides: `specwatch guard resume` ends both"
    if state.phase in CALM:
        return ""
    if state.phase is Phase.DRAINING:
        return "it drains the server now, and gives that up unless a person ordered it"
    return f"it is {phase(state.phase)} now, and brings that to its end first"
