"""The tables ``members`` and ``watched_targets``: who is alive, and who watches what.

A live member claims targets that no live member has, and gives back those that are another's
share. So each target has one member at a time, whatever each of them believes, and only that one
writes its counts (:func:`specwatch.store.cursor_rows.superseded`). Leases are measured by the
database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from specwatch.domain.fleet import LIVES, FleetMember, FleetStatus, digest_of, share_of
from specwatch.domain.model import HOUR
from specwatch.errors import ConfigError
from specwatch.store.schema import members, watched_targets
from specwatch.store.statements import clock, decoded, insert
from specwatch.store.texts import storable

if TYPE_CHECKING:
    from specwatch.store.repository import Store

_FORGOTTEN = HOUR
"""Seconds after the end of a lease until a dead member is forgotten."""


class Standing(NamedTuple):
    """What a member has after renewing its lease.

    ``held`` are the targets that it has claimed, ``share`` those that it should have.
    """

    fleet: FleetStatus
    held: frozenset[str]
    share: frozenset[str]


class Outage(NamedTuple):
    """When a member came back after its lease had ended, and how long it had not renewed it."""

    ended: float
    seconds: float


_NO_OUTAGE = Outage(0.0, 0.0)


class FleetBook:
    """One member's entries; safe to use from several threads.

    Every method raises StoreUnavailable if the database cannot be used now; ``now`` is Unix time
    in seconds.
    """

    def __init__(self, store: Store, member: str, *, token: str, heartbeat: float) -> None:
        """``token`` is of this process; ``heartbeat`` is the time between two renewals in seconds,
        of which the lease has :data:`~specwatch.domain.fleet.LIVES`."""
        self._store = store
        self._lease = LIVES * heartbeat
        self._key = {"daemon": store.daemon, "member": storable(member)}
        self._token = token
        self._share: tuple[object, frozenset[str]] = (None, frozenset())
        self._seen: float | None = None
        """When the lease was renewed last."""
        self._outage = _NO_OUTAGE

    def renew(
        self,
        targets: Mapping[str, str],
        watched: int,
        now: float,
        *,
        address: str,
        version: str,
        started: float,
    ) -> Standing:
        """Renew the lease, see who else is alive, and claim what is ours and nobody's.

        ``targets`` are all, each with the place where it has to be watched
        (:func:`specwatch.domain.fleet.share_of`); ``watched`` is how many this member watches now.
        Raises ConfigError while another process is alive under our name.
        """
        digest = digest_of(targets)
        with self._store.writing(now) as connection:
            present = float(connection.execute(sa.select(clock(connection))).scalar_one())
            self._put(
                connection, present, address=storable(address), version=version, digest=digest,
                known=len(targets), watched=watched, started=started,
            )  # fmt: skip
            self._forget(connection, present)
            if self._seen is not None and present - self._seen > self._lease:
                # Perhaps nobody could renew: others have what was left of their leases, too.
                self._outage = Outage(present, present - self._seen)
            known = _members(connection, self._store.daemon, present, self._outage)
            live = {one.member for one in known if one.live}
            holders = self._holders(connection, targets, live, known)
            # Another configuration may not know a target, so only those of ours divide ours.
            peers = {one.member for one in known if one.live and one.digest == digest}
            share = self._share_of(targets, digest, peers, holders)
            free = [name for name in share if holders.get(name) not in live]
            claimed = self._claim(connection, free, live, present)
            own = self._key["member"]
            held = claimed | {name for name, holder in holders.items() if holder == own}
        self._seen = present
        unwatched = (name for name in holders.keys() - held if holders[name] not in live)
        fleet = FleetStatus(own, tuple(known), len(holders), tuple(sorted(unwatched)))
        return Standing(fleet, frozenset(held), share)

    def release(self, targets: Collection[str], now: float) -> None:
        """Give targets back, for others to claim; all that they counted has to be written."""
        with self._store.writing(now) as connection:
            chosen = watched_targets.c.target.in_(list(targets))
            connection.execute(self._own(watched_targets).where(chosen).values(member=""))

    def leave(self, now: float) -> None:
        """Give everything back, and be no member any more."""
        with self._store.writing(now) as connection:
            connection.execute(self._own(watched_targets).values(member=""))
            connection.execute(
                members.delete().where(*_equal(members, self._key), members.c.token == self._token)
            )
            of_fleet = members.c.daemon == self._store.daemon
            if not connection.execute(sa.select(members.c.member).where(of_fleet)).first():
                # Nobody is left who could tell which targets are still in a configuration.
                ours = watched_targets.c.daemon == self._store.daemon
                connection.execute(watched_targets.delete().where(ours))

    def _own(self, table: sa.Table) -> sa.Update:
        return table.update().where(*_equal(table, self._key))

    def _put(self, connection: sa.Connection, present: float, **columns: Any) -> None:
        """Add or renew our row. Raises ConfigError for that of another process."""
        row = connection.execute(
            sa.select(members).where(*_equal(members, self._key)).with_for_update()
        ).first()
        if row is not None and row.token != self._token and row.lease_until > present:
            raise ConfigError(
                f"fleet.member: {self._key['member']} is the name of a live member already, at"
                f" {row.address}; this one watches nothing until that one has ended or has another"
                " name"
            )
        columns |= {"token": self._token, "seen": present, "lease_until": present + self._lease}
        connection.execute(
            insert(connection, members)
            .values(self._key | columns)
            .on_conflict_do_update(index_elements=list(self._key), set_=columns)
        )

    def _forget(self, connection: sa.Connection, present: float) -> None:
        """Delete the rows of members that have been dead for long."""
        old = members.c.lease_until < present - _FORGOTTEN
        connection.execute(members.delete().where(members.c.daemon == self._key["daemon"], old))

    def _holders(
        self,
        connection: sa.Connection,
        targets: Collection[str],
        live: Collection[str],
        known: Sequence[FleetMember],
    ) -> dict[str, str]:
        """Who watches each target; adds those that are new, and deletes those that nobody has
        in the configuration any more."""
        daemon = self._key["daemon"]
        holders = _holders(connection, daemon)
        new = sorted(set(targets) - holders.keys())
        if new:
            connection.execute(
                insert(connection, watched_targets).on_conflict_do_nothing(),
                [{"daemon": daemon, "target": t, "member": "", "since": 0.0} for t in new],
            )
            holders |= dict.fromkeys(new, "")
        if len({one.digest for one in known if one.live}) == 1:
            gone = [t for t in holders.keys() - set(targets) if holders[t] not in live]
            if gone:
                connection.execute(
                    watched_targets.delete().where(
                        watched_targets.c.daemon == daemon,
                        watched_targets.c.target.in_(gone),
                        watched_targets.c.member.not_in(live),
                    )
                )
                holders = {t: holder for t, holder in holders.items() if t not in set(gone)}
        return holders

    def _share_of(
        self,
        targets: Mapping[str, str],
        digest: str,
        peers: Collection[str],
        holders: Mapping[str, str],
    ) -> frozenset[str]:
        """Our share, computed again when the targets, the members or places have changed."""
        places = {place for target, place in targets.items() if place != target}
        held = {place: holders.get(place, "") for place in places}
        division = (digest, frozenset(peers), tuple(sorted(held.items())))
        if self._share[0] != division:
            self._share = division, share_of(self._key["member"], targets, peers, held)
        return self._share[1]

    def _claim(
        self, connection: sa.Connection, free: Sequence[str], live: Collection[str], present: float
    ) -> set[str]:
        """Take those of the free targets that no live member has taken meanwhile."""
        if not free:
            return set()
        table = watched_targets
        chosen = (
            sa.select(table.c.target)
            .where(table.c.daemon == self._key["daemon"], table.c.target.in_(free))
            .where(table.c.member.not_in(live))
            # A member that was stopped in the middle of a write must not stop the others.
            .with_for_update(skip_locked=True)
        )
        claimed = set(connection.execute(chosen).scalars())
        connection.execute(
            table.update()
            .where(table.c.daemon == self._key["daemon"], table.c.target.in_(claimed))
            .values(member=self._key["member"], since=present)
        )
        return claimed


class Watch(NamedTuple):
    """Who watches a target, empty for nobody, and since when (Unix seconds)."""

    target: str
    member: str
    since: float


def fleets(connection: sa.Connection) -> dict[str, tuple[FleetStatus, list[Watch]]]:
    """Every fleet in a database by the name of its daemon, and who watches each of its targets."""
    present = float(connection.execute(sa.select(clock(connection))).scalar_one())
    known = {}
    names = sa.union(sa.select(members.c.daemon), sa.select(watched_targets.c.daemon))
    for daemon in sorted(map(str, connection.execute(names).scalars())):
        of_fleet = _members(connection, daemon, present)
        live = {one.member for one in of_fleet if one.live}
        query = sa.select(watched_targets).where(watched_targets.c.daemon == daemon)
        rows = decoded(
            watched_targets,
            connection.execute(query.order_by(watched_targets.c.target)).all(),
            lambda row: Watch(row.target, row.member, row.since),
        )
        watches = [one if one.member in live else one._replace(member="") for one in rows]
        unwatched = tuple(one.target for one in watches if not one.member)
        status = FleetStatus("", tuple(of_fleet), len(watches), unwatched)
        known[daemon] = status, watches
    return known


def _members(
    connection: sa.Connection, daemon: str, present: float, outage: Outage = _NO_OUTAGE
) -> list[FleetMember]:
    """The members of a fleet, by name; the time of an outage does not count for leases that were
    not renewed since."""

    def decode(row: sa.Row[Any]) -> FleetMember:
        left = row.lease_until - present
        if row.lease_until < outage.ended:
            left += outage.seconds
        return FleetMember(
            row.member, row.address, row.version, row.digest, row.known, row.watched,
            row.started, present - row.seen, left,
        )  # fmt: skip

    query = sa.select(members).where(members.c.daemon == daemon).order_by(members.c.member)
    rows = connection.execute(query).all()
    return list(decoded(members, rows, decode))


def _holders(connection: sa.Connection, daemon: str) -> dict[str, str]:
    query = sa.select(watched_targets.c.target, watched_targets.c.member)
    rows = connection.execute(query.where(watched_targets.c.daemon == daemon))
    return {row.target: row.member for row in rows}


def _equal(table: sa.Table, key: Mapping[str, str]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.items()]
