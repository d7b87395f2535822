"""Partitions of the table ``minute_counts`` on Postgres, one for each day (UTC).

A day is dropped at once: deleting its rows would write each to the log. Partitions are made ahead.
A row without one goes to the default partition, where it is read as any other is, and deleted as on
SQLite; so nothing depends on a partition being there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from specwatch.store import schema
from specwatch.store.database import Database

_log = structlog.get_logger("specwatch.store")

DAY = 86400
_AHEAD = 2
"""Days after today whose partitions are made; it is tried several times a day."""
_LOCK = 0x73707061  # "sppa": one process changes the partitions at a time
_LOCK_MS = 200
"""How long a change waits for a lock, and others wait behind it."""

_minutes, _series = schema.minutes, schema.series

_BOUNDS = """
SELECT relname, substring(bound FROM 'FROM [(]''(-?[0-9]+)''[)]')::bigint,
    substring(bound FROM 'TO [(]''(-?[0-9]+)''[)]')::bigint
FROM (
    SELECT relname, pg_get_expr(relpartbound, pg_class.oid) AS bound
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'minute_counts'::regclass
) AS partitions WHERE bound <> 'DEFAULT' ORDER BY 3
"""


class Span(NamedTuple):
    """The times that a partition is for (Unix seconds), without ``end``."""

    first: float
    end: int


def make(database: Database, now: float) -> None:
    """Make the partitions of today and of the days after that do not exist yet."""
    if database.is_sqlite:
        return
    today = int(now // DAY) * DAY
    with database.writing() as connection:
        if not _begin(connection):
            return
        known = _spans(connection).values()
        for day in range(today, today + (1 + _AHEAD) * DAY, DAY):
            if not any(span.first <= day < span.end for span in known):
                name = time.strftime("minute_counts_%Y%m%d", time.gmtime(day))
                # Attached, as creating it in place would wait for all readers of the table.
                with _trying(connection, name):
                    storage = schema.POSTGRES_STORAGE["minute_counts"]
                    connection.exec_driver_sql(
                        f"CREATE TABLE {name} (LIKE minute_counts) WITH ({storage})"
                    )
                    connection.exec_driver_sql(
                        f"ALTER TABLE minute_counts ATTACH PARTITION {name}"
                        f" FOR VALUES FROM ({day}) TO ({day + DAY})"
                    )


def drop(database: Database, before: float) -> tuple[int, float]:
    """Drop the partitions that end before a time (Unix seconds) if all their minutes are in hours.

    Returns how many rows they had, as far as Postgres knows, and the time up to which rows of
    other partitions have to be deleted one by one.
    """
    rows = 0
    with database.writing() as connection:
        spans = _spans(connection) if _begin(connection) else {}
        for name, span in spans.items():
            if span.end <= before:
                with _trying(connection, name):
                    rows += _dropped(connection, name, span.end)
        left = _spans(connection).values()
        return rows, min([before, *(span.first for span in left)])


def _dropped(connection: sa.Connection, name: str, end: int) -> int:
    """Drop a partition; returns its rows, none if minutes of it are still to be rolled up."""
    begun = _series.c.first_start < end
    # In the order of writers: series first, then their rows.
    query = sa.select(_series).where(begun).order_by(_series.c.id).with_for_update(key_share=True)
    locked = connection.execute(query).all()
    if any(row.rolled_until < end and row.last_start >= row.rolled_until for row in locked):
        return 0
    counted = connection.exec_driver_sql(
        f"SELECT CASE WHEN reltuples < 0 THEN (SELECT count(*) FROM {name}) ELSE reltuples END"  # noqa: S608
        f" FROM pg_class WHERE oid = '{name}'::regclass"
    ).scalar_one()
    connection.exec_driver_sql("LOCK TABLE minute_counts IN ACCESS EXCLUSIVE MODE")
    connection.execute(
        _series.update().where(begun, _series.c.pruned_until < end).values(pruned_until=end)
    )
    connection.exec_driver_sql(f"DROP TABLE {name}")
    return int(counted)


def _begin(connection: sa.Connection) -> bool:
    """Begin to change partitions, unless another process does."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_MS}")
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar())


@contextmanager
def _trying(connection: sa.Connection, name: str) -> Iterator[None]:
    """A change that need not succeed now: somebody holds the table, rows of the day are in the
    default partition already, or another role owns the table."""
    try:
        with connection.begin_nested():
            yield
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        _log.warning(
            "partition_unchanged", partition=name, detail=" ".join(str(error.orig or error).split())
        )


def _spans(connection: sa.Connection) -> Mapping[str, Span]:
    """The partitions by name, the earliest first, without the default one."""
    rows = connection.exec_driver_sql(_BOUNDS).all()
    return {name: Span(first, end) for name, first, end in rows}
