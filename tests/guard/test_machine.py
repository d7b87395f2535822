"""The pure state machine: whatever is seen, and whatever persons do, it keeps to its rules."""

from __future__ import annotations

import datetime
import random
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.config.guard import Guard, Maintenance, Rearm, Windows
from specwatch.domain.interval import Interval
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import machine
from specwatch.guard.foresight import Trial
from specwatch.guard.observation import Breach, Situation, SwitchOutcome
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import Cause, GuardState, Incident, Order, Phase, wait
from tests.guard.wandering import Wandering

NOW = 1_800_000_000.0
ACT = Guard.model_validate({"mode": "act", "rearm": {"after": "6h"}})
UP = Service(ProcessState.UP, Mode.ON, "1")
BREACH = Breach("r", "tiny", "all")
CONFIRMED = GuardState(
    "chat", Phase.CONFIRMED, NOW, Mode.ON, Incident("i", Cause.RULE, NOW, "r", "tiny", "all")
)
DISABLED = replace(
    CONFIRMED, phase=Phase.DISABLED, goal=Mode.OFF, disabled_at=NOW, rearm_at=NOW + 6 * HOUR
)


def seen(**changes: object) -> Situation:
    """A server that is up and loses, asked for a moment ago."""
    plain = Situation(
        NOW, NOW, mode=Mode.ON, models=("tiny",), load=0.0, breaches=(BREACH,), service=UP
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def about(value: float, spread: float = 0.05) -> Interval:
    return Interval(value, value - spread, value + spread, 30)


# Whatever happens


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_walk_leads_to_what_is_forbidden(seed: int) -> None:
    """No action without leave, over the budget, within the cooldown or at a forbidden time; no
    hold left without a person; nothing for ever; no goal that contradicts the phase."""
    walk = Wandering(random.Random(seed))
    for _ in range(150):
        walk.turn()


def test_walks_reach_every_phase() -> None:
    reached: set[Phase] = set()
    for seed in range(40):
        walk = Wandering(random.Random(seed))
        for _ in range(250):
            walk.turn()
        reached |= walk.phases
        if reached == set(Phase):
            break
    assert reached == set(Phase)


# Whether a restart is begun


@pytest.mark.parametrize(
    ("speedups", "why"),
    [
        ((about(0.5),), ""),
        ((about(0.999, 0.0005),), "a restart takes 2m, more than it would save in 6h"),
        ((about(0.9, 0.2),), "a restart takes 2m, more than it would save in 6h"),
        ((about(0.999, 0.0005), about(0.5)), ""),
        ((), ""),
    ],
)
def test_a_restart_has_to_save_more_time_than_it_takes(
    speedups: tuple[Interval, ...], why: str
) -> None:
    breach = replace(BREACH, speedups=speedups)
    step = machine.step(CONFIRMED, seen(breaches=(breach,)), ACT)
    assert step.state.waiting == why
    assert step.state.phase is (Phase.CONFIRMED if why else Phase.DRAINING)


def test_what_restarts_took_before_and_how_soon_traffic_rests_counts() -> None:
    losing = seen(breaches=(replace(BREACH, speedups=(about(0.5),)),))
    slow = replace(CONFIRMED, costs=(20.0, 8 * HOUR, 8 * HOUR))
    step = machine.step(slow, losing, ACT)
    assert step.state.waiting == "a restart takes 8h, more than it would save in 6h"
    step = machine.step(CONFIRMED, replace(losing, quiet_in=200.0), ACT)
    assert step.state.waiting == "a restart takes 2m, more than it would save in 3m20s"
    step = machine.step(CONFIRMED, replace(losing, quiet_in=400.0), ACT)
    assert step.state.phase is Phase.DRAINING


@pytest.mark.parametrize(
    ("state", "look", "policy", "waiting"),
    [
        ({}, {}, {"mode": "observe"}, "guard.mode is observe: nothing is done"),
        ({"actions": (NOW - 1799,)}, {}, {}, "cooling down for 30m after the last action"),
        (
            {"actions": (NOW - 86399, NOW - 7000)}, {}, {"max_actions_per_day": 2},
            "2 actions within a day: guard.max_actions_per_day are used up",
        ),
        ({"elsewhere": NOW - HOUR + 1}, {}, {}, "another tool switched speculation recently"),
        ({}, {"service": None, "service_error": "masked"}, {}, "cannot be switched: masked"),
        ({}, {"service": None}, {}, "the server's manager was not asked yet"),
        ({}, {"service": replace(UP, life=ProcessState.DOWN)}, {}, "the server is not up"),
    ],
)  # fmt: skip
def test_what_keeps_the_guard_from_acting_is_said(
    state: dict[str, object], look: dict[str, object], policy: dict[str, object], waiting: str
) -> None:
    before = replace(CONFIRMED, **state)  # type: ignore[arg-type]
    guard = Guard.model_validate({"mode": "act", **policy})
    step = machine.step(before, seen(**look), guard)
    assert step.state.phase is Phase.CONFIRMED
    assert waiting in step.state.waiting
    assert machine.step(step.state, seen(**look), guard) is None, "it is said once"


def test_an_action_a_day_ago_or_a_cooldown_ago_is_over() -> None:
    before = replace(CONFIRMED, actions=(NOW - 86400, NOW - 1800))
    step = machine.step(before, seen(), Guard(mode="act", max_actions_per_day=2))
    assert step.state.phase is Phase.DRAINING
    assert step.state.actions == (NOW - 1800, NOW)


# Trials


def test_a_prediction_of_a_loss_puts_a_trial_off_but_not_for_ever() -> None:
    off = seen(mode=Mode.OFF, breaches=(), predicted=about(0.7))
    due = replace(off, now=NOW + 6 * HOUR, scraped_at=NOW + 6 * HOUR)
    step = machine.step(DISABLED, due, ACT)
    assert (step.state.phase, step.state.waiting) == (
        Phase.DISABLED, "a trial is due; speculation is predicted to lose now",
    )  # fmt: skip
    late = NOW + ACT.rearm.most
    step = machine.step(DISABLED, replace(off, now=late, scraped_at=late), ACT)
    assert step.state.phase is Phase.DRAINING
    assert step.reason == "it is time for a trial"


def test_a_predicted_gain_brings_a_trial_early_once_it_may() -> None:
    gains = seen(mode=Mode.OFF, breaches=(), predicted=about(1.5))
    step = machine.step(DISABLED, gains, ACT)
    assert step.reason == "speculation is predicted to pay now"
    assert (step.state.phase, step.state.goal) == (Phase.DRAINING, Mode.ON)
    assert machine.step(replace(DISABLED, early_at=NOW + 1), gains, ACT) is None
    little = replace(gains, predicted=about(1.06))
    assert machine.step(DISABLED, little, ACT) is None, "two restarts cost more than it gains"
    person = replace(DISABLED, rearm_at=None)
    assert machine.step(person, gains, ACT) is None, "a person keeps it off"


def test_each_lost_trial_makes_early_ones_rarer() -> None:
    trial = replace(CONFIRMED, phase=Phase.TRIAL)
    step = machine.step(trial, seen(), ACT)
    assert (step.state.early_at, step.state.early_pause) == (NOW + HOUR, 2 * HOUR)
    assert step.state.delay == 2 * 6 * HOUR
    assert step.state.actions == (), "the end of a trial is not another action"


def test_trials_come_as_often_as_the_budget_pays_for_what_the_last_one_lost() -> None:
    """A restart takes a minute; 40 minutes of a trial at 0.75 took a third more than without."""
    policy = ACT.model_copy(update={"rearm": Rearm(), "restart_cost": 60.0})
    trial = replace(CONFIRMED, phase=Phase.TRIAL, since=NOW - 2400)
    for speedup, delay in ((0.75, (120 + 800) / 0.02), (0.99, (120 + 2400 / 99) / 0.02)):
        step = machine.step(trial, seen(breaches=(), trial=Trial(about(speedup))), policy)
        assert step.state.delay == pytest.approx(delay)
    unknown = machine.step(trial, seen(), policy)
    assert unknown.state.delay == pytest.approx(policy.rearm.wait(60.0))


@pytest.mark.parametrize(
    ("look", "phase"),
    [
        ({"trial": Trial(about(1.2))}, Phase.OBSERVING),
        ({"trial": Trial(about(0.9))}, Phase.DRAINING),
        ({"passing": True}, Phase.OBSERVING),
        ({}, Phase.TRIAL),
    ],
)
def test_a_trial_ends_by_what_is_known_of_it(look: dict[str, object], phase: Phase) -> None:
    now = NOW + ACT.rearm.trial
    trial = replace(CONFIRMED, phase=Phase.TRIAL)
    step = machine.step(trial, seen(now=now, scraped_at=now, breaches=(), **look), ACT)
    assert step.state.phase is phase


# Persons


def test_a_pause_ends_by_itself_and_what_waited_goes_on() -> None:
    paused = machine.pause(CONFIRMED, until=NOW + 60, by="ann", why="a demo").state
    step = machine.step(paused, seen(), ACT)
    assert step.state.waiting == "paused by ann"
    over = machine.step(step.state, seen(now=NOW + 60), ACT)
    assert (over.state.pause, over.reason) == (None, "the pause of ann is over")
    begun = machine.step(over.state, seen(now=NOW + 60), ACT)
    assert begun.state.phase is Phase.DRAINING


def test_an_order_that_cannot_be_done_is_refused_and_forgotten() -> None:
    ordered = machine.order(CONFIRMED, Mode.OFF, by="ann", now=NOW).state
    step = machine.step(ordered, seen(service=None, service_error="masked"), ACT)
    assert step.reason == "ann switched speculation off; refused: masked"
    assert step.state.order is None
    assert step.state.phase is Phase.CONFIRMED


def test_an_order_is_done_whatever_the_guard_may_do_itself() -> None:
    forbidden = Windows(forbid=(window("00:00", "00:00"),))
    for policy in (Guard(mode="off"), Guard(mode="act", max_actions_per_day=0, windows=forbidden)):
        ordered = machine.order(CONFIRMED, Mode.OFF, by="ann", now=NOW, until=NOW + 60).state
        paused = machine.pause(ordered, until=NOW + 600, by="bob").state
        draining = machine.step(paused, seen(), policy)
        assert draining.state.phase is Phase.DRAINING
        restarting = machine.step(draining.state, seen(now=NOW + 2, scraped_at=NOW + 1), policy)
        assert restarting.state.phase is Phase.RESTARTING
        assert restarting.state.actions == ()


def test_only_a_person_ends_a_hold() -> None:
    hold = replace(CONFIRMED, phase=Phase.HELD, why="it failed")
    for look in (seen(), seen(mode=Mode.OFF), seen(breaches=()), seen(now=NOW + 9e6)):
        assert machine.step(hold, look, ACT) is None
    resumed = machine.resume(hold, by="ann", now=NOW)
    assert (resumed.state.phase, resumed.state.why) == (Phase.OBSERVING, "")
    assert machine.resume(resumed.state, by="ann", now=NOW) is None


# Restarts


def test_a_manager_that_never_answers_ends_draining_in_a_hold() -> None:
    draining = replace(CONFIRMED, phase=Phase.DRAINING, goal=Mode.OFF)
    lost = seen(service=None, service_error="no answer", load=3.0)
    limit = ACT.drain_timeout + ACT.start_timeout
    assert machine.step(draining, replace(lost, now=NOW + limit - 1), ACT) is None
    step = machine.step(draining, replace(lost, now=NOW + limit), ACT)
    assert (step.state.phase, step.reason) == (Phase.HELD, "nothing was done: no answer")


def test_only_a_look_since_then_says_that_no_request_runs() -> None:
    draining = replace(CONFIRMED, phase=Phase.DRAINING, goal=Mode.OFF)
    assert machine.step(draining, seen(now=NOW + 1, scraped_at=NOW, load=0.0), ACT) is None
    step = machine.step(draining, seen(now=NOW + 2, scraped_at=NOW + 1, load=0.0), ACT)
    assert step.state.phase is Phase.RESTARTING


@pytest.mark.parametrize(
    ("load", "looked", "sentence"),
    [
        (3.0, 1, "drained for 1m; cutting off 3 requests under way"),
        (1.0, 1, "drained for 1m; cutting off 1 request under way"),
        (None, 1, "drained for 1m; how many requests are cut off is not known"),
        (0.0, 0, "drained for 1m; how many requests are cut off is not known"),
    ],
)
def test_requests_that_outlast_draining_are_said_to_be_cut_off(
    load: float | None, looked: int, sentence: str
) -> None:
    draining = replace(CONFIRMED, phase=Phase.DRAINING, goal=Mode.OFF)
    policy = ACT.model_copy(update={"drain_timeout": 60.0})
    step = machine.step(draining, seen(now=NOW + 60, scraped_at=NOW + looked, load=load), policy)
    assert (step.state.phase, step.reason) == (Phase.RESTARTING, sentence)


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF])
def test_the_first_step_of_an_order_names_the_person(mode: Mode) -> None:
    ordered = GuardState("chat", order=Order(Mode.OFF, "ann", NOW))
    step = machine.step(ordered, seen(mode=mode), ACT)
    assert step.inputs == {"ordered_by": "ann"}


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        (SwitchOutcome(), Phase.VERIFYING),
        (SwitchOutcome("it failed"), Phase.ROLLING_BACK),
        (SwitchOutcome("it is masked", changed=False), Phase.HELD),
    ],
)
def test_what_came_of_the_switch_decides(outcome: SwitchOutcome, phase: Phase) -> None:
    restarting = replace(CONFIRMED, phase=Phase.RESTARTING, goal=Mode.OFF, instance="1")
    step = machine.step(restarting, seen(outcome=outcome), ACT)
    assert step.state.phase is phase


