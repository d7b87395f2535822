"""Decisions in phases without an action under way: whether to begin one."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from specwatch.config.guard import SHORT_TRIAL, Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.domain.prediction import worth_it
from specwatch.domain.units import format_duration
from specwatch.guard import groups
from specwatch.guard.observation import Breach, Situation
from specwatch.guard.plan import ProcessState
from specwatch.guard.state import (
    HIDDEN_CHANGE,
    NO_RESTART,
    WITHOUT_STANDBY,
    Cause,
    GuardState,
    Incident,
    Order,
    Phase,
    Step,
    to,
    wait,
    with_interval,
)

_GAIN_LASTS = float(HOUR)
"""Seconds for which traffic is expected to stay the same, for predicted gains."""
NOT_DISABLED: dict[str, Any] = {"disabled_at": None, "rearm_at": None, "delay": 0.0}
_MOST_CREDIT = 3.0
"""Explorations that the budget may accumulate: by the clock only the last of them is spent, the
others are kept for traffic that cannot be judged."""
SETTLED = 900.0
"""Seconds that the guard observes before it explores, or makes a holdout of a server."""
_SWITCH_PATIENCE = 30.0
"""Seconds for which a switch that cannot be used is waited for, before a restart in its place."""
_SUSPECT = 300.0
"""Seconds that the phase ``suspect`` lasts at least."""
_EARLY = float(HOUR)
"""Seconds until a trial may come early again, after the first early one that was lost."""


def observing(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """No rule is in breach for long enough yet."""
    if state.goal is None and seen.mode in (Mode.ON, Mode.OFF):
        return Step(replace(state, goal=seen.mode), f"speculation is {seen.mode}")
    if seen.mode is None:
        return None  # one failed scrape changes nothing
    if seen.mode is not Mode.ON or state.goal is Mode.OFF:  # an older scrape
        return _calm(state, seen)
    if seen.breaches:
        breach = seen.breaches[0]
        incident = incident_of(state, Cause.RULE, seen, breach)
        reason = f"the rule {breach.rule} is in breach"
        return to(state, Phase.CONFIRMED, seen.now, reason, dict(breach.inputs), incident=incident)
    if state.phase is Phase.SUSPECT and seen.now - state.since < _SUSPECT:
        return None  # a rule that changes every minute is not worth a step each time
    if seen.suspects and state.phase is Phase.OBSERVING:
        named = ", ".join(seen.suspects)
        return to(state, Phase.SUSPECT, seen.now, f"in breach, not for long enough yet: {named}")
    if seen.suspects:
        return None
    return _calm(state, seen) or _explored(state, seen, policy)


def _explored(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Serve without speculation for a while if traffic is unjudged, or the baseline too old."""
    why = seen.unjudged or seen.aged
    needed = 1.0 if seen.unjudged else _MOST_CREDIT
    if not why or not policy.explore.budget or seen.now - state.since < SETTLED:
        return None
    interval = policy.explore.interval(state.restart_cost(policy.restart_cost))
    # Not at the same time each day, whatever the interval is.
    interval *= 1 + zlib.crc32(f"{state.target}/{state.credit_at}".encode()) / 2**34
    idle = 0.0 if state.credit_at is None else seen.now - state.credit_at
    credit = min(state.credit + idle / interval, _MOST_CREDIT)
    if credit < needed or restart_blocked(state, seen, policy):
        return None
    spent = replace(state, credit=credit - 1, credit_at=seen.now)
    incident = incident_of(state, Cause.EXPLORATION, seen)
    return begin(spent, seen, policy, Mode.OFF, incident, f"exploring: {why}")


