"""``specwatch guard disable``: switch speculation off, by order of a person."""

from __future__ import annotations

from pathlib import Path

import click

from specwatch.cli import guard_books, guard_orders, options
from specwatch.domain.model import Mode


def _duration(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    return None if text is None else options.duration(context, parameter, text)


@click.command(name="disable")
@guard_books.target_argument
@click.option(
    "--for", "seconds", callback=_duration, metavar="DURATION",
    help="Then it is switched on again; without it, it stays off.",
)  # fmt: skip
@guard_orders.waiting_options
@guard_books.person_options
@guard_books.book_options
def command(
    target: str | None,
    seconds: float | None,
    no_wait: bool,
    timeout: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Have the daemon restart TARGET without speculation, whatever the guard thinks of it.

    It drains, restarts and verifies as it does by itself, also where guard.mode is observe. Exit
    code 1 when that was refused or failed, or is not done in time: the order then stays.
    """
    wish = guard_orders.Wish(Mode.OFF, by, reason, seconds)
    with guard_books.opened(database, file) as book:
        guard_orders.carry_out(
            book, target, wish, timeout=None if no_wait else timeout, as_json=as_json
        )
