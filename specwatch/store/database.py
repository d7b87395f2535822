"""A database: connections with bounded waits, and its failures as StoreError."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from specwatch.errors import ConfigError, StoreMalformed, StoreUnavailable
from specwatch.store import schema

_LOCK = 0x73706563  # "spec": one change of tables at a time on one Postgres
SQLITE_BUSY_SECONDS = 2.0
SQLITE_WAL_PAGES = 1000
SQLITE_WAL_BYTES = 8 * 2**20
POSTGRES_CONNECT_SECONDS = 3
POSTGRES_LOCK_MS = 3000
POSTGRES_STATEMENT_MS = 4000

_POSTGRES_LIMITS = {
    "connect_timeout": POSTGRES_CONNECT_SECONDS,
    "application_name": "specwatch",
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
"""Connection parameters that bound every network wait; the URL's query overrides them."""

_SQLITE_REMEDIES = (
    ("locked", "another process holds it locked; specwatch will try again"),
    ("busy", "another process holds it locked; specwatch will try again"),
    ("readonly", "it cannot be written; check owner, permissions and mount of file and directory"),
    ("Permission denied", "this user may not use it; use sudo, or check owner and permissions"),
    (
        "full",
        "there is no space left for it; free some, or shorten the retention (if there is space, the"
        " file is damaged: run `specwatch db check`)",
    ),
    ("unable to open", "it cannot be opened; check that its directory exists and is writable"),
    (
        "not a database",
        "it is not an SQLite database, or damaged; move it away, or give specwatch another one",
    ),
    (
        "no such",
        "its tables are not those of specwatch; move it away, or give specwatch another one",
    ),
)
_REMEDY = "a daemon puts it aside and begins a new one; `specwatch db check` looks at it"
_SQLITE_DAMAGE = ("malformed", "string or blob too big", "codec can't decode")


class Database:
    """Connections to one database by URL.

    Every failure inside :meth:`reading` and :meth:`writing` is raised as StoreUnavailable. The
    constructor raises ConfigError for a URL that cannot be used. No statement waits much longer
    than 5 s, and 10 s for a server that hangs, except with ``migrating``, which removes the limits.
    """

    def __init__(self, url: str, *, migrating: bool = False) -> None:
        self._url = parse_url(url)
        self._migrating = migrating
        self._file: tuple[int, int] | None = None
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.where = where(self._url)
        try:
            self.engine = self._sqlite() if self.is_sqlite else self._postgres()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{self.where} needs the package {error.name}; install it:"
                f" {sys.executable} -m pip install 'psycopg[binary]'"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection in a transaction for reading."""
        with self._translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection in a transaction for writing; on SQLite there is one at a time."""
        with self._translated():
            engine = self.engine.execution_options(specwatch_begin="BEGIN IMMEDIATE")
            with engine.begin() as connection:
                yield connection

    def prepare(self) -> None:
        """Create the directory of a SQLite file, for its owner only."""
        if self.is_sqlite:
            with self._translated():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def exists(self) -> bool:
        """Whether the SQLite file exists; for Postgres, only connecting shows it.

        Raises StoreUnavailable for a file that this user may not find or read.
        """
        if not self.is_sqlite:
            return True
        with self._translated():
            try:
                os.stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            if not os.access(self.path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return True

    def was_replaced(self) -> bool:
        """Whether there is now another SQLite file, or none, under the name of the open one."""
        return self._file is not None and self._identity() != self._file

    def remember_file(self) -> None:
        """Make :meth:`was_replaced` compare with the current file."""
        self._file = self._identity() if self.is_sqlite else None

    def dispose(self) -> None:
        """Close all connections; the next use opens new ones."""
        self.engine.dispose()

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(self._url.database or "")

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _sqlite(self) -> sa.Engine:
        engine = sa.create_engine(
            self._url, connect_args={"timeout": SQLITE_BUSY_SECONDS}, pool_timeout=2
        )
        sa.event.listen(engine, "connect", self._on_sqlite_connect)
        sa.event.listen(engine, "begin", _on_sqlite_begin)
        return engine

    def _on_sqlite_connect(self, connection: sqlite3.Connection, _: object) -> None:
        # The driver's own BEGIN comes too late for a write lock; the begin event sends ours.
        connection.isolation_level = None
        # The driver would refuse all rows of a query for one text that is not UTF-8.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        connection.execute(f"PRAGMA foreign_keys={'OFF' if self._migrating else 'ON'}")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={SQLITE_WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit={SQLITE_WAL_BYTES}")
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        _use_wal(connection)

    def _postgres(self) -> sa.Engine:
        engine = sa.create_engine(
            self._url,
            pool_pre_ping=True,
            pool_timeout=2,
            connect_args={
                name: self._url.query.get(name, value) for name, value in _POSTGRES_LIMITS.items()
            },
        )
        sa.event.listen(engine, "connect", self._on_postgres_connect)
        if not self._migrating:
            from specwatch.store.postgres_connection import BoundedConnection

            def connect(_: object, __: object, args: Any, options: Any) -> BoundedConnection:
                return BoundedConnection.connect(*args, **options)

            sa.event.listen(engine, "do_connect", connect)
        return engine

    def _on_postgres_connect(self, connection: Any, _: object) -> None:
        # Set by statement: connection poolers refuse the start-up parameter `options`.
        limit = 0 if self._migrating else POSTGRES_STATEMENT_MS
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {limit}")
            cursor.execute(f"SET lock_timeout = {POSTGRES_LOCK_MS}")
            cursor.execute("SET idle_in_transaction_session_timeout = 10000")
        connection.commit()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout, sqlite3.Error, OSError, UnicodeDecodeError) as error:
            message = self._explain(error)
            kind = StoreMalformed if _REMEDY in message else StoreUnavailable
            raise kind(message) from error

    def _explain(self, error: Exception) -> str:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        message = " ".join(str(cause).split())
        if isinstance(self._url.password, str) and self._url.password:
            message = message.replace(self._url.password, "***")
        if self.is_sqlite:
            if any(words in message for words in _SQLITE_DAMAGE):
                return f"{self.where}: it is damaged; {_REMEDY} ({message})"
            for words, remedy in _SQLITE_REMEDIES:
                if words in message:
                    return f"{self.where}: {remedy} ({message})"
        return f"{self.where}: {message}"


