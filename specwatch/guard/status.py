"""The guard of a target as surfaces show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from specwatch.guard.state import GuardState

ACTIONS = (
    ("disable", "done"),
    ("disable", "failed"),
    ("disable", "held"),
    ("enable", "done"),
    ("enable", "failed"),
    ("enable", "held"),
    ("hook_before", "done"),
    ("hook_before", "failed"),
    ("hook_after", "done"),
    ("hook_after", "failed"),
)
"""The counters of a guard, by action and result."""


def no_actions() -> dict[tuple[str, str], int]:
    """Counts of zero."""
    return dict.fromkeys(ACTIONS, 0)


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """The guard of one target in one daemon.

    ``state`` is None until it was read; ``holder`` is the daemon that guards it, which may be
    another. ``actions`` counts each of :data:`ACTIONS` since this daemon began, from 0 on so that
    an increase shows the first.
    """

    mode: str
    state: GuardState | None = None
    ours: bool = False
    holder: str = ""
    error: str | None = None
    actions: Mapping[tuple[str, str], int] = field(default_factory=no_actions)
    max_actions_per_day: int | None = None
    group_size: int = 0
    """Members of its group that any daemon on the database guards; 0 before that is known."""
    able: bool = True
    """Whether it has a service or a switch, through which it can act."""
    explores: bool = False
    """Whether it restarts the server now and then to measure a baseline."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A stored step; ``at`` is in Unix seconds."""

    target: str
    version: int
    at: float
    daemon: str
    incident: str
    phase_before: str
    phase: str
    reason: str
    inputs: dict[str, Any]


class ActionCount(Struct, frozen=True):
    """How often a guard did something, by result."""

    action: str
    result: str
    count: int


class GuardView(Struct, frozen=True):
    """The guard of a target as the HTTP API shows it; see :class:`GuardStatus`."""

    mode: str
    ours: bool
    holder: str
    error: str | None
    actions: list[ActionCount]
    state: GuardState | None


def guard_view(status: GuardStatus) -> GuardView:
    """The guard of a target; of its actions those that there were."""
    return GuardView(
        mode=status.mode,
        ours=status.ours,
        holder=status.holder,
        error=status.error,
        actions=[
            ActionCount(action, result, count)
            for (action, result), count in sorted(status.actions.items())
            if count
        ],
        state=status.state,
    )
