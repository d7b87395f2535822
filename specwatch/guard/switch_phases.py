"""Phases of an action by the switch: no restart, no lost request, and back within a second."""

from __future__ import annotations

from dataclasses import asdict, replace

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.domain.prediction import worth_it
from specwatch.domain.units import format_duration
from specwatch.guard import deciding, groups
from specwatch.guard.observation import Situation
from specwatch.guard.restart_phases import MOST_VERIFY, arrived, compares
from specwatch.guard.state import (
    NO_RESTART,
    Cause,
    GuardState,
    Phase,
    Step,
    to,
    wait,
    with_interval,
)

LEASE = 600.0
"""Seconds that an order of the guard holds: without a daemon vLLM then returns to its launch."""
_FOLLOWS_WITHIN = 30.0
"""Seconds until the counters have to follow an order."""
_RETRIED = 30.0
"""Seconds for which an order that failed is tried again."""
_LOST = "the switch cannot be reached"
_REST = float(HOUR)
"""Seconds for which a switch that failed or did not help is not used."""


def switching(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """The order is being given."""
    outcome = seen.outcome
    if outcome is None:
        return None
    if not outcome.error:
        done = replace(state, issued=seen.now, healthy_at=seen.now)
        if not compares(state):
            reached = "at 0 draft tokens" if state.goal is Mode.OFF else "back to the launch"
            return arrived(done, seen, policy, f"the switch is {reached}")
        watched = format_duration(policy.verify)
        reason = f"the switch is at 0 draft tokens; latency is watched for {watched}"
        return to(done, Phase.VERIFYING, seen.now, reason)
    patience = _RETRIED if state.goal is Mode.OFF else LEASE
    if outcome.retry and seen.now - state.since < patience:
        return None
    if state.goal is Mode.ON:
        return arrived(state, seen, policy, f"the order is not renewed any more: {outcome.error}")
    return _by_restart(state, seen, policy, f"the switch failed: {outcome.error}")


def verifying(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """In standby: do the counters follow, and is it faster than with speculation?"""
    step = not_held(state, seen) or _unfollowed(state, seen, policy)
    if step is not None:
        return step
    watched = seen.now - (state.healthy_at or seen.now)
    if watched < policy.verify:
        return None
    verification, last = seen.verification, watched >= MOST_VERIFY * policy.verify
    if verification is None:
        too_few = "too few whole minutes of traffic for a verification"
        if last:
            return arrived(state, seen, policy, f"{too_few}; left in standby")
        return wait(state, f"{too_few}: it goes on")
    speedup = verification.speedup
    if speedup.lower <= 1 <= speedup.upper and not last:
        return wait(state, "whether standby helps is not certain yet: verifying goes on")
    numbers = f"speculation has a speedup of {with_interval(speedup)} over standby"
    inputs = {"speedup_before": verification.before, "speedup": asdict(speedup)}
    if speedup.value <= 1:
        helped = replace(state, backoff=0.0)
        return replace(arrived(helped, seen, policy, f"it helped: {numbers}"), inputs=inputs)
    why = f"it did not help: {numbers}"
    step = _by_restart(state, seen, policy, why, before=verification.before)
    return step and replace(step, inputs=inputs)


def standing_by(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """In standby, as it should be: respect others, restart if that saves more than it costs."""
    step = not_held(state, seen) or _unfollowed(state, seen, policy)
    if step is not None:
        return step
    if seen.switch_error:
        return wait(state, f"{_LOST}: {seen.switch_error}")
    if state.waiting.startswith(_LOST):
        return Step(replace(state, waiting=""), "the switch can be reached again")
    return _restart_that_pays(state, seen, policy) or deciding.disabled(state, seen, policy)


def not_held(state: GuardState, seen: Situation) -> Step | None:
    """The end of a standby that is not the guard's any more: others ordered something else, or its
    order was not renewed."""
    if seen.overridden:
        why = f"the switch was set by {seen.overridden}"
    elif seen.switch_error and seen.switch_lost >= LEASE:
        why = f"its order is not in force any more: {seen.switch_error}"
    else:
        return None
    return to(
        state,
        Phase.OBSERVING,
        seen.now,
        why,
        goal=Mode.ON,
        incident=None,
        elsewhere=seen.now,
        standby=False,
        **deciding.NOT_DISABLED,
    )


def _unfollowed(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    since = state.since if state.healthy_at is None else state.healthy_at
    if seen.followed is not False or seen.now - since < _FOLLOWS_WITHIN:
        return None
    return _by_restart(state, seen, policy, "the server does not follow its switch")


def _restart_that_pays(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    cost = state.restart_cost(policy.restart_cost)
    by_rule = state.incident is not None and state.incident.cause is not Cause.PERSON
    if seen.standby_cost is None or seen.service is None or not by_rule:
        return None
    if not worth_it(
        seen.standby_cost.inverse(),
        speculating=True,
        horizon=policy.rearm.wait(cost),
        restart_seconds=2 * cost,
    ):
        return None
    later = replace(state, no_switch_until=seen.now + _REST)
    if state.incident is None or deciding.blocked(replace(later, standby=False), seen, policy):
        return None
    reason = (
        f"standby takes {with_interval(seen.standby_cost)} times as long as without speculation:"
        " a restart pays"
    )
    incident = replace(state.incident, cause=Cause.RULE)
    inputs = {"standby_cost": asdict(seen.standby_cost)}
    return deciding.begin(later, seen, policy, Mode.OFF, incident, reason, inputs)


def _by_restart(
    state: GuardState, seen: Situation, policy: Guard, why: str, *, before: float | None = None
) -> Step | None:
    """Restart in place of the switch, or put it back where a restart may not be.

    ``before`` is the speedup over a server without speculation, if it was measured.
    """
    if no_room := groups.no_room(seen.others, policy):
        return wait(state, f"{why}; {no_room}")
    incident, later = state.incident, replace(state, no_switch_until=seen.now + _REST)
    plain = replace(later, standby=False)
    by_person = incident is not None and incident.cause is Cause.PERSON
    refused = seen.service_error or ("" if seen.service else "its manager did not answer")
    goes_on = state.phase is not Phase.DISABLED
    if not refused and not by_person:
        refused = deciding.blocked(plain, seen, policy, goes_on=goes_on)
    cost = state.restart_cost(policy.restart_cost)
    if before is not None and (1 - before) * policy.rearm.wait(cost) <= cost:
        refused = refused or "a restart would cost more than it saves"
    if incident is not None and not refused:
        if not by_person and not goes_on:
            incident = replace(incident, cause=Cause.RULE)
        return deciding.begin(
            later, seen, policy, Mode.OFF, incident, f"{why}; restarting", counts=not by_person
        )
    rest = min(2 * state.backoff or policy.cooldown, max(policy.rearm.most, policy.cooldown))
    return to(
        state,
        Phase.RESTARTING,
        seen.now,
        f"{why}; {refused}",
        goal=Mode.ON,
        incident=incident and replace(incident, cause=Cause.NOT_HELPED),
        no_switch_until=seen.now + _REST,
        backoff=rest,
        rests_until=seen.now + rest,
        **NO_RESTART,
    )
