"""Databases of tests: the tables of a new SQLite file are copied, not created one by one.

Importing this makes every store of the process do so. Tests of migrations call the real
:func:`specwatch.store.database.create`.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from specwatch.store import database, repository

_lock = threading.Lock()


def create(url: str) -> bool:
    """Do what :func:`specwatch.store.database.create` does, quickly for an empty SQLite file."""
    parsed = database.parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        with _lock, closing(sqlite3.connect(parsed.database or "")) as connection:
            if _has_no_tables(connection):
                _template().backup(connection)
                return True
    return database.create(url)


def _has_no_tables(connection: sqlite3.Connection) -> bool:
    try:
        return connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    except sqlite3.DatabaseError:
        return False


@functools.cache
def _template() -> sqlite3.Connection:
    """A database in memory with empty tables."""
    template = sqlite3.connect(":memory:", check_same_thread=False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        database.create(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as connection:
            connection.backup(template)
    return template


repository.create = create
