"""The table ``leases``: which process of a daemon's name watches, while others stand by.

A process holds the lease of its name and shard as long as it renews it, by the database's clock,
so the clocks of the machines do not matter. It holds no lock: a process that is stopped in the
middle of a transaction keeps nobody from taking over. Every write checks the lease first, and what
was checked before it was lost is caught by the cursors
(:func:`specwatch.store.cursor_rows.superseded`) and the versions of guards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.model import Moment
from specwatch.errors import LeaseLost, StoreError, StoreUnavailable
from specwatch.store.schema import leases
from specwatch.store.statements import clock, insert
from specwatch.store.texts import storable

if TYPE_CHECKING:
    from specwatch.store.repository import Store

LEASE_SECONDS = 8.0
"""Seconds without a renewal after which another process takes the lease."""
SQLITE_LEASE_SECONDS = 30.0
"""The same in an SQLite file: there each renewal is written to the disk of the watched server, and
it can mostly be seen that a process on the same machine has ended."""


class Holder(NamedTuple):
    """Who has a lease: the URL of its page, since when (Unix time, by the database), and in how
    many seconds from when we looked it ends unless it is renewed."""

    address: str
    since: float
    left: float


class _State(Enum):
    """Whether a lease can be taken."""

    FREE = auto()
    HELD = auto()
    """Another process has renewed it in time."""
    ENDED = auto()
    """Its holder may have been unable to renew it, and comes first."""


class _Ended(NamedTuple):
    """The process whose lease was seen to have ended, "" where its row was gone; and when first, on
    the monotonic clock."""

    process: str
    since: float


class Lease:
    """The lease of a daemon's name and shard, for one process; safe to use from several threads.

    Every method raises StoreUnavailable if the database cannot be used now; ``now`` is Unix time in
    seconds. A process that has lost the lease never has it again: what it has in memory is out of
    date.

    A lease that has ended is taken at once only by a process that saw it last a moment before, or
    if its holder gave it back or is known to be gone. Otherwise the database was away, or its file
    is new: then the holder, which may live, has another ``seconds`` in which it can be written.
    """

    def __init__(
        self,
        store: Store,
        process: str,
        *,
        shard: str = "",
        address: Callable[[], str] = lambda: "",
        is_gone: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], Moment] = lambda: Moment(time.time(), time.monotonic()),
    ) -> None:
        """``process`` identifies this one, ``address`` is the URL of its page; ``is_gone`` says of
        another process whether it has certainly ended, so that its successor need not wait."""
        self._seen_process = ""
        self._store = store
        self._process = storable(process)
        self._key = {"daemon": storable(store.daemon), "shard": shard}
        self._address = address
        self._is_gone = is_gone
        self._clock = clock
        self._held_at: Moment | None = None
        """When :meth:`take` last saw that another process has it."""
        self._ended: _Ended | None = None
        """Since when :meth:`take` has seen that it has ended, without a failure of the database."""
        self.seconds = SQLITE_LEASE_SECONDS if store.url.startswith("sqlite") else LEASE_SECONDS
        """How long it lasts without a renewal."""
        self.held = False
        """Whether it was ever ours."""
        self.lost = False
        """Whether another process has it in our place, or may."""
        self.holder: Holder | None = None
        """Who had it when we looked last."""

    def take(self, now: float) -> bool | None:
        """Take it if it is free, or renew it; whether it is ours, None while it has ended and its
        holder comes first."""
        try:
            with self._store.writing(now, leased=False) as connection:
                state = _State.HELD if self.lost else self._take(connection)
        except StoreError:
            self._held_at = self._ended = None
            raise
        taken = state is _State.FREE
        self.held = self.held or taken
        self._held_at = self._clock() if state is _State.HELD else None
        if state is not _State.ENDED:
            self._ended = None
        elif self._ended is None or self._ended.process != self._seen_process:
            self._ended = _Ended(self._seen_process, self._clock().monotonic)
        return None if state is _State.ENDED else taken

    def check(self, connection: sa.Connection) -> None:
        """In a transaction that is to write: raise LeaseLost if another process has it, and
        StoreUnavailable while that may be."""
        row = self._row(connection)
        ours = row is not None and row.process == self._process
        self.held = self.held or ours
        if ours and not self.lost:
            return
        # One that began while the database was away has not taken it yet; a new file has no row.
        may_take = not self.lost and (row is None or not self.held)
        state = self._take(connection) if may_take else _State.HELD
        if state is _State.ENDED:
            raise StoreUnavailable(
                f"{self._store.where}: another process watched as {self._store.daemon} before the"
                f" database was away, and may go on within {self.seconds:.0f} s; this one writes"
                " nothing until then"
            )
        if state is _State.HELD:
            self.lost = True
            raise LeaseLost(
                f"{self._store.where}: another process watches as {self._store.daemon} now, so this"
                " one writes nothing"
            )

    def release(self, now: float) -> None:
        """Give it back, for another process to take at once; nothing is written after that.

        The row stays, since one that vanishes tells of a new file."""
        with self._store.writing(now, leased=False) as connection:
            connection.execute(leases.update().where(*self._is(self._process)).values(until=0.0))
        self.lost = True

    def _is(self, process: str) -> list[sa.ColumnElement[bool]]:
        key = self._key | {"process": process}
        return [leases.c[name] == value for name, value in key.items()]

    def _row(self, connection: sa.Connection) -> sa.Row[Any] | None:
        """The row, with the database's time in Unix seconds (``clock``)."""
        query = sa.select(leases, clock(connection).label("clock"))
        conditions = (leases.c[name] == value for name, value in self._key.items())
        row = connection.execute(query.where(*conditions)).first()
        self._seen_process = "" if row is None else row.process
        if row is not None:
            self.holder = Holder(row.address, row.since, row.until - row.clock)
        return row

    def _take(self, connection: sa.Connection) -> _State:
        """Take or renew the lease, if that is possible now; FREE if it belongs to this process
        afterwards."""
        row = self._row(connection)
        state = self._state(row)
        if row is not None and state is _State.ENDED:
            self._require_writable(connection, row)
        if state is not _State.FREE:
            return state
        present = clock(connection)
        values = {
            "process": self._process,
            "address": storable(self._address()),
            "until": present + self.seconds,
        }
        if row is None:
            adding = insert(connection, leases).on_conflict_do_nothing()
            connection.execute(adding.values(self._key | values | {"since": present}))
        else:
            if row.process != self._process:
                values["since"] = present
            same = (*self._is(row.process), leases.c.until == row.until)
            connection.execute(leases.update().where(*same).values(values))
        row = self._row(connection)
        # Otherwise another process was faster.
        return _State.FREE if row is not None and row.process == self._process else _State.HELD

    def _state(self, row: sa.Row[Any] | None) -> _State:
        present = self._clock()
        if row is None:
            if self.held or self.holder is None:
                return _State.FREE
        elif row.process == self._process:
            return _State.FREE
        elif self.held:
            return _State.HELD  # whoever has taken it from us has counted on
        elif not row.until or self._is_gone(row.process):
            return _State.FREE
        elif row.clock < row.until <= row.clock + self.seconds:
            return _State.HELD
        # One that ends later than any can: the database's clock was set back.
        elif row.until <= row.clock and self._held_at is not None:
            # By both clocks: the monotonic one stops while the machine is suspended.
            gaps = (now - before for now, before in zip(present, self._held_at, strict=True))
            if max(gaps) <= self.seconds / 2:
                return _State.FREE
        ended = self._ended
        waited = ended is not None and present.monotonic - ended.since >= self.seconds
        if ended is not None and waited and ended.process == self._seen_process:
            return _State.FREE
        return _State.ENDED

    def _require_writable(self, connection: sa.Connection, row: sa.Row[Any]) -> None:
        """Have the commit fail where the holder could not renew it either, as on a full disk."""
        for before, after in ((row.until, 0.0), (0.0, row.until)):
            same = (*self._is(row.process), leases.c.until == before)
            connection.execute(leases.update().where(*same).values(until=after))
