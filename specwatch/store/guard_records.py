"""The tables ``guards`` and ``guard_steps``: one guard for each target, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
import sqlalchemy as sa

from specwatch.errors import StoreError, StoreUnavailable
from specwatch.guard.state import GuardState, Phase, Step
from specwatch.store import damage
from specwatch.store.contexts import storable
from specwatch.store.schema import guard_steps, guards
from specwatch.store.statements import insert

if TYPE_CHECKING:
    from specwatch.store.repository import Store

LEASE_SECONDS = 30.0
"""After which another daemon goes on for one that gives no sign."""
_TRIES = 10
_LOOKING = "~"
"""How the name of a holder ends that cannot act; that of another ends as its process is told."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The guard of a target as it is stored; ``left`` are the seconds that its lease lasts."""

    state: GuardState
    version: int
    holder: str
    left: float

    def held_by(self, holder: str) -> bool:
        """Whether the lease is that holder's, and lasts."""
        return self.left > 0 and self.holder in _names(holder)

    @property
    def daemon(self) -> str:
        """The daemon that holds it, empty for none."""
        return self.holder.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as it is stored; ``at`` is in Unix seconds."""

    target: str
    version: int
    at: float
    daemon: str
    incident: str
    phase_before: str
    phase: str
    reason: str
    inputs: dict[str, Any]


class StepSelection(TypedDict, total=False):
    """Which steps to read; what is None or left out is not restricted."""

    target: str | None
    incident: str | None
    since: float
    limit: int | None


class Lost(StoreError):
    """Another daemon, or a person, changed the guard since it was read: read it again."""

    retry = True


class GuardBook:
    """Reads and writes guards; safe to use from several threads.

    Every method raises StoreUnavailable when the database cannot be used now. ``now`` is Unix
    seconds; a lease is measured by the database's clock alone, which all daemons share.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def hold(self, targets: Iterable[str], holder: str, now: float, *, able: bool) -> None:
        """Take the leases that are free, and renew those that ``holder`` has.

        Who is ``able`` to act takes them from those who can only look, too.
        """
        names = sorted(set(map(storable, targets)))
        with self._store.writing(now) as connection:
            fresh = {
                name: {
                    "target": name, "version": 0, "holder": "", "lease_until": 0.0,
                    "state": _packed(GuardState(name, since=now)),
                }
                for name in names
            }  # fmt: skip
            if fresh:
                connection.execute(
                    insert(connection, guards).on_conflict_do_nothing(), list(fresh.values())
                )
            clock = _clock(connection)
            ours = guards.c.holder.in_(_names(holder))
            free = sa.or_(ours, guards.c.lease_until < clock)
            if able:
                free = sa.or_(free, guards.c.holder.like(f"%{_LOOKING}"))
            named = _names(holder)[0 if able else 1]
            connection.execute(
                guards.update()
                .where(guards.c.target.in_(names), free)
                .values(holder=named, lease_until=clock + LEASE_SECONDS)
            )

    def release(self, holder: str, now: float, *, but: Iterable[str] = ()) -> None:
        """Give back every lease of ``holder``, ``but`` of some targets: nobody need wait."""
        kept = [storable(target) for target in but]
        with self._store.writing(now) as connection:
            ours = guards.c.holder.in_(_names(holder)) & guards.c.target.not_in(kept)
            connection.execute(guards.update().where(ours).values(lease_until=0.0))

    def look(self, target: str | None = None) -> dict[str, Entry]:
        """Every guard, or that of one target, by target; without those that are damaged, which
        nobody has until they were set aside."""
        with self._store.connected() as connection:
            query = sa.select(guards, _clock(connection).label("clock"))
            if target is not None:
                query = query.where(guards.c.target == storable(target))
            rows = connection.execute(query).all()
            entries = damage.sound(
                damage.of(connection), guards, rows, lambda row: (row.target, entry_of(row))
            )
        return dict(entries)

    def advance(self, entry: Entry, step: Step, now: float, *, by: str) -> Entry:
        """Store a step that follows on ``entry``, and renew the lease.

        Raises Lost, and stores nothing, when something was stored since ``entry`` was read, or its
        holder has lost the lease to another.
        """
        self._store_step(entry, step, now, by, holder=entry.holder)
        return Entry(step.state, entry.version + 1, entry.holder, LEASE_SECONDS)

    def change(
        self, target: str, make: Callable[[GuardState], Step | None], now: float, *, by: str
    ) -> GuardState:
        """What a person changes, whoever holds the guard; None changes nothing.

        Raises StoreUnavailable also where no daemon has a guard for the target.
        """
        for _ in range(_TRIES):
            entry = self.look(target).get(target)
            if entry is None:
                raise StoreUnavailable(f"no daemon guards {target} with this database")
            step = make(entry.state)
            if step is None:
                return entry.state
            try:
                self._store_step(entry, step, now, by)
            except Lost:
                continue
            return step.state
        raise StoreUnavailable(f"the guard of {target} changes all the time; try again")

    def history(self, **selection: Unpack[StepSelection]) -> list[StepRecord]:
        """Steps since a time, newest first; of one target or incident, if given."""
        with self._store.connected() as connection:
            return read_steps(connection, **selection)

    def _store_step(
        self, entry: Entry, step: Step, now: float, by: str, *, holder: str | None = None
    ) -> None:
        """Store a step that follows on ``entry``.

        Where ``holder`` is given, it must still have the lease, which is renewed.
        """
        target = storable(step.state.target)
        same = [guards.c.target == target, guards.c.version == entry.version]
        values: dict[str, Any] = {"version": entry.version + 1, "state": _packed(step.state)}
        with self._store.writing(now) as connection:
            if holder is not None:
                same.append(guards.c.holder == holder)
            if holder:
                values["lease_until"] = _clock(connection) + LEASE_SECONDS
            if connection.execute(guards.update().where(*same).values(values)).rowcount != 1:
                raise Lost(f"the guard of {step.state.target} was changed by another process")
            connection.execute(guard_steps.insert(), _row(entry, step, now, by))


