"""Which member of a group may act: few restart at once, and one goes first.

The members may be guarded by different daemons, which read the stored
states of each other's guards from one database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from specwatch.config.guard import Guard
from specwatch.domain.model import Mode
from specwatch.guard.state import Cause, GuardState, Phase

QUEUED = "it waits for its group"
"""Begins what a guard waits for while others of its group come first."""
_UNDER_WAY = frozenset({Phase.DRAINING, Phase.RESTARTING, Phase.VERIFYING})
_LEARNED = frozenset({Cause.RULE, Cause.TRIAL_LOST})
"""Causes of serving without speculation that a measurement has confirmed."""


class Guarded(Protocol):
    """The guard of a member as it was read; ``left`` are the seconds until its lease ends."""

    @property
    def state(self) -> GuardState:
        """As it is stored."""

    @property
    def left(self) -> float:
        """Not above 0 if no daemon guards it."""


def guarded(others: Iterable[Guarded], now: float, policy: Guard) -> tuple[GuardState, ...]:
    """The guards of members that exist, at the Unix time ``now``.

    One that no daemon guards any more is of a server that was removed, or of a daemon that died:
    then another takes it over before a restart can take too long.
    """
    return tuple(
        other.state
        for other in others
        if other.left > 0 or now - other.state.since < policy.start_timeout
    )


def no_room(others: Sequence[GuardState], policy: Guard) -> str:
    """Why no member may restart now, not even for a person; empty if one may."""
    down = [other.target for other in others if other.unavailable]
    if len(down) < policy.max_unavailable:
        return ""
    names = f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} out of service"
    return f"{QUEUED} ({names}, and guard.max_unavailable is {policy.max_unavailable})"


def not_its_turn(others: Sequence[GuardState], goal: Mode, now: float) -> str:
    """Why a member may not begin to switch to ``goal`` by itself; empty if it may.

    One goes first. The others follow once a measurement has shown that it helped there, and not
    where it did not help, or where something failed. ``now`` is in Unix seconds.
    """
    for other in others:
        if other.phase in (Phase.HELD, Phase.ROLLING_BACK):
            return f"{QUEUED} (switching failed for {other.target}: {other.why})"
    first = _off_not_yet(others, now) if goal is Mode.OFF else _on_not_yet(others, now)
    return f"{QUEUED} ({first})" if first else ""


def _off_not_yet(others: Sequence[GuardState], now: float) -> str:
    for other in others:
        if other.phase is Phase.DISABLED and _because(other) in _LEARNED:
            return ""
    for other in others:
        if now < other.rests_until:
            return f"switching off did not help {other.target}"
        if other.phase in _UNDER_WAY and other.goal is Mode.OFF and _because(other) is Cause.RULE:
            return f"{other.target} goes first, and is not verified yet"
    return ""


def _on_not_yet(others: Sequence[GuardState], now: float) -> str:
    for other in others:
        if other.goal is Mode.ON and other.phase in (Phase.OBSERVING, Phase.SUSPECT):
            return ""
    for other in others:
        trying = other.phase is Phase.TRIAL or (
            other.phase in _UNDER_WAY and _because(other) is Cause.TRIAL
        )
        if trying:
            return f"{other.target} goes first, and its trial is not over"
        if _because(other) is Cause.TRIAL_LOST and now < (other.rearm_at or 0.0):
            return f"{other.target} has lost a trial"
    return ""


def _because(state: GuardState) -> Cause | None:
    return None if state.incident is None else state.incident.cause
