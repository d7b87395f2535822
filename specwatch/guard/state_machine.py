"""The guard's state machine: the next step of one target, from its state and its situation.

::

    observing → suspect → confirmed → draining → restarting → verifying → disabled
    disabled → draining → restarting → verifying → trial → observing, or off again
    any failure → rolling_back → held

By the switch (``standby``), which needs no restart::

    confirmed → restarting → verifying → disabled → restarting → trial

A step is stored before its effect is carried out (:func:`effect`), so that after a crash the next
process knows what may have begun. :func:`pause`, :func:`resume` and :func:`order` are commands of
the operator; they take precedence over what the guard would do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import deciding, groups, holdout, restart_phases, switch_phases
from specwatch.guard.observation import Situation
from specwatch.guard.state import CALM, GuardState, Order, Pause, Phase, Step, to, wait

_PATIENCE = 60.0
"""Seconds that a rollback waits for the server's manager to finish."""
_LEAST_DELAY = float(HOUR)
"""Least delay in seconds that a hold doubles for the next trial."""


class Effect(enum.Enum):
    """What a stored state asks to be done."""

    BEFORE = enum.auto()
    """Run the hook that takes the server out of the load balancer."""
    SWITCH = enum.auto()
    """Restart the server in the mode of the goal, or give its switch the order."""
    AFTER = enum.auto()
    """Run the hook that puts the server back."""
    RENEW = enum.auto()
    """Renew the order of the switch before its lease ends."""


_HANDLERS: dict[Phase, Callable[[GuardState, Situation, Guard], Step | None]] = {
    Phase.OBSERVING: holdout.observing,
    Phase.SUSPECT: deciding.observing,
    Phase.CONFIRMED: deciding.confirmed,
    Phase.DRAINING: restart_phases.draining,
    Phase.RESTARTING: restart_phases.restarting,
    Phase.VERIFYING: restart_phases.verifying,
    Phase.DISABLED: holdout.disabled,
    Phase.TRIAL: deciding.trial,
    Phase.ROLLING_BACK: restart_phases.rolling_back,
    Phase.HELD: lambda *_: None,
}
_BY_SWITCH: dict[Phase, Callable[[GuardState, Situation, Guard], Step | None]] = {
    Phase.RESTARTING: switch_phases.switching,
    Phase.VERIFYING: switch_phases.verifying,
    Phase.DISABLED: switch_phases.standing_by,
}
"""For an action by the switch."""


def step(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """The next step, or None if nothing changes; to be called again after each stored step."""
    following = _step(state, seen, policy)
    if not seen.group or seen.group == state.group:
        return following
    if following is None:
        return Step(replace(state, group=seen.group), f"it is of the group {seen.group}")
    return replace(following, state=replace(following.state, group=seen.group))


def _step(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    if state.pause is not None and seen.now >= state.pause.until:
        return Step(replace(state, pause=None), f"the pause of {state.pause.by} is over")
    verifying = state.phase is Phase.VERIFYING
    if state.phase in CALM or (state.standby and verifying):
        if policy.mode == "off" and state.order is None and state.phase in CALM:
            lost = switch_phases.not_held(state, seen) if state.standby else None
            return lost or deciding.ended_by_itself(state, seen, policy)
        decided = deciding.ordered(state, seen, policy) or deciding.switched(state, seen)
        if decided is not None:
            return decided
        if state.order is not None and groups.no_room(seen.others, policy):
            return wait(state, groups.no_room(seen.others, policy))
    elif verifying and state.healthy_at is not None:
        decided = deciding.ordered(state, seen, policy)
        if decided is not None:
            return decided
    by_switch = _BY_SWITCH.get(state.phase) if state.standby else None
    return (by_switch or _HANDLERS[state.phase])(state, seen, policy)


def effect(state: GuardState, seen: Situation, *, prepared: bool) -> Effect | None:
    """What is to be done now; ``prepared``: the hook ``before`` has run in this process."""
    if state.phase is Phase.DRAINING and state.hooked and not prepared:
        return Effect.BEFORE
    if state.standby and state.phase is Phase.RESTARTING:
        return Effect.SWITCH
    if state.phase in (Phase.RESTARTING, Phase.ROLLING_BACK) and state.issued is None:
        if seen.handover is not None:
            return None
        # Its manager may still be busy with our request, so wait for it; but one whose restarts
        # keep failing never finishes.
        patient = state.phase is Phase.RESTARTING or seen.now - state.since < _PATIENCE
        return Effect.SWITCH if seen.settled is not None or not patient else None
    back = state.phase in CALM and (state.phase is not Phase.HELD or seen.mode is not None)
    if state.hooked and (back or state.healthy_at is not None):
        return Effect.AFTER
    held = state.standby and state.phase in (Phase.VERIFYING, Phase.DISABLED)
    if held or (state.from_standby and state.phase is Phase.DRAINING):
        return Effect.RENEW
    return None


def pause(state: GuardState, *, until: float, by: str, why: str = "") -> Step:
    """Begin nothing until ``until`` (Unix seconds); an action before its restart is given up."""
    sentence = f"paused by {by}" + (f": {why}" if why else "")
    return Step(replace(state, pause=Pause(until, by, why)), sentence)


def resume(state: GuardState, *, by: str, now: float) -> Step | None:
    """End a pause, and a hold: the guard decides again; None if there is neither."""
    if state.phase is Phase.HELD and state.goal is Mode.OFF:
        # The guard had switched it off: a trial follows, later than without the failure.
        delay = 2 * max(state.delay, _LEAST_DELAY)
        return to(
            state,
            Phase.DISABLED,
            now,
            f"resumed by {by}",
            pause=None,
            why="",
            disabled_at=now,
            rearm_at=now + delay,
            delay=delay,
        )
    if state.phase is Phase.HELD:
        return to(
            state,
            Phase.OBSERVING,
            now,
            f"resumed by {by}",
            pause=None,
            goal=None,
            incident=None,
            why="",
        )
    if state.pause is None:
        return None
    return Step(replace(state, pause=None), f"resumed by {by}")


def order(
    state: GuardState, goal: Mode, *, by: str, now: float, why: str = "", until: float | None = None
) -> Step:
    """Switch speculation as soon as what is under way allows it; ``until`` is a Unix time."""
    sentence = f"{by} wants speculation {goal}" + (f": {why}" if why else "")
    return Step(replace(state, order=Order(goal, by, now, why, until)), sentence)
