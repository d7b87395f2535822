"""What the guard does of a restart that does not go as it should, and of one given up before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.config.guard import Guard
from specwatch.domain.model import Mode
from specwatch.guard import machine
from specwatch.guard.foresight import Trial
from specwatch.guard.observation import SwitchOutcome
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import Cause, GuardState, Incident, Order, Phase
from tests.guard.test_machine import ACT, CONFIRMED, DISABLED, NOW, UP, about, seen

DRAINING = replace(CONFIRMED, phase=Phase.DRAINING, goal=Mode.OFF, actions=(NOW - 9000, NOW))
RESTARTING = replace(CONFIRMED, phase=Phase.RESTARTING, goal=Mode.OFF, instance="1", actions=(NOW,))
BACK = replace(RESTARTING, phase=Phase.ROLLING_BACK, goal=Mode.ON, why="it failed", instance="2")
START = ACT.start_timeout
STOPPED = replace(UP, life=ProcessState.STOPPED)
CHANGING = replace(UP, life=ProcessState.CHANGING)
GONE = replace(UP, life=ProcessState.DOWN, instance=None)


def cause(of: Cause) -> Incident:
    return Incident("i", of, NOW)


# Given up before anything was done


def test_an_action_that_is_given_up_does_not_count() -> None:
    step = machine.step(DRAINING, seen(now=NOW + 2, scraped_at=NOW + 1, service=STOPPED), ACT)
    assert step.reason == "given up: the server was stopped by hand"
    assert (step.state.phase, step.state.goal) == (Phase.OBSERVING, Mode.ON)
    assert (step.state.actions, step.state.incident) == ((NOW - 9000,), None)


def test_a_server_that_was_stopped_is_switched_where_a_person_asked_for_it() -> None:
    draining = replace(DRAINING, incident=cause(Cause.PERSON))
    step = machine.step(draining, seen(now=NOW + 2, scraped_at=NOW + 1, service=STOPPED), ACT)
    assert step.state.phase is Phase.RESTARTING


@pytest.mark.parametrize(
    ("of", "goal", "phase", "actions"),
    [
        (Cause.RULE, Mode.OFF, Phase.OBSERVING, (NOW - 9000,)),
        (Cause.EXPLORATION, Mode.OFF, Phase.OBSERVING, (NOW - 9000,)),
        (Cause.TRIAL, Mode.ON, Phase.DISABLED, (NOW - 9000,)),
        (Cause.TRIAL_LOST, Mode.OFF, Phase.TRIAL, (NOW - 9000, NOW)),
        (Cause.NOT_HELPED, Mode.ON, Phase.DISABLED, (NOW - 9000, NOW)),
    ],
)
def test_what_is_given_up_goes_back_to_where_it_began(
    of: Cause, goal: Mode, phase: Phase, actions: tuple[float, ...]
) -> None:
    state = replace(DRAINING, goal=goal, incident=cause(of))
    paused = machine.pause(state, until=NOW + 60, by="ann").state
    step = machine.step(paused, seen(now=NOW + 2), ACT)
    assert step.reason == "given up: paused by ann"
    assert (step.state.phase, step.state.actions) == (phase, actions)
    assert step.state.goal is (Mode.ON if goal is Mode.OFF else Mode.OFF)
    assert (step.state.incident is None) is (phase is Phase.OBSERVING)


def test_a_person_who_wants_something_else_ends_draining() -> None:
    other = replace(DRAINING, order=Order(Mode.ON, "ann", NOW))
    step = machine.step(other, seen(now=NOW + 2), ACT)
    assert step.reason == "given up: ann wants something else"
    same = replace(DRAINING, order=Order(Mode.OFF, "ann", NOW))
    assert machine.step(same, seen(now=NOW + 2, load=1.0), ACT) is None


# The switch


def test_a_switch_that_may_succeed_later_is_tried_again_until_the_start_timeout() -> None:
    busy = seen(outcome=SwitchOutcome("it is busy", changed=False, retry=True))
    assert machine.step(RESTARTING, replace(busy, now=NOW + START - 1), ACT) is None
    step = machine.step(RESTARTING, replace(busy, now=NOW + START), ACT)
    assert (step.state.phase, step.state.goal) == (Phase.HELD, Mode.ON)
    assert step.reason == "nothing was done: it is busy"
    touched = seen(outcome=SwitchOutcome("it failed", changed=True, retry=True))
    undone = machine.step(RESTARTING, touched, ACT)
    assert undone.state.phase is Phase.ROLLING_BACK


def test_a_manager_that_does_not_come_to_rest_ends_the_restart() -> None:
    look = seen(service=CHANGING)
    assert machine.step(RESTARTING, replace(look, now=NOW + START - 1), ACT) is None
    step = machine.step(RESTARTING, replace(look, now=NOW + START), ACT)
    assert (step.state.phase, step.state.goal) == (Phase.ROLLING_BACK, Mode.ON)
    assert step.state.why == "the server's manager did not finish in time"


# After it


def test_a_manager_that_cannot_tell_processes_apart_may_show_the_old_one_for_a_while() -> None:
    nameless = Service(ProcessState.UP, Mode.OFF, None)
    state = replace(RESTARTING, phase=Phase.VERIFYING, issued=NOW)
    old = seen(healthy=True, service=nameless)
    early = NOW + START - 1
    assert machine.step(state, replace(old, now=early, scraped_at=early), ACT) is None
    late = NOW + START
    step = machine.step(state, replace(old, now=late, scraped_at=late), ACT)
    assert step.state.phase is Phase.ROLLING_BACK
    assert step.state.why == "it still speculates after the restart"


def test_a_server_that_somebody_stops_after_the_restart_is_left_to_them() -> None:
    state = replace(RESTARTING, phase=Phase.VERIFYING, issued=NOW)
    stopped = seen(service=replace(STOPPED, mode=Mode.OFF, instance="2"))
    early = machine.step(state, replace(stopped, now=NOW + 14.9), ACT)
    assert early is None or early.state.phase is Phase.VERIFYING
    step = machine.step(state, replace(stopped, now=NOW + 15), ACT)
    assert step.state.phase is Phase.HELD


# Putting it back


def test_a_server_that_was_put_back_before_a_crash_is_not_restarted_again() -> None:
    step = machine.step(BACK, seen(service=replace(UP, instance="3")), ACT)
    assert step.reason == "the server is as it was"
    assert (step.state.phase, step.state.issued) == (Phase.ROLLING_BACK, NOW)
    assert machine.step(BACK, seen(service=replace(UP, instance="2")), ACT) is None


def test_putting_back_is_tried_twice_more_where_no_process_is_there() -> None:
    state = replace(BACK, issued=NOW)
    look = seen(service=GONE)
    step = machine.step(state, look, ACT)
    assert step.state.down_since == NOW
    assert machine.step(step.state, replace(look, now=NOW + 14.9), ACT) is None
    for attempt in (1, 2):
        again = machine.step(
            replace(step.state, attempts=attempt - 1), replace(look, now=NOW + 15), ACT
        )
        assert again.state.phase is Phase.ROLLING_BACK
        assert (again.state.attempts, again.state.issued) == (attempt, None)
    tired = replace(step.state, attempts=2)
    assert machine.step(tired, replace(look, now=NOW + START - 1), ACT) is None
    given_up = machine.step(tired, replace(look, now=NOW + START), ACT)
    assert given_up.state.phase is Phase.HELD
    assert given_up.reason == "it failed; and it has not come back since"


def test_a_server_that_cannot_be_put_back_is_for_a_person() -> None:
    look = seen(outcome=SwitchOutcome("it is masked", changed=False), service=CHANGING)
    assert machine.step(BACK, replace(look, now=NOW + START - 1), ACT) is None
    step = machine.step(BACK, replace(look, now=NOW + START), ACT)
    assert step.reason == "it failed; and it could not be put back: it is masked"
    assert step.state.phase is Phase.HELD


# Trials, orders, hooks


def test_a_lost_trial_stays_while_the_guard_may_not_act() -> None:
    trial = replace(CONFIRMED, phase=Phase.TRIAL, goal=Mode.ON)
    lost = seen(breaches=(), trial=Trial(about(0.8), about(0.8)))
    for state, policy in (
        (machine.pause(trial, until=NOW + 60, by="ann").state, ACT),
        (trial, ACT.model_copy(update={"mode": "observe"})),
    ):
        step = machine.step(state, lost, policy)
        assert (step.state.phase, step.state.goal) == (Phase.TRIAL, Mode.ON)
        assert step.state.waiting == "the trial is lost, and the guard may not act now"


@pytest.mark.parametrize("more", [{}, {"service_error": "busy", "service_retry": True}])
def test_an_order_waits_for_a_manager_that_may_answer_yet(more: dict[str, object]) -> None:
    calm = GuardState("chat", Phase.OBSERVING, NOW, Mode.ON)
    ordered = machine.order(calm, Mode.OFF, by="ann", now=NOW).state
    look = seen(breaches=(), service=None, **more)
    assert machine.step(ordered, replace(look, now=NOW + START - 1), ACT) is None
    step = machine.step(ordered, replace(look, now=NOW + START), ACT)
    assert step.state.order is None
    assert step.state.phase is Phase.OBSERVING
    sentence = more.get("service_error", "the server's manager did not answer")
    assert step.reason == f"ann switched speculation off; refused: {sentence}"


@pytest.mark.parametrize(
    ("hooks", "hooked"),
    [({}, False), ({"before": ["/lb"]}, True), ({"after": ["/lb"]}, True)],
)
def test_hooks_run_around_every_restart(hooks: dict[str, list[str]], hooked: bool) -> None:
    """Around the one that puts speculation back on, too."""
    policy = Guard.model_validate(
        {"mode": "act", "hooks": hooks, "rearm": {"after": "6h"}, "explore": {"budget": 0.01}}
    )
    off = machine.step(CONFIRMED, seen(), policy)
    assert (off.state.phase, off.state.hooked) == (Phase.DRAINING, hooked)
    trial = machine.step(DISABLED, seen(now=NOW + 6 * 3600, mode=Mode.OFF, breaches=()), policy)
    assert (trial.state.goal, trial.state.hooked) == (Mode.ON, hooked)
    explored = replace(
        RESTARTING, phase=Phase.VERIFYING, incident=cause(Cause.EXPLORATION), issued=NOW - 660,
        healthy_at=NOW - 600,
    )  # fmt: skip
    look = seen(mode=Mode.OFF, breaches=(), service=Service(ProcessState.UP, Mode.OFF, "2"))
    back = machine.step(explored, look, policy)
    assert (back.state.goal, back.state.hooked) == (Mode.ON, hooked)


@pytest.mark.parametrize(
    ("target", "name"),
    [("Chat 1/7B", "chat-1-7b"), ("日本", "target"), ("x" * 60, "x" * 40)],
)
def test_the_name_of_an_incident_is_of_its_target_and_time(target: str, name: str) -> None:
    step = machine.step(GuardState(target, goal=Mode.ON), seen(), ACT)
    assert step.state.incident.id == f"{name}-{int(NOW):x}"
