"""A schedule learned from an experiment, in force between its episodes; in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from specwatch.daemon import target_experiment
from specwatch.daemon.arm_orders import LEASE, shows
from specwatch.domain.switchback import SwitchbackState
from specwatch.domain.switchback_results import fastest_other
from specwatch.errors import ScrapeReason
from specwatch.guard.state import GuardState, Pause, Phase
from specwatch.report.experiments import live_experiment
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import Failure
from specwatch_tap.orders import schedule_number
from tests.daemon.experiment_world import (
    BLOCK,
    DESIGN,
    PACES,
    QUIET,
    SCHEDULE,
    START,
    TUNE,
    World,
    require_stored_schedule,
    taught,
)

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


@pytest.fixture
def world() -> World:
    return taught()


def test_a_schedule_is_learned_and_used_and_goes_on_being_measured() -> None:
    world = World()
    world.design = TUNE
    world.begin()
    assert world.live(3000, lambda: world.tuned)
    assert world.counted()[0] >= 9
    began, before = world.now, world.server.tuned_seconds
    assert world.live(3000, lambda: world.counted()[0] >= 15)
    assert (world.server.tuned_seconds - before) / (world.now - began) >= 0.5
    assert set(world.server.orders[-20:]) == {0, 2, None, SCHEDULE}
    status = world.experiment.status()
    speedup, expected = status.speedups["tuned"], PACES[None] / PACES[2]
    assert speedup is not None
    assert speedup.value == pytest.approx(expected, rel=0.01)
    assert speedup.above(1.0)
    assert status.best in ("2", "tuned")  # they are the same at this load
    assert status.excluded == 0
    (stored,) = world.store.switchbacks("chat")
    live = live_experiment(stored)
    assert live.usual == "tuned"
    assert {arm.arm: arm.speedup for arm in live.groups[0].arms}["tuned"].value > 1
    arm, _ = fastest_other(stored.state, stored.design, "launch")
    assert arm in ("2", "tuned")
    assert status.tuning is not None
    assert status.tuning.schedule == SCHEDULE
    assert status.tuning.gain is not None
    assert status.tuning.gain.value == pytest.approx(expected, rel=0.01)


def test_observe_proposes_the_schedule_and_orders_only_episodes(world: World) -> None:
    world.design = TUNE.model_copy(update={"tune": "observe"})
    world.begin()
    world.live(300)
    status = world.experiment.status()
    assert status.tuning is not None
    assert status.tuning.schedule == SCHEDULE
    assert set(world.server.orders) == {0, 2, None}
    assert "tuned" not in status.speedups


def test_between_episodes_its_lease_is_renewed(world: World) -> None:
    world.design = TUNE.model_copy(update={"share": 0.01})
    world.begin()
    world.live(4)
    assert world.tuned
    assert world.live(400, lambda: not world.tuned) is False
    assert set(world.server.orders) == {SCHEDULE}
    assert world.server.state.until is not None
    assert LEASE / 2 < world.server.state.until - world.now <= LEASE
    assert world.state.other_seconds == 0
    assert 400 / LEASE < len(world.server.orders) < 3200 / LEASE


def guard(phase: Phase = Phase.OBSERVING, **changes: Any) -> Callable[[World], None]:
    def trouble(world: World) -> None:
        world.guard = replace(QUIET, state=GuardState("chat", phase=phase, **changes))

    return trouble


def unread(world: World) -> None:
    world.failure = Failure(ScrapeReason.TIMEOUT, "no answer", world.now)


def stopped(world: World) -> None:
    world.change(stopped="ann: a demo")


def not_ours(world: World) -> None:
    world.guard = replace(QUIET, ours=False, holder="other")


def without_tuning(world: World) -> None:
    world.experiment.close()
    world.design = DESIGN
    world.begin()


def other_arms(world: World) -> None:
    world.experiment.close()
    world.design = TUNE.model_copy(update={"arms": (0,)})
    world.begin()


@pytest.mark.parametrize(
    "trouble",
    [
        guard(Phase.CONFIRMED),
        guard(pause=Pause(START + 1e6, "ann")),
        unread,
        stopped,
        not_ours,
        without_tuning,
        other_arms,
    ],
    ids=["guard", "pause", "page", "stop", "daemon", "tune", "arms"],
)
def test_it_is_removed_at_once(world: World, trouble: Callable[[World], None]) -> None:
    world.live(4)
    assert world.tuned
    trouble(world)
    world.second()
    assert world.at_launch
    assert world.live(100, lambda: world.tuned) is False
    if trouble not in (without_tuning, other_arms):
        assert world.at_launch
        world.guard, world.failure = QUIET, None
        world.change(stopped="")
        assert world.live(3, lambda: world.tuned)


def test_without_traffic_it_stays(world: World) -> None:
    world.live(4)
    world.load = 0.0
    world.live(300)
    assert world.tuned
    assert world.experiment.status().paused == "no traffic"


def test_the_order_of_a_person_is_left_alone(world: World) -> None:
    world.live(4)
    PACES.setdefault(1, 0.018)
    world.server.set(1, 300.0, "ann")
    world.live(299)
    assert world.server.state.by == "ann"
    assert world.experiment.status().paused == "the switch was set by somebody else"
    assert world.live(20, lambda: world.tuned)


def test_a_persons_return_to_the_launch_holds_for_ten_minutes(world: World) -> None:
    world.live(4)
    world.server.set(None, 0.0, "ann")
    ordered = len(world.server.orders)
    world.live(590)
    assert (world.at_launch, world.server.orders[ordered:]) == (True, [])
    assert world.live(60, lambda: world.tuned)


def test_the_order_of_the_guard_is_left_alone(world: World) -> None:
    world.live(4)
    world.server.set(0, 600.0, "specwatch guard (7)")
    guard(Phase.DISABLED)(world)
    world.live(300)
    assert world.server.state.by == "specwatch guard (7)"
    world.server.set(None, 0.0, "specwatch guard (7)")
    world.guard = QUIET
    assert world.live(10, lambda: world.tuned)


def test_after_a_restart_of_vllm_it_is_ordered_again(world: World) -> None:
    world.live(4)
    world.server.restart()
    assert not world.tuned
    assert world.live(40, lambda: world.tuned)


def test_a_schedule_that_loses_is_removed_and_not_used_again(world: World) -> None:
    world.server.tuned_pace = 0.03
    world.live(4)
    assert world.tuned
    assert world.live(4000, lambda: "tuned" in world.state.dropped.get("launch", ()))
    world.live(1)
    assert world.state.usual == "launch"
    world.live(300)
    assert SCHEDULE not in world.server.orders[-10:]
    world.begin()
    world.live(100)
    assert SCHEDULE not in world.server.orders[-10:]
    status = world.experiment.status()
    assert status.speedups["tuned"] is not None
    assert status.best == "2"


def test_a_schedule_without_an_arm_left_ends_with_the_episode(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when each of its arms is certainly slower than the launch now."""

    def learned(state: SwitchbackState, _: object) -> SwitchbackState:
        return msgspec.structs.replace(state, tuned={}) if state.episodes > 20 else state

    monkeypatch.setattr(target_experiment, "learned", learned)
    assert world.live(600, lambda: world.counted()[0] > 20)
    assert (world.at_launch, world.experiment.status().paused) == (True, "")
    ordered = len(world.server.orders)
    assert world.live(600, lambda: world.counted()[0] > 22)
    assert set(world.server.orders[ordered:]) == {0, 2, None}


