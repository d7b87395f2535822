"""Phases of a restart: whether it succeeds, and what to do if it does not."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.domain.units import format_duration
from specwatch.guard.observation import Situation
from specwatch.guard.plan import ProcessState
from specwatch.guard.state import (
    MOST_COSTS,
    NO_RESTART,
    Cause,
    GuardState,
    Phase,
    Step,
    to,
    wait,
    with_interval,
)

MOST_DEATHS = 3
"""Deaths after a restart until it has failed."""
MOST_ATTEMPTS = 2
"""How often putting a server back is tried again."""
MOST_VERIFY = 3
"""Times ``guard.verify`` after which an uncertain result is decided by its point estimate."""
DOWN_FOR = 15.0
"""Seconds without a process until that is a failure."""
UNHEALTHY_FOR = 60.0
"""Seconds for which a process that was healthy may not answer until that is a failure."""


def draining(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Wait for running requests, up to a limit; until the restart the action can be given up."""
    why = _given_up(state, policy)
    if why:
        return _abandoned(state, seen, why)
    hook = state.hooked and policy.hooks.before is not None
    told = seen.prepared_at if hook else state.since
    begun = state.since if told is None else told
    over = seen.now - begun >= policy.drain_timeout
    looked = seen.scraped_at is not None and seen.scraped_at > begun
    # While the load balancer was not told, requests come again.
    empty = told is not None and looked and seen.load == 0
    if not over and not empty:
        return None
    if seen.service is None or seen.settled is None:
        if seen.now - state.since < policy.drain_timeout + policy.start_timeout:
            return None
        why = seen.service_error or "the server's manager did not finish in time"
        return held(_as_before(state), seen, f"nothing was done: {why}")
    if seen.settled is ProcessState.STOPPED and not _by_person(state):
        return _abandoned(state, seen, "the server was stopped by hand")
    waited = format_duration(round(seen.now - state.since))
    if empty:
        reason = f"no request runs, after {waited}"
    elif seen.load is None or not looked:
        reason = f"drained for {waited}; how many requests are cut off is not known"
    else:
        count = round(seen.load)
        requests = "1 request" if count == 1 else f"{count} requests"
        reason = f"drained for {waited}; cutting off {requests} under way"
    return to(
        state,
        Phase.RESTARTING,
        seen.now,
        reason,
        {} if seen.load is None else {"requests": seen.load},
        # After a change by its owner it may serve other models.
        models=() if seen.service.stale else tuple(sorted(seen.models)),
        instance=seen.service.instance,
        began=seen.now,
    )


