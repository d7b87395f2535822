"""Minutes of a target that are in the store, or counted in later windows: not to be added again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import ALL, HOUR, MINUTE, Window
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.store import schema
from specwatch.store.counts import PackedWindow
from specwatch.store.repository import Store

BACKFILL = " backfill"
"""Suffix of the version of a run that is a backfill."""
_FAR = 1e11
_LOCK = 0x73706266  # "spbf": one backfill writes at a time into one Postgres

_minutes, _hours, _series = schema.minutes, schema.hours, schema.series
_runs, _cursors = schema.runs, schema.cursors


def counted_minutes(store: Store, target: str, since: float) -> dict[str, MinuteSet]:
    """Minutes since a time (Unix seconds) that windows of any daemon count, by model.

    A window that was observed, or down, for longer than its length also counts the gap before it:
    its counts began that much before its end. For deleted minutes their hour is used.
    """
    minutes_of: dict[str, MinuteSet] = defaultdict(MinuteSet)

    def windows(length: int) -> Iterator[Window]:
        return store.windows(
            since=since, until=_FAR, target=target, dimension=ALL.dimension, length=length
        )

    for window in windows(MINUTE):
        end = window.start + MINUTE
        begun = end - max(window.observed_seconds + window.down_seconds, MINUTE)
        minutes_of[window.series.model_name].add_span(max(begun, since), end)
    with store.connected() as connection:
        pruned = _pruned_until(connection, target)
    observed: dict[tuple[str, int], float] = defaultdict(float)
    for window in windows(HOUR):
        if window.start < pruned.get(window.series.model_name, 0):
            seconds = window.observed_seconds + window.down_seconds
            observed[window.series.model_name, window.start] += seconds
    for (model, hour), seconds in observed.items():
        # Which of its minutes counts a gap is unknown: at worst the first.
        before = max(seconds - HOUR - MINUTE, 0.0)
        begun = hour + MINUTE - seconds if before else hour
        minutes_of[model].add_span(max(begun, since), hour + HOUR)
    return minutes_of


def watched_models(store: Store, target: str) -> list[str]:
    """Models of a target that are in the store, the latest first."""
    known = [watched for watched in store.targets() if watched.target == target]
    ordered = sorted(known, key=lambda watched: -watched.last_start)
    return list(dict.fromkeys(watched.model_name for watched in ordered))


def backfilled(store: Store, target: str, since: int, until: int) -> MinuteSet:
    """Minutes of a target in a span that only backfills have written."""
    query = (
        sa.select(_minutes.c.start, _runs.c.version)
        .select_from(_minutes.join(_series).join(_runs, _runs.c.id == _minutes.c.run_id))
        .where(_minutes.c.start >= since, _minutes.c.start < until, _series.c.target == target)
        .distinct()
    )
    with store.connected() as connection:
        rows = connection.execute(query).all()
    watched = {row.start for row in rows if not row.version.endswith(BACKFILL)}
    return MinuteSet(row.start for row in rows if row.start not in watched)


def daemon_runs(store: Store) -> bool:
    """Whether a run of any daemon has not ended, as far as the store knows."""
    with store.connected() as connection:
        return any(_running(connection, None))


class Hold(NamedTuple):
    """A daemon's cursor at a target: the daemon counts the time after it itself."""

    daemon: str
    wall: float
    """When the daemon read the target last (Unix seconds)."""
    runs: bool
    """Whether a run of the daemon has not ended, as far as the store knows."""


def holds(store: Store, target: str) -> list[Hold]:
    """Every daemon that has a cursor at a target, the earliest cursor first."""
    with store.connected() as connection:
        return _holds(connection, target)


