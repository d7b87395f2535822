"""Rows of the tables ``guards`` and ``guard_steps``, decoded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
import sqlalchemy as sa

from specwatch.guard.state import GuardState
from specwatch.guard.status import StepRecord
from specwatch.store.schema import guard_steps, guards
from specwatch.store.statements import decoded
from specwatch.store.texts import storable

LOOKING = "~"
"""Suffix of the name of a holder that cannot act."""


_COLUMNS = tuple(guards.c.keys())


class Entry(msgspec.Struct, frozen=True):
    """The stored guard of a target; ``left`` are the seconds until its lease ends."""

    state: GuardState
    version: int
    holder: str
    left: float

    def held_by(self, holder: str) -> bool:
        """Whether this holder has the lease and it has not ended."""
        return self.left > 0 and self.holder in holder_names(holder)

    @property
    def process(self) -> str:
        """The process of that daemon."""
        return self.holder.rpartition(":")[2].removesuffix(LOOKING)

    @property
    def daemon(self) -> str:
        """The daemon that holds the lease, empty for none."""
        return self.holder.rpartition(":")[0]


def entry_of(row: sa.Row[Any]) -> Entry:
    """The guard of a row of guards, which may have the database's clock as a last column."""
    values = row[: len(_COLUMNS)]
    target, version, holder, lease_until, text = values
    state = _unpacked(text)
    if storable(state.target) != target:
        raise ValueError("state is of another target")
    left = lease_until - (row[-1] if len(row) > len(_COLUMNS) else 0.0)
    return Entry(state, version, holder, left)


def step_of(row: sa.Row[Any]) -> StepRecord:
    """The step of a row of guard_steps."""
    inputs = msgspec.json.decode(row.inputs, type=dict[str, Any])
    return StepRecord(**{**row._mapping, "inputs": inputs})


@lru_cache(maxsize=64)
def holder_names(holder: str) -> tuple[str, str]:
    """The names under which a holder may have a lease: able to act, and not."""
    return storable(holder), storable(holder) + LOOKING


def packed(state: GuardState) -> str:
    """The stored text of a state."""
    return msgspec.json.encode(state).decode()


# Leases are renewed every 15 s, states change seldom.
@lru_cache(maxsize=4096)
def _unpacked(text: str) -> GuardState:
    return msgspec.json.decode(text, type=GuardState)


def versions(connection: sa.Connection, targets: Iterable[str]) -> dict[str, int]:
    """The version with which a guard begins, by target, for those that have none: it goes on after
    the steps of one that was pruned."""
    known = set(connection.execute(sa.select(guards.c.target)).scalars())
    new = [target for target in targets if target not in known]
    last = sa.func.max(guard_steps.c.version)
    query = sa.select(guard_steps.c.target, last).where(guard_steps.c.target.in_(new))
    steps = connection.execute(query.group_by(guard_steps.c.target)) if new else ()
    return dict.fromkeys(new, 0) | dict(map(tuple, steps))


def prune(connection: sa.Connection, before: float) -> int:
    """Delete guards that nobody has held since a time (Unix seconds), with nothing under way;
    returns how many. Their steps are kept."""
    left = (guards.c.lease_until < before,)
    known = decoded(
        guards,
        connection.execute(sa.select(guards).where(*left)).all(),
        lambda row: (row.target, entry_of(row).state.forgettable(before)),
    )
    gone = [{"gone": target} for target, forgettable in known if forgettable]
    if not gone:
        return 0
    delete = guards.delete().where(*left, guards.c.target == sa.bindparam("gone"))
    return connection.execute(delete, gone).rowcount