@pytest.mark.parametrize("point", ["stored", "ordered tuned", "ordered None"])
def test_killed_it_is_in_force_only_as_it_is_stored(point: str) -> None:
    """Anywhere: see the nightly tests."""
    require_stored_schedule(taught(point), point)


def test_a_daemon_that_is_gone_leaves_the_launch(world: World) -> None:
    world.live(4)
    world.watched = False
    world.live(int(LEASE))
    assert world.at_launch
    before = world.state.other_seconds
    world.live(4 * 3600)
    world.watched = True
    world.begin()
    world.live(5)
    assert world.tuned
    assert world.state.other_seconds == before


def test_a_daemon_that_is_gone_in_the_launchs_block_counts_it_for_its_length(
    world: World,
) -> None:
    assert world.live(600, lambda: world.state.arm == "launch" and bool(world.state.order))
    world.watched = False
    world.live(4 * 3600)
    world.watched = True
    world.begin()
    world.live(5)
    assert world.state.other_seconds < 4 * (BLOCK + 65)


def test_what_a_page_shows_of_an_order() -> None:
    scheduled = SwitchSetting(4, ordered=True, schedule=schedule_number(SCHEDULE))
    assert shows(scheduled, SCHEDULE)
    assert not shows(scheduled, ((1, 1, 4),))
    assert not shows(scheduled, 4)
    assert not shows(scheduled, None)
    assert shows(SwitchSetting(2, ordered=True), 2)
    assert not shows(SwitchSetting(4, ordered=True), SCHEDULE)
    assert shows(SwitchSetting(4, ordered=False), None)
    assert not shows(None, 2)


def test_a_server_that_knows_no_schedules_goes_on_with_its_experiment(world: World) -> None:
    world.server.state = msgspec.structs.replace(world.server.state, schedules=False)
    assert world.live(3000, lambda: world.counted()[0] > 23)
    assert SCHEDULE not in world.server.orders
    assert world.experiment.status().tuning.schedule == SCHEDULE
