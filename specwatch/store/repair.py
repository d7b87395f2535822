"""Checking a database for damage and repairing it: for an operator, beside a daemon or without.

A malformed SQLite file is replaced by a new one with all rows that can be read.
See https://www.sqlite.org/pragma.html#pragma_integrity_check and, on reading files that nobody
vouches for, https://www.sqlite.org/security.html.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from specwatch.domain.model import MINUTE
from specwatch.errors import DamagedRow, StoreMalformed, StoreUnavailable
from specwatch.store import damaged_rows, schema
from specwatch.store.damage import place_of
from specwatch.store.damaged_rows import SetAside
from specwatch.store.database import SQLITE_BUSY_SECONDS, Database, create, parse_url

_MOST_PROBLEMS = 20
_MOST_TRIES = 20_000
"""Spans of one table that are tried: each damaged page costs some ten."""
_LAST_START = 10**11
_ROWS_AT_ONCE = 500
"""Rows that are moved in one transaction, so that a daemon does not wait long."""
_FILES = ("", "-wal", "-shm")
"""Suffixes of the files of one database."""
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What SQLite raises for a damaged page, and its driver for a damaged name in the message."""


class Rebuilt(NamedTuple):
    """The result of a rebuild: the path of the old file, and the saved rows by table.

    Some rows of the ``incomplete`` tables could not be read.
    """

    kept: Path
    rows: Mapping[str, int]
    incomplete: tuple[str, ...]


class Checked(NamedTuple):
    """The result of a check: problems that SQLite finds in its file, rows that cannot be decoded,
    and rows that were set aside before. The rows of a malformed file are not checked."""

    problems: list[str]
    damaged: list[DamagedRow]
    aside: list[SetAside]

    @property
    def sound(self) -> bool:
        """Whether there is nothing to repair."""
        return not self.problems and not self.damaged


class Repaired(NamedTuple):
    """The result of a repair: ``moved`` rows are in ``damaged_rows``, ``left`` rows are still
    damaged."""

    rebuilt: Rebuilt | None
    moved: list[DamagedRow]
    left: list[DamagedRow]


def check(url: str) -> Checked:
    """Check a whole database without changing it. Raises StoreError."""
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
    """Rebuild a malformed file from what can be read, and set damaged rows aside.

    ``now`` is Unix time in seconds. Raises StoreError.
    """
    rebuilt = rebuild(url, now) if problems(url) else None
    damaged = check(url).damaged
    database = Database(url)
    try:
        for first in range(0, len(damaged), _ROWS_AT_ONCE):
            some = damaged[first : first + _ROWS_AT_ONCE]
            with database.writing() as connection:
                damaged_rows.set_aside(connection, some, now, thorough=True)
    finally:
        database.dispose()
    left = check(url).damaged if damaged else []
    still = set(map(place_of, left))
    return Repaired(rebuilt, [row for row in damaged if place_of(row) not in still], left)


def problems(url: str) -> list[str]:
    """Problems that SQLite finds in its file; empty for a sound one and for Postgres.

    Raises StoreUnavailable if the file cannot be read now.
    """
    database = Database(url, migrating=True)
    if not database.is_sqlite or not database.exists():
        return []
    try:
        with database.reading() as connection:
            result = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_PROBLEMS})")
            lines = [line for line in map(str, result.scalars()) if line != "ok"]
            revision = schema.found_revision(connection)
            if schema.is_damaged(revision):
                lines.append(f"its schema revision is {revision!a}")
            elif revision == schema.CURRENT and not lines:
                for table in schema.metadata.tables.values():  # as the code expects them
                    connection.execute(sa.select(table).limit(1)).all()
    except StoreMalformed as error:
        return [str(error)]
    finally:
        database.dispose()
    return lines