def test_a_switch_that_was_thrown_before_a_crash_is_not_thrown_again() -> None:
    restarting = replace(CONFIRMED, phase=Phase.RESTARTING, goal=Mode.OFF, instance="1")
    for done in (Service(ProcessState.UP, Mode.OFF, "2"), Service(ProcessState.UP, Mode.OFF, None)):
        step = machine.step(restarting, seen(service=done), ACT)
        assert step.state.phase is Phase.VERIFYING
    changing = seen(service=Service(ProcessState.CHANGING, Mode.OFF, None))
    assert machine.step(restarting, changing, ACT) is None
    assert machine.effect(restarting, changing, prepared=True) is None
    for undone in (
        UP,
        Service(ProcessState.UP, Mode.OFF, "1"),
        Service(ProcessState.UP, Mode.ON, "2"),
    ):
        assert machine.step(restarting, seen(service=undone), ACT) is None
        assert machine.effect(restarting, seen(service=undone), prepared=True) is not None


def test_a_process_that_is_another_at_every_look_is_given_up() -> None:
    state = replace(CONFIRMED, phase=Phase.VERIFYING, goal=Mode.OFF, instance="1", issued=NOW)
    for look in range(2, 10):
        dying = seen(
            now=NOW + look, scraped_at=NOW, service=Service(ProcessState.UP, Mode.OFF, str(look))
        )
        step = machine.step(state, dying, ACT)
        state = step.state
        if state.phase is Phase.ROLLING_BACK:
            break
    assert state.why == "vLLM died 3 times after the restart"


