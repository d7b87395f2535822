"""Windows of minutes as rows, and the series and runs that they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.model import HOUR, SeriesId
from specwatch.store import schema
from specwatch.store.counts import COLUMNS, Context, PackedWindow
from specwatch.store.schema import runs
from specwatch.store.statements import add_rows, insert, lock_series, series_of

_EXTEND_SERIES = """
UPDATE series SET
    first_start = CASE WHEN first_start > {first} THEN {first} ELSE first_start END,
    last_start = CASE WHEN last_start < {last} THEN {last} ELSE last_start END,
    rolled_until = CASE WHEN rolled_until > {hour} THEN {hour} ELSE rolled_until END
WHERE id IN ({members}) AND (first_start > {first} OR last_start < {last} OR rolled_until > {hour})
"""


class Run(NamedTuple):
    """One process that writes as a daemon; ``id`` is 0 until it is registered."""

    started_at: int
    identity: dict[str, Any]
    id: int = 0


def add(
    connection: sa.Connection,
    windows: Sequence[PackedWindow],
    ids: Mapping[SeriesId, int],
    contexts: Mapping[Context, int],
    run_id: int,
) -> None:
    """Write windows of series and contexts whose ids are known; one of this run takes the place of
    what it has written of the same minute before, which was not over then."""
    if not windows:
        return
    members = [ids[window.series] for window in windows]
    spans: dict[int, tuple[int, int]] = {}
    for id_, window in zip(members, windows, strict=True):
        first, last = spans.get(id_, (window.start, window.start))
        spans[id_] = (min(first, window.start), max(last, window.start))
    if connection.dialect.name != "sqlite":
        lock_series(connection, spans)
    newest = {(window.start, id_): window for id_, window in zip(members, windows, strict=True)}
    rows = [
        (start, id_, run_id, contexts[window.context], *window.columns())
        for (start, id_), window in newest.items()
    ]
    key = ("start", "series_id", "run_id", "context_id")
    add_rows(connection, schema.minutes, (*key, *COLUMNS), rows, replace=True)
    _extend_series(connection, spans)


def add_series(
    connection: sa.Connection, windows: Sequence[PackedWindow], known: Mapping[SeriesId, int]
) -> dict[SeriesId, int]:
    """Write the series of windows that are not known yet; returns their ids."""
    new = {window.series: window.start for window in windows if window.series not in known}
    if not new:
        return {}
    table = schema.series
    connection.execute(
        insert(connection, table).on_conflict_do_nothing(),
        [
            {
                "daemon": series.daemon,
                "target": series.target,
                "model_name": series.model_name,
                "dimension": series.segment.dimension,
                "value": series.segment.value,
                "first_start": start,
                "last_start": start,
                "rolled_until": start - start % HOUR,
            }
            for series, start in new.items()
        ],
    )
    query = sa.select(table).where(
        table.c.daemon.in_({series.daemon for series in new}),
        table.c.target.in_({series.target for series in new}),
    )
    ids = {series_of(row): row.id for row in connection.execute(query)}
    return {series: ids[series] for series in new}


def _extend_series(connection: sa.Connection, spans: Mapping[int, tuple[int, int]]) -> None:
    """Move each series' first and last start, and its roll-up back to the first late minute."""
    grouped = defaultdict(list)
    for id_, span in spans.items():
        grouped[span].append(id_)
    for (first, last), members in grouped.items():
        hour = first - first % HOUR
        # Without parameters: one for each id of many targets would take longer than the rest.
        connection.exec_driver_sql(
            _EXTEND_SERIES.format(
                first=first, last=last, hour=hour, members=", ".join(map(str, members))
            )
        )


def register_run(connection: sa.Connection, run: Run) -> Run:
    """Add the run, unless it exists: retried writes must find the same id."""
    values = run.identity | {"started_at": run.started_at}
    if run.id:
        known = sa.select(runs.c.id).where(
            runs.c.id == run.id, *(runs.c[name] == value for name, value in values.items())
        )
        if connection.execute(known).first():
            return run
    added = connection.execute(runs.insert().returning(runs.c.id), values).scalar_one()
    return run._replace(id=int(added))


def end_run(connection: sa.Connection, run: Run, now: float) -> None:
    """Note when a run ended (Unix seconds)."""
    connection.execute(runs.update().where(runs.c.id == run.id).values(ended_at=int(now)))
