"""The holdouts of a group: members that serve without speculation, as the baseline of the others.

A holdout is switched off by a restart, as by a rule, and stays off until it leaves the group,
cannot be read, or is one too many. Then a trial is due, as for any server that is off, and another
member becomes the holdout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specwatch.config.guard import Guard
from specwatch.domain.holdout import Holdout
from specwatch.domain.model import Mode
from specwatch.domain.shard import owner_of
from specwatch.guard import deciding
from specwatch.guard.observation import Situation
from specwatch.guard.state import Cause, GuardState, Phase, Step

LEAST_MEMBERS = 3
"""Members that a group has for each holdout, at least."""
HOLDOUT_OF = "holdout of"
"""Input of the first step of a holdout: the group."""
_LOT = 900.0
"""Seconds after which the lot falls on another member, if the chosen one did not begin."""


def most(members: int, policy: Guard) -> int:
    """How many of so many members are holdouts."""
    return min(policy.holdout, members // LEAST_MEMBERS)


def is_chosen(state: GuardState, others: Sequence[GuardState], policy: Guard, now: float) -> bool:
    """Whether a member becomes a holdout of its group at ``now`` (Unix seconds).

    One of those that speculate, by rendezvous hashing: every daemon comes to the same one.
    """
    members = (state, *others)
    if not policy.holdout or sum(member.holdout for member in members) >= most(
        len(members), policy
    ):
        return False
    free = [
        member.target
        for member in members
        if member.phase in (Phase.OBSERVING, Phase.SUSPECT) and member.goal is Mode.ON
    ]
    lot = f"{state.group} {now // _LOT:.0f}"
    return state.target in free and owner_of(lot, free) == state.target


def serving(members: Iterable[GuardState]) -> tuple[Holdout, ...]:
    """The holdouts among them that serve without speculation."""
    return tuple(
        Holdout(member.target, member.incident.began, member.disabled_at)
        for member in members
        if member.holdout and member.phase is Phase.DISABLED
        if member.incident is not None and member.disabled_at is not None
    )


def observing(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """As :func:`specwatch.guard.deciding.observing`; a calm server may become a holdout."""
    step = deciding.observing(state, seen, policy)
    calm = step is None and seen.mode is state.goal is Mode.ON
    if not calm or not seen.chosen or seen.now - state.since < deciding.SETTLED:
        return step
    if deciding.restart_blocked(state, seen, policy):
        return None
    incident = deciding.incident_of(state, Cause.HOLDOUT, seen)
    reason = f"it becomes the holdout of the group {seen.group}: their baseline at the same time"
    plain = replace(state, rearm_at=None, disabled_at=None, down_since=None)
    inputs = {HOLDOUT_OF: seen.group}
    return deciding.begin(plain, seen, policy, Mode.OFF, incident, reason, inputs)


def disabled(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """As :func:`specwatch.guard.deciding.disabled`; a holdout stays off while it is needed."""
    if not state.holdout:
        return deciding.disabled(state, seen, policy)
    why = _not_needed(state, seen, policy)
    if not why and state.down_since is None:
        return deciding.disabled(state, seen, policy)
    if not why:
        return Step(replace(state, down_since=None, waiting=""), "it is the holdout again")
    if state.down_since is None:
        return Step(replace(state, down_since=seen.now, waiting=why), why)
    if seen.now - state.down_since < policy.start_timeout:
        return None
    ended = replace(state, rearm_at=seen.now, down_since=None, waiting="")
    return Step(ended, f"it is not the holdout of its group any more: {why}")


def _not_needed(state: GuardState, seen: Situation, policy: Guard) -> str:
    """Why it need not be a holdout; empty if it is needed."""
    if seen.scraped_at is None:
        return "it cannot be read"
    members = 1 + len(seen.others)
    before = [other for other in seen.others if other.holdout and _order(other) < _order(state)]
    if len(before) < most(members, policy):
        return ""
    if not before:
        return f"guard.holdout is {policy.holdout}, and the group has {members} members"
    return f"{before[0].target} is a holdout of the group already"


def _order(state: GuardState) -> tuple[float, str]:
    return (state.incident.began if state.incident else 0.0), state.target
