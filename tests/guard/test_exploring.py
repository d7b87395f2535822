"""Short stretches without speculation: when one is begun, and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import machine
from specwatch.guard.foresight import Verification
from specwatch.guard.observation import Situation
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import DAY, Cause, GuardState, Incident, Phase, Step
from tests.guard.test_machine import NOW, UP, about, seen

POLICY = Guard.model_validate(
    {"mode": "act", "restart_cost": "2m", "explore": {"budget": 0.01, "block": "10m"}}
)
INTERVAL = (2 * 120 + 600) / 0.01
"""Seconds at least from one exploration to the next."""
CALM = GuardState("chat", Phase.OBSERVING, NOW - 900, Mode.ON)
LOOK = seen(breaches=(), unknown="no baseline at this load")


def step(state: GuardState, look: Situation, policy: Guard = POLICY) -> Step | None:
    return machine.step(state, look, policy)


def test_an_exploration_is_an_action_with_the_reason_that_called_for_it() -> None:
    result = step(CALM, LOOK)
    assert result.reason == "exploring: no baseline at this load"
    assert (result.state.phase, result.state.goal) == (Phase.DRAINING, Mode.OFF)
    assert result.state.incident.cause is Cause.EXPLORATION
    assert result.state.actions == (NOW,)
    assert (result.state.credit, result.state.credit_at) == (1.0, NOW)


@pytest.mark.parametrize(
    ("state", "look", "policy"),
    [
        ({"since": NOW - 899}, {}, {}),
        ({}, {"unknown": ""}, {}),
        ({}, {}, {"explore": {"budget": 0}}),
        ({}, {}, {"mode": "observe"}),
        ({"actions": (NOW - 1799,)}, {}, {}),
        ({"actions": (NOW - 5 * HOUR,)}, {}, {"max_actions_per_day": 1}),
        ({"elsewhere": NOW - HOUR + 1}, {}, {}),
        ({}, {"service": None}, {}),
        ({}, {"service": replace(UP, life=ProcessState.DOWN)}, {}),
        ({"credit": 0.99, "credit_at": NOW}, {}, {}),
        ({}, {"mode": None}, {}),
    ],
    ids=str,
)
def test_nothing_is_explored_without_leave_reason_and_budget(
    state: dict[str, object], look: dict[str, object], policy: dict[str, object]
) -> None:
    guard = Guard.model_validate(
        {"mode": "act", "restart_cost": "2m", "explore": {"budget": 0.01}, **policy}
    )
    assert step(replace(CALM, **state), replace(LOOK, **look), guard) is None  # type: ignore[arg-type]


def test_a_person_who_pauses_the_guard_keeps_it_from_exploring() -> None:
    paused = machine.pause(CALM, until=NOW + 60, by="ann").state
    assert step(paused, LOOK) is None


def test_what_is_only_old_waits_for_a_budget_that_is_full() -> None:
    old = replace(LOOK, unknown="", aged="the baseline is two days old")
    assert step(replace(CALM, credit=1.9, credit_at=NOW), old) is None
    result = step(replace(CALM, credit=2.0, credit_at=NOW), old)
    assert result.reason == "exploring: the baseline is two days old"


def test_the_budget_grows_with_time_and_up_to_two() -> None:
    """By one in an interval, which is up to a quarter longer: not at the same time each day."""
    spent = replace(CALM, credit=0.0, credit_at=NOW - 0.99 * INTERVAL)
    assert step(spent, LOOK) is None
    result = step(replace(CALM, credit=0.0, credit_at=NOW - 1.25 * INTERVAL), LOOK)
    assert 0.0 <= result.state.credit < 0.26
    late = step(replace(CALM, credit=0.0, credit_at=NOW - 9 * INTERVAL), LOOK)
    assert late.state.credit == 1.0
    slow = replace(CALM, credit=0.0, credit_at=NOW - 1.25 * INTERVAL, costs=(600.0,))
    assert step(slow, LOOK) is None, "restarts take longer than was assumed"


OFF = Service(ProcessState.UP, Mode.OFF, "2")
EXPLORING = replace(
    CALM, phase=Phase.VERIFYING, since=NOW - 700, goal=Mode.OFF, instance="1", started="2",
    incident=Incident("i", Cause.EXPLORATION, NOW - 900), issued=NOW - 660, healthy_at=NOW - 600,
    began=NOW - 700,
)  # fmt: skip


def looked(value: float, spread: float = 0.05, **more: object) -> Situation:
    verification = Verification(value, 1.1, about(value, spread))
    return seen(mode=Mode.OFF, breaches=(), service=OFF, verification=verification, **more)


def test_an_exploration_lasts_as_long_as_its_block() -> None:
    assert step(replace(EXPLORING, healthy_at=NOW - 599), looked(0.8)) is None
    assert step(EXPLORING, looked(0.8)) is not None


@pytest.mark.parametrize(("value", "spread"), [(1.3, 0.05), (0.96, 0.05), (None, 0.0)])
def test_after_an_exploration_speculation_is_on_again_unless_it_loses_for_certain(
    value: float | None, spread: float
) -> None:
    look = looked(value or 1.0, spread)
    look = look if value is not None else replace(look, verification=None)
    result = step(EXPLORING, look)
    assert (result.state.phase, result.state.goal) == (Phase.DRAINING, Mode.ON)
    assert result.state.incident.cause is Cause.NOT_HELPED
    assert result.state.actions == EXPLORING.actions, "the end of one is not another action"
    assert (result.state.healthy_at, result.state.instance, result.state.issued) == (None,) * 3
    if value is not None:
        assert result.inputs["slowdown"] == 1.1


def test_speculation_that_loses_for_certain_is_left_off_and_tried_again_later() -> None:
    result = step(EXPLORING, looked(0.8))
    assert result.state.phase is Phase.DISABLED
    assert result.reason == "explored: speculation had a speedup of 0.80 (0.75 to 0.85)"
    assert result.state.rearm_at == NOW + POLICY.rearm.wait(120.0)


@pytest.mark.parametrize("value", [0.8, 1.3])
def test_an_exploration_does_not_end_while_the_guard_may_not_act(value: float) -> None:
    paused = machine.pause(EXPLORING, until=NOW + 60, by="ann").state
    result = step(paused, looked(value))
    assert (result.state.phase, result.state.goal) == (Phase.VERIFYING, Mode.OFF)
    assert result.state.waiting == "explored, and the guard may not act now"
    observing = POLICY.model_copy(update={"mode": "observe"})
    again = step(EXPLORING, looked(value), observing)
    assert again.state.phase is Phase.VERIFYING


# What a rule led to


HELPED = replace(EXPLORING, incident=Incident("i", Cause.RULE, NOW - 900, "r", "tiny", "all"))


def test_latency_is_watched_for_as_long_as_it_takes_to_be_certain_but_not_for_ever() -> None:
    assert step(replace(HELPED, healthy_at=NOW - 599), looked(0.8)) is None
    sure = step(HELPED, looked(0.8))
    assert (sure.state.phase, sure.state.backoff) == (Phase.DISABLED, 0.0)
    unsure = step(HELPED, looked(0.98))
    assert unsure.state.phase is Phase.VERIFYING
    assert unsure.state.waiting == "whether it helped is not certain yet: verifying goes on"
    assert step(replace(unsure.state, healthy_at=NOW - 1799), looked(0.98)) is None
    late = step(replace(HELPED, healthy_at=NOW - 1800), looked(0.98))
    assert late.state.phase is Phase.DISABLED


def test_what_cannot_be_verified_is_left_off_after_three_times_the_time() -> None:
    nothing = replace(looked(1.0), verification=None)
    result = step(HELPED, nothing)
    assert "too few whole minutes of traffic" in result.state.waiting
    assert step(replace(result.state, healthy_at=NOW - 1799), nothing) is None
    late = step(replace(HELPED, healthy_at=NOW - 1800), nothing)
    assert late.state.phase is Phase.DISABLED


def test_a_switch_that_did_not_help_is_undone_and_the_guard_rests_twice_as_long_each_time() -> None:
    for before, rest in ((0.0, 1800.0), (1800.0, 3600.0), (2 * DAY, DAY)):
        result = step(replace(HELPED, backoff=before), looked(1.3))
        assert result.reason.startswith("it did not help: speedup 1.30 (1.25 to 1.35)")
        assert (result.state.phase, result.state.goal) == (Phase.DRAINING, Mode.ON)
        assert (result.state.backoff, result.state.rests_until) == (rest, NOW + rest)
        assert result.state.rearm_at == NOW + POLICY.rearm.wait(120.0)


def test_a_switch_that_did_not_help_stays_while_the_guard_may_not_act() -> None:
    paused = machine.pause(replace(HELPED), until=NOW + 60, by="ann").state
    result = step(paused, looked(1.3))
    assert (result.state.phase, result.state.goal) == (Phase.VERIFYING, Mode.OFF)
    assert result.state.waiting.startswith("it did not help, and the guard may not act now")


def test_a_server_that_dies_while_it_is_watched_is_rolled_back_after_15_seconds() -> None:
    gone = replace(looked(0.8), service=replace(OFF, life=ProcessState.DOWN))
    result = step(HELPED, gone)
    assert (result.state.phase, result.state.down_since) == (Phase.VERIFYING, NOW)
    back = step(result.state, looked(0.8))
    assert (back.reason, back.state.down_since) == ("the process is there", None)
    dead = step(replace(result.state, down_since=NOW - 15), gone)
    assert dead.state.phase is Phase.ROLLING_BACK
    assert dead.state.why == "vLLM died after the restart"
    assert dead.state.goal is Mode.ON


def test_after_a_trial_that_was_won_narrowly_a_new_breach_waits_longer() -> None:
    fixed = Guard.model_validate({"mode": "act", "rearm": {"after": "6h"}})
    result = step(replace(HELPED, delay=6.0 * HOUR), looked(0.8), fixed)
    assert (result.state.delay, result.state.rearm_at) == (12 * HOUR, NOW + 12 * HOUR)
