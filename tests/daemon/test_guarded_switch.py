"""The guard of a simulated server that has a switch, from a breach to its end."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specwatch.actuators.base import Claim
from specwatch.daemon.guarded_switch import GuardedSwitch
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, StoreUnavailable
from specwatch.guard import state_machine
from specwatch.guard.observation import Situation
from specwatch.guard.state import GuardState, Phase
from specwatch.guard.state_machine import Effect
from specwatch.guard.switch_phases import LEASE
from specwatch_tap.orders import SwitchState
from tests.daemon.guard_stories import require_standby_though_killed
from tests.daemon.stores import NewLiving, StoreOf
from tests.guard.daemons import GuardingDaemon, World
from tests.guard.living import ACT, Living
from tests.guard.simulated_server import SimulatedServer

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


@pytest.fixture
def living(new_living: NewLiving) -> Living:
    return new_living(server=SimulatedServer(switched=True))


def reasons(living: Living) -> list[str]:
    return [step.reason for step in reversed(living.book.history(target="chat", limit=50))]


def test_a_breach_ends_in_standby_without_a_restart(living: Living) -> None:
    state = living.live(600, until=Phase.DISABLED)
    assert living.phases() == ["suspect", "confirmed", "restarting", "verifying", "disabled"]
    assert [k for _, k in living.server.orders] == [0]
    assert living.server.starts == []
    assert (state.standby, state.goal, living.server.mode) == (True, Mode.OFF, Mode.STANDBY)
    assert "it helped: speculation has a speedup of 0.70" in reasons(living)[-1]
    assert living.server.ordered_by == f"specwatch guard ({state.incident.id})"


def test_the_order_is_renewed_for_as_long_as_the_guard_lives(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.live(5 * LEASE)
    assert (living.server.mode, len(living.server.orders)) == (Mode.STANDBY, 1)
    living.server.now += LEASE + 1  # nobody guards it
    assert living.server.mode is Mode.ON
    living.live(60)
    assert living.state.phase is Phase.DISABLED
    assert living.server.mode is Mode.STANDBY


def test_a_restart_of_vllm_in_standby_is_no_switch_by_others(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.restart()
    living.live(400)
    assert (living.state.phase, living.server.mode) == (Phase.DISABLED, Mode.STANDBY)


@pytest.mark.parametrize("k", [2, None])
def test_the_order_of_a_person_is_respected(living: Living, k: int | None) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.order(k, lease=3600.0, by="ann")
    state = living.live(600)
    assert any("the switch was set by" in reason for reason in reasons(living))
    assert (state.phase, state.standby) == (Phase.CONFIRMED, False)
    assert "another tool switched speculation recently" in state.waiting
    assert living.server.ordered == k


def test_a_trial_takes_no_restart(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.bad = False
    living.live(ACT.rearm.after + 300, until=Phase.TRIAL)
    state = living.live(ACT.rearm.trial + 100, until=Phase.OBSERVING)
    assert (state.phase, state.standby) == (Phase.OBSERVING, False)
    assert [k for _, k in living.server.orders] == [0, None]
    assert (living.server.starts, living.server.mode) == ([], Mode.ON)


def test_trials_without_a_restart_come_as_often_as_the_budget_allows(new_living: NewLiving) -> None:
    policy = ACT.model_copy(update={"rearm": type(ACT.rearm)()})
    living = new_living(server=SimulatedServer(switched=True), policy=policy)
    state = living.live(600, until=Phase.DISABLED)
    assert state.rearm_at is not None
    assert state.rearm_at - state.since == 90 / 0.02  # what a lost trial costs, of 2 %


def test_where_standby_does_not_help_it_is_restarted(living: Living) -> None:
    living.server.standby_helps = False
    state = living.live(900, until=Phase.DISABLED)
    assert (state.phase, state.standby) == (Phase.DISABLED, False)
    assert [mode for _, mode in living.server.starts] == [Mode.OFF]
    assert any("it did not help: speculation has a speedup of 1.40" in r for r in reasons(living))


def test_where_it_cannot_be_restarted_either_it_goes_on_with_speculation(
    new_living: NewLiving,
) -> None:
    server = SimulatedServer(switched=True, standby_helps=False, fault="no-service")
    living = new_living(server=server)
    living.live(600, until=Phase.VERIFYING)
    state = living.live(ACT.cooldown / 2)
    assert (state.phase, state.standby, server.mode) == (Phase.CONFIRMED, False, Mode.ON)
    assert [k for _, k in server.orders] == [0, None]
    assert "switching off did not help the last time" in state.waiting


def test_a_server_that_ignores_its_switch_is_restarted(living: Living) -> None:
    living.server.follows = False
    state = living.live(900, until=Phase.DISABLED)
    assert "the server does not follow its switch; restarting" in reasons(living)
    assert (state.standby, [mode for _, mode in living.server.starts]) == (False, [Mode.OFF])


def test_a_switch_that_does_not_answer_is_not_waited_for(living: Living) -> None:
    living.server.fault = "no-switch"
    state = living.live(900, until=Phase.DISABLED)
    assert (state.standby, [mode for _, mode in living.server.starts]) == (False, [Mode.OFF])


@pytest.mark.parametrize(
    ("cost", "restarts"),
    [(Interval(2.0, 1.9, 2.1, 20), 1), (Interval(1.01, 1.0, 1.02, 20), 0), (None, 0)],
)
def test_a_restart_follows_where_standby_costs_more(
    living: Living, cost: Interval | None, restarts: int
) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.standby_cost = cost
    living.live(2 * ACT.cooldown)
    assert len(living.server.starts) == restarts
    assert living.state.standby is not bool(restarts)


def test_memory_that_is_wanted_back_takes_a_restart(new_living: NewLiving) -> None:
    policy = ACT.model_copy(update={"release_memory": True})
    living = new_living(server=SimulatedServer(switched=True), policy=policy)
    living.live(600, until=Phase.DISABLED)
    assert (living.server.orders, len(living.server.starts)) == ([], 1)


def test_a_person_switches_in_a_second(living: Living) -> None:
    living.server.bad = False
    living.live(60)

    def order(goal: Mode) -> None:
        living.command(
            lambda state: state_machine.order(state, goal, by="ann", now=living.server.now)
        )

    order(Mode.OFF)
    state = living.live(20, until=Phase.DISABLED)
    assert (state.phase, state.rearm_at, living.server.mode) == (
        Phase.DISABLED,
        None,
        Mode.STANDBY,
    )
    living.live(2 * LEASE)
    assert living.server.mode is Mode.STANDBY
    order(Mode.ON)
    state = living.live(60, until=Phase.OBSERVING)
    assert (state.phase, living.server.mode, living.server.starts) == (
        Phase.OBSERVING,
        Mode.ON,
        [],
    )


def test_without_a_service_the_switch_is_enough(new_living: NewLiving) -> None:
    server = SimulatedServer(switched=True, fault="no-service")
    living = new_living(server=server)
    assert living.live(600, until=Phase.DISABLED).standby
    living.server.bad = False
    living.live(ACT.rearm.after + 300, until=Phase.TRIAL)
    assert living.live(ACT.rearm.trial + 100, until=Phase.OBSERVING).phase is Phase.OBSERVING


def test_killed_at_some_points_it_never_restarts(new_living: NewLiving) -> None:
    """The nightly tests have every point."""
    require_standby_though_killed(new_living, step=14)


def order_of(living: Living, goal: Mode) -> None:
    living.command(lambda state: state_machine.order(state, goal, by="ann", now=living.server.now))


def test_the_order_of_a_person_comes_before_a_rule(living: Living) -> None:
    living.server.order(2, lease=86_400.0, by="ann")
    state = living.live(900)
    assert (state.phase, state.waiting) == (Phase.CONFIRMED, "the switch was set by ann to 2")
    assert living.server.orders == [(living.server.orders[0][0], 2)]


def test_no_renewal_undoes_what_a_person_ordered(new_living: NewLiving) -> None:
    """At any moment between two looks, and while no daemon runs."""
    policy = ACT.model_copy(update={"max_actions_per_day": 99})
    living = new_living(server=SimulatedServer(switched=True), policy=policy)
    living.live(600, until=Phase.DISABLED)
    for moment in (0, 51, 102, 153):
        living.server.now += moment
        living.server.order(None, lease=60.0, by="ann")
        living.guardian = living._born()
        living.live(LEASE)
        assert living.server.mode is Mode.ON, moment
        assert any("was set by ann to the launch" in reason for reason in reasons(living))
        living.live(ACT.respect + 1200, until=Phase.DISABLED)
        assert living.server.mode is Mode.STANDBY, moment


def test_a_guard_that_is_off_respects_a_person_too(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.guardian.policy = ACT.model_copy(update={"mode": "off"})
    living.live(3 * LEASE)
    assert living.server.mode is Mode.STANDBY
    living.server.order(None, lease=60.0, by="ann")
    living.live(3 * LEASE)
    assert living.server.mode is Mode.ON


def test_an_order_that_fails_once_is_given_again(living: Living) -> None:
    living.live(600, until=Phase.CONFIRMED)
    order, failed = living.server.order, [False]

    def fails_once(*args: Any, **options: Any) -> Any:
        if not failed[0]:
            failed[0] = True
            raise ActuatorError("429", retry=True)
        return order(*args, **options)

    living.server.order = fails_once  # type: ignore[method-assign]
    state = living.live(600, until=Phase.DISABLED)
    assert (state.standby, living.server.starts) == (True, [])


def test_no_restart_in_place_of_the_switch_where_none_may_be(new_living: NewLiving) -> None:
    """It would cost more than it saves, or cannot be done: back to the launch, and no hold."""
    for changes in ({"fault": "limit"}, {}):
        server = SimulatedServer(switched=True, standby_helps=False, **changes)
        policy = ACT if changes else ACT.model_copy(update={"restart_cost": 40_000.0})
        living = new_living(server=server, policy=policy)
        living.live(600, until=Phase.VERIFYING)
        state = living.live(600)
        assert (state.phase, server.mode, server.starts) == (Phase.CONFIRMED, Mode.ON, [])


def test_an_order_that_is_not_in_force_for_long_is_given_up(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.fault = "no-switch"
    living.live(300)
    assert living.state.waiting.startswith("the switch cannot be reached")
    living.server.fault = ""
    living.live(120)
    assert living.state.waiting == ""
    living.server.fault = "no-switch"
    living.live(2 * LEASE)
    assert any("its order is not in force any more" in reason for reason in reasons(living))


@pytest.mark.parametrize("mode", ["act", "off"])
def test_a_switch_that_leaves_the_configuration_ends_standby(living: Living, mode: str) -> None:
    """Nobody renews the order of an operator: the guard follows the server, and says why."""
    living.server.bad = False
    living.live(60)
    order_of(living, Mode.OFF)
    living.live(60)
    living.server.switched = False
    living.policy = ACT.model_copy(update={"mode": mode})
    living.guardian = living._born()
    living.live(LEASE / 2)
    assert (living.state.phase, living.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    state = living.live(LEASE / 2 + 240)
    assert (state.phase, state.standby, living.server.mode) == (Phase.OBSERVING, False, Mode.ON)
    why = "its order is not in force any more: no `switch` is configured for it any more"
    assert reasons(living)[-1] == why


def test_enable_without_a_switch_any_more_ends_the_renewal(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.switched = False
    living.guardian = living._born()
    order_of(living, Mode.ON)
    assert living.live(20).phase is Phase.OBSERVING
    assert reasons(living)[-1].endswith("no `switch` is configured for it any more")


def test_a_deploy_without_speculation_is_respected(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.configured = Mode.OFF
    living.server.restart()
    state = living.live(500)
    assert (state.phase, state.goal, state.standby) == (Phase.OBSERVING, Mode.OFF, False)
    assert "speculation was switched off by another tool" in reasons(living)


def test_what_a_person_orders_is_restarted_where_the_switch_is_ignored(living: Living) -> None:
    living.server.bad = living.server.follows = False
    living.live(60)
    order_of(living, Mode.OFF)
    state = living.live(300)
    assert (state.phase, state.standby, living.server.mode) == (Phase.DISABLED, False, Mode.OFF)


def test_a_person_need_not_wait_for_a_verification(living: Living) -> None:
    living.live(600, until=Phase.VERIFYING)
    order_of(living, Mode.ON)
    state = living.live(20)
    assert (state.standby, living.server.mode) == (False, Mode.ON)


def test_a_guard_that_may_not_act_ends_what_did_not_help(living: Living) -> None:
    living.server.standby_helps = False
    living.live(600, until=Phase.VERIFYING)
    living.command(lambda state: state_machine.pause(state, until=4e9, by="ann"))
    living.live(300)
    assert (living.server.mode, living.server.starts) == (Mode.ON, [])


def test_enable_ends_standby_whoever_ordered_it(living: Living) -> None:
    living.server.bad = False
    living.server.order(0, lease=86_400.0, by="ann")
    living.live(60)
    order_of(living, Mode.ON)
    state = living.live(60)
    assert (state.phase, living.server.mode, living.server.starts) == (
        Phase.OBSERVING,
        Mode.ON,
        [],
    )


def test_a_pause_during_the_drain_of_a_restart_stays_in_standby(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    living.server.standby_cost, living.server.load = Interval(2.0, 1.9, 2.1, 20), 3.0
    living.live(2 * ACT.cooldown, until=Phase.DRAINING)
    living.command(lambda state: state_machine.pause(state, until=4e9, by="ann"))
    state = living.live(2 * LEASE)
    assert (state.phase, state.standby, living.server.mode) == (
        Phase.DISABLED,
        True,
        Mode.STANDBY,
    )
    assert state.rearm_at is not None


def test_a_hook_that_failed_runs_although_it_is_standby_now(living: Living) -> None:
    living.live(600, until=Phase.DISABLED)
    hooked = dataclasses.replace(living.state, hooked=True)
    seen = Situation(living.server.now, mode=None, switchable=True, in_standby=True)
    assert state_machine.effect(hooked, seen, prepared=False) is Effect.AFTER


def test_without_a_database_the_order_is_renewed(guards_of: StoreOf) -> None:
    world = World()
    server = world.server
    server.switched, server.bad = True, True
    daemon = GuardingDaemon(world, guards_of(), acts=True)
    guard = daemon.guarding._guards["chat"]
    guard._run_time = GuardedSwitch("chat", cast(Any, server), monotonic=lambda: server.now)
    daemon.live(1200, until=Phase.DISABLED)
    assert server.mode is Mode.STANDBY

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("gone")

    daemon.guarding._book.look = away  # type: ignore[method-assign]
    daemon.guarding._book.hold = away  # type: ignore[method-assign]
    end = world.now + 3 * LEASE
    while world.now < end:
        daemon.turn()
        world.wait()
    assert server.mode is Mode.STANDBY


@pytest.mark.parametrize(
    ("by", "overridden"),
    [
        ("ann", "ann to a schedule"),
        ("specwatch experiment (tuned)", None),
    ],
)
def test_a_schedule_is_an_order_of_others_only_if_a_person_gave_it(
    by: str, overridden: str | None
) -> None:
    state = SwitchState(server="s", launch_draft_tokens=4, schedule=((1, 256, 2),), by=by)
    client = cast(Any, SimpleNamespace(state=lambda: state))
    assert (
        GuardedSwitch("chat", client).query(GuardState("chat"), shown=True).get("overridden")
        == overridden
    )


@pytest.mark.parametrize(
    ("by", "k", "renewed"),
    [("specwatch guard (7)", 0, True), ("specwatch guard (7)", None, False), ("", None, False)],
    ids=["our standby", "ended by another daemon", "a new process"],
)
def test_without_a_lease_only_what_is_in_force_goes_on(
    by: str, k: int | None, renewed: bool
) -> None:
    state = SwitchState(server="s", launch_draft_tokens=4, draft_tokens=k, by=by)
    orders: list[Any] = []

    def order(k: int | None, *, claim: Claim, **_: Any) -> SwitchState:
        claim.require()
        orders.append(k)
        return state

    client = SimpleNamespace(state=lambda: state, order=order)
    GuardedSwitch("chat", cast(Any, client)).renew(Claim("7", until=lambda: 0.0))
    assert orders == [0] * renewed


def test_a_renewal_replaces_no_order_of_a_person() -> None:
    """Given since the guard looked last."""
    state = SwitchState(server="s", launch_draft_tokens=4, draft_tokens=2, by="ann")
    orders: list[Any] = []
    client = SimpleNamespace(state=lambda: state, order=lambda k, **_: orders.append(k))
    GuardedSwitch("chat", cast(Any, client)).renew(Claim("7"))
    assert orders == []