def restarting(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Restart once: before a crash of ours it may have been done already."""
    if seen.outcome is not None:
        if not seen.outcome.error:
            return _issued(state, seen, Phase.VERIFYING, "the server was restarted")
        again = seen.outcome.retry and seen.now - state.since < policy.start_timeout
        if not seen.outcome.changed and again:
            return None
        if not seen.outcome.changed:
            return held(_as_before(state), seen, f"nothing was done: {seen.outcome.error}")
        if seen.settled is ProcessState.STOPPED:
            return held(state, seen, "the server was stopped by hand during the restart")
        return _roll_back(state, seen, seen.outcome.error)
    if _done(state, seen):
        why = "the server was restarted before the guard was interrupted"
        return _issued(state, seen, Phase.VERIFYING, why)
    if seen.handover is not None:
        return _taken_over(state, seen)
    if seen.now - state.since < policy.start_timeout:
        return None
    why = seen.service_error or "the server's manager did not finish in time"
    return _roll_back(state, seen, why)


def verifying(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Check that it is healthy, with the same models, in the wanted mode, and not slower."""
    issued = seen.now if state.issued is None else state.issued
    service = seen.service
    # A manager without process ids may report the earlier state for a while.
    known = service is not None and service.instance is not None
    if service is not None and known and service.mode not in (None, state.goal):
        # Its owner configured it to start in the other mode meanwhile: accept that.
        return to(
            state,
            Phase.OBSERVING,
            seen.now,
            "another tool changed how it starts",
            goal=None,
            incident=None,
            elsewhere=seen.now,
            disabled_at=None,
            rearm_at=None,
            delay=0.0,
        )
    if seen.settled is ProcessState.STOPPED and seen.now - issued >= DOWN_FOR:
        return held(state, seen, "the server was stopped by hand after the restart")
    if state.healthy_at is not None:
        return _compared(state, seen, policy)
    if _fresh(state, seen, issued):
        return _inspected(state, seen, policy)
    # Before the check for a new process, which would hide it if there is one at every turn.
    if state.deaths >= MOST_DEATHS:
        return _roll_back(state, seen, f"vLLM died {state.deaths} times after the restart")
    step = _down(state, seen) or _new_process(state, seen)
    if step is not None:
        return step
    if state.down_since is not None and seen.now - state.down_since >= DOWN_FOR:
        detail = seen.service.detail if seen.service else ""
        return _roll_back(state, seen, f"vLLM does not run{': ' if detail else ''}{detail}")
    if seen.now - issued >= policy.start_timeout:
        took = format_duration(policy.start_timeout)
        return _roll_back(state, seen, f"vLLM was not healthy within {took}")
    return None


def rolling_back(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """Restore the earlier command; then the operator has to resume."""
    if state.issued is None:
        if seen.outcome is not None and not seen.outcome.error:
            return _issued(state, seen, Phase.ROLLING_BACK, "the server was put back as it was")
        if seen.outcome is None and _done(state, seen):
            return _issued(state, seen, Phase.ROLLING_BACK, "the server is as it was")
        if seen.outcome is not None and seen.outcome.changed:
            seen_by_manager = seen.service is not None and seen.service.instance is not None
            if not seen_by_manager and state.attempts < MOST_ATTEMPTS:
                reason = f"putting the server back failed, and is tried again: {seen.outcome.error}"
                return _again(state, seen, reason)
            reason = f"the server was probably put back: {seen.outcome.error}"
            return _issued(state, seen, Phase.ROLLING_BACK, reason)
        if seen.handover is not None:
            return _taken_over(state, seen)
        if seen.now - state.since < policy.start_timeout:
            return None
        error = seen.outcome.error if seen.outcome else seen.service_error
        return held(state, seen, f"{state.why}; and it could not be put back: {error}")
    late = seen.now - state.issued >= policy.start_timeout
    if _fresh(state, seen, state.issued):
        if seen.mode in (None, state.goal):
            return held(state, seen, f"{state.why}; it runs again as before")
        # The process before may still answer.
        speculates = "speculates" if seen.mode is Mode.ON else "does not speculate"
        return held(state, seen, f"{state.why}; it runs, but {speculates}") if late else None
    step = _down(state, seen)
    if step is not None:
        return step
    gone = state.down_since is not None and seen.now - state.down_since >= DOWN_FOR
    if gone and state.attempts < MOST_ATTEMPTS:
        return _again(state, seen, "the process is not there: trying again")
    if not late:
        return None
    return held(state, seen, f"{state.why}; and it has not come back since")


def _again(state: GuardState, seen: Situation, reason: str) -> Step:
    """Put the server back once more; what ran after the last attempt has ended, or is unknown."""
    return to(
        state,
        Phase.ROLLING_BACK,
        seen.now,
        reason,
        issued=None,
        down_since=None,
        attempts=state.attempts + 1,
        instance=seen.service.instance if seen.service else state.instance,
    )


def held(state: GuardState, seen: Situation, why: str) -> Step:
    """Do nothing until the operator resumes the guard."""
    return to(state, Phase.HELD, seen.now, why, why=why)


def _inspected(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    issued = state.issued or seen.now
    wrong = seen.mode is not state.goal
    # The old process may still answer, or a new one that does not report its mode yet; a pod that
    # is gone may still be listed, and one that is new may not have been read.
    unsure = (
        seen.mode is None
        or seen.service is None
        or seen.service.instance is None
        or seen.as_of is None
        or seen.as_of <= issued
        or seen.from_files
    )
    if wrong and unsure and seen.now - issued < policy.start_timeout:
        return None
    if state.models and set(seen.models) != set(state.models):
        served, before = ", ".join(sorted(seen.models)), ", ".join(state.models)
        return _roll_back(state, seen, f"it serves {served or 'nothing'} instead of {before}")
    if wrong:
        what = "still speculates" if state.goal is Mode.OFF else "does not speculate"
        if seen.mode is None:
            what = "does not report whether it speculates"
        return _roll_back(state, seen, f"it {what} after the restart")
    took = seen.now - (state.began if state.began is not None else seen.now)
    lost = took * (seen.service.interruption if seen.service else 1.0)
    ok = replace(
        state,
        healthy_at=seen.now,
        costs=(*state.costs, lost)[-MOST_COSTS:],
        down_since=None,
        started=seen.service.instance if seen.service else state.started,
    )
    if compares(state):
        watched = format_duration(policy.verify)
        reason = f"healthy after {format_duration(round(took))}; latency is watched for {watched}"
        return Step(ok, reason, {"seconds": took})
    return arrived(ok, seen, policy, f"healthy after {format_duration(round(took))}")


def _compared(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    step = _down(state, seen, healthy=seen.healthy) or _new_process(state, seen)
    if step is not None:
        return step
    if state.deaths >= MOST_DEATHS:
        return _roll_back(state, seen, f"vLLM died {state.deaths} times after the restart")
    if state.down_since is not None:
        gone = seen.settled is ProcessState.DOWN
        if seen.now - state.down_since >= (DOWN_FOR if gone else UNHEALTHY_FOR):
            what = "vLLM died" if gone else "vLLM stopped answering"
            return _roll_back(state, seen, f"{what} after the restart")
    watched = seen.now - (state.healthy_at or seen.now)
    if state.incident is not None and state.incident.cause is Cause.EXPLORATION:
        return _explored(state, seen, policy) if watched >= policy.explore.block else None
    if watched < policy.verify:
        return None
    verification = seen.verification
    if verification is None:
        if watched < MOST_VERIFY * policy.verify:
            return wait(state, "too few whole minutes of traffic for a verification: it goes on")
        return arrived(
            state, seen, policy, "too few whole minutes of traffic for a verification; left off"
        )
    speedup = verification.speedup
    unsure = speedup.lower <= 1 <= speedup.upper
    if unsure and watched < MOST_VERIFY * policy.verify:
        return wait(state, "whether it helped is not certain yet: verifying goes on")
    inputs = {
        "speedup_before": verification.before,
        "slowdown": verification.slowdown,
        "speedup": asdict(speedup),
    }
    numbers = (
        f"speedup {with_interval(speedup)}; {verification.before:.2f} by the earlier baseline, but"
        f" serving without speculation takes {verification.slowdown:.2f} times as long as it says"
    )
    if speedup.value > 1 and not _may_act(state, policy):
        return wait(state, f"it did not help, and the guard may not act now: {numbers}")
    if speedup.value > 1:
        return replace(_put_back(state, seen, policy, numbers), inputs=inputs)
    helped = replace(state, backoff=0.0)
    reason = f"{'it probably' if unsure else 'it'} helped: {numbers}"
    return replace(arrived(helped, seen, policy, reason), inputs=inputs)


def _may_act(state: GuardState, policy: Guard) -> bool:
    return state.pause is None and policy.mode == "act"


def _explored(state: GuardState, seen: Situation, policy: Guard) -> Step | None:
    """The end of an exploration: back on, unless that certainly loses."""
    if not _may_act(state, policy):
        return wait(state, "explored, and the guard may not act now")
    verification = seen.verification
    if verification is None:
        return _switch_on(state, seen, policy, "explored: back on")
    numbers = f"explored: speculation had a speedup of {with_interval(verification.speedup)}"
    inputs = {"slowdown": verification.slowdown, "speedup": asdict(verification.speedup)}
    if verification.speedup.upper < 1:
        return replace(arrived(state, seen, policy, numbers), inputs=inputs)
    return replace(_switch_on(state, seen, policy, numbers), inputs=inputs)


def _put_back(state: GuardState, seen: Situation, policy: Guard, numbers: str) -> Step:
    """Switching off did not help: switch on, with the new baseline, and rest for a while."""
    rest = min(2 * state.backoff or policy.cooldown, max(policy.rearm.most, policy.cooldown))
    rested = replace(state, backoff=rest, rests_until=seen.now + rest)
    return _switch_on(rested, seen, policy, f"it did not help: {numbers}")


def _switch_on(state: GuardState, seen: Situation, policy: Guard, reason: str) -> Step:
    incident = state.incident and replace(state.incident, cause=Cause.NOT_HELPED)
    delay = state.delay or policy.rearm.wait(state.restart_cost(policy.restart_cost))
    return to(
        state,
        Phase.DRAINING,
        seen.now,
        reason,
        goal=Mode.ON,
        incident=incident,
        # If switching it on is given up, it stays off with a trial due, as after any action.
        disabled_at=seen.now,
        rearm_at=seen.now + delay,
        hooked=bool(policy.hooks.before or policy.hooks.after),
        from_standby=False,
        **NO_RESTART,
    )


def compares(state: GuardState) -> bool:
    """Whether the result is measured: for rules and explorations, not for trials and orders."""
    causes = (Cause.RULE, Cause.EXPLORATION)
    return state.goal is Mode.OFF and state.incident is not None and state.incident.cause in causes


def arrived(state: GuardState, seen: Situation, policy: Guard, reason: str) -> Step:
    """The end of an action that succeeded."""
    cause = state.incident.cause if state.incident else Cause.RULE
    if state.goal is Mode.OFF:
        cost = 0.0 if state.standby else state.restart_cost(policy.restart_cost)
        delay = state.delay or policy.rearm.wait(cost)
        if cause is Cause.RULE and state.delay:  # a trial was won by a narrow margin before
            delay = policy.rearm.later(state.delay, cost)
        stays = cause in (Cause.PERSON, Cause.HOLDOUT)
        rearm_at = state.rearm_at if stays else seen.now + delay
        return to(
            state,
            Phase.DISABLED,
            seen.now,
            reason,
            disabled_at=seen.now,
            rearm_at=rearm_at,
            delay=delay,
        )
    if cause is Cause.TRIAL:
        return to(state, Phase.TRIAL, seen.now, reason, standby=False)
    ours = cause in (Cause.ORDER_OVER, Cause.NOT_HELPED)
    elsewhere = state.elsewhere if ours else seen.now
    return to(
        state,
        Phase.OBSERVING,
        seen.now,
        reason,
        incident=None,
        elsewhere=elsewhere,
        disabled_at=None,
        rearm_at=None,
        delay=0.0,
        standby=False,
    )


def _given_up(state: GuardState, policy: Guard) -> str:
    if state.order is not None and state.order.goal is not state.goal:
        return f"{state.order.by} wants something else"
    if _by_person(state):
        return ""
    if state.pause is not None:
        return f"paused by {state.pause.by}"
    return "" if policy.mode == "act" else f"guard.mode is {policy.mode} now"


def _abandoned(state: GuardState, seen: Situation, why: str) -> Step:
    """Return to the phase before the action, which then does not count."""
    cause = state.incident.cause if state.incident else Cause.RULE
    goal = _other(state.goal)
    phase = Phase.DISABLED if goal is Mode.OFF else Phase.OBSERVING
    if state.from_standby:
        goal, phase = Mode.OFF, Phase.DISABLED
    elif cause is Cause.TRIAL_LOST:
        phase = Phase.TRIAL
    own = cause in (Cause.RULE, Cause.TRIAL, Cause.EXPLORATION, Cause.HOLDOUT)
    counted = state.actions[:-1] if own else state.actions
    incident = None if phase is Phase.OBSERVING else state.incident
    return to(
        state,
        phase,
        seen.now,
        f"given up: {why}",
        goal=goal,
        actions=counted,
        incident=incident,
        standby=state.from_standby,
        **_still_disabled(state, seen),
    )


def _still_disabled(state: GuardState, seen: Situation) -> dict[str, Any]:
    """When speculation was switched off, and a trial is due, if it stays in standby."""
    if not state.from_standby:
        return {}
    due = None if _by_person(state) else seen.now + HOUR
    return {
        "disabled_at": state.disabled_at or seen.now,
        "rearm_at": state.rearm_at or due,
    }


def _by_person(state: GuardState) -> bool:
    return state.incident is not None and state.incident.cause in (Cause.PERSON, Cause.ORDER_OVER)


def _other(goal: Mode | None) -> Mode:
    return Mode.OFF if goal is Mode.ON else Mode.ON


def _as_before(state: GuardState) -> GuardState:
    """The state with the earlier goal: nothing was done yet."""
    return replace(state, goal=_other(state.goal))


def _new_process(state: GuardState, seen: Situation) -> Step | None:
    """A new process: the one that ran since the restart, if any, has died."""
    instance = seen.service.instance if seen.service else None
    if instance is None or instance in (state.instance, state.started):
        return None
    died = state.started is not None
    reason = "the process died, and was started again" if died else "the new process is there"
    return Step(replace(state, started=instance, deaths=state.deaths + died), reason)


def _issued(state: GuardState, seen: Situation, phase: Phase, reason: str) -> Step:
    return to(state, phase, seen.now, reason, issued=seen.now, down_since=None)


def _done(state: GuardState, seen: Situation) -> bool:
    """Whether the restart was done before this process took over."""
    service = seen.service
    if service is None or seen.settled is None or service.mode not in (None, state.goal):
        return False
    if service.instance is None:
        # It says at most how it is set to start: what set it may have ended before the restart.
        looked = seen.scraped_at is not None and seen.scraped_at > state.since
        return service.life is ProcessState.UP and looked and seen.mode is state.goal
    return service.instance != state.instance


def _taken_over(state: GuardState, seen: Situation) -> Step | None:
    """Act once what an earlier holder began must have ended."""
    if seen.handover:
        return None
    why = "what an earlier holder of the guard began has ended, and did not restart the server"
    return to(state, state.phase, seen.now, why)


def _fresh(state: GuardState, seen: Situation, issued: float) -> bool:
    """Whether the server is healthy, and scraped, since the restart."""
    same = seen.service is not None and (
        seen.service.instance is not None and seen.service.instance == state.instance
    )
    return seen.healthy and not same and seen.scraped_at is not None and seen.scraped_at > issued


def _down(state: GuardState, seen: Situation, *, healthy: bool = True) -> Step | None:
    """Record since when the process is gone, or is not healthy any more, or that it is back."""
    gone = seen.settled is ProcessState.DOWN
    if state.down_since is None and (gone or not healthy):
        what = "the process is not there" if gone else "the process does not answer"
        return Step(replace(state, down_since=seen.now), what)
    if state.down_since is not None and healthy and seen.settled is ProcessState.UP:
        return Step(replace(state, down_since=None), "the process is there")
    return None


def _roll_back(state: GuardState, seen: Situation, why: str) -> Step:
    return to(
        state,
        Phase.ROLLING_BACK,
        seen.now,
        why,
        goal=_other(state.goal),
        why=why,
        issued=None,
        healthy_at=None,
        down_since=None,
        attempts=0,
        instance=seen.service.instance if seen.service else None,
    )
