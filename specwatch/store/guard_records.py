"""The tables ``guards`` and ``guard_steps``: one guard for each target, over all daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from specwatch.errors import StoreError, StoreUnavailable
from specwatch.guard.state import GuardState, Step
from specwatch.guard.status import StepRecord as StepRecord
from specwatch.store.guard_rows import (
    LOOKING,
    Entry,
    entry_of,
    holder_names,
    packed,
    step_of,
    versions,
)
from specwatch.store.schema import guard_steps, guards
from specwatch.store.statements import clock, decoded, insert
from specwatch.store.texts import storable

if TYPE_CHECKING:
    from specwatch.store.repository import Store

LEASE_SECONDS = 30.0
"""Seconds without renewal after which another daemon may take a lease."""


class StepSelection(TypedDict, total=False):
    """Which steps to read; what is None or left out is not restricted."""

    target: str | None
    incident: str | None
    since: float
    limit: int | None


class Lost(StoreError):
    """Another daemon or an operator changed the guard since it was read: read it again."""

    retry = True


class _Known(NamedTuple):
    """Every guard as it was read at a time of the database's clock, with the sums of all rows."""

    sums: list[Any]
    at: float
    entries: dict[str, Entry]


class GuardBook:
    """Reads and writes guards; safe to use from several threads.

    Every method raises StoreUnavailable if the database cannot be used now. ``now`` is in Unix
    seconds; leases are measured by the database's clock, which all daemons share.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: _Known | None = None

    def hold(self, targets: Iterable[str], holder: str, now: float, *, able: bool) -> None:
        """Take free leases, and renew those that ``holder`` has.

        A holder that is ``able`` to act also takes them from holders that are not.
        """
        names = sorted(set(map(storable, targets)))
        with self._store.writing(now) as connection:
            fresh = [
                {
                    "target": name,
                    "version": version,
                    "holder": "",
                    "lease_until": 0.0,
                    "state": packed(GuardState(name, since=now)),
                }
                for name, version in versions(connection, names).items()
            ]
            if fresh:
                connection.execute(insert(connection, guards).on_conflict_do_nothing(), fresh)
            present = clock(connection)
            ours = guards.c.holder.in_(holder_names(holder))
            free = sa.or_(ours, guards.c.lease_until <= present)
            if able:
                free = sa.or_(free, guards.c.holder.like(f"%{LOOKING}"))
            named = holder_names(holder)[0 if able else 1]
            connection.execute(
                guards.update()
                .where(guards.c.target.in_(names), free)
                .values(holder=named, lease_until=present + LEASE_SECONDS)
            )

    def release(self, holder: str, now: float, *, but: Iterable[str] = ()) -> None:
        """Give back every lease of ``holder`` except those of the targets in ``but``."""
        kept = [storable(target) for target in but]
        with self._store.writing(now) as connection:
            ours = guards.c.holder.in_(holder_names(holder)) & guards.c.target.not_in(kept)
            connection.execute(guards.update().where(ours).values(lease_until=clock(connection)))

    def look(self, target: str | None = None) -> dict[str, Entry]:
        """Every guard, or that of one target, by target.

        All rows are read only if one has changed since the last time.
        """
        with self._store.connected() as connection:
            if target is not None:
                return _entries(connection, _guards(connection, target))
            *sums, present = connection.execute(_sums(connection)).one()
            known = self._known
            if known is None or known.sums != sums:
                entries = _entries(connection, _guards(connection, None))
                self._known = known = _Known(sums, present, entries)
        passed = present - known.at
        return {
            name: replace(entry, left=entry.left - passed) for name, entry in known.entries.items()
        }

    def advance(
        self,
        entry: Entry,
        step: Step,
        now: float,
        *,
        by: str,
        others: Mapping[str, Entry] | None = None,
    ) -> Entry:
        """Store a step that follows on ``entry``, and renew the lease.

        ``others`` are the other members of its group, if the step rests on what they do. Raises
        Lost and stores nothing if the guard or one of them was changed since it was read, or
        another holder has taken the lease.
        """
        with self._store.writing(now) as connection:
            if others is not None:
                _require_unchanged(connection, step.state, others)
            version = _store_step(connection, entry, step, now, by, holder=entry.holder)
        return Entry(step.state, version, entry.holder, LEASE_SECONDS)

    def change(
        self, target: str, make: Callable[[GuardState], Step | None], now: float, *, by: str
    ) -> GuardState:
        """Store an operator's change, which any holder gets; None changes nothing.

        Raises StoreUnavailable also if no daemon has a guard for the target.
        """
        with self._store.writing(now) as connection:
            # Other writers wait for the row; SQLite has one writer at a time anyway.
            row = _guards(connection, target).with_for_update()
            entry = _entries(connection, row).get(target)
            if entry is None:
                raise StoreUnavailable(f"no daemon guards {target} with this database")
            step = make(entry.state)
            if step is None:
                return entry.state
            _store_step(connection, entry, step, now, by)
            return step.state

    def history(self, **selection: Unpack[StepSelection]) -> list[StepRecord]:
        """Steps since a time, newest first; of one target or incident, if given."""
        with self._store.connected() as connection:
            return read_steps(connection, **selection)


def _require_unchanged(
    connection: sa.Connection, state: GuardState, others: Mapping[str, Entry]
) -> None:
    """Hold the lock of a group until the end of the transaction, and look at its members again."""
    if connection.dialect.name != "sqlite":  # which has one writer at a time
        key = sa.func.hashtextextended(f"specwatch group {state.group}", 0)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    present = {
        target: entry.version
        for target, entry in _entries(connection, _guards(connection, None)).items()
        if entry.state.group == state.group and target != state.target
    }
    if present != {target: entry.version for target, entry in others.items()}:
        raise Lost(f"the group {state.group} of {state.target} has changed meanwhile")


def read_steps(connection: sa.Connection, **selection: Unpack[StepSelection]) -> list[StepRecord]:
    """See :meth:`GuardBook.history`."""
    query = sa.select(guard_steps).where(guard_steps.c.at >= selection.get("since", 0.0))
    for name in ("target", "incident"):
        value = selection.get(name)
        if value is not None:
            query = query.where(guard_steps.c[name] == storable(str(value)))
    order = (guard_steps.c.at.desc(), guard_steps.c.version.desc())
    rows = connection.execute(query.order_by(*order).limit(selection.get("limit"))).all()
    return list(decoded(guard_steps, rows, step_of))


def alike(first: GuardState, other: GuardState) -> bool:
    """Whether two states are equal once stored."""
    return packed(first) == packed(other)


def _guards(connection: sa.Connection, target: str | None) -> sa.Select[Any]:
    """Of every guard, or of one target."""
    query = sa.select(guards, clock(connection).label("clock"))
    return query if target is None else query.where(guards.c.target == storable(target))


def _sums(connection: sa.Connection) -> sa.Select[Any]:
    """What every change of a guard changes, and the time: a version becomes greater, a lease ends
    at another time, a row comes or goes; an edit may make a state longer or shorter."""
    lengths = sa.func.sum(sa.func.length(guards.c.state))
    counted, leases = sa.func.sum(guards.c.version), sa.func.sum(guards.c.lease_until)
    return sa.select(sa.func.count(), counted, leases, lengths, clock(connection))


def _entries(connection: sa.Connection, query: sa.Select[Any]) -> dict[str, Entry]:
    rows = connection.execute(query).all()
    return dict(decoded(guards, rows, lambda row: (row.target, entry_of(row))))


def _store_step(
    connection: sa.Connection,
    entry: Entry,
    step: Step,
    now: float,
    by: str,
    *,
    holder: str | None = None,
) -> int:
    """Store a step that follows on ``entry``, or raise Lost; returns its version.

    Where ``holder`` is given, it must still have the lease, which is renewed.
    """
    version = max(entry.version + 1, int(now))
    target = storable(step.state.target)
    same = [guards.c.target == target, guards.c.version == entry.version]
    values: dict[str, Any] = {"version": version, "state": packed(step.state)}
    if holder is not None:
        same.append(guards.c.holder == holder)
    if holder:
        values["lease_until"] = clock(connection) + LEASE_SECONDS
    if connection.execute(guards.update().where(*same).values(values)).rowcount != 1:
        raise Lost(f"the guard of {step.state.target} was changed by another process")
    connection.execute(guard_steps.insert(), _row(entry, step, version, now, by))
    return version


def _row(entry: Entry, step: Step, version: int, now: float, by: str) -> dict[str, Any]:
    incident = step.state.incident or entry.state.incident
    return {
        "target": storable(step.state.target),
        "version": version,
        "at": now,
        "daemon": storable(by),
        "incident": "" if incident is None else incident.id,
        "phase_before": str(entry.state.phase),
        "phase": str(step.state.phase),
        "reason": storable(step.reason),
        "inputs": msgspec.json.encode(step.inputs).decode(),
    }