def rebuild(url: str, now: float) -> Rebuilt:
    """Copy what can be read of a SQLite file into a new one, which takes its name.

    The old file stays beside it, as ``NAME.damaged-TIME``. No other process can write meanwhile; a
    running daemon switches to the new file automatically. Raises StoreUnavailable if another
    process writes, or there is no space.
    """
    path = Path(parse_url(url).database or "")
    fresh = path.with_name(f"{path.name}.repaired")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    fresh_url = str(parse_url(url).set(database=str(fresh)))
    _remove(fresh)
    try:
        create(fresh_url)
        with _held(path):
            rows, incomplete = _copied(path, fresh)
            _take_place(path, fresh, kept)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"{path}: cannot be rebuilt: {error}; it is unchanged. Free some space, stop what"
            " writes to it, or check owner and permissions of its directory"
        ) from error
    finally:
        _remove(fresh)
    return Rebuilt(kept, rows, incomplete)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Lock a file against other writers, if SQLite can open it at all."""
    with closing(sqlite3.connect(path, SQLITE_BUSY_SECONDS, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            raise  # locked, or read-only
        except sqlite3.DatabaseError:
            pass  # no other process can write either
        yield


def _copied(path: Path, fresh: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Copy all rows that can be read; how many by table, and tables that are incomplete.

    The database copies them, so that values of a wrong type or encoding stay unchanged.
    """
    incomplete = []
    rows = {}
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        # With writable_schema, a table whose definition is damaged does not hide others.
        connection.executescript(
            "PRAGMA foreign_keys=OFF; PRAGMA synchronous=OFF; PRAGMA trusted_schema=OFF;"
            " PRAGMA cell_size_check=ON; PRAGMA writable_schema=ON"
        )
        with suppress(*_UNREADABLE):  # then nothing can be read
            connection.execute("ATTACH DATABASE ? AS damaged", (str(path),))
        for table in schema.metadata.sorted_tables:
            name = str(table.name)
            if not _copy(connection, table):
                incomplete.append(name)
            counted = connection.execute(f"SELECT count(*) FROM main.{name}")  # noqa: S608
            rows[name] = int(counted.fetchone()[0])
    return rows, tuple(incomplete)


def _copy(connection: sqlite3.Connection, table: sa.Table) -> bool:
    """Copy a table in spans of its key, halving unreadable ones; whether all was read."""
    try:
        known = {row[1] for row in connection.execute(f"PRAGMA damaged.table_info({table.name})")}
    except _UNREADABLE:
        known = set()
    names = [column.name for column in table.columns if column.name in known]
    if not names:
        # A table of a later version is not in the file.
        return table is schema.damaged_rows
    columns = ", ".join(names)
    copy = (
        f"INSERT OR IGNORE INTO main.{table.name} ({columns})"  # noqa: S608
        f" SELECT {columns} FROM damaged.{table.name}"
    )
    with suppress(*_UNREADABLE):
        connection.execute(copy)
        return True
    if table is schema.cursors:
        return False  # a daemon starts without them
    key, unit, end = "rowid", 1, 2**63 - 1
    if table in (schema.minutes, schema.hours):
        key, unit, end = "start", MINUTE, _LAST_START // MINUTE
    spans = deque([(0, end)])
    for _ in range(_MOST_TRIES):
        if not spans:
            break
        first, end = spans.popleft()
        try:
            connection.execute(f"{copy} WHERE {key} >= ? AND {key} < ?", (first * unit, end * unit))
        except _UNREADABLE:
            if end - first > 1:
                middle = (first + end) // 2
                spans += [(first, middle), (middle, end)]
    return False


def _take_place(path: Path, fresh: Path, kept: Path) -> None:
    """Give a new file the name, the owner and the mode of the old one, which gets another name."""
    old, new = os.stat(path), os.stat(fresh)
    os.chmod(fresh, old.st_mode & 0o7777)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.chown(fresh, old.st_uid, old.st_gid)
    for suffix in _FILES[1:]:
        # Closing the file has emptied its log.
        Path(f"{fresh}{suffix}").unlink(missing_ok=True)
    _sync(fresh)
    for suffix in reversed(_FILES):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{kept}{suffix}")
    os.rename(fresh, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _remove(path: Path) -> None:
    for suffix in _FILES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
