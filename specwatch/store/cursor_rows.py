"""Where daemons stopped reading counters: one row for each daemon and target."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from specwatch.domain.model import Counters, Cursor, Segment, Series
from specwatch.store.schema import cursors, layouts
from specwatch.store.statements import decoded, insert
from specwatch.store.texts import LARGEST_REMEMBERED, Finite, Layout, layout, storable

_EXACT = 2**53
_MOST_NAMED = 1000
"""Targets that a query names; for more, all are read."""


class PackedCursor(msgspec.Struct, frozen=True, gc=False):
    """One cursor; ``layout`` lists its series, ``counters`` has their values in that order."""

    target: str
    layout: Layout
    counters: str
    process_start: float | None
    wall: float
    after: float | None = None


class _CursorData(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The values of a cursor's series; those of its proxy are None where it has none."""

    values: tuple[Finite, ...]
    proxy_values: tuple[Finite, ...] | None = None
    proxy_process_start: Finite | None = None


_DECODER = msgspec.json.Decoder(_CursorData)


def pack_cursor(cursor: Cursor) -> PackedCursor:
    """Pack one cursor."""
    proxy = cursor.proxy
    own, of_proxy = tuple(cursor.samples), () if proxy is None else tuple(proxy.samples)
    size = sum(len(text) for series in (*own, *of_proxy) for text in _family(series))
    # The layouts of hostile servers would take gigabytes.
    layout_of = _layout if size <= LARGEST_REMEMBERED else _layout.__wrapped__
    found = layout_of(own, of_proxy)
    data = _CursorData(
        _values(cursor.samples, found.own),
        None if proxy is None else _values(proxy.samples, found.proxy),
        None if proxy is None else proxy.process_start,
    )
    return PackedCursor(
        storable(cursor.target),
        found.layout,
        msgspec.json.encode(data).decode(),
        cursor.process_start,
        cursor.wall,
        cursor.after,
    )


def unpack_cursor(packed: PackedCursor) -> Cursor:
    """The cursor that was packed."""
    own, of_proxy = _series_of(packed.layout.content)
    data = _DECODER.decode(packed.counters)
    proxy = None
    if data.proxy_values is not None:
        samples = dict(zip(of_proxy, data.proxy_values, strict=True))
        proxy = Counters(samples, data.proxy_process_start)
    return Cursor(
        packed.target,
        dict(zip(own, data.values, strict=True)),
        packed.process_start,
        packed.wall,
        proxy,
    )


def _cursor_of(row: sa.Row[Any]) -> Cursor:
    """The cursor of a row, with the content of its layout."""
    layout = Layout(row.layout_id, row.content)
    return unpack_cursor(
        PackedCursor(row.target, layout, row.counters, row.process_start, row.wall)
    )


def read(
    connection: sa.Connection, daemon: str, targets: Collection[str] | None = None
) -> dict[str, Cursor]:
    """Where a daemon stopped reading, by target: of these targets, by default of all."""
    query = sa.select(cursors, layouts.c.content).join(layouts).where(cursors.c.daemon == daemon)
    if targets is not None and len(targets) <= _MOST_NAMED:
        query = query.where(cursors.c.target.in_([storable(name) for name in targets]))
    return {
        cursor.target: cursor
        for cursor in decoded(cursors, connection.execute(query).all(), _cursor_of)
    }


def targets_read(connection: sa.Connection, daemon: str) -> frozenset[str]:
    """The targets that a daemon has ever read."""
    query = sa.select(cursors.c.target).where(cursors.c.daemon == daemon)
    return frozenset(connection.scalars(query))


def put(connection: sa.Connection, daemon: str, packed: Iterable[PackedCursor], run: int) -> None:
    """Write cursors of a run, replacing the stored ones of their targets."""
    rows = [
        {
            "daemon": daemon,
            "target": cursor.target,
            "layout_id": cursor.layout.id,
            "counters": cursor.counters,
            "process_start": cursor.process_start,
            "wall": cursor.wall,
            "run_id": run,
        }
        for cursor in packed
    ]
    if not rows:
        return
    statement = insert(connection, cursors)
    changed = ("layout_id", "counters", "process_start", "wall", "run_id")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["daemon", "target"],
            set_={name: statement.excluded[name] for name in changed},
        ),
        rows,
    )