# Times of day


def window(begin: str, end: str, timezone: str = "UTC", *days: str) -> Maintenance:
    chosen = {"days": list(days)} if days else {}
    return Maintenance.model_validate({"from": begin, "to": end, "timezone": timezone, **chosen})


def at(text: str, timezone: str = "UTC", fold: int = 0) -> float:
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone), fold=fold)
    return moment.timestamp()


NIGHT, BERLIN = ("22:00", "02:00"), "Europe/Berlin"


@pytest.mark.parametrize(
    ("one", "now", "expected"),
    [
        (window("02:00", "05:00"), at("2026-07-01 02:00"), True),
        (window("02:00", "05:00"), at("2026-07-01 05:00"), False),
        (window("02:00", "05:00"), at("2026-07-01 01:59:59.9"), False),
        (window(*NIGHT), at("2026-07-01 00:00"), True),
        (window(*NIGHT), at("2026-07-01 02:00"), False),
        (window(*NIGHT), at("2026-07-01 12:00"), False),
        (window("00:00", "00:00"), at("2026-07-01 12:00"), True),
        # 2026-07-03 is a Friday: the night belongs to the day on which it begins.
        (window(*NIGHT, "UTC", "fri"), at("2026-07-03 23:00"), True),
        (window(*NIGHT, "UTC", "fri"), at("2026-07-04 01:00"), True),
        (window(*NIGHT, "UTC", "fri"), at("2026-07-03 01:00"), False),
        (window(*NIGHT, "UTC", "sun"), at("2026-07-06 01:00"), True),
        (window("02:00", "05:00", BERLIN), at("2026-07-01 00:30"), True),
        (window("02:00", "05:00", BERLIN), at("2026-01-01 00:30"), False),
        # Clocks go from 02:00 to 03:00, and from 03:00 back to 02:00.
        (window("02:00", "02:59", BERLIN), at("2026-03-29 01:59:59", BERLIN) + 1, False),
        (window("02:00", "05:00", BERLIN), at("2026-03-29 01:59:59", BERLIN) + 1, True),
        (window("02:15", "02:45", BERLIN), at("2026-10-25 02:30", BERLIN), True),
        (window("02:15", "02:45", BERLIN), at("2026-10-25 02:30", BERLIN, fold=1), True),
        (window("02:15", "02:45", BERLIN), at("2026-10-25 02:50", BERLIN), False),
    ],
)
def test_a_window_is_of_its_time_zones_wall_clock(
    one: Maintenance, now: float, expected: bool
) -> None:
    assert one.contains(now) is expected


def test_what_is_forbidden_wins_over_what_is_allowed() -> None:
    windows = Windows(allow=(window("01:00", "05:00"),), forbid=(window("02:00", "03:00"),))
    assert windows.closed(at("2026-07-01 01:30")) == ""
    assert windows.closed(at("2026-07-01 02:30")) == "guard.windows excludes 02:00 to 03:00 UTC"
    assert windows.closed(at("2026-07-01 06:00")) == "guard.windows allows only 01:00 to 05:00 UTC"
    assert Windows().closed(at("2026-07-01 06:00")) == ""


def test_another_reason_of_the_windows_is_shown() -> None:
    """``wait`` takes what differs after a colon only for the same reason."""
    windows = Windows(allow=(window("01:00", "05:00"),), forbid=(window("02:00", "03:00"),))
    forbidden, not_allowed = (
        windows.closed(at(f"2026-07-01 {time}")) for time in ("02:30", "06:00")
    )
    step = wait(GuardState("chat", waiting=forbidden), not_allowed)
    assert step.state.waiting == not_allowed
