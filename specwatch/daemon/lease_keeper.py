"""Takes and keeps the lease of a daemon's name: one process watches, others stand by."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from specwatch.domain.model import Moment
from specwatch.errors import StoreError, StoreMalformed
from specwatch.status import LeaseStatus
from specwatch.store.leases import Lease

_log = structlog.get_logger("specwatch.daemon.lease")

_RENEWALS = 4
"""Renewals while a lease lasts."""
STANDBY_SECONDS = 1.0
"""How often a process that stands by looks."""


class LeaseKeeper:
    """The lease of this process; nothing raises when the database fails.

    While the database is unavailable, a process that watches continues, since no other process can
    take over. A process that starts then watches, too, and stands by if the database shows later
    that another one has the lease; until that is known, what it counts waits in memory.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        now: Callable[[], Moment],
        alive: Callable[[], bool],
        damaged: Callable[[StoreMalformed], None] = lambda _: None,
    ) -> None:
        """A process whose loops hang (``alive`` is false) does not renew its lease. ``damaged`` is
        called, while this process watches, when SQLite reports that its file is damaged."""
        self._damaged = damaged
        self._lease = lease
        self._now = now
        self._alive = alive
        self.watching = False
        """Whether this process watches."""
        self._error: str | None = None
        self.failing_since: float | None = None
        """When the database began to fail, in Unix time; None while it answers."""

    @property
    def every(self) -> float:
        """Seconds between two turns."""
        return self._lease.seconds / _RENEWALS if self.watching else STANDBY_SECONDS

    @property
    def lost(self) -> bool:
        """Whether another process has taken over."""
        return self._lease.lost

    @property
    def ready(self) -> bool:
        """Whether the database could be asked when it was last."""
        return self._error is None

    def begin(self) -> None:
        """Watch if the lease is free, or the database is away."""
        self.watching = bool(self._take()) or not self.ready
        if not self.watching:
            holder = self._lease.holder
            _log.warning(
                "standing_by",
                holder=None if holder is None else holder.address,
                seconds_left=None if holder is None else round(holder.left, 1),
                remedy="this process takes over when the other one ends, or does not renew its"
                " lease in the seconds left; if both should watch, give each its own name with the"
                " key daemon, or a part of the targets with shard",
            )

    def turn(self) -> None:
        """Renew the lease; or take it, if its holder has ended."""
        if self.watching:
            if self._alive() and self._take() is False:
                self._lease.lost = True
        elif self._take():
            self.watching = True
            _log.info("taking_over")

    def release(self) -> None:
        """Give the lease back."""
        try:
            self._lease.release(self._now().wall)
        except StoreError as error:
            _log.warning("lease_not_released", detail=str(error))

    def status(self) -> LeaseStatus:
        """The lease when it was last looked at."""
        holder = self._lease.holder
        return LeaseStatus(
            standby=not self.watching,
            holder="" if holder is None else holder.address,
            since=None if holder is None else holder.since,
            error=self._error,
            left=None if holder is None else holder.left,
        )

    def _take(self) -> bool | None:
        """Whether the lease is ours; None if that cannot be known now. A failure of the database is
        logged once."""
        try:
            taken = self._lease.take(self._now().wall)
        except StoreError as error:
            if str(error) != self._error:
                _log.error("lease_unknown", detail=str(error))
            self._error = str(error)
            if self.failing_since is None:
                self.failing_since = self._now().wall
            if self.watching and isinstance(error, StoreMalformed):
                self._damaged(error)
            return None
        self._error = self.failing_since = None
        return taken