def parse_url(url: str) -> sa.URL:
    """A database URL with the driver that specwatch uses. Raises ConfigError."""
    expected = (
        "expected sqlite:////absolute/path/file.db or postgresql://user:password@host/database"
    )
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:
        # Not quoted: an invalid URL may still have a password.
        raise ConfigError(f"database: this is not a database URL; {expected}") from error
    name = parsed.drivername
    if name in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if name not in ("sqlite", "sqlite+pysqlite"):
        raise ConfigError(f"database: {name} is not supported; {expected}")
    if parsed.database in (None, "", ":memory:") or "file:" in (parsed.database or ""):
        raise ConfigError(f"database: {name} without a file would lose everything; {expected}")
    return parsed


def where(url: sa.URL) -> str:
    """The name of a database in messages, without a password."""
    if url.get_backend_name() == "sqlite":
        return f"SQLite database {url.database}"
    place = url.host or url.query.get("host") or "local socket"
    port = f":{url.port}" if url.port else ""
    return f"Postgres database {url.database or url.username or ''} on {place}{port}"


def create(url: str) -> bool:
    """Create the tables of the newest schema in a database without any; False if it has some.

    Without alembic, as that takes 10 MB of memory at a daemon's first start.
    Raises SchemaMismatch and StoreUnavailable as an upgrade does.
    """
    with changing_tables(url) as (connection, _):
        if schema.found_revision(connection) is not None:
            return False
        schema.create_all(connection)
        version = sa.Table(
            "alembic_version",
            sa.MetaData(),
            sa.Column("version_num", sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
        )
        version.create(connection, checkfirst=True)  # a downgrade to nothing leaves it
        connection.execute(version.insert().values(version_num=schema.CURRENT))
        return True


@contextmanager
def changing_tables(url: str) -> Iterator[tuple[sa.Connection, Database]]:
    """A transaction in which no other process changes the tables of the database."""
    database = Database(url, migrating=True)
    try:
        database.prepare()
        with database.writing() as connection:
            if not database.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            yield connection, database
    finally:
        database.dispose()


def _on_sqlite_begin(connection: sa.Connection) -> None:
    begin = connection.get_execution_options().get("specwatch_begin", "BEGIN")
    connection.exec_driver_sql(begin)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL, with retries: processes that do so at once get errors."""
    for attempt in range(40):
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if attempt == 39 or not re.search("locked|busy", str(error)):
                raise
            time.sleep(0.05)
