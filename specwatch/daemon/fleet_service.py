"""This daemon's part in a fleet: renews its lease, claims targets, gives back those of others."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from specwatch import __version__
from specwatch.config.loading import Config
from specwatch.config.operation import Fleet
from specwatch.domain.fleet import LIVES, FleetStatus
from specwatch.domain.model import Cursor, Moment
from specwatch.errors import ConfigError, StoreError
from specwatch.store.fleet_rows import FleetBook, Standing
from specwatch.store.repository import Store

_log = structlog.get_logger("specwatch.fleet")

TURN_SECONDS = 1.0
"""How soon it looks again while a target is about to move."""
_MOST_LOGGED = 10
"""Targets that are logged by name."""

_UNLIKE_SECONDS = 120.0
"""For how long members may know other targets: discovery does not tell all at the same time."""

Watch = Callable[[Mapping[str, Cursor]], None]


def new_member(section: Fleet | None, hostname: str) -> str | None:
    """The name of a member that starts now; None without a fleet."""
    if section is None:
        return None
    return section.member or f"{hostname}-{secrets.token_hex(2)}"


class FleetService:
    """Decides which targets this member watches; nothing raises when the database fails.

    While it cannot be reached, the member goes on with the targets that it has: what another one
    writes meanwhile is not written again, and the guard takes no step that it cannot store.
    """

    def __init__(
        self,
        store: Store,
        section: Fleet,
        *,
        now: Callable[[], Moment],
        ready: Callable[[], bool],
        address: Callable[[], str],
        watch: Watch,
        acting: Callable[[], Collection[str]],
        settle: Callable[[], bool],
    ) -> None:
        """``ready`` is whether the daemon has reached its database, and knows its targets.
        ``watch`` has the daemon watch the targets that are ``watched`` now, new ones from their
        cursors; ``acting`` are targets on which the guard acts, which stay here meanwhile;
        ``settle`` writes all that waits, and returns whether nothing is left."""
        self._store = store
        self._member = store.member or ""
        self._book = FleetBook(
            store, self._member, token=secrets.token_hex(8), heartbeat=section.heartbeat
        )
        self._heartbeat = section.heartbeat
        self._now = now
        self._ready = ready
        self._address = address
        self._watch = watch
        self._acting = acting
        self._settle = settle
        self._started = now().wall
        self._targets: Mapping[str, str] = {}
        self._targets_changed = False
        self.watched: frozenset[str] = frozenset()
        """The targets that this member watches."""
        self._share: frozenset[str] = frozenset()
        self._status = FleetStatus(self._member)
        self._due = self._moving_until = -math.inf
        self._unlike_since: float | None = None
        self._unlike_logged: Sequence[str] = ()
        self._turning = threading.Lock()
        self._ended = False

    def configure(self, targets: Mapping[str, str]) -> None:
        """Divide targets of these names, each with its place."""
        if targets != self._targets:
            self._targets = targets
            self._targets_changed = True

    def part_of(self, config: Config) -> Config:
        """A configuration with the targets that are watched here only."""
        watched = self.watched
        targets = tuple(target for target in config.targets if target.name in watched)
        return config.model_copy(update={"targets": targets})

    def status(self) -> FleetStatus:
        """The fleet at the last look at the database."""
        return self._status

    def turn(self) -> None:
        """Renew the lease if it is time, and bring what is watched up to date."""
        with self._turning:
            due = self._targets_changed or self._now().monotonic >= self._due
            if due and self._ready() and not self._ended:
                self._turn()

    def end(self) -> None:
        """Take no more turns; one that is under way is waited for."""
        with self._turning:
            self._ended = True

    def leave(self) -> None:
        """Give the targets back, for the others to take over at once."""
        try:
            self._book.leave(self._now().wall)
        except StoreError as error:
            _log.warning("fleet_not_left", detail=str(error))

    def _turn(self) -> None:
        now = self._now()
        self._targets_changed = False
        self._due = now.monotonic + self._heartbeat
        try:
            standing = self._renewed(now.wall)
            settled = self._take(standing)
        except (StoreError, ConfigError) as error:
            if str(error) != self._status.error:
                _log.error("fleet_failed", detail=str(error), watched=len(self.watched))
            self._status = replace(self._status, error=str(error))
            return
        before, self._status = self._status, standing.fleet
        if self._log_members(before, standing.fleet) or standing.share != self._share:
            self._share = standing.share
            self._moving_until = now.monotonic + LIVES * self._heartbeat
        # It looks as soon as a lease may have ended, or another has given back what is ours.
        soonest = min([self._heartbeat, *(one.left for one in standing.fleet.live)])
        if not settled and now.monotonic < self._moving_until:
            soonest = TURN_SECONDS
        self._due = now.monotonic + max(TURN_SECONDS, soonest)

    def _renewed(self, now: float) -> Standing:
        try:
            return self._book.renew(
                self._targets, len(self.watched), now,
                address=self._address(), version=__version__, started=self._started,
            )  # fmt: skip
        except ConfigError:
            # Another process has our name, and with it our targets.
            if self.watched:
                self._change(frozenset(), {})
            raise

    def _take(self, standing: Standing) -> bool:
        """Watch what is ours, and give back the rest; returns whether nothing is left to move."""
        known = standing.held.intersection(self._targets)
        ours = watched = known & (standing.share | (self.watched & set(self._acting())))
        gained = watched - self.watched
        cursors: Mapping[str, Cursor] = {}
        if gained and self._settle():
            # What we counted of them before is written: where that ends, we go on.
            cursors = self._store.cursors(gained)
        else:
            watched = watched - gained
        if watched != self.watched:
            lost = self.watched - watched
            self._change(watched, cursors)
            _log.info(
                "targets_moved",
                gained=sorted(gained & watched)[:_MOST_LOGGED],
                lost=sorted(lost)[:_MOST_LOGGED],
                watched=len(watched),
            )
        surplus = standing.held - ours
        if surplus and self._settle():
            self._book.release(surplus, self._now().wall)
        return not surplus and watched == ours and standing.share <= standing.held

    def _change(self, watched: frozenset[str], cursors: Mapping[str, Cursor]) -> None:
        """Watch others than before. A reload meanwhile, in another thread, must not watch the old
        ones again."""
        before, self.watched = self.watched, watched
        try:
            self._watch(cursors)
        except BaseException:
            self.watched = before
            raise

    def _log_members(self, before: FleetStatus, after: FleetStatus) -> bool:
        """Log what has changed; returns whether another is alive than before."""
        if before.error is not None:
            _log.info("fleet_recovered")
        names = {one.member for one in before.live}, {one.member for one in after.live}
        if names[0] != names[1]:
            _log.info(
                "fleet_changed",
                joined=sorted(names[1] - names[0]),
                left=sorted(names[0] - names[1]),
                members=len(names[1]),
            )
        self._log_unlike(sorted(one.member for one in after.unlike))
        return names[0] != names[1]

    def _log_unlike(self, unlike: Sequence[str]) -> None:
        """Log members with other targets, once, when they have had them for long."""
        now = self._now().monotonic
        if not unlike:
            self._unlike_since, self._unlike_logged = None, ()
            return
        self._unlike_since = now if self._unlike_since is None else self._unlike_since
        if now - self._unlike_since >= _UNLIKE_SECONDS and unlike != self._unlike_logged:
            self._unlike_logged = unlike
            _log.warning(
                "fleet_differs",
                members=unlike,
                remedy="give all members the same targets; each target is divided among those"
                " members only that have the same list of targets",
            )
