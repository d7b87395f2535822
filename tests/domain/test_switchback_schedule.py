"""Episodes keep their limits at every moment, and their plan survives being killed."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from specwatch.domain.switchback import (
    Moments,
    SwitchbackDesign,
    SwitchbackState,
    in_environment,
    new_state,
)
from specwatch.domain.switchback_schedule import next_step

START = 1_795_003_200.0
HOUR, DAY = 3600.0, 86400.0
ARMS = ("usual", "standby", "k=2", "k=4")


def design(count: int = 3, **changes) -> SwitchbackDesign:
    return SwitchbackDesign(arms=ARMS[:count], usual="usual", **{"seed": 7, **changes})


def fresh(plan: SwitchbackDesign) -> SwitchbackState:
    return new_state(plan, "vllm 0.33", START)


class Server:
    """Does what it is asked to, some seconds late, and adds up the time in each arm."""

    def __init__(self, plan: SwitchbackDesign, late: float = 0.0, losses=None) -> None:
        self.plan, self.state, self.now = plan, fresh(plan), START
        self.late, self.losses = late, losses or {}
        self.arm, self.other, self.lost = plan.usual, 0.0, 0.0
        self.begins: list[float] = []
        self.orders: list[tuple[str, ...]] = []
        self.finished = 0
        self.most_share = self.most_regret = 0.0
        self.chance = random.Random(3)

    def run(self, until: float) -> None:
        while self.now < START + until:
            step = next_step(self.state, self.plan, self.now)
            if step.state.order and not self.state.order:
                self.begins.append(self.now)
                self.orders.append(step.state.order)
            self.finished += step.finished
            self.state, self.arm = step.state, step.arm
            assert step.until > self.now
            after = step.until + self.chance.uniform(0, self.late)
            if self.arm != self.plan.usual:
                self.other += after - self.now
                self.lost += (after - self.now) * self.losses.get(self.arm, 1.0)
            self.now = after
            self.most_share = max(self.most_share, self.other / (self.now - START))
            self.most_regret = max(self.most_regret, self.lost / (self.now - START))


def check_share(count: int, share: float, late: float, time: float) -> None:
    server = Server(design(count, share=share, regret=1.0), late)
    server.run(time)
    assert server.most_share <= share
    assert server.other / (server.now - START) > 0.9 * share
    assert server.state.other_seconds == pytest.approx(server.other, abs=65), "but for one block"
    assert server.finished == len(server.begins) or server.state.order


@pytest.mark.parametrize(("count", "share", "late"), [(2, 0.05, 0.0), (4, 0.5, 5.0)])
def test_other_arms_never_have_more_than_their_share_and_in_the_end_nearly_all_of_it(
    count, share, late
):
    check_share(count, share, late, 3 * DAY)


def test_the_regret_of_unknown_arms_is_that_of_the_prior_and_is_never_exceeded():
    losses = {"standby": 0.5, "k=2": 0.5}
    server = Server(design(regret=0.005), 5.0, losses)
    server.run(20 * DAY)
    assert server.most_regret <= 0.005
    assert server.lost / (server.now - START) > 0.9 * 0.005


def test_measured_arms_lose_what_their_intervals_allow():
    """So that more episodes fit into the same regret."""
    plan = design(2, regret=0.005)
    unknown, known = Server(plan), Server(plan)
    known.state = replace(
        known.state, differences={"all": {"standby": {"usual": Moments(100, 0.1, 1.0)}}}
    )
    for server in (unknown, known):
        server.run(10 * DAY)
    assert unknown.state.lost_seconds == pytest.approx(0.5 * unknown.state.other_seconds)
    assert 0.09 < known.state.lost_seconds / known.state.other_seconds < 0.15
    assert len(known.begins) > 3 * len(unknown.begins)


def test_a_stratum_has_one_episode():
    server = Server(design(regret=1.0, lateness=0.0))
    server.run(4 * DAY)
    strata = [round((begin - START) // (2 * 60 / 0.05)) for begin in server.begins]
    assert strata == list(range(1, len(strata) + 1))
    assert len(strata) > 100


def test_each_arm_is_equally_often_at_each_place():
    server = Server(design(share=0.5, regret=1.0))
    server.run(3 * DAY)
    orders = Counter(server.orders)
    assert len(orders) == 6
    assert min(orders.values()) > 0.7 * len(server.orders) / 6


def test_a_process_that_is_killed_between_any_two_steps_continues_the_same_plan():
    plan = design()
    steady, killed = Server(plan), Server(plan)
    steady.run(5 * DAY)
    until = 0.0
    while until < 5 * DAY:
        stored = msgspec.json.encode(killed.state)
        killed.state = msgspec.json.decode(stored, type=SwitchbackState)
        until += 100.0
        killed.run(until)
    assert (killed.begins, killed.orders) == (steady.begins, steady.orders)
    other = Server(design(seed=8))
    other.run(5 * DAY)
    assert other.begins != steady.begins
    assert other.orders != steady.orders


def in_episode(plan: SwitchbackDesign) -> tuple[SwitchbackState, float]:
    """In the middle of the first block that has another arm than the usual one."""
    server = Server(plan)
    while server.arm == plan.usual:
        server.run(server.now - START + 1)
    return server.state, server.state.counted + 30


def test_a_pause_returns_to_the_usual_arm_at_once_and_abandons_the_episode():
    plan = design()
    state, now = in_episode(plan)
    step = next_step(state, plan, now, paused=True)
    assert (step.arm, step.finished, step.state.order) == ("usual", False, ())
    assert step.state.other_seconds == state.other_seconds + 30
    for _ in range(100):
        now += 60
        step = next_step(step.state, plan, now, paused=True)
        assert (step.arm, step.state.order) == ("usual", ())
    after = next_step(step.state, plan, now + 60)
    assert (after.arm, after.finished) == ("usual", False)
    assert after.until > now + 60


def test_pauses_do_not_postpone_an_episode_that_begins_after_them():
    plan = design()
    state, begun = fresh(plan), 0
    for minute in range(4 * 24 * 60):
        busy = bool(state.order) or minute % 3 > 0
        step = next_step(state, plan, START + 60 * minute, paused=not busy)
        begun += bool(step.state.order) and not state.order
        state = step.state
    unpaused = Server(plan)
    unpaused.run(4 * DAY)
    assert begun > 0.6 * len(unpaused.begins)


@pytest.mark.parametrize("away", [66.0, 4 * HOUR])
def test_after_a_missed_switch_the_episode_is_abandoned_and_its_time_counts(away):
    plan = design()
    state, now = in_episode(plan)
    step = next_step(state, plan, now - 30 + away)
    assert (step.arm, step.finished, step.state.order) == ("usual", False, ())
    assert step.state.other_seconds == state.other_seconds + away
    allowed = START + (step.state.other_seconds + 2 * 65) / plan.share
    assert step.until >= allowed


def test_a_switch_that_is_a_little_late_is_none_that_was_missed():
    plan = design()
    state, now = in_episode(plan)
    step = next_step(state, plan, now - 30 + 64)
    assert step.state.order == state.order or step.finished


@pytest.mark.parametrize("changes", [{"usual": "k=2"}, {"arms": ("usual", "k=4")}])
def test_an_episode_of_another_design_is_abandoned(changes):
    plan = design()
    state, now = in_episode(plan)
    changed = replace(plan, **changes)
    step = next_step(state, changed, now)
    assert (step.arm, step.finished, step.state.order) == (changed.usual, False, ())


def test_time_without_episodes_is_not_made_up_for():
    plan = design(regret=1.0)
    server = Server(plan)
    server.state = next_step(server.state, plan, START, paused=True).state
    server.now = START + 10 * DAY
    server.run(11 * DAY)
    assert 30 <= len(server.begins) <= 1 + DAY / (2 * 65 / 0.05)


def test_an_arm_that_was_dropped_is_not_run_until_the_usual_arm_or_the_environment_changes():
    plan = design()
    server = Server(plan)
    server.state = replace(server.state, dropped={"usual": ("standby",)})
    server.run(2 * DAY)
    assert {arm for order in server.orders for arm in order} == {"usual", "k=2"}
    server = Server(plan)
    server.state = replace(server.state, dropped={"usual": ("standby", "k=2")})
    server.run(2 * DAY)
    assert server.begins == []
    server.plan = replace(plan, usual="k=2")
    server.run(4 * DAY)
    assert set(server.orders[-1]) == set(plan.arms)


def test_another_environment_has_no_results_but_the_time_that_was_used():
    plan = design()
    state, now = in_episode(plan)
    state = replace(state, dropped={"usual": ("k=2",)}, episodes=3, excluded=1)
    assert in_environment(state, "vllm 0.33") is state
    changed = in_environment(state, "vllm 0.34")
    assert (changed.dropped, changed.episodes, changed.order) == ({}, 0, ())
    step = next_step(changed, plan, now)
    assert step.arm == "usual"
    assert step.state.other_seconds == state.other_seconds + 30


def test_a_clock_that_goes_back_adds_no_time():
    plan = design()
    state, now = in_episode(plan)
    step = next_step(state, plan, now - 100)
    assert step.arm == state.arm
    assert step.state.other_seconds == state.other_seconds


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": ("usual",)}, "two different arms"),
        ({"arms": ("usual", "usual")}, "two different arms"),
        ({"usual": "k=9"}, "must be one of"),
        ({"share": 0.6}, "share"),
        ({"regret": 0.0}, "regret"),
        ({"assumed_loss": 1.5}, "assumed_loss"),
        ({"block": 0.0}, "block"),
        ({"lateness": 60.0}, "lateness"),
    ],
)
def test_impossible_designs_are_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        SwitchbackDesign(**{"arms": ARMS, "usual": "usual", "seed": 1, **changes})