def confirmed(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """A rule is in breach: act, or record why not."""
    if not seen.breaches and seen.mode is Mode.ON and seen.undecided:
        return None
    if not seen.breaches or seen.mode is not Mode.ON:
        why = "no rule is in breach any more"
        if seen.mode is not Mode.ON:
            why = "speculation is off, so there is nothing to measure"
        if seen.mode is None or seen.scraped_at is None:
            return None
        return to(state, Phase.OBSERVING, seen.now, why, incident=None)
    why = blocked(state, seen, policy)
    if not why and not by_switch(state, seen, policy, Mode.OFF):
        why = unprofitable(state, seen, policy)
    if why:
        return wait(state, why)
    if seen.switch_error and seen.switch_lost < _SWITCH_PATIENCE:
        # One that is overloaded answers late, and a restart in its place costs far more.
        return wait(state, f"its switch cannot be used yet: {seen.switch_error}")
    incident = state.incident or incident_of(state, Cause.RULE, seen, seen.breaches[0])
    return begin(state, seen, policy, Mode.OFF, incident, "switching speculation off")


def disabled(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """The guard switched speculation off: start a trial when it is due, or predicted to win."""
    if not state.standby and seen.service is not None and seen.service.stale:
        step = wait(state, HIDDEN_CHANGE)
        if step is not None:
            return step
    if state.rearm_at is None:
        return None
    due = seen.now >= state.rearm_at
    if _for_a_time(state):
        return _order_over(state, seen, policy)
    predicted = seen.predicted
    if not due:
        there_and_back = 0.0 if state.standby else 2 * state.restart_cost(policy.restart_cost)
        if predicted is None or seen.now < state.early_at:
            return None
        if not worth_it(
            predicted, speculating=False, horizon=_GAIN_LASTS, restart_seconds=there_and_back
        ):
            return None
    why = _trial_blocked(state, seen, policy, state.rearm_at)
    if why:
        return wait(state, f"a trial is due; {why}")
    incident = state.incident or incident_of(state, Cause.TRIAL, seen)
    incident = replace(incident, cause=Cause.TRIAL)
    reason = "it is time for a trial" if due else "speculation is predicted to pay now"
    inputs = {} if predicted is None else {"predicted_speedup": asdict(predicted)}
    counts = not state.standby
    return begin(state, seen, policy, Mode.ON, incident, reason, inputs, counts=counts)


def ended_by_itself(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """For a guard that is off: an operator's disabling for a time ends all the same, unless another
    tool switched speculation since."""
    if state.phase is not Phase.DISABLED or not _for_a_time(state):
        return None
    return switched(state, seen) or _order_over(state, seen, policy)


def _for_a_time(state: GuardState) -> bool:
    """Whether an operator switched speculation off until a time."""
    by_person = state.incident is not None and state.incident.cause is Cause.PERSON
    return by_person and state.rearm_at is not None


def _order_over(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """The end of an operator's disabling, whatever the guard may do."""
    if state.incident is None or state.rearm_at is None or seen.now < state.rearm_at:
        return None
    if not state.standby and (seen.service is None or seen.service_error):
        return None
    over = replace(state.incident, cause=Cause.ORDER_OVER)
    reason = f"the time that {over.what} gave is over"
    return begin(state, seen, policy, Mode.ON, over, reason, counts=False)


def _trial_blocked(state: GuardState, seen: Situation, policy: Guard, due: float) -> str:
    """Why no trial may begin now; empty if it may. ``due`` is the time that was planned for it."""
    began = state.disabled_at or 0.0
    planned, waited = due - began, max(seen.now, due) - began
    patience = max(policy.rearm.most, planned) if policy.rearm.after is not None else planned
    if seen.predicted is not None and seen.predicted.value < 1 and waited < patience:
        return "speculation is predicted to lose now"
    return blocked(state, seen, policy, Mode.ON)


def trial(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Speculation is on again: does it pay?"""
    over = seen.now - state.since >= policy.rearm.trial
    certain = seen.trial is not None and seen.trial.certain is not None
    known = seen.trial is not None or seen.passing
    if not seen.breaches and not certain and not (over and known):
        return wait(state, "too little traffic for a result of the trial") if over else None
    speedup = None if seen.trial is None else seen.trial.certain or seen.trial.speedup
    lost = speedup is not None and speedup.value < 1
    unsure = speedup is not None and speedup.upper >= 1
    if lost and unsure and not seen.breaches and seen.now - state.since < 2 * policy.rearm.trial:
        return wait(state, "the trial is not decided yet, and goes on")
    inputs = {} if speedup is None else {"speedup": asdict(speedup)}
    if not seen.breaches and not lost:
        reason = "the trial was won: no rule is in breach"
        if speedup is not None:
            reason = f"the trial was won: speedup {with_interval(speedup)}"
        clear = speedup is None or speedup.lower > 1
        return to(
            state,
            Phase.OBSERVING,
            seen.now,
            reason,
            inputs,
            incident=None,
            delay=0.0 if clear else state.delay,
            early_pause=_EARLY,
            early_at=0.0,
            disabled_at=None,
        )
    if state.pause is not None or policy.mode != "act":
        return wait(state, "the trial is lost, and the guard may not act now")
    switches = by_switch(state, seen, policy, Mode.OFF)
    cost = 0.0 if switches else state.restart_cost(policy.restart_cost)
    lasted = seen.now - state.since
    wasted = SHORT_TRIAL if speedup is None else max(1 / speedup.value - 1, 0.0) * lasted
    delay = policy.rearm.later(state.delay or policy.rearm.wait(cost), cost, wasted)
    later = replace(state, delay=delay)
    if state.rearm_at is not None and state.since < state.rearm_at:
        # It came early, so that the prediction was wrong.
        early_at = seen.now + state.early_pause
        later = replace(later, early_at=early_at, early_pause=2 * state.early_pause)
    incident = state.incident or incident_of(state, Cause.TRIAL_LOST, seen)
    what = seen.breaches[0].rule if seen.breaches else ""
    reason = f"the rule {what} is in breach in the trial" if what else ""
    if speedup is not None and not reason:
        reason = f"the trial was lost: speedup {with_interval(speedup)}"
    incident = replace(incident, cause=Cause.TRIAL_LOST, what=what)
    return begin(later, seen, policy, Mode.OFF, incident, reason, inputs, counts=False)


def ordered(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Commands of the operator come first, whatever the guard would decide."""
    order = state.order
    silent = seen.mode is None and seen.service is None and not seen.service_error
    if order is None or (silent and not seen.switchable):
        return None
    reason = f"{order.by} switched speculation {order.goal}" + (
        f": {order.why}" if order.why else ""
    )
    state, inputs = replace(state, order=None), {"ordered_by": order.by}
    if order.until is not None and seen.now >= order.until:
        return Step(state, f"{reason}; refused: its time is over already")
    # In standby the last page may be older than the order that is in force.
    standing_by = state.standby and state.phase in (Phase.DISABLED, Phase.VERIFYING)
    present = Mode.OFF if standing_by else seen.mode
    if present is order.goal:
        step = _as_ordered(state, seen, order, reason)
        return replace(step, inputs=inputs)
    if by_switch(state, seen, policy, order.goal):
        incident = replace(incident_of(state, Cause.PERSON, seen), what=order.by)
        state = replace(state, rearm_at=order.until, disabled_at=None)
        return begin(state, seen, policy, order.goal, incident, reason, inputs, counts=False)
    if not seen.service_error and groups.no_room(seen.others, policy):
        return None
    passing = seen.service is None and (seen.service_retry or not seen.service_error)
    if passing and seen.now - order.at < policy.start_timeout:
        return None
    if seen.service_error or seen.service is None:
        why = seen.service_error or "the server's manager did not answer"
        return Step(state, f"{reason}; refused: {seen.unusable_switch}{why}")
    incident = replace(incident_of(state, Cause.PERSON, seen), what=order.by)
    state = replace(state, rearm_at=order.until, disabled_at=None)
    return begin(state, seen, policy, order.goal, incident, reason, inputs, counts=False)


def switched(state: GuardState, seen: Situation) -> Step | None:
    """A switch by others, such as a deploy or a manual restart, is respected. A stop by the engine
    itself is not a switch."""
    # In standby a lease may have ended, or vLLM was restarted: the order is renewed.
    expected = (Mode.ON,) if state.standby else (None, state.goal)
    if seen.mode in (None, Mode.STOPPED) or state.goal is None or state.phase is Phase.HELD:
        return None
    if seen.mode in expected:
        return None
    if seen.scraped_at is None or seen.scraped_at < state.since:
        return None
    return to(
        state,
        Phase.OBSERVING,
        seen.now,
        f"speculation was switched {seen.mode} by another tool",
        goal=seen.mode,
        incident=None,
        elsewhere=seen.now,
        standby=False,
        **NOT_DISABLED,
    )


def blocked(
    state: GuardState,
    seen: Situation,
    policy: Guard,
    goal: Mode = Mode.OFF,
    *,
    goes_on: bool = False,
) -> str:
    """Why the guard may not begin an automatic action; empty if it may.

    An action that only ``goes_on`` in another way does not wait for the next one's turn.
    """
    acted = state.acted(seen.now)
    if policy.mode != "act":
        return f"guard.mode is {policy.mode}: nothing is done"
    if state.pause is not None:
        return f"paused by {state.pause.by}"
    rests = state.phase is Phase.CONFIRMED and seen.now < state.rests_until
    if rests:
        left = format_duration(round(state.rests_until - seen.now))
        return f"switching off did not help the last time: the guard rests for {left} more"
    if state.elsewhere is not None and seen.now - state.elsewhere < policy.respect:
        return "another tool switched speculation recently"
    closed = policy.windows.closed(seen.now)
    if closed:
        return closed
    if not goes_on and (turn := groups.not_its_turn(seen.others, goal, seen.now)):
        return turn
    switches = by_switch(state, seen, policy, Mode.ON if state.standby else Mode.OFF)
    if switches and seen.overridden:
        return f"the switch was set by {seen.overridden}"
    if switches and state.standby and state.phase is Phase.DISABLED:
        return ""  # a trial that costs no restart
    if len(acted) >= policy.max_actions_per_day and not goes_on:
        return f"{len(acted)} actions within a day: guard.max_actions_per_day are used up"
    if acted and seen.now - acted[-1] < policy.cooldown and not goes_on:
        return f"cooling down for {format_duration(policy.cooldown)} after the last action"
    if switches:
        return ""
    if seen.service_error:
        return f"the server cannot be switched: {seen.unusable_switch}{seen.service_error}"
    if seen.service is None:
        return "the server's manager was not asked yet"
    if no_room := groups.no_room(seen.others, policy):
        return no_room
    return "" if seen.service.life is ProcessState.UP else "the server is not up"


def restart_blocked(state: GuardState, seen: Situation, policy: Guard) -> str:
    """Why the guard may not begin an automatic restart, even where there is a switch."""
    return blocked(replace(state, no_switch_until=math.inf), seen, policy)


def begin(
    state: GuardState,
    seen: Situation,
    policy: Guard,
    goal: Mode,
    incident: Incident,
    reason: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    counts: bool = True,
) -> Step:
    """The first step of an action; ``counts``: against the budget of actions."""
    acted = state.acted(seen.now)
    hooks = policy.hooks
    if incident.cause not in WITHOUT_STANDBY and by_switch(state, seen, policy, goal):
        return to(
            state,
            Phase.RESTARTING,
            seen.now,
            reason,
            inputs,
            goal=goal,
            incident=incident,
            why="",
            standby=True,
            actions=(*acted, seen.now) if counts else acted,
            **{**NO_RESTART, "began": seen.now},
        )
    return to(
        state,
        Phase.DRAINING,
        seen.now,
        reason,
        inputs,
        goal=goal,
        incident=incident,
        why="",
        hooked=bool(hooks.before or hooks.after),
        from_standby=state.standby,
        standby=False,
        actions=(*acted, seen.now) if counts else acted,
        **NO_RESTART,
    )


def by_switch(state: GuardState, seen: Situation, policy: Guard, goal: Mode) -> bool:
    """Whether the switch reaches a goal without a restart."""
    if goal is Mode.ON:
        return state.standby or (seen.switchable and seen.in_standby)
    return seen.switchable and not policy.release_memory and seen.now >= state.no_switch_until


def _as_ordered(state: GuardState, seen: Situation, order: Order, reason: str) -> Step:
    if order.goal is Mode.OFF:
        return to(
            state,
            Phase.DISABLED,
            seen.now,
            reason,
            goal=Mode.OFF,
            disabled_at=seen.now,
            rearm_at=order.until,
            incident=incident_of(state, Cause.PERSON, seen),
        )
    return to(
        state,
        Phase.OBSERVING,
        seen.now,
        reason,
        goal=Mode.ON,
        incident=None,
        elsewhere=seen.now,
        standby=False,
        **NOT_DISABLED,
    )


def _calm(state: GuardState, seen: Situation) -> Step | None:
    if state.phase is Phase.OBSERVING:
        return None
    return to(state, Phase.OBSERVING, seen.now, "no rule is in breach any more", incident=None)


def unprofitable(state: GuardState, seen: Situation, policy: Guard) -> str:
    """Why a restart would cost more than it saves; only for breaches that have a speedup."""
    cost = state.restart_cost(policy.restart_cost)
    horizon = state.delay or policy.rearm.wait(cost)
    if seen.quiet_in is not None:
        horizon = min(horizon, seen.quiet_in)
    for breach in seen.breaches:
        if not breach.speedups or any(
            worth_it(speedup, speculating=True, horizon=horizon, restart_seconds=cost)
            for speedup in breach.speedups
        ):
            return ""
    return (
        f"a restart takes {format_duration(round(cost))}, more than it would save in"
        f" {format_duration(round(horizon))}"
    )


def incident_of(
    state: GuardState, cause: Cause, seen: Situation, breach: Breach | None = None
) -> Incident:
    """A new incident of a target, that begins now; of a breach with its numbers."""
    name = re.sub(r"[^a-z0-9]+", "-", state.target.lower()).strip("-")[:40] or "target"
    id_ = f"{name}-{int(seen.now):x}"
    if breach is None:
        return Incident(id_, cause, seen.now)
    return Incident(
        id_,
        cause,
        seen.now,
        breach.rule,
        breach.model_name,
        breach.segment,
        dict(breach.inputs),
    )
