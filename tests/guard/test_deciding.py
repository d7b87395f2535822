"""Whether the guard begins an action: for a rule, an exploration, a trial or an order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.config.guard import Guard, Rearm, Windows
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import state_machine
from specwatch.guard.foresight import Trial
from specwatch.guard.observation import Situation, guarded_rules
from specwatch.guard.plan import ProcessState
from specwatch.guard.state import Cause, GuardState, Order, Phase
from specwatch.rules.verdicts import Finding, Verdict
from tests.guard.simulated_server import NET_NEGATIVE
from tests.guard.situations import (
    ACT,
    BREACH,
    CALM,
    CONFIRMED,
    DISABLED,
    NOW,
    TRIAL,
    UP,
    about,
    check_step,
    seen,
)
from tests.guard.test_state_machine import window

START = ACT.start_timeout
DOWN = replace(UP, life=ProcessState.DOWN)


def finding(verdict: Verdict) -> Finding:
    return Finding(NET_NEGATIVE, "chat", "tiny", "all", verdict, verdict, NOW, None, (), at=NOW)


def losing(*speedups: Any, **changes: Any) -> Situation:
    return seen(breaches=(replace(BREACH, speedups=speedups),), **changes)


# A rule in breach


@pytest.mark.parametrize(
    ("state", "look", "waiting"),
    [
        (CONFIRMED, losing(about(0.5)), ""),
        (CONFIRMED, losing(about(0.999, 0.0005)), "2m, more than it would save in 6h"),
        (CONFIRMED, losing(about(0.9, 0.2)), "2m, more than it would save in 6h"),
        (CONFIRMED, losing(about(0.999, 0.0005), about(0.5)), ""),
        (CONFIRMED, losing(), ""),
        (
            replace(CONFIRMED, costs=(20.0, 8 * HOUR, 8 * HOUR)),
            losing(about(0.5)),
            "8h, more than it would save in 6h",
        ),
        (CONFIRMED, losing(about(0.5), quiet_in=200.0), "2m, more than it would save in 3m20s"),
        (CONFIRMED, losing(about(0.5), quiet_in=400.0), ""),
    ],
    ids=[
        "a clear loss",
        "a small loss",
        "an uncertain loss",
        "one of two speedups is a clear loss",
        "a rule about something else",
        "earlier restarts took long",
        "traffic rests soon",
        "traffic rests later",
    ],
)
def test_a_restart_has_to_save_more_time_than_it_takes(
    state: GuardState, look: Situation, waiting: str
) -> None:
    sentence = f"a restart takes {waiting}" if waiting else ""
    phase = Phase.CONFIRMED if waiting else Phase.DRAINING
    check_step(state, look, {"waiting": sentence, "phase": phase})


def test_a_breach_from_before_a_restart_of_the_daemon_is_not_over_until_it_was_evaluated() -> None:
    check_step(CONFIRMED, seen(breaches=(), undecided=True), None)
    check_step(CONFIRMED, seen(breaches=()), {"phase": Phase.OBSERVING})
    restored = replace(finding(Verdict.BREACH), at=0.0)
    judged = finding(Verdict.PASS)
    assert [guarded_rules(found).undecided for found in ((), (restored, judged), (judged,))] == [
        True,
        True,
        False,
    ]


BLOCKED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "the guard observes": ({}, {}, {"mode": "observe"}, "guard.mode is observe: nothing is done"),
    "it cools down": (
        {"actions": (NOW - 1799,)},
        {},
        {},
        "cooling down for 30m after the last action",
    ),
    "the actions of the day are used up": (
        {"actions": (NOW - 86399, NOW - 7000)},
        {},
        {"max_actions_per_day": 2},
        "2 actions within a day: guard.max_actions_per_day are used up",
    ),
    "another tool switched": (
        {"elsewhere": NOW - HOUR + 1},
        {},
        {},
        "another tool switched speculation recently",
    ),
    "the server cannot be switched": (
        {},
        {"service": None, "service_error": "masked"},
        {},
        "cannot be switched: masked",
    ),
    "nor can its switch be used": (
        {},
        {"service": None, "service_error": "masked", "switch_error": "gone"},
        {},
        "cannot be switched: its switch cannot be used (gone), and masked",
    ),
    "its switch may answer in a moment": (
        {},
        {"switch_error": "it did not answer within 5s", "switch_lost": 29.0},
        {},
        "its switch cannot be used yet: it did not answer within 5s",
    ),
    "nothing is known of the process": (
        {},
        {"service": None},
        {},
        "the server's manager was not asked yet",
    ),
    "the process is down": ({}, {"service": DOWN}, {}, "the server is not up"),
}


@pytest.mark.parametrize(("state", "look", "policy", "waiting"), BLOCKED.values(), ids=BLOCKED)
def test_why_the_guard_does_not_act_is_recorded_once(
    state: dict[str, Any], look: dict[str, Any], policy: dict[str, Any], waiting: str
) -> None:
    guard = Guard.model_validate({"mode": "act", **policy})
    expected = {"phase": Phase.CONFIRMED}
    after = check_step(replace(CONFIRMED, **state), seen(**look), expected, guard)
    assert waiting in after.waiting
    check_step(after, seen(**look), None, guard)


def test_a_switch_that_cannot_be_used_for_long_is_replaced_by_a_restart() -> None:
    look = seen(switch_error="it did not answer within 5s", switch_lost=30.0)
    check_step(CONFIRMED, look, {"phase": Phase.DRAINING, "goal": Mode.OFF})


def test_an_action_a_day_ago_or_a_cooldown_ago_is_over() -> None:
    before = replace(CONFIRMED, actions=(NOW - 86400, NOW - 1800))
    expected = {"phase": Phase.DRAINING, "actions": (NOW - 1800, NOW)}
    check_step(before, seen(), expected, Guard(mode="act", max_actions_per_day=2))


@pytest.mark.parametrize(
    ("target", "name"), [("Chat 1/7B", "chat-1-7b"), ("日本", "target"), ("x" * 60, "x" * 40)]
)
def test_the_name_of_an_incident_is_of_its_target_and_time(target: str, name: str) -> None:
    after = check_step(GuardState(target, goal=Mode.ON), seen(), {})
    assert after.incident is not None
    assert after.incident.id == f"{name}-{int(NOW):x}"


# Explorations

EXPLORING = {"mode": "act", "restart_cost": "2m", "explore": {"budget": 0.01, "block": "10m"}}
POLICY = Guard.model_validate(EXPLORING)
INTERVAL = (2 * 120 + 600) / 0.01
"""Seconds at least from one exploration to the next."""
UNJUDGED = {"breaches": (), "unjudged": "no baseline at this load"}
OLD = {"breaches": (), "aged": "the baseline is two days old"}


def test_an_exploration_is_an_action_with_the_reason_that_called_for_it() -> None:
    expected = {
        "reason": "exploring: no baseline at this load",
        "phase": Phase.DRAINING,
        "goal": Mode.OFF,
        "actions": (NOW,),
        "credit": 2.0,
        "credit_at": NOW,
    }
    after = check_step(CALM, seen(**UNJUDGED), expected, POLICY)
    assert after.incident is not None
    assert after.incident.cause is Cause.EXPLORATION


@pytest.mark.parametrize(
    ("state", "look", "policy"),
    [
        ({"since": NOW - 899}, {}, {}),
        ({}, {"unjudged": ""}, {}),
        ({}, {}, {"explore": {"budget": 0}}),
        ({}, {}, {"mode": "observe"}),
        ({"pause": state_machine.pause(CALM, until=NOW + 60, by="ann").state.pause}, {}, {}),
        ({"actions": (NOW - 1799,)}, {}, {}),
        ({"actions": (NOW - 5 * HOUR,)}, {}, {"max_actions_per_day": 1}),
        ({"elsewhere": NOW - HOUR + 1}, {}, {}),
        ({}, {"service": None}, {}),
        ({}, {"service": DOWN}, {}),
        ({"credit": 0.99, "credit_at": NOW}, {}, {}),
        ({"credit": 0.0, "credit_at": NOW - 0.99 * INTERVAL}, {}, {}),
        ({"credit": 0.0, "credit_at": NOW - 1.25 * INTERVAL, "costs": (600.0,)}, {}, {}),
        ({"credit": 2.9, "credit_at": NOW}, {**OLD, "unjudged": ""}, {}),
        ({}, {"mode": None}, {}),
    ],
    ids=[
        "it observes for less than 15 minutes",
        "there is nothing to explore",
        "no budget",
        "guard.mode is observe",
        "the operator paused the guard",
        "it cools down",
        "the actions of the day are used up",
        "another tool switched recently",
        "nothing is known of the process",
        "the process is down",
        "too little credit",
        "the credit grows with time",
        "restarts take longer than was assumed",
        "an old baseline waits for a full budget",
        "the last scrape failed",
    ],
)
def test_nothing_is_explored_without_permission_reason_and_budget(
    state: dict[str, Any], look: dict[str, Any], policy: dict[str, Any]
) -> None:
    guard = Guard.model_validate({**EXPLORING, **policy})
    check_step(replace(CALM, **state), seen(**{**UNJUDGED, **look}), None, guard)


def test_an_old_baseline_is_explored_by_a_full_budget() -> None:
    expected = {"reason": "exploring: the baseline is two days old"}
    check_step(replace(CALM, credit=3.0, credit_at=NOW), seen(**OLD), expected, POLICY)


def test_the_budget_grows_by_one_in_an_interval_and_up_to_three() -> None:
    """An interval is up to a quarter longer, so that it is not the same time each day."""
    one = replace(CALM, credit=0.0, credit_at=NOW - 1.25 * INTERVAL)
    assert 0.0 <= check_step(one, seen(**UNJUDGED), {}, POLICY).credit < 0.26
    nine = replace(CALM, credit=0.0, credit_at=NOW - 9 * INTERVAL)
    check_step(nine, seen(**UNJUDGED), {"credit": 2.0}, POLICY)


# Trials

LENGTH = ACT.rearm.trial
LOST = Trial(about(0.8), about(0.8))
MOST = ACT.rearm.most


def off(seconds: float = 0.0, **changes: Any) -> Situation:
    """A server without speculation, which no rule is about."""
    return seen(seconds, scraped_at=NOW + seconds, mode=Mode.OFF, breaches=(), **changes)


def tried(seconds: float, **changes: Any) -> Situation:
    """A server in a trial that no rule fails."""
    return seen(seconds, scraped_at=NOW + seconds, breaches=(), **changes)


TRIALS: dict[str, tuple[Any, Situation, dict[str, Any] | None]] = {
    "a predicted loss puts a trial off": (
        DISABLED,
        off(6 * HOUR, predicted=about(0.7)),
        {
            "phase": Phase.DISABLED,
            "waiting": "a trial is due; speculation is predicted to lose now",
        },
    ),
    "but not for longer than rearm.most": (
        DISABLED,
        off(MOST, predicted=about(0.7)),
        {"phase": Phase.DRAINING, "reason": "it is time for a trial"},
    ),
    "a predicted gain brings a trial early": (
        DISABLED,
        off(predicted=about(1.5)),
        {"reason": "speculation is predicted to pay now", "phase": Phase.DRAINING, "goal": Mode.ON},
    ),
    "not before early trials are allowed again": (
        replace(DISABLED, early_at=NOW + 1),
        off(predicted=about(1.5)),
        None,
    ),
    "not for less than two restarts cost": (DISABLED, off(predicted=about(1.06)), None),
    "not where the operator keeps speculation off": (
        replace(DISABLED, rearm_at=None),
        off(predicted=about(1.5)),
        None,
    ),
    "a trial is won by its speedup": (
        TRIAL,
        tried(LENGTH, trial=Trial(about(1.2))),
        {"phase": Phase.OBSERVING},
    ),
    "a trial is lost by its speedup": (
        TRIAL,
        tried(LENGTH, trial=Trial(about(0.9))),
        {"phase": Phase.DRAINING},
    ),
    "a trial is won where the rules pass": (
        TRIAL,
        tried(LENGTH, passing=True),
        {"phase": Phase.OBSERVING},
    ),
    "a trial of which nothing is known goes on": (
        TRIAL,
        tried(LENGTH),
        {"phase": Phase.TRIAL, "waiting": "too little traffic for a result of the trial"},
    ),
    "nothing is concluded before rearm.trial from a gain": (
        TRIAL,
        tried(LENGTH - 1, trial=Trial(about(1.2)), passing=True),
        None,
    ),
    "nothing is concluded before rearm.trial from a loss": (
        TRIAL,
        tried(LENGTH - 1, trial=Trial(about(0.9))),
        None,
    ),
    "a certain result ends a trial early": (
        TRIAL,
        tried(LENGTH - 1, trial=LOST),
        {"phase": Phase.DRAINING, "goal": Mode.OFF},
    ),
    "an uncertain loss prolongs a trial": (
        TRIAL,
        tried(2 * LENGTH - 1, trial=Trial(about(0.98))),
        {"phase": Phase.TRIAL, "waiting": "the trial is not decided yet, and goes on"},
    ),
    "up to twice rearm.trial": (
        TRIAL,
        tried(2 * LENGTH, trial=Trial(about(0.98))),
        {"phase": Phase.DRAINING},
    ),
    "a lost trial that came early makes early ones rarer, and its end is not another action": (
        replace(TRIAL, rearm_at=NOW + 1),
        seen(),
        {"early_at": NOW + HOUR, "early_pause": 2 * HOUR, "delay": 2 * 6 * HOUR, "actions": ()},
    ),
    "one that was due does not: nothing was predicted": (
        replace(TRIAL, rearm_at=TRIAL.since),
        seen(),
        {"early_at": TRIAL.early_at, "early_pause": HOUR, "delay": 2 * 6 * HOUR},
    ),
    "a lost trial stays while the guard is paused": (
        state_machine.pause(TRIAL, until=NOW + 60, by="ann").state,
        tried(0, trial=LOST),
        {
            "phase": Phase.TRIAL,
            "goal": Mode.ON,
            "waiting": "the trial is lost, and the guard may not act now",
        },
    ),
}


@pytest.mark.parametrize(("state", "look", "expected"), TRIALS.values(), ids=TRIALS)
def test_a_step_about_a_trial(state: Any, look: Situation, expected: dict[str, Any] | None) -> None:
    check_step(state, look, expected)


def test_a_lost_trial_stays_while_the_guard_only_observes() -> None:
    observing = ACT.model_copy(update={"mode": "observe"})
    check_step(TRIAL, tried(0, trial=LOST), {"phase": Phase.TRIAL, "goal": Mode.ON}, observing)


def test_trials_come_as_often_as_the_budget_pays_for_what_the_last_one_lost() -> None:
    """A restart takes a minute; 40 minutes of a trial at 0.75 took a third more than without."""
    policy = ACT.model_copy(update={"rearm": Rearm(), "restart_cost": 60.0})
    state = replace(TRIAL, since=NOW - 2400)
    for speedup, delay in ((0.75, (120 + 800) / 0.02), (0.99, (120 + 2400 / 99) / 0.02)):
        look = seen(breaches=(), trial=Trial(about(speedup)))
        check_step(state, look, {"delay": pytest.approx(delay)}, policy)
    check_step(state, seen(), {"delay": pytest.approx(policy.rearm.wait(60.0))}, policy)


# The operator


def test_a_pause_ends_by_itself_and_what_waited_goes_on() -> None:
    state = state_machine.pause(CONFIRMED, until=NOW + 60, by="ann", why="a demo").state
    state = check_step(state, seen(), {"waiting": "paused by ann"})
    expected = {"pause": None, "reason": "the pause of ann is over"}
    state = check_step(state, seen(60), expected)
    check_step(state, seen(60), {"phase": Phase.DRAINING})


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        ({"service": None, "service_error": "masked"}, "masked"),
        ({"service": None}, "the server's manager did not answer"),
        ({"service": None, "service_error": "busy", "service_retry": True}, "busy"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_and_forgotten(
    look: dict[str, Any], sentence: str
) -> None:
    """Once the manager had the start timeout to answer, unless it answered already."""
    state = state_machine.order(CALM, Mode.OFF, by="ann", now=NOW).state
    expected = {
        "reason": f"ann switched speculation off; refused: {sentence}",
        "order": None,
        "phase": Phase.OBSERVING,
    }
    early = expected if sentence == "masked" else None
    check_step(state, seen(START - 1, breaches=(), **look), early)
    check_step(state, seen(START, breaches=(), **look), expected)


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF])
def test_the_first_step_of_an_order_names_the_operator(mode: Mode) -> None:
    step = state_machine.step(
        GuardState("chat", order=Order(Mode.OFF, "ann", NOW)), seen(mode=mode), ACT
    )
    assert step is not None
    assert step.inputs == {"ordered_by": "ann"}


def test_an_order_is_carried_out_whatever_the_guard_may_do_itself() -> None:
    closed = Windows(forbid=(window("00:00", "00:00"),))
    for policy in (Guard(mode="off"), Guard(mode="act", max_actions_per_day=0, windows=closed)):
        state = state_machine.order(CONFIRMED, Mode.OFF, by="ann", now=NOW, until=NOW + 60).state
        state = state_machine.pause(state, until=NOW + 600, by="bob").state
        state = check_step(state, seen(), {"phase": Phase.DRAINING}, policy)
        expected = {"phase": Phase.RESTARTING, "actions": ()}
        check_step(state, seen(2, scraped_at=NOW + 1), expected, policy)


def test_only_the_operator_ends_a_hold() -> None:
    hold = replace(CONFIRMED, phase=Phase.HELD, why="it failed")
    for look in (seen(), seen(mode=Mode.OFF), seen(breaches=()), seen(9e6)):
        check_step(hold, look, None)
    resumed = state_machine.resume(hold, by="ann", now=NOW)
    assert resumed is not None
    assert (resumed.state.phase, resumed.state.why) == (Phase.OBSERVING, "")
    assert state_machine.resume(resumed.state, by="ann", now=NOW) is None


def test_a_trial_by_a_restart_keeps_the_budget_although_the_server_has_a_switch() -> None:
    """Only one from standby costs no restart."""
    policy = ACT.model_copy(update={"max_actions_per_day": 0})
    step = check_step(
        DISABLED,
        seen(7 * HOUR, mode=None, switchable=True),
        {
            "phase": Phase.DISABLED,
            "reason": "a trial is due; 0 actions within a day: guard.max_actions_per_day"
            " are used up",
        },
        policy,
    )
    assert step.waiting.startswith("a trial is due")
    standby = replace(DISABLED, standby=True)
    check_step(
        standby, seen(7 * HOUR, mode=None, switchable=True), {"phase": Phase.RESTARTING}, policy
    )
