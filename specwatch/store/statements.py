"""Statements that writing, reading and upkeep share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
import structlog

from specwatch.domain.model import Segment, SeriesId
from specwatch.errors import ConfigError
from specwatch.store import schema
from specwatch.store.counts import Context
from specwatch.store.texts import Layout

_Row = TypeVar("_Row", bound=sa.Row[Any])
_Found = TypeVar("_Found")
_log = structlog.get_logger("specwatch.store")

UNDECODABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    msgspec.MsgspecError,
    ConfigError,
)
"""What decoding raises for what specwatch has not written."""
_MOST_NOTED = 1000
_noted: set[tuple[object, ...]] = set()
"""The rows that were logged: a table is read again and again."""


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT of the database's dialect, which has ON CONFLICT."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)


def clock(connection: sa.Connection) -> Any:
    """The database's time in Unix seconds."""
    if connection.dialect.name == "sqlite":
        return (sa.func.julianday("now") - 2440587.5) * 86400.0
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)


def decoded(
    table: sa.Table, rows: Iterable[_Row], decode: Callable[[_Row], _Found]
) -> Iterator[_Found]:
    """Yield decoded rows of a table. One that cannot be decoded, as after a hand-made change or a
    fault of the disk, is left out, and logged once."""
    for row in rows:
        try:
            found = decode(row)
        except UNDECODABLE as error:
            key = {column.name: row._mapping[column.name] for column in table.primary_key}
            note_undecodable(table, key, error)
            continue
        yield found


def note_undecodable(table: sa.Table, key: Mapping[str, object], error: Exception) -> None:
    """Log that a row cannot be decoded, the first time."""
    place = (table.name, *key.values())
    if place in _noted:
        return
    if len(_noted) < _MOST_NOTED:
        _noted.add(place)
    _log.error(
        "row_unreadable",
        table=table.name,
        row=", ".join(f"{name}={value}" for name, value in key.items()),
        detail=" ".join(str(error).split())[:300],
        remedy="it is left out; correct or delete it",
    )


def add_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    replace: bool = False,
) -> None:
    """Insert many rows, past SQLAlchemy, which takes twice as long; existing ones stay, or are
    ``replace``d. Arrays are JSON text."""
    into = f"INSERT INTO {table.name} ({', '.join(columns)})"
    key = [column.name for column in table.primary_key]
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    conflict = f"({', '.join(key)}) DO UPDATE SET {changed}" if replace else "DO NOTHING"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in columns)
        connection.exec_driver_sql(f"{into} VALUES ({marks}) ON CONFLICT {conflict}", list(rows))
        return
    # An array for each column takes half the time of a statement for each row. COPY can be faster
    # still, but would need a temporary table for the conflicts.
    arrays, chosen = [], []
    for name in columns:
        is_array = isinstance(table.c[name].type, sa.ARRAY)
        kind = "text" if is_array else table.c[name].type.compile(connection.dialect)
        arrays.append(f"%b::{kind}[]")
        chosen.append(f"translate({name}, '[]', '{{}}')::bigint[]" if is_array else name)
    connection.exec_driver_sql(
        f"{into} SELECT {', '.join(chosen)} FROM unnest({', '.join(arrays)})"  # noqa: S608
        f" AS given({', '.join(columns)}) ON CONFLICT {conflict}",
        tuple(map(list, zip(*rows, strict=True))),
    )


def selected(connection: sa.Connection, table: sa.Table, names: Sequence[str]) -> str:
    """Columns for a SELECT, with arrays as JSON text."""
    if connection.dialect.name == "sqlite":
        return ", ".join(names)
    return ", ".join(
        f"translate({name}::text, '{{}}', '[]')"
        if isinstance(table.c[name].type, sa.ARRAY)
        else name
        for name in names
    )


def fetch_rows(connection: sa.Connection, statement: str) -> list[tuple[Any, ...]]:
    """All rows of a statement without parameters, as the driver returns them.

    SQLAlchemy's rows take twice as long. Raises what the connection raises.
    """
    if connection.dialect.name == "sqlite":
        return list(connection.exec_driver_sql(statement).cursor.fetchall())
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor(binary=True) as cursor:
            return list(cursor.execute(statement).fetchall())
    except connection.dialect.loaded_dbapi.Error as error:
        raise sa.exc.DBAPIError(statement, None, error) from error


def lock_series(connection: sa.Connection, ids: Collection[int]) -> Sequence[sa.Row[Any]]:
    """Lock series until the transaction ends and return their rows, by id.

    Always locked before their rows are added, built or deleted, and in one order, which avoids
    deadlocks. On SQLite the transaction itself is the lock.
    """
    table = schema.series
    query = sa.select(table).where(table.c.id.in_(ids)).order_by(table.c.id)
    return connection.execute(query.with_for_update(key_share=True)).all()


def read_series(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> Sequence[sa.Row[Any]]:
    """Rows of series, by id."""
    return connection.execute(
        sa.select(schema.series).where(*where).order_by(schema.series.c.id)
    ).all()


def series_of(row: sa.Row[Any]) -> SeriesId:
    """The series of a row."""
    return SeriesId(row.daemon, row.target, row.model_name, Segment(row.dimension, row.value))


def add_layouts(
    connection: sa.Connection, layouts: Iterable[Layout], known: Collection[int]
) -> set[int]:
    """Insert layouts that are not known to exist; returns their ids."""
    new = {layout.id: layout.content for layout in layouts if layout.id not in known}
    if new:
        # In one order everywhere, so that two daemons never wait for each other's locks.
        connection.execute(
            insert(connection, schema.layouts).on_conflict_do_nothing(),
            [{"id": id_, "content": new[id_]} for id_ in sorted(new)],
        )
    return set(new)


def add_contexts(
    connection: sa.Connection, contexts: Iterable[Context], known: Mapping[Context, int]
) -> dict[Context, int]:
    """Insert contexts that are not known to exist; returns their ids."""
    new = {context: context.row() for context in contexts if context not in known}
    if not new:
        return {}
    table = schema.contexts
    rows = sorted(new.values(), key=lambda row: str(row["digest"]))
    connection.execute(insert(connection, table).on_conflict_do_nothing(), rows)
    query = sa.select(table.c.digest, table.c.id)
    found = connection.execute(query.where(table.c.digest.in_([row["digest"] for row in rows])))
    ids = {row.digest: row.id for row in found}
    return {context: ids[row["digest"]] for context, row in new.items()}


def contexts_of(connection: sa.Connection, ids: Collection[int]) -> dict[int, Context]:
    """Contexts by id."""
    if not ids:
        return {}
    table = schema.contexts
    rows = connection.execute(sa.select(table).where(table.c.id.in_(ids))).all()
    return dict(decoded(table, rows, lambda row: (row.id, Context.of_row(row))))
