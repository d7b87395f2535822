"""Phases of an action by the switch: no restart, no lost request, and back within a second."""

from __future__ import annotations

from dataclasses import asdict, replace

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.domain.units import format_duration
from specwatch.guard import deciding
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
    step = deciding.overridden(state, seen)
    if step is not None:
        return step
    watched = seen.now - (state.healthy_at or seen.now)
    if seen.followed is False and watched >= _FOLLOWS_WITHIN:
        return _by_restart(state, seen, policy, "the server does not follow its switch")
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
    if state.pause is not None or policy.mode != "act":
        return wait(state, f"it did not help, and the guard may not act now: {numbers}")
    return replace(_by_restart(state, seen, policy, f"it did not help: {numbers}"), inputs=inputs)


def _by_restart(state: GuardState, seen: Situation, policy: Guard, why: str) -> Step:
    """Restart in place of the switch, or put it back where that is impossible."""
    incident = state.incident
    restarts = replace(state, standby=False, no_switch_until=seen.now + _REST)
    may_act = state.pause is None and policy.mode == "act"
    by_person = incident is not None and incident.cause is Cause.PERSON
    possible = seen.service is not None and not seen.service_error and (may_act or by_person)
    if incident is not None and possible:
        return deciding.begin(
            restarts, seen, policy, Mode.OFF, incident, f"{why}; restarting", counts=False
        )
    rest = min(2 * state.backoff or policy.cooldown, max(policy.rearm.most, policy.cooldown))
    return to(
        state, Phase.RESTARTING, seen.now,
        f"{why}; {seen.service_error or 'a restart is not possible now'}",
        goal=Mode.ON, incident=incident and replace(incident, cause=Cause.NOT_HELPED),
        no_switch_until=seen.now + _REST, backoff=rest, rests_until=seen.now + rest,
        **NO_RESTART,
    )  # fmt: skip
