"""The guard's state machine: the next step of one target, from its state and what is seen.

::

    observing → suspect → confirmed → draining → restarting → verifying → disabled
    disabled → draining → restarting → verifying → trial → observing, or off again
    any failure → rolling_back → held

A step is stored before what it leads to is done (:func:`effect`), so that whoever comes after a
crash finds what may have been begun.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace

from specwatch.config.guard import Guard
from specwatch.domain.model import Mode
from specwatch.guard import deciding, switching
from specwatch.guard.observation import Seen
from specwatch.guard.state import CALM, GuardState, Phase, Step

_PATIENCE = 60.0
"""Seconds that putting a server back waits for its manager to come to rest."""


class Effect(enum.Enum):
    """What a stored state asks to be done."""

    BEFORE = enum.auto()
    """Run the hook that takes the server out of the load balancer."""
    SWITCH = enum.auto()
    """Restart the server in the mode of the goal."""
    AFTER = enum.auto()
    """Run the hook that puts the server back."""


_HANDLERS: dict[Phase, Callable[[GuardState, Seen, Guard], Step | None]] = {
    Phase.OBSERVING: deciding.observing,
    Phase.SUSPECT: deciding.observing,
    Phase.CONFIRMED: deciding.confirmed,
    Phase.DRAINING: switching.draining,
    Phase.RESTARTING: switching.restarting,
    Phase.VERIFYING: switching.verifying,
    Phase.DISABLED: deciding.disabled,
    Phase.TRIAL: deciding.trial,
    Phase.ROLLING_BACK: switching.rolling_back,
    Phase.HELD: lambda *_: None,
}


def step(state: GuardState, seen: Seen, policy: Guard) -> Step | None:
    """The next step, or None where nothing changes.

    Called again after each step that was stored, until there is none.
    """
    if state.pause is not None and seen.now >= state.pause.until:
        return Step(replace(state, pause=None), f"the pause of {state.pause.by} is over")
    if state.phase in CALM:
        if policy.mode == "off" and state.order is None:
            return None
        decided = deciding.ordered(state, seen, policy) or deciding.switched(state, seen)
        if decided is not None:
            return decided
    return _HANDLERS[state.phase](state, seen, policy)


def effect(state: GuardState, seen: Seen, *, prepared: bool) -> Effect | None:
    """What is to be done now; ``prepared`` says that the hook before ran in this process."""
    if state.phase is Phase.DRAINING and state.hooked and not prepared:
        return Effect.BEFORE
    if state.phase in (Phase.RESTARTING, Phase.ROLLING_BACK) and state.issued is None:
        # While its manager is busy, perhaps with what we asked for, it is waited for; but one
        # that starts in vain again and again is never at rest.
        patient = state.phase is Phase.RESTARTING or seen.now - state.since < _PATIENCE
        return Effect.SWITCH if seen.settled is not None or not patient else None
    back = state.phase in CALM and (state.phase is not Phase.HELD or seen.mode is not None)
    if state.hooked and (back or state.healthy_at is not None):
        return Effect.AFTER
    return None


def hooks_done(state: GuardState) -> Step:
    """The hook after has put the server back."""
    return Step(replace(state, hooked=False), "the server was put back by the hook")


def target_mode(state: GuardState) -> Mode:
    """How the server is to be started, should nobody have done it yet."""
    return state.goal or Mode.ON
