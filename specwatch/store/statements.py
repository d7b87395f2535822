"""Statements that writing, reading and upkeep share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from specwatch.errors import DamagedRow
from specwatch.store import damage, schema
from specwatch.store.contexts import Context, context_id


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


def add_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    replace: bool = False,
) -> None:
    """Insert many rows, past SQLAlchemy, which takes twice as long; existing ones stay, or are
    ``replace``d."""
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
    arrays = ", ".join(
        f"%b::{table.c[name].type.compile(connection.dialect)}[]" for name in columns
    )
    connection.exec_driver_sql(
        f"{into} SELECT * FROM unnest({arrays}) ON CONFLICT {conflict}",  # noqa: S608
        tuple(map(list, zip(*rows, strict=True))),
    )


def fetch_rows(connection: sa.Connection, statement: str) -> list[tuple[Any, ...]]:
    """All rows of a statement without parameters, as the driver returns them.

    SQLAlchemy's rows take twice as long. Postgres sends them in binary form, in which blobs have
    half the size. Raises what the connection raises.
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


def add_contexts(
    connection: sa.Connection, contexts: Iterable[Context], known: Collection[int]
) -> set[int]:
    """Insert contexts that are not known to exist, and repair damaged ones; returns their ids."""
    new = {context.id: context.content for context in contexts if context.id not in known}
    if new:
        # In one order everywhere, so that two daemons never wait for each other's locks.
        connection.execute(
            insert(connection, schema.contexts).on_conflict_do_nothing(),
            [{"id": id_, "content": new[id_]} for id_ in sorted(new)],
        )
        table = schema.contexts
        for id_ in sorted(new.keys() - contents_of(connection, new).keys()):
            repaired = table.update().where(table.c.id == id_).values(content=new[id_])
            connection.execute(repaired)
            damage.of(connection).end(DamagedRow(table.name, {"id": id_}, ""))
    return set(new)


def contents_of(connection: sa.Connection, ids: Collection[int]) -> dict[int, str]:
    """Contents of contexts by id, without those that are damaged."""
    if not ids:
        return {}
    table = schema.contexts
    rows = connection.execute(sa.select(table).where(table.c.id.in_(ids))).all()
    for id_ in set(ids).difference(row.id for row in rows):
        damage.of(connection).note(DamagedRow(table.name, {"id": id_}, "is missing"))
    return dict(damage.sound(damage.of(connection), table, rows, content_of))


def content_of(row: sa.Row[Any]) -> tuple[int, str]:
    """The id and the content of a context. Raises ValueError for one that is damaged."""
    damage.require_types(schema.contexts, row._fields, row)
    if context_id(row.content) != row.id:
        raise ValueError("content is not what was stored")
    return row.id, row.content


def sound_series(
    connection: sa.Connection, *where: sa.ColumnElement[bool]
) -> Sequence[sa.Row[Any]]:
    """Rows of series, by id, without those that are damaged."""
    rows = connection.execute(sa.select(schema.series).where(*where).order_by(schema.series.c.id))
    return list(damage.sound(damage.of(connection), schema.series, rows.all(), series_of))


def series_of(row: sa.Row[Any]) -> sa.Row[Any]:
    """A row of series unchanged. Raises ValueError for a damaged one."""
    damage.require_types(schema.series, row._fields, row)
    return row