def superseded(
    connection: sa.Connection, daemon: str, packed: Iterable[PackedCursor], run: int
) -> tuple[list[PackedCursor], list[PackedCursor]]:
    """Those of the cursors whose counts another process with the daemon's name has written, and
    those that are in the database already, because the write is repeated.

    Counts are added to those before the stored cursor: so a cursor has to follow on it, or, where
    this run has stored that, on a later one of its own. The clocks of processes may differ.
    """
    own: dict[str, list[PackedCursor]] = {}
    for cursor in packed:
        own.setdefault(cursor.target, []).append(cursor)
    rows = connection.execute(
        sa.select(cursors.c.target, cursors.c.wall, cursors.c.run_id)
        .where(cursors.c.daemon == daemon, cursors.c.target.in_(own))
        .with_for_update()
    )
    stored = {row.target: (row.wall, row.run_id == run) for row in rows}
    left_out: list[PackedCursor] = []
    repeated: list[PackedCursor] = []
    for target, chain in own.items():
        last, ours = stored.get(target, (None, True))
        # While a server is down, its cursor stays, and tells nothing.
        walls = [None if cursor.after in (None, cursor.wall) else cursor.wall for cursor in chain]
        done = walls.index(last) + 1 if ours and last is not None and last in walls else 0
        repeated += chain[:done]
        for cursor in chain[done:]:
            later = ours and (last is None or (cursor.after or last) >= last)
            if cursor.after in (None, last) or later:
                last = cursor.wall
                ours = True
            else:
                left_out.append(cursor)
    return left_out, repeated


def delete(connection: sa.Connection, daemon: str, targets: Sequence[str]) -> None:
    """Delete the cursors of a daemon's targets, so that its next start counts from zero."""
    chosen = cursors.c.target.in_([storable(target) for target in targets])
    connection.execute(cursors.delete().where(cursors.c.daemon == daemon, chosen))


class _Layout(NamedTuple):
    layout: Layout
    own: tuple[Series, ...]
    proxy: tuple[Series, ...]


@lru_cache(maxsize=512)
def _layout(own: tuple[Series, ...], proxy: tuple[Series, ...]) -> _Layout:
    # Sorted: the order of a tap's series is that of its first requests, different at each start.
    own, proxy = tuple(sorted(own, key=_family)), tuple(sorted(proxy, key=_family))
    return _Layout(layout([_families(own), _families(proxy)]), own, proxy)


def _family(series: Series) -> tuple[str, ...]:
    """All of a series as texts, its key last."""
    segment = series.segment
    of = series.quantity, series.part, series.model_name, series.engine
    return *of, segment.dimension, segment.value, series.key


def _families(series: tuple[Series, ...]) -> list[list[Any]]:
    """Series that differ only in their key as one entry."""
    groups = itertools.groupby(map(_family, series), lambda texts: texts[:-1])
    return [[*family, [texts[-1] for texts in members]] for family, members in groups]


def _values(samples: Mapping[Series, float], order: tuple[Series, ...]) -> tuple[float, ...]:
    return tuple(_short(samples[series]) for series in order)


def _short(value: float) -> float:
    """The number as the type with the shortest text: whole floats as integers."""
    return int(value) if -_EXACT < value < _EXACT and value == int(value) else value


@lru_cache(maxsize=512)
def _series_of(content: str) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    own, proxy = (
        tuple(
            Series(quantity, part, model_name, engine, key, Segment(dimension, value))
            for quantity, part, model_name, engine, dimension, value, keys in families
            for key in keys
        )
        for families in json.loads(content)
    )
    return own, proxy
