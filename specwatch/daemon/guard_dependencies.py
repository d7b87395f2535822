"""What the guard of a target reads from and acts through, and decides on while it observes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from specwatch.config.guard import Guard
from specwatch.domain.baseline import Baseline
from specwatch.rules.decisions import TargetDecision
from specwatch.status import TargetStatus
from specwatch.store.guard_records import GuardBook
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store


class GuardDependencies(NamedTuple):
    """What a guard reads from and acts through."""

    store: Store
    book: GuardBook
    status: Callable[[], TargetStatus]
    decision: Callable[[], TargetDecision]
    group: Callable[[], str]
    """The name of the target's group."""
    others: Callable[[], Mapping[str, Entry]]
    """The guards of its other members as read last."""
    baselines: Callable[[], Mapping[str, Baseline]]
    switched: Callable[[], None]
    """Called after a switch: earlier findings about the server no longer apply."""
    healthy: Callable[[], bool]
    now: Callable[[], float]
    """Unix time that neither jumps nor goes back while an action is under way."""
    wall: Callable[[], float]


class Basis(NamedTuple):
    """What a guard that observes decides on, but for the time."""

    policy: Guard
    version: int | None
    decision: TargetDecision
    status: TargetStatus

    def same(self, other: Basis) -> bool:
        """Whether both lead to the same situation."""
        ours, theirs = self.status, other.status
        return (
            self.policy is other.policy
            and self.version == other.version
            and self.decision is other.decision
            and (
                ours is theirs  # no page was read meanwhile
                or (
                    (ours.failure is None) is (theirs.failure is None)
                    and (ours.models, ours.switch, ours.group)
                    == (theirs.models, theirs.switch, theirs.group)
                )
            )
        )
