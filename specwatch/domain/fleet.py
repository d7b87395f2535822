"""How the members of a fleet divide its targets: rendezvous hashing; and the state of a fleet.

Every member that sees the same live members comes to the same division without asking any other.
When one joins or leaves, only the targets move that it gains or has had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

LIVES = 3
"""Heartbeats after which a member that renews its lease no more counts as dead."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One daemon of a fleet, as the database has it; it ``started`` at a Unix time.

    ``digest`` is of the names of the targets in its configuration (:func:`digest_of`), ``known``
    their number, and ``watched`` how many of them it watches. ``seen_ago`` are the seconds since it
    renewed its lease, ``left`` those until the lease ends: negative for one that is dead.
    """

    member: str
    address: str
    version: str
    digest: str
    known: int
    watched: int
    started: float
    seen_ago: float
    left: float

    @property
    def live(self) -> bool:
        """Whether its lease has not ended."""
        return self.left > 0


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet as one member sees it; ``member`` is that one, empty for a reader outside of it.

    ``targets`` is the number of all targets that a member has claimed or ever could, ``unwatched``
    are those that no live member watches. ``error`` says why the rest may be out of date.
    """

    member: str
    members: tuple[FleetMember, ...] = ()
    targets: int = 0
    unwatched: tuple[str, ...] = ()
    error: str | None = None

    @property
    def live(self) -> tuple[FleetMember, ...]:
        """The live members."""
        return tuple(member for member in self.members if member.live)

    @property
    def unlike(self) -> tuple[FleetMember, ...]:
        """Live members whose configuration lists other targets than that of most, or of the one
        that started last among equally many."""
        lists: dict[str, list[FleetMember]] = {}
        for member in self.live:
            lists.setdefault(member.digest, []).append(member)
        usual = max(
            lists.values(), key=lambda same: (len(same), max(m.started for m in same)), default=[]
        )
        return tuple(member for member in self.live if member not in usual)


def owner_of(target: str, members: Collection[str]) -> str:
    """The one of the members, at least one, that watches a target: the one with the highest hash
    (Thaler and Ravishankar 1998, highest random weight)."""
    return max(members, key=lambda member: (_weight(target, member), member))


def share_of(
    member: str,
    places: Mapping[str, str],
    members: Collection[str],
    holders: Mapping[str, str] = MappingProxyType({}),
) -> frozenset[str]:
    """The targets that ``member``, one of the members, watches.

    By target ``places`` has the target itself, or another that has to be watched by the same
    member: the one that watches that now by ``holders``, if it is one of the members.
    """

    def owner(target: str, place: str) -> str:
        holder = holders.get(place, "") if place != target else ""
        return holder if holder in members else owner_of(place, members)

    return frozenset(target for target, place in places.items() if owner(target, place) == member)


def digest_of(places: Mapping[str, str]) -> str:
    """The same for the same targets and places in any order."""
    lengths_and_names = "".join(
        f"{len(name)}:{name}{len(place)}:{place}" for name, place in sorted(places.items())
    )
    return hashlib.blake2b(lengths_and_names.encode(), digest_size=8).hexdigest()


def _weight(target: str, member: str) -> bytes:
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    text = f"{len(target)}:{target}{member}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
