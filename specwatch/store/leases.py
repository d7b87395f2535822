"""The table ``leases``: which process of a daemon's name watches, while others stand by.

A process holds the lease of its name and shard as long as it renews it, by the database's clock,
so the clocks of the machines do not matter. It holds no lock: a process that is stopped in the
middle of a transaction keeps nobody from taking over. Every write checks the lease first, and what
was checked before it was lost is caught by the cursors
(:func:`specwatch.store.cursor_rows.superseded`) and the versions of guards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from specwatch.errors import LeaseLost
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


class Lease:
    """The lease of a daemon's name and shard, for one process; safe to use from several threads.

    Every method raises StoreUnavailable if the database cannot be used now; ``now`` is Unix time in
    seconds. A process that has lost the lease never has it again: what it has in memory is out of
    date.
    """

    def __init__(
        self,
        store: Store,
        process: str,
        *,
        shard: str = "",
        address: Callable[[], str] = lambda: "",
        is_gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``process`` identifies this one, ``address`` is the URL of its page; ``is_gone`` says of
        another process whether it has certainly ended, so that its successor need not wait."""
        self._store = store
        self._process = storable(process)
        self._key = {"daemon": storable(store.daemon), "shard": shard}
        self._address = address
        self._is_gone = is_gone
        self.seconds = SQLITE_LEASE_SECONDS if store.url.startswith("sqlite") else LEASE_SECONDS
        """How long it lasts without a renewal."""
        self.held = False
        """Whether it was ever ours."""
        self.lost = False
        """Whether another process has it in our place, or may."""
        self.holder: Holder | None = None
        """Who had it when we looked last."""

    def take(self, now: float) -> bool:
        """Take it if it is free, or renew it; whether it is ours."""
        with self._store.writing(now, leased=False) as connection:
            taken = not self.lost and self._take(connection)
        self.held = self.held or taken
        return taken

    def look(self) -> bool:
        """Whether any process has it."""
        with self._store.connected() as connection:
            return self._row(connection) is not None

    def check(self, connection: sa.Connection) -> None:
        """Raise LeaseLost if another process has it, in a transaction that is to write."""
        row = self._row(connection)
        ours = row is not None and row.process == self._process
        self.held = self.held or ours
        # One that began while the database was away has not taken it yet; a new file has no row.
        free = row is None or not self.held
        if self.lost or not (ours or (free and self._take(connection))):
            self.lost = True
            raise LeaseLost(
                f"{self._store.where}: another process watches as {self._store.daemon} now, so this"
                " one writes nothing"
            )

    def release(self, now: float) -> None:
        """Give it back, for another process to take at once; nothing is written after that."""
        with self._store.writing(now, leased=False) as connection:
            connection.execute(leases.delete().where(*self._is(self._process)))
        self.lost = True

    def _is(self, process: str) -> list[sa.ColumnElement[bool]]:
        key = self._key | {"process": process}
        return [leases.c[name] == value for name, value in key.items()]

    def _row(self, connection: sa.Connection) -> sa.Row[Any] | None:
        """The row, with the database's time in Unix seconds (``clock``)."""
        query = sa.select(leases, clock(connection).label("clock"))
        conditions = (leases.c[name] == value for name, value in self._key.items())
        row = connection.execute(query.where(*conditions)).first()
        if row is not None:
            self.holder = Holder(row.address, row.since, row.until - row.clock)
        return row

    def _take(self, connection: sa.Connection) -> bool:
        """Write our row in place of a free one, or of ours; whether nobody was faster."""
        row = self._row(connection)
        present = clock(connection)
        values = {
            "process": self._process,
            "address": storable(self._address()),
            "until": present + self.seconds,
        }
        if row is None:
            adding = insert(connection, leases).on_conflict_do_nothing()
            connection.execute(adding.values(self._key | values | {"since": present}))
        elif row.process == self._process or self._is_free(row):
            if row.process != self._process:
                values["since"] = present
            same = (*self._is(row.process), leases.c.until == row.until)
            connection.execute(leases.update().where(*same).values(values))
        row = self._row(connection)
        return row is not None and row.process == self._process

    def _is_free(self, row: sa.Row[Any]) -> bool:
        # One that ends later than any can: the database's clock was set back.
        ended = not row.clock < row.until <= row.clock + self.seconds
        return ended or self._is_gone(row.process)
