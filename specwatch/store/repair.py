"""Looking a database over for damage, and mending it: for a person, beside a daemon or without."""

from __future__ import annotations

from typing import NamedTuple

from specwatch.errors import DamagedRow
from specwatch.store import damaged_rows
from specwatch.store.damaged_rows import SetAside
from specwatch.store.database import Database
from specwatch.store.rebuild import Rebuilt, problems, rebuild

_ROWS_AT_ONCE = 500
"""Rows that are moved in one transaction, so that a daemon need not wait long."""


class Checked(NamedTuple):
    """What was found: what SQLite finds wrong with its file, rows that cannot be decoded, and
    those that were set aside before. While the file is malformed rows are not looked at."""

    problems: list[str]
    damaged: list[DamagedRow]
    aside: list[SetAside]

    @property
    def sound(self) -> bool:
        """Whether there is nothing to repair."""
        return not self.problems and not self.damaged


class Repaired(NamedTuple):
    """What was done: ``moved`` are rows in ``damaged_rows`` now, ``left`` are still damaged."""

    rebuilt: Rebuilt | None
    moved: list[DamagedRow]
    left: list[DamagedRow]


def check(url: str) -> Checked:
    """Look at a whole database; changes nothing. Raises StoreError."""
    wrong = problems(url)
    if wrong:
        return Checked(wrong, [], [])
    database = Database(url, migrating=True)
    try:
        with database.reading() as connection:
            return Checked([], list(damaged_rows.scan(connection)), damaged_rows.read(connection))
    finally:
        database.dispose()


def repair(url: str, now: float) -> Repaired:
    """Make a new file of what can be read of a malformed one, and set damaged rows aside.

    ``now`` is Unix time in seconds. Raises StoreError.
    """
    rebuilt = rebuild(url, now) if problems(url) else None
    damaged = check(url).damaged
    database = Database(url)
    try:
        for first in range(0, len(damaged), _ROWS_AT_ONCE):
            with database.writing() as connection:
                some = damaged[first : first + _ROWS_AT_ONCE]
                damaged_rows.set_aside(connection, some, now, thorough=True)
    finally:
        database.dispose()
    left = check(url).damaged if damaged else []
    still = {(row.table, *row.key.values()) for row in left}
    moved = [row for row in damaged if (row.table, *row.key.values()) not in still]
    return Repaired(rebuilt, moved, left)
