"""Rolling minutes up into hours, and deleting what is older than its retention.

Both work in short transactions that first lock their series, so that no minute is added to an hour
while it is built or deleted. The progress of each series is written in the same transaction: a
daemon that is killed continues where it stopped.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import HOUR, MINUTE
from specwatch.store import guard_rows, partitions, schema
from specwatch.store.counts import COLUMNS, Context, context_of, row_of
from specwatch.store.database import Database
from specwatch.store.statements import (
    add_contexts,
    add_rows,
    lock_series,
    series_of,
)

GRACE = 300
"""Seconds after the end of an hour until it is rolled up."""

_SERIES_AT_ONCE = 10
_DELETED_SERIES_AT_ONCE = 500
_PAUSE = 0.02
"""Seconds between transactions, for others that write to the database."""

_LARGEST = 2**63 - 1
_FREE_SHARE = 4
_VACUUMED_PAGES = 2000
_PRUNE_LOCK = 0x73707275  # "spru": one daemon prunes at a time on one Postgres
_ROLL_UP_LOCK = 0x7370726F  # "spro": one daemon rolls up at a time
_ELSEWHERE = -1
_ELSEWHERE_SECONDS = 0.5
"""Seconds between two looks whether another member has rolled everything up."""

_minutes, _hours, _series = schema.minutes, schema.hours, schema.series


class Pruned(NamedTuple):
    """Numbers of deleted rows."""

    minutes: int = 0
    hours: int = 0
    runs: int = 0
    baselines: int = 0
    verdicts: int = 0
    guard_steps: int = 0
    guards: int = 0
    cursors: int = 0
    experiments: int = 0


def closed_until(now: float) -> int:
    """The end of the last hour that can be rolled up at a time (Unix seconds)."""
    return int((now - GRACE) // HOUR) * HOUR


def roll_up(
    database: Database, until: int, stopping: threading.Event, *, daemon: str | None
) -> int:
    """Build all hours before ``until`` that lack minutes, of one daemon or of all.

    Returns how many hours of a series were built. Raises StoreUnavailable; hours that were built
    before stay.
    """
    built = 0
    while not stopping.is_set():
        with database.writing() as connection:
            turn = _roll_up_turn(connection, until, daemon)
        if turn is None:
            break
        built += max(turn, 0)
        stopping.wait(_ELSEWHERE_SECONDS if turn == _ELSEWHERE else _PAUSE)
    return built


def prune(
    database: Database,
    minutes_before: float,
    hours_before: float,
    baselines_before: float,
    stopping: threading.Event,
) -> Pruned:
    """Delete what starts before those times (Unix seconds; whole hours at a time, and of minutes
    on Postgres whole days).

    Baselines are as old as their newest point, and guards of targets that are gone have the limit
    of the minutes; all other tables that of the hours.
    Minutes that are not in an hour yet are rolled up first. Raises StoreUnavailable; rows that were
    deleted before stay deleted.
    """
    cutoff = minutes_before // HOUR * HOUR
    roll_up(database, int(cutoff), stopping, daemon=None)
    dropped = 0
    if not database.is_sqlite:
        dropped, cutoff = partitions.drop(database, cutoff)
    deleted = Pruned(
        dropped + _prune_hourly(database, stopping, _minutes, cutoff, _prune_minutes),
        _prune_hourly(database, stopping, _hours, hours_before, _prune_hours),
    )
    with database.writing() as connection:
        if _try_lock(connection, _PRUNE_LOCK):
            deleted = deleted._replace(
                runs=_prune_runs(connection, cutoff),
                baselines=_delete(connection, schema.baselines.c.measured_at, baselines_before),
                verdicts=_delete(connection, schema.verdicts.c.at, hours_before),
                guard_steps=_delete(connection, schema.guard_steps.c.at, hours_before),
                guards=guard_rows.prune(connection, minutes_before),
                cursors=_delete(connection, schema.cursors.c.wall, hours_before),
                experiments=_delete(connection, schema.experiments.c.ended_at, hours_before),
            )
    if database.is_sqlite:
        _shrink(database, stopping)
    return deleted


def _prune_hourly(
    database: Database,
    stopping: threading.Event,
    table: sa.Table,
    before: float,
    delete: Callable[[sa.Connection, int], int],
) -> int:
    """Delete rows that start before a time, some of an hour in each transaction."""
    first = deleted = 0
    while not stopping.is_set():
        with database.writing() as connection:
            locked = _try_lock(connection, _PRUNE_LOCK)
            hour = _first_hour(connection, table, first, before) if locked else None
            if hour is None:
                break
            rows = delete(connection, hour)
        deleted += rows
        # An hour may keep rows: those of series that are not rolled up so far.
        first = hour if rows else hour + HOUR
        stopping.wait(_PAUSE)
    return deleted


def _roll_up_turn(connection: sa.Connection, until: int, daemon: str | None) -> int | None:
    """Roll up the next hour of some series; None if there is nothing left to do, and
    :data:`_ELSEWHERE` while another process does it."""
    pending = (_series.c.rolled_until < until, _series.c.last_start >= _series.c.rolled_until)
    query = sa.select(_series.c.id).where(*pending)
    if daemon is not None:
        query = query.where(_series.c.daemon == daemon)
    query = query.order_by(_series.c.rolled_until, _series.c.id).limit(_SERIES_AT_ONCE)
    ids = connection.execute(query).scalars().all()
    if not ids:
        return None
    if not _try_lock(connection, _ROLL_UP_LOCK, daemon or ""):
        return _ELSEWHERE
    locked = lock_series(connection, ids)
    # They may have changed before the lock: take one hour, and the current rows.
    since = min(row.rolled_until for row in locked)
    members = {row.id: row for row in locked if row.rolled_until == since}
    if since >= until:
        return 0
    hour = _first_hour(connection, _minutes, since, until, members)
    built = 0 if hour is None else _build_hours(connection, hour, members)
    connection.execute(
        _series.update()
        .where(_series.c.id.in_(members))
        .values(rolled_until=until if hour is None else hour + HOUR)
    )
    return built


def _first_hour(
    connection: sa.Connection,
    table: sa.Table,
    since: float,
    until: float,
    members: Iterable[int] | None = None,
) -> int | None:
    """The first hour in which a table has rows (of some series) that start in since..until."""
    query = sa.select(table.c.start).where(table.c.start >= since, table.c.start < until)
    if members is not None:
        query = query.where(table.c.series_id.in_(members))
    start = connection.execute(query.order_by(table.c.start).limit(1)).scalar()
    return None if start is None else int(start - start % HOUR)


def _build_hours(connection: sa.Connection, hour: int, members: dict[int, sa.Row[Any]]) -> int:
    # numpy takes memory that a daemon without a finished hour does not need.
    from specwatch.store.frame import Frame
    from specwatch.store.frame_sum import sum_by_hour

    in_hour = (_minutes.c.start >= hour, _minutes.c.start < hour + HOUR)
    ids = ", ".join(map(str, members))
    # Each minute by its key: a range would read past the minutes of all other series.
    grid = ", ".join(map(str, range(hour, hour + HOUR, MINUTE)))
    contexts: dict[int, Context] = {}
    series = {id_: series_of(row) for id_, row in members.items()}
    where = f"start IN ({grid}) AND series_id IN ({ids})"
    frame = Frame.read(connection, _minutes, where, members, contexts)
    built = dict(sum_by_hour(frame, series))
    touched = set(frame.series.tolist())
    # If minutes of the hour were deleted, late ones are added to the stored hour.
    partial = {id_ for id_ in touched if members[id_].pruned_until > hour}
    if partial:
        where = f"start = {hour} AND series_id IN ({', '.join(map(str, partial))})"
        stored = Frame.read(connection, _hours, where, partial, contexts)
        for key, window in sum_by_hour(stored, series):
            late = built.get(key)
            parts = [window] if late is None else [window, late]
            built[key] = merge_windows(parts, start=hour, length=HOUR)
        connection.execute(_minutes.delete().where(*in_hour, _minutes.c.series_id.in_(partial)))
    connection.execute(
        _hours.delete().where(_hours.c.start == hour, _hours.c.series_id.in_(touched))
    )
    numbers = {context: id_ for id_, context in contexts.items()}
    numbers |= add_contexts(connection, map(context_of, built.values()), numbers)
    new = []
    for key, window in built.items():
        context_id = numbers[context_of(window)]
        new.append((hour, key.series_id, context_id, key.load_bin, *row_of(window, _LARGEST)))
    if new:
        columns = ("start", "series_id", "context_id", "load_bin", *COLUMNS)
        add_rows(connection, _hours, columns, new)
    return len(touched)


def _try_lock(connection: sa.Connection, lock: int, daemon: str = "") -> bool:
    """Take a lock (of one daemon's rows) until the transaction ends, if nobody has it; on SQLite
    the transaction itself is the lock."""
    if connection.dialect.name == "sqlite":
        return True
    key = zlib.crc32(daemon.encode()) >> 1  # a signed number of 32 bits
    query = f"SELECT pg_try_advisory_xact_lock({lock}, {key})"
    return bool(connection.exec_driver_sql(query).scalar())


def _prune_hours(connection: sa.Connection, hour: int) -> int:
    in_hour = (_hours.c.start >= hour, _hours.c.start < hour + HOUR)
    return connection.execute(_hours.delete().where(*in_hour)).rowcount


def _prune_minutes(connection: sa.Connection, hour: int) -> int:
    """Delete an hour's minutes of some series for which it was rolled up."""
    in_hour = (_minutes.c.start >= hour, _minutes.c.start < hour + HOUR)
    present = sa.select(_minutes.c.series_id).where(*in_hour).distinct().scalar_subquery()
    candidates = (
        sa.select(_series.c.id)
        .where(_series.c.rolled_until >= hour + HOUR, _series.c.id.in_(present))
        .order_by(_series.c.id)
        .limit(_DELETED_SERIES_AT_ONCE)
    )
    locked = lock_series(connection, connection.execute(candidates).scalars().all())
    members = [row.id for row in locked if row.rolled_until >= hour + HOUR]
    if not members:
        return 0
    deleted = connection.execute(
        _minutes.delete().where(*in_hour, _minutes.c.series_id.in_(members))
    ).rowcount
    connection.execute(
        _series.update()
        .where(_series.c.id.in_(members), _series.c.pruned_until < hour + HOUR)
        .values(pruned_until=hour + HOUR)
    )
    return deleted


def _prune_runs(connection: sa.Connection, cutoff: float) -> int:
    """Delete runs without minutes: those with a successor that began before the cutoff."""
    runs, later = schema.runs, schema.runs.alias("later")
    succeeded = sa.exists().where(
        later.c.daemon == runs.c.daemon, later.c.id > runs.c.id, later.c.started_at <= cutoff
    )
    return connection.execute(runs.delete().where(succeeded)).rowcount


def _delete(connection: sa.Connection, time: sa.Column[Any], before: float) -> int:
    """Delete the rows of a table whose ``time`` is earlier; returns how many."""
    return connection.execute(time.table.delete().where(time < before)).rowcount


def _shrink(database: Database, stopping: threading.Event) -> None:
    """Return free pages to the file system, but keep those that the next day needs."""
    while not stopping.is_set():
        with database.writing() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
            if free * _FREE_SHARE <= pages:
                return
            # It frees one page per row, and the driver fetches no rows if there are no columns.
            driver = connection.connection.driver_connection
            if driver is not None:
                driver.executescript(f"PRAGMA incremental_vacuum({_VACUUMED_PAGES})")
        stopping.wait(_PAUSE)
