"""The table ``damaged_rows``: rows that cannot be decoded, moved out of their tables unchanged.

Three kinds are special. A series stays, as windows need it: its names are made readable and its
times are computed again. A context is moved only after all rows that need it. A guard is stored
again in the phase ``held``. In each case ``damaged_rows`` has the row as it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from specwatch.domain.model import HOUR, SeriesId
from specwatch.errors import DamagedRow
from specwatch.store import cursor_rows, damage, schema
from specwatch.store.contexts import storable
from specwatch.store.damage import is_text, key_of
from specwatch.store.experiment_rows import experiment_of
from specwatch.store.guard_rows import entry_of, fresh_after_damage, step_of, targets_of
from specwatch.store.measurement_rows import measurement_of
from specwatch.store.packing import COLUMNS, assemble
from specwatch.store.statements import content_of, contents_of, insert, series_of
from specwatch.store.verdict_rows import decision_of

_table = schema.damaged_rows
_ROWS_AT_ONCE = 1000
_TIMES = ("start", "at", "ended_at", "measured_at", "last_start")
_NO_SERIES = SeriesId("", "", "", "")

Decode = Callable[[Any], object]


class SetAside(NamedTuple):
    """A row that was moved; ``at`` is the time in the row, or else when it was found (Unix
    seconds). ``target`` is empty if unknown."""

    found_at: int
    at: int
    target: str
    table: str
    key: str
    reason: str


def scan(connection: sa.Connection) -> Iterator[DamagedRow]:
    """Yield every row that cannot be decoded, and those that need a damaged context."""
    streaming = connection.execution_options(yield_per=_ROWS_AT_ONCE)
    for table, decode in _decoders(connection).items():
        for row in streaming.execute(sa.select(table)):
            why = _why(decode, row)
            if why is not None:
                yield DamagedRow(str(table.name), key_of(table, row), why)


def set_aside(
    connection: sa.Connection, rows: Iterable[DamagedRow], now: float, *, thorough: bool
) -> list[DamagedRow]:
    """Move rows that cannot be decoded; returns those that are done.

    If a key finds several rows, those that can be decoded stay. Rows with a damaged context are
    moved only if ``thorough``, as a daemon writes the context again the next time it is needed.
    Rows that the database refuses to delete stay as well.
    """
    decoders = _decoders(connection)
    done = []
    for row in rows:
        table = schema.metadata.tables[row.table]
        if table is schema.contexts and not thorough:
            continue
        try:
            with connection.begin_nested():
                _move(connection, table, row.key, decoders[table], now)
        except sa.exc.DBAPIError:
            continue
        done.append(row)
    return done


def read(
    connection: sa.Connection, since: float = 0.0, until: float = 1e11, target: str | None = None
) -> list[SetAside]:
    """Rows that were set aside with ``since <= at < until``, oldest first; if a target is given,
    those of it and those of an unknown target."""
    query = sa.select(_table).where(_table.c.at >= since, _table.c.at < until)
    if target is not None:
        query = query.where(_table.c.target.in_((storable(target), "")))
    rows = connection.execute(query.order_by(_table.c.at, _table.c.id)).all()

    def decode(row: sa.Row[Any]) -> SetAside:
        damage.require_types(_table, row._fields, row)
        return SetAside(row.found_at, row.at, row.target, row.table_name, row.row_key, row.reason)

    return list(damage.sound(damage.of(connection), _table, rows, decode))


def _decoders(connection: sa.Connection) -> Mapping[sa.Table, Decode]:
    """By table a function that raises one of ``damage.UNDECODABLE`` for a damaged row.

    Tables come before those that their rows refer to.
    """
    series = set(connection.execute(sa.select(schema.series.c.id)).scalars())

    @cache
    def content(id_: object) -> str | None:
        contents = contents_of(connection, [id_]) if isinstance(id_, int) else {}
        return next(iter(contents.values()), None)

    def check_types(table: sa.Table, row: Any) -> None:
        damage.require_types(table, row._fields, row)

    def decode_window(table: sa.Table, row: Any) -> None:
        check_types(table, row)
        if row.series_id not in series:
            raise ValueError(f"series_id is {row.series_id}: there is no such series")
        columns = tuple(row._mapping[name] for name in COLUMNS)
        window = assemble(_NO_SERIES, row.start, 0, content(row.context_id), columns)
        _ = window.load_bin

    return {
        schema.minutes: partial(decode_window, schema.minutes),
        schema.hours: partial(decode_window, schema.hours),
        schema.cursors: lambda row: cursor_rows.cursor_of(row, content(row.layout_id)),
        schema.baselines: measurement_of,
        schema.verdicts: decision_of,
        schema.guards: entry_of,
        schema.guard_steps: step_of,
        schema.experiments: experiment_of,
        **{
            table: partial(check_types, table)
            for table in (schema.runs, schema.members, schema.watched_targets)
        },
        _table: partial(check_types, _table),
        schema.series: series_of,
        schema.contexts: content_of,
    }


def _why(decode: Decode, row: Any) -> str | None:
    """Why a row cannot be decoded, if it cannot."""
    try:
        decode(row)
    except damage.MissingContext:
        return "its context is damaged"
    except damage.UNDECODABLE as error:
        return damage.reason(error)
    return None


def _move(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, object],
    decode: Decode,
    now: float,
) -> None:
    for row in connection.execute(sa.select(table).where(*_found_by(table, key))).all():
        why = _why(decode, row)
        if why is None:
            continue
        connection.execute(_table.insert(), _kept(connection, table, row, why, now))
        here = _found_by(table, key_of(table, row))
        if table is schema.series:
            connection.execute(table.update().where(*here).values(_mended(connection, row)))
            continue
        connection.execute(table.delete().where(*here))
        if table is schema.guards:
            for target in targets_of(row):
                _hold(connection, target, now)


def _kept(
    connection: sa.Connection, table: sa.Table, row: sa.Row[Any], why: str, now: float
) -> dict[str, object]:
    """The row of ``damaged_rows`` for a damaged one."""
    columns = row._mapping
    target = columns.get("target", "")
    if "series_id" in columns and isinstance(row.series_id, int):
        named = sa.select(schema.series.c.target).where(schema.series.c.id == row.series_id)
        target = connection.execute(named).scalar() or ""
    times = (columns.get(name) for name in _TIMES)
    plausible = (time for time in times if isinstance(time, int | float) and 0 <= time < 1e11)
    content = {name: _binary(value) for name, value in columns.items()}
    return {
        "found_at": int(now),
        "at": int(next(plausible, now)),
        "target": target if is_text(target) else "",
        "table_name": table.name,
        "row_key": storable(DamagedRow(table.name, key_of(table, row), "").where),
        "reason": storable(why),
        "content": msgspec.msgpack.encode(content),
    }


def _mended(connection: sa.Connection, row: sa.Row[Any]) -> dict[str, object]:
    """A series with readable names, and with times computed from its windows."""
    names = {
        name: value if is_text(value := row._mapping[name]) else storable(str(value))
        for name in ("daemon", "target", "model_name", "temperature")
    }
    starts: list[int] = []
    hour = 0
    for table in (schema.hours, schema.minutes):
        spans = sa.select(sa.func.min(table.c.start), sa.func.max(table.c.start)).where(
            table.c.series_id == row.id, table.c.start < 10**11
        )
        first, last = connection.execute(spans).one()
        if first is None:
            continue
        starts += [int(first), int(last)]
        if table is schema.minutes:
            hour = int(first // HOUR) * HOUR
    return {
        **names,
        "first_start": min(starts, default=0),
        "last_start": max(starts, default=0),
        "rolled_until": hour,
        "pruned_until": hour,
    }


def _hold(connection: sa.Connection, target: str, now: float) -> None:
    """Store the guard of a target again, with a version after all of its steps."""
    steps = schema.guard_steps
    latest = sa.select(sa.func.max(steps.c.version)).where(steps.c.target == target)
    version = connection.execute(latest).scalar()
    connection.execute(
        insert(connection, schema.guards).on_conflict_do_nothing(),
        {
            "target": target,
            "version": version + 1 if isinstance(version, int) else 1,
            "holder": "",
            "lease_until": 0.0,
            "state": fresh_after_damage(target, now),
        },
    )


def _found_by(table: sa.Table, key: Mapping[str, object]) -> list[sa.ColumnElement[bool]]:
    """Conditions for rows whose columns have exactly these values, of any type."""
    conditions: list[sa.ColumnElement[bool]] = []
    for name, value in key.items():
        column, kept = table.c[name], _binary(value)
        if value is None:
            conditions.append(column.is_(None))
        elif kept is not value:
            text = sa.cast(sa.literal(kept, sa.LargeBinary), sa.Text)
            conditions.append(column == text)
        else:
            conditions.append(column == sa.literal(value, sa.types.NullType()))
    return conditions


def _binary(value: object) -> object:
    """The value, or the bytes of text that is not UTF-8."""
    if isinstance(value, str) and not is_text(value):
        return value.encode(errors="surrogateescape")
    return value
