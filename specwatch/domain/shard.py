"""Shards: several daemons, each of which watches its part of the targets.

Every name has one owner, by rendezvous hashing (Thaler and Ravishankar 1998, highest random
weight): with one shard more, only the names move that the new one gets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass

MOST_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` parts of the targets, numbered from 0."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def owns(self, name: str) -> bool:
        """Whether what has this name is in this part."""
        return owner_of(name, [str(number) for number in range(self.count)]) == str(self.number)


def parse_shard(text: object) -> Shard:
    """The shard ``2/3``: the last of three. The number may be that of a pod of a StatefulSet, with
    its name: ``specwatch-2/3``. Raises ValueError."""
    found = re.fullmatch(r"(?:[a-z0-9.-]+-)?(\d{1,4})/(\d{1,4})", str(text).strip())
    if found is None:
        raise ValueError("expected NUMBER/COUNT, such as 0/3, 1/3 and 2/3 for three daemons")
    shard = Shard(int(found[1]), int(found[2]))
    if not 0 < shard.count <= MOST_SHARDS:
        raise ValueError(f"expected 1 to {MOST_SHARDS} shards")
    if shard.number >= shard.count:
        raise ValueError(
            f"shards are numbered from 0: the last of {shard.count} is"
            f" {shard.count - 1}/{shard.count}"
        )
    return shard


def owner_of(name: str, candidates: Collection[str]) -> str:
    """The one of the candidates, at least one, that a name falls to."""
    return max(candidates, key=lambda candidate: (_weight(name, candidate), candidate))


def _weight(name: str, candidate: str) -> bytes:
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    text = f"{len(name)}:{name}{candidate}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
