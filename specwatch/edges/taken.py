"""Minutes of a target that are in the store, or counted in what is: nobody may add them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from specwatch.core.minute_set import MinuteSet
from specwatch.edges import schema
from specwatch.edges.packing import PackedWindow
from specwatch.edges.store import Store
from specwatch.model import ALL_TEMPERATURES, HOUR, MINUTE, Window

BACKFILL = " backfill"
"""How the version of a run that fills in ends."""
_FAR = 1e11
_LOCK = 0x73706266  # "spbf": one backfill writes at a time into one Postgres

_minutes, _hours, _series, _runs = schema.minutes, schema.hours, schema.series, schema.runs


def taken(store: Store, target: str, since: float) -> dict[str, MinuteSet]:
    """Minutes since a time (Unix seconds) that windows of any daemon count, by model.

    A window that was observed for longer than its length made up for a gap before it: what it
    counts began that much before its end. Where minutes were deleted, their hour stands for them.
    """
    found: dict[str, MinuteSet] = defaultdict(MinuteSet)

    def windows(length: int) -> Iterator[Window]:
        every = ALL_TEMPERATURES
        return store.windows(
            since=since, until=_FAR, target=target, temperature=every, length=length
        )

    for window in windows(MINUTE):
        end = window.start + MINUTE
        begun = end - max(window.observed_seconds, MINUTE)
        found[window.series.model_name].add_span(max(begun, since), end)
    with store.reading() as connection:
        pruned = _pruned_until(connection, target)
    observed: dict[tuple[str, int], float] = defaultdict(float)
    for window in windows(HOUR):
        if window.start < pruned.get(window.series.model_name, 0):
            observed[window.series.model_name, window.start] += window.observed_seconds
    for (model, hour), seconds in observed.items():
        # Which of its minutes made up for more is not known: the first, at worst.
        before = max(seconds - HOUR - MINUTE, 0.0)
        begun = hour + MINUTE - seconds if before else hour
        found[model].add_span(max(begun, since), hour + HOUR)
    return found


def watched_models(store: Store, target: str) -> list[str]:
    """Models of a target that are in the store, the latest first."""
    known = [each for each in store.targets() if each.target == target]
    ordered = sorted(known, key=lambda each: -each.last_start)
    return list(dict.fromkeys(each.model_name for each in ordered))


def is_backfilled(store: Store, target: str, start: int) -> bool:
    """Whether a minute of a target was filled in, from the very pages that we see."""
    query = (
        sa.select(_runs.c.version)
        .select_from(_minutes.join(_series).join(_runs, _runs.c.id == _minutes.c.run_id))
        .where(_minutes.c.start == start, _series.c.target == target)
    )
    with store.reading() as connection:
        versions = connection.execute(query).scalars().all()
    return bool(versions) and all(version.endswith(BACKFILL) for version in versions)


def daemon_runs(store: Store) -> bool:
    """Whether a run of the store's daemon has not ended, as far as the store knows."""
    query = sa.select(_runs.c.version).where(
        _runs.c.daemon == store.daemon, _runs.c.ended_at.is_(None)
    )
    with store.reading() as connection:
        versions = connection.execute(query).scalars().all()
    return any(not version.endswith(BACKFILL) for version in versions)


def free_of(
    target: str, hour: int
) -> Callable[[sa.Connection, Sequence[PackedWindow]], list[PackedWindow]]:
    """Picks, inside a transaction, the windows of an hour that nobody else wrote meanwhile."""

    def pick(connection: sa.Connection, windows: Sequence[PackedWindow]) -> list[PackedWindow]:
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        grid = range(hour, hour + HOUR, MINUTE)
        query = (
            sa.select(_series.c.model_name, _minutes.c.start)
            .select_from(_minutes.join(_series))
            .where(_minutes.c.start.in_(grid), _series.c.target == target)
            .distinct()
        )
        there = {(row.model_name, row.start) for row in connection.execute(query)}
        pruned = _pruned_until(connection, target)
        rolled = (
            sa.select(_series.c.model_name)
            .select_from(_hours.join(_series))
            .where(_hours.c.start == hour, _series.c.target == target)
            .distinct()
        )
        gone = {m for m in connection.execute(rolled).scalars() if pruned.get(m, 0) > hour}
        return [
            each
            for each in windows
            if each.series.model_name not in gone
            and (each.series.model_name, each.start) not in there
        ]

    return pick


def _pruned_until(connection: sa.Connection, target: str) -> dict[str, int]:
    """Before when the minutes of each model were deleted."""
    query = (
        sa.select(_series.c.model_name, sa.func.max(_series.c.pruned_until))
        .where(_series.c.target == target)
        .group_by(_series.c.model_name)
    )
    return {row[0]: int(row[1]) for row in connection.execute(query)}
