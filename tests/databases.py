"""Stores of tests: many are opened, each for a moment, and importing this makes that cheap.

The tables of a new SQLite file are copied, not created one by one; tests of migrations call the
real :func:`specwatch.store.database.create`. A statement is compiled once, not for each database.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa

from specwatch.store import database, repository
from specwatch.store.database import Database

_lock = threading.Lock()
_dialects: dict[str, sa.Dialect] = {}
_statements: dict[Any, Any] = {}
"""Compiled, by dialect and statement."""


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


def _sharing_statements(make: Callable[[Database], sa.Engine]) -> Callable[[Database], sa.Engine]:
    """Engines with one dialect, which a statement is compiled for, but for those of migrations:
    they find tables by the schema that the dialect remembers."""

    def made(self: Database) -> sa.Engine:
        engine = make(self)
        if self._migrating:
            return engine
        name, own = engine.dialect.name, engine.dialect
        if name in _dialects:
            engine.dialect = _dialects[name]
        else:  # it knows the version of its server once it has connected
            sa.event.listen(engine, "first_connect", lambda *_: _dialects.setdefault(name, own))
        return engine.execution_options(compiled_cache=_statements)

    return made


repository.create = create
for kind in ("_sqlite", "_postgres"):
    setattr(Database, kind, _sharing_statements(getattr(Database, kind)))
