"""The guard of a simulated server that has a switch, from a breach to its end."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.guard import state_machine
from specwatch.guard.state import Phase
from specwatch.guard.switch_phases import LEASE
from specwatch.store.repository import Store
from tests.guard.living import ACT, QUICK, Living
from tests.guard.simulated_server import SimulatedServer


@pytest.fixture
def living(tmp_path: Path) -> Living:
    return Living(tmp_path / "s.db", server=SimulatedServer(switched=True))


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


def test_trials_without_a_restart_come_as_often_as_the_budget_allows(tmp_path: Path) -> None:
    policy = ACT.model_copy(update={"rearm": type(ACT.rearm)()})
    living = Living(tmp_path / "s.db", server=SimulatedServer(switched=True), policy=policy)
    state = living.live(600, until=Phase.DISABLED)
    assert state.rearm_at is not None
    assert state.rearm_at - state.since == 90 / 0.02  # what a lost trial costs, of 2 %


def test_where_standby_does_not_help_it_is_restarted(living: Living) -> None:
    living.server.standby_helps = False
    state = living.live(900, until=Phase.DISABLED)
    assert (state.phase, state.standby) == (Phase.DISABLED, False)
    assert [mode for _, mode in living.server.starts] == [Mode.OFF]
    assert any("it did not help: speculation has a speedup of 1.40" in r for r in reasons(living))


def test_where_it_cannot_be_restarted_either_it_goes_on_with_speculation(tmp_path: Path) -> None:
    server = SimulatedServer(switched=True, standby_helps=False, fault="no-service")
    living = Living(tmp_path / "s.db", server=server)
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


def test_memory_that_is_wanted_back_takes_a_restart(tmp_path: Path) -> None:
    policy = ACT.model_copy(update={"release_memory": True})
    living = Living(tmp_path / "s.db", server=SimulatedServer(switched=True), policy=policy)
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
        Phase.DISABLED, None, Mode.STANDBY,
    )  # fmt: skip
    living.live(2 * LEASE)
    assert living.server.mode is Mode.STANDBY
    order(Mode.ON)
    state = living.live(60, until=Phase.OBSERVING)
    assert (state.phase, living.server.mode, living.server.starts) == (
        Phase.OBSERVING, Mode.ON, [],
    )  # fmt: skip


def test_without_a_service_the_switch_is_enough(tmp_path: Path) -> None:
    server = SimulatedServer(switched=True, fault="no-service")
    living = Living(tmp_path / "s.db", server=server)
    assert living.live(600, until=Phase.DISABLED).standby
    living.server.bad = False
    living.live(ACT.rearm.after + 300, until=Phase.TRIAL)
    assert living.live(ACT.rearm.trial + 100, until=Phase.OBSERVING).phase is Phase.OBSERVING


def test_killed_anywhere_it_goes_on(tmp_path: Path) -> None:
    """An incident, a trial that is lost, and standby again: never a restart."""
    empty = Store(f"sqlite:///{tmp_path}/empty.db", daemon="d")
    empty.open(0.0)
    empty.close(0.0)
    numbers = itertools.count()

    def told(**options: Any) -> Living:
        path = shutil.copy(tmp_path / "empty.db", tmp_path / f"{next(numbers)}.db")
        server = SimulatedServer(switched=True)
        living = Living(Path(path), server=server, policy=QUICK, every=4.0, **options)
        living.live(600, until=Phase.DISABLED)
        living.live(QUICK.rearm.after + 400, until=Phase.TRIAL)
        living.live(QUICK.rearm.trial + 400, until=Phase.DISABLED)
        living.live(60)
        return living

    points = told().points
    assert len([point for point in points if "order" in point]) >= 6
    for number in range(len(points)):
        living = told(kill_at=number)
        case = f"killed {living.points[number]}"
        assert living.deaths == 1, case
        assert living.state.phase is Phase.DISABLED, case
        assert (living.server.mode, living.server.starts) == (Mode.STANDBY, []), case
        assert [k for _, k in living.server.orders] == [0, None, 0], case