def read_steps(connection: sa.Connection, **selection: Unpack[StepSelection]) -> list[StepRecord]:
    """See :meth:`GuardBook.history`."""
    query = sa.select(guard_steps).where(guard_steps.c.at >= selection.get("since", 0.0))
    for name in ("target", "incident"):
        value = selection.get(name)
        if value is not None:
            query = query.where(guard_steps.c[name] == storable(str(value)))
    order = (guard_steps.c.at.desc(), guard_steps.c.version.desc())
    rows = connection.execute(query.order_by(*order).limit(selection.get("limit"))).all()
    return list(damage.sound(damage.of(connection), guard_steps, rows, step_of))


def entry_of(row: sa.Row[Any]) -> Entry:
    """What a row of guards holds, with the database's ``clock`` beside it where it was asked for.

    Raises one of ``damage.UNDECODABLE``.
    """
    damage.require_types(guards, row._fields, row)
    state = msgspec.json.decode(row.state, type=GuardState)
    if storable(state.target) != row.target:
        raise ValueError("state is of another target")
    left = row.lease_until - row._mapping.get("clock", 0.0)
    return Entry(state, row.version, row.holder, left)


def targets_of(row: sa.Row[Any]) -> set[str]:
    """Whose guard a damaged row may have been: by its key, and by its state where that is left."""
    names = {row.target}
    with suppress(*damage.UNDECODABLE):
        names.add(storable(msgspec.json.decode(row.state, type=GuardState).target))
    return {name for name in names if isinstance(name, str) and storable(name) == name}


def step_of(row: sa.Row[Any]) -> StepRecord:
    """What a row of guard_steps holds. Raises one of ``damage.UNDECODABLE``."""
    damage.require_types(guard_steps, row._fields, row)
    inputs = msgspec.json.decode(row.inputs, type=dict[str, Any])
    return StepRecord(**{**row._mapping, "inputs": inputs})


def fresh_after_damage(target: str, now: float) -> str:
    """What is stored of a guard whose state was damaged: it waits for a person."""
    return _packed(
        GuardState(
            target,
            Phase.HELD,
            since=now,
            why="its stored state was damaged and is set aside: check how the server runs, and"
            " resume",
        )
    )


def alike(first: GuardState, other: GuardState) -> bool:
    """Whether they are the same, once stored."""
    return _packed(first) == _packed(other)


def _names(holder: str) -> list[str]:
    """Under which it may hold a lease."""
    return [storable(holder), storable(holder) + _LOOKING]


def _row(entry: Entry, step: Step, now: float, by: str) -> dict[str, Any]:
    incident = step.state.incident or entry.state.incident
    return {
        "target": storable(step.state.target),
        "version": entry.version + 1,
        "at": now,
        "daemon": storable(by),
        "incident": "" if incident is None else incident.id,
        "phase_before": str(entry.state.phase),
        "phase": str(step.state.phase),
        "reason": storable(step.reason),
        "inputs": msgspec.json.encode(step.inputs).decode(),
    }


def _clock(connection: sa.Connection) -> Any:
    """The database's own time, in Unix seconds."""
    if connection.dialect.name == "sqlite":
        return (sa.func.julianday("now") - 2440587.5) * 86400.0
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)


def _packed(state: GuardState) -> str:
    return msgspec.json.encode(state).decode()