def writing_daemon(store: Store, target: str, hour: int) -> str | None:
    """The daemon that wrote most of an hour of a target, or else the last one that wrote any.

    None if there is no such daemon. An hour is read from one daemon only, so all of it needs one.
    """
    grid = _minutes.c.start >= hour, _minutes.c.start < hour + HOUR
    of_hour = (
        sa.select(_series.c.daemon)
        .select_from(_minutes.join(_series))
        .where(*grid, _series.c.target == target)
        .group_by(_series.c.daemon)
        .order_by(sa.func.count(_minutes.c.start.distinct()).desc(), _series.c.daemon)
    )
    latest = (
        sa.select(_series.c.daemon)
        .where(_series.c.target == target)
        .order_by(_series.c.last_start.desc(), _series.c.daemon)
    )
    with store.connected() as connection:
        for query in (of_hour, latest):
            daemon = connection.execute(query.limit(1)).scalar()
            if daemon is not None:
                return str(daemon)
    return None


def pick_missing(
    target: str, hour: int, gone: Sequence[Hold] = ()
) -> Callable[[sa.Connection, Sequence[PackedWindow]], list[PackedWindow]]:
    """A function that picks, inside a transaction, the windows of an hour that are not stored.

    Cursors of daemons that are ``gone`` are deleted with the first window after them. The function
    raises ConfigError if one of these daemons has come back.
    """

    def pick(connection: sa.Connection, windows: Sequence[PackedWindow]) -> list[PackedWindow]:
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        last = max((window.start for window in windows), default=0)
        _delete_cursors(connection, target, [hold for hold in gone if hold.wall < last + MINUTE])
        grid = range(hour, hour + HOUR, MINUTE)
        query = (
            sa.select(_series.c.model_name, _minutes.c.start)
            .select_from(_minutes.join(_series))
            .where(_minutes.c.start.in_(grid), _series.c.target == target)
            .distinct()
        )
        stored = {(row.model_name, row.start) for row in connection.execute(query)}
        pruned = _pruned_until(connection, target)
        rolled = (
            sa.select(_series.c.model_name)
            .select_from(_hours.join(_series))
            .where(_hours.c.start == hour, _series.c.target == target)
            .distinct()
        )
        lost = {m for m in connection.execute(rolled).scalars() if pruned.get(m, 0) > hour}
        return [
            window
            for window in windows
            if window.series.model_name not in lost
            and (window.series.model_name, window.start) not in stored
        ]

    return pick


def _pruned_until(connection: sa.Connection, target: str) -> dict[str, int]:
    """The time before which the minutes of each model were deleted."""
    query = (
        sa.select(_series.c.model_name, sa.func.max(_series.c.pruned_until))
        .where(_series.c.target == target)
        .group_by(_series.c.model_name)
    )
    return {row[0]: int(row[1]) for row in connection.execute(query)}


def _running(connection: sa.Connection, daemon: str | None) -> list[str]:
    """Versions of the daemon's runs (of all where it is None) that have not ended."""
    query = sa.select(_runs.c.version).where(_runs.c.ended_at.is_(None))
    if daemon is not None:
        query = query.where(_runs.c.daemon == daemon)
    versions = connection.execute(query).scalars().all()
    return [version for version in versions if not version.endswith(BACKFILL)]


def _holds(connection: sa.Connection, target: str) -> list[Hold]:
    query = sa.select(_cursors.c.daemon, _cursors.c.wall).where(_cursors.c.target == target)
    return [
        Hold(row.daemon, row.wall, bool(_running(connection, row.daemon)))
        for row in connection.execute(query.order_by(_cursors.c.wall)).all()
    ]


def _delete_cursors(connection: sa.Connection, target: str, gone: Sequence[Hold]) -> None:
    now = {hold.daemon: hold for hold in _holds(connection, target)} if gone else {}
    for hold in gone:
        current = now.get(hold.daemon)
        if current is None:
            continue  # with an earlier hour
        if current != hold:
            raise ConfigError(
                f"daemon {quoted(hold.daemon)} has come back to {quoted(target)} meanwhile; leave"
                " --past-cursor out"
            )
        mine = _cursors.c.daemon == hold.daemon, _cursors.c.target == target
        connection.execute(_cursors.delete().where(*mine))
