"""Damage of a SQLite file: how it is found, and how the file is put aside for a new one.

Nothing is salvaged: a damaged file is kept under another name, for a person.
See https://www.sqlite.org/pragma.html#pragma_integrity_check and https://www.sqlite.org/howtocorrupt.html.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy as sa

from specwatch.errors import StoreMalformed, StoreUnavailable
from specwatch.store import schema
from specwatch.store.database import SQLITE_BUSY_SECONDS, Database

_MOST_PROBLEMS = 20
_MAGIC = b"SQLite format 3\0"
_FILES = ("", "-wal", "-shm")
"""Suffixes of the files of one database."""


def problems(database: Database) -> list[str]:
    """Problems that SQLite finds in its file; empty for a sound one and for Postgres.

    Raises StoreUnavailable if the file cannot be read now.
    """
    if not database.is_sqlite or not database.exists():
        return []
    try:
        with database.reading() as connection:
            result = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_PROBLEMS})")
            found = [line for line in map(str, result.scalars()) if line != "ok"]
            if not found and schema.found_revision(connection) == schema.CURRENT:
                found = _unlike_tables(connection)
            return found
    except StoreMalformed as error:
        return [str(error)]


def _unlike_tables(connection: sa.Connection) -> list[str]:
    """Why the tables of our revision are not those of the code: a damaged definition."""
    try:
        for table in schema.metadata.tables.values():
            connection.execute(sa.select(table).limit(1)).all()
    except sa.exc.OperationalError as error:
        return [str(error.orig)]
    return []


def put_aside(database: Database, now: float) -> Path:
    """Rename a damaged SQLite file to ``NAME.damaged-TIME``; returns the new path.

    ``now`` is Unix time in seconds. Raises StoreUnavailable if another process writes, if the file
    cannot be renamed, or if it has no SQLite header: it may belong to another program.
    """
    path = database.path
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise StoreUnavailable(
                    f"{path} has no SQLite header, so it was not touched: give specwatch another"
                    " database, or move the file away"
                )
        with closing(sqlite3.connect(path, SQLITE_BUSY_SECONDS, isolation_level=None)) as writer:
            try:
                writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                raise  # locked, or read-only
            except sqlite3.DatabaseError:
                pass  # too damaged to be locked: no other process can write to it either
            for suffix in reversed(_FILES):
                with suppress(FileNotFoundError):
                    os.rename(f"{path}{suffix}", f"{kept}{suffix}")
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"{path} is damaged, and cannot be put aside: {error}. Stop what writes to it, or check"
            " owner and permissions of its directory"
        ) from error
    return kept


def damaged_files(database: Database) -> tuple[str, ...]:
    """The names of damaged files that were put aside and are still there, the oldest first."""
    if not database.is_sqlite:
        return ()
    prefix = f"{database.path.name}.damaged-"
    try:
        names = os.listdir(database.path.parent)
    except OSError:
        return ()  # opening the database fails with the same reason
    return tuple(sorted(n for n in names if n.startswith(prefix) and not n.endswith(_FILES[1:])))
