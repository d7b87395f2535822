"""Runs: one row for each process that has written as a daemon."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.model import MINUTE
from specwatch.store.contexts import storable
from specwatch.store.schema import minutes, runs


class Run(NamedTuple):
    """One process that writes as a daemon; ``id`` is 0 until it is registered."""

    started_at: int
    identity: dict[str, Any]
    id: int = 0


def register(connection: sa.Connection, run: Run) -> Run:
    """Add the run, unless this database knows it: retried writes must find the same id."""
    values = run.identity | {"started_at": run.started_at}
    if run.id:
        known = sa.select(runs.c.id).where(
            runs.c.id == run.id, *(runs.c[name] == value for name, value in values.items())
        )
        if connection.execute(known).first():
            return run
    added = connection.execute(runs.insert().returning(runs.c.id), values).scalar_one()
    return run._replace(id=int(added))


def end(connection: sa.Connection, run: Run, now: float) -> None:
    """Note when a run ended (Unix seconds)."""
    connection.execute(runs.update().where(runs.c.id == run.id).values(ended_at=int(now)))


def rivals(connection: sa.Connection, run: Run, now: float) -> list[str]:
    """Other processes that write as the daemon of a run now, each as ``HOST, pid PID``."""
    writing = (
        sa.select(minutes.c.run_id)
        .where(minutes.c.start >= max(run.started_at + MINUTE, now - 10 * MINUTE))
        .where(minutes.c.run_id != run.id)
        .distinct()
    )
    query = sa.select(runs.c.host, runs.c.pid).where(
        runs.c.id.in_(writing), runs.c.daemon == run.identity["daemon"]
    )
    rows = connection.execute(query).all()
    return [storable(f"{row.host}, pid {row.pid}") for row in rows]
