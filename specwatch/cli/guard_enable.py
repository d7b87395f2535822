"""``specwatch guard enable``: switch speculation on, by order of a person."""

from __future__ import annotations

from pathlib import Path

import click

from specwatch.cli import guard_books, guard_orders
from specwatch.domain.model import Mode


@click.command(name="enable")
@guard_books.target_argument
@guard_orders.waiting_options
@guard_books.person_options
@guard_books.book_options
def command(
    target: str | None,
    no_wait: bool,
    timeout: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Have the daemon restart TARGET as its owner wrote it, with speculation.

    The guard then keeps its hands off for guard.respect; a pause keeps it off for longer. Exit code
    1 when that was refused or failed, or is not done in time: the order then stays.
    """
    wish = guard_orders.Wish(Mode.ON, by, reason)
    with guard_books.opened(database, file) as book:
        guard_orders.carry_out(
            book, target, wish, timeout=None if no_wait else timeout, as_json=as_json
        )
