"""The experiment of one target in virtual time, with the real store and a simulated server."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.service import SwitchAccess
from specwatch.config.target import Target
from specwatch.daemon.experiment_service import ExperimentService
from specwatch.daemon.target_experiment import TargetExperiment
from specwatch.domain.model import Mode, Moment
from specwatch.domain.switchback import Grouping
from specwatch.domain.switchback_results import results
from specwatch.errors import ScrapeReason
from specwatch.guard.state import GuardState, Order, Pause, Phase
from specwatch.status import Failure, TargetStatus
from specwatch_tap.orders import SwitchState
from tests.daemon.experiment_world import (
    BLOCK,
    BY_TEMPERATURE,
    DESIGN,
    PACES,
    QUIET,
    START,
    World,
    require_return_to_launch,
)
from tests.daemon.running import config_of
from tests.fixtures import target_of

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def measured() -> World:
    """A world in which twelve episodes were counted."""
    made = World()
    assert made.live(3000, lambda: made.counted()[0] >= 12)
    return made


def test_the_speedup_is_the_true_one(measured: World) -> None:
    status = measured.experiment.status()
    assert status.excluded == 0
    for arm, k in (("0", 0), ("2", 2)):
        speedup = status.speedups[arm]
        assert speedup is not None
        assert speedup.value == pytest.approx(PACES[None] / PACES[k], rel=0.01)
        assert speedup.lower < PACES[None] / PACES[k] < speedup.upper
    assert status.best == "2"
    assert measured.most_share <= 0.5
    assert measured.state.episodes == status.episodes


def test_temperatures_and_prompt_lengths_have_the_true_speedups(measured: World) -> None:
    stored = measured.stored
    assert stored is not None
    groups = results(stored.state, stored.design).groups
    for temperature, factors in BY_TEMPERATURE.items():
        speedup = groups[Grouping.TEMPERATURE][temperature].speedups["2"]
        true = PACES[None] / (PACES[2] * factors[2])
        assert speedup is not None
        assert speedup.value == pytest.approx(true, rel=0.01)
        assert speedup.lower < true < speedup.upper
    assert set(groups[Grouping.PROMPT_LENGTH]) == {"1-256"}
    assert set(groups[Grouping.LOAD]) == {"3-4"}


def test_an_arm_that_loses_is_dropped_and_no_longer_ordered(world: World) -> None:
    world.second()
    assert world.live(3000, lambda: bool(world.state.dropped.get("launch")))
    world.live(2 * BLOCK)
    before = len(world.server.orders)
    world.live(200)
    assert 0 not in world.server.orders[before:]
    assert 2 in world.server.orders[before:]


@pytest.mark.parametrize("point", ["put", "ordered 2", "ordered None"])
def test_killed_it_returns_to_the_launch_and_goes_on(point: str) -> None:
    """Anywhere: see the nightly tests."""
    require_return_to_launch(World(point), point)


def test_a_daemon_that_was_down_for_hours_counts_the_arm_until_its_lease_ended(
    world: World,
) -> None:
    world.into_arm()
    before = world.server.other_seconds
    world.watched = False
    world.live(4 * 3600)
    world.watched = True
    world.begin()
    world.live(2)
    lease = world.server.other_seconds - before
    assert lease < BLOCK + 31
    assert world.server.other_seconds <= world.state.other_seconds < before + BLOCK + 65
    assert world.counted() == (0, 1)


def busy(phase: Phase = Phase.OBSERVING, **changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.guard = replace(QUIET, state=GuardState("chat", phase=phase, **changes))

    return change


def unread(world: World) -> None:
    world.failure = Failure(ScrapeReason.TIMEOUT, "no answer", world.now)


def away(world: World) -> None:
    world.away = True


def not_ours(world: World) -> None:
    world.guard = replace(QUIET, ours=False, holder="other")


def healed(world: World) -> None:
    world.guard, world.failure, world.away, world.server.fault = QUIET, None, False, ""


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (busy(Phase.CONFIRMED), "the guard is busy with it"),
        (busy(order=Order(Mode.OFF, "ann", START)), "the guard is busy with it"),
        (busy(pause=Pause(START + 1e6, "ann")), "the guard is paused by ann"),
        (unread, "it cannot be read"),
        (away, "the database is away"),
        (not_ours, "another daemon guards it"),
    ],
    ids=["guard", "order", "pause", "page", "database", "daemon"],
)
def test_trouble_in_an_episode_leaves_it_out_and_later_it_goes_on(
    world: World, trouble: Callable[[World], None], reason: str
) -> None:
    world.into_arm()
    trouble(world)
    world.second()
    assert world.at_launch
    assert world.experiment.status().paused == reason
    ordered = len(world.server.orders)
    world.live(200)
    assert len(world.server.orders) == ordered
    healed(world)
    world.live(2)
    assert world.counted() == (0, 1)
    assert world.state.other_seconds < world.server.other_seconds + BLOCK + 65
    assert world.live(800, lambda: world.counted() == (1, 1))
    assert world.most_share <= 0.5


def test_a_restart_in_an_episode_leaves_it_out(world: World) -> None:
    world.into_arm()
    world.server.restart()
    ordered = len(world.server.orders)
    world.live(2)
    assert (world.at_launch, world.counted()) == (True, (0, 1))
    assert len(world.server.orders) == ordered
    assert world.live(800, lambda: world.counted() == (1, 1))


def test_a_restart_in_another_mode_is_another_experiment(world: World) -> None:
    world.live(400, lambda: world.counted()[0] == 2)
    world.live(600, lambda: not world.state.order)
    world.server.restart(k=1)
    world.live(2)
    assert world.counted() == (0, 0)
    world.live(400)
    assert set(world.server.orders[-4:]) == {0, None}
    stored = world.stored
    assert stored is not None
    assert stored.design.arms == ("launch", "0")


def test_the_order_of_somebody_else_is_left_alone(world: World) -> None:
    world.into_arm()
    world.server.set(1, 300.0, "ann")
    PACES.setdefault(1, 0.018)
    world.live(290)
    assert world.server.state.by == "ann"
    assert world.counted() == (0, 1)
    assert world.experiment.status().paused == "the switch was set by somebody else"
    assert world.live(800, lambda: world.counted() == (1, 1))


def test_a_page_read_while_an_order_is_followed_is_of_neither_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the next arm already: not an order of somebody else."""

    def point(name: str) -> None:
        if name.startswith("ordered"):
            world.see()

    monkeypatch.setattr(world, "point", point)
    assert world.live(400, lambda: world.counted()[0] == 3)
    assert world.counted() == (3, 0)


def test_an_order_between_two_pages_is_not_replaced(world: World) -> None:
    world.second()
    assert world.live(600, lambda: bool(world.state.order))
    PACES.setdefault(1, 0.018)

    def look() -> SwitchState:
        if world.server.state.by != "ann":
            world.server.set(1, 100.0, "ann")
        return world.server.state

    world.server.look = look  # type: ignore[method-assign]
    world.begin()
    world.live(800, lambda: world.server.state.by == "ann")
    world.live(90)
    assert world.server.state.by == "ann"


@pytest.mark.parametrize("fault", ["refuses", "late", "away"])
def test_an_order_that_fails_does_not_stay(world: World, fault: str) -> None:
    world.live(5)
    world.server.fault = fault
    world.live(300)
    if fault == "late":
        assert world.server.orders[:2] in ([0, None], [2, None])
    assert world.at_launch
    assert world.most_share <= 0.5
    healed(world)
    episodes = world.counted()[0]
    assert episodes == 0
    assert world.live(800, lambda: world.counted()[0] == 1)


def test_a_return_to_the_launch_that_fails_is_tried_again_and_its_time_counts(
    world: World,
) -> None:
    world.into_arm()
    world.server.fault = "refuses"
    world.live(25)
    assert not world.at_launch
    healed(world)
    world.live(11)
    assert (world.at_launch, world.counted()) == (True, (0, 1))
    assert world.state.other_seconds >= world.server.other_seconds - 1
    assert world.most_share <= 0.5


def test_a_person_stops_and_starts_it_within_a_turn(world: World) -> None:
    world.into_arm()
    world.change(stopped="ann: a demo")
    world.second()
    assert world.at_launch
    assert world.experiment.status().paused == "stopped by ann: a demo"
    world.live(200)
    assert world.at_launch
    assert world.counted() == (0, 1)
    world.change(stopped="")
    world.second()
    assert world.experiment.status().paused == ""
    assert world.live(400, lambda: not world.at_launch)


def test_stopped_and_started_between_two_turns_nothing_changes(world: World) -> None:
    world.into_arm()
    world.change(stopped="ann")
    world.change(stopped="")
    assert world.live(200, lambda: world.counted() == (1, 0))


def test_stopped_while_the_state_is_written_nothing_is_ordered(world: World) -> None:
    world.live(3)
    changing = world.store.change_switchback

    def change(*arguments: Any) -> Any:
        world.change(stopped="ann")
        return changing(*arguments)

    world.store.change_switchback = change  # type: ignore[method-assign]
    world.live(200)
    assert world.server.orders == []


def test_turns_that_come_late_end_no_short_block(world: World) -> None:
    """Turns are a second apart, and one may fall just before the end of a block."""
    world.begin(DESIGN.model_copy(update={"block": 8.0}))
    chance = random.Random(1)
    for _ in range(600):
        world.second()
        world.now += chance.uniform(-0.01, 0.01)
    assert world.counted()[0] > 6
    assert world.counted()[1] == 0


def test_without_traffic_no_episode_begins(world: World) -> None:
    world.load = 0.0
    world.live(300)
    assert (world.server.orders, world.experiment.status().paused) == ([], "no traffic")


def test_other_arms_in_the_configuration_are_another_experiment(world: World) -> None:
    world.live(400, lambda: world.counted()[0] == 2)
    world.into_arm()
    world.change(stopped="ann")
    changed = world.now
    world.experiment.close()
    assert world.at_launch
    world.begin(DESIGN.model_copy(update={"arms": (0,)}))
    world.live(5)
    assert world.counted() == (0, 0)
    stored = world.stored
    assert stored is not None
    assert stored.stopped == "ann", "a person's stop stays"
    world.change(stopped="")
    assert world.live(600, lambda: world.counted() == (1, 0))
    assert world.state.began >= changed


def test_another_share_goes_on_with_what_is_known(world: World) -> None:
    world.live(400, lambda: world.counted()[0] == 2)
    world.experiment.close()
    world.begin(DESIGN.model_copy(update={"share": 0.1}))
    world.live(2)
    assert world.counted()[0] == 2


def test_a_target_that_no_arm_is_left_for_says_so(world: World) -> None:
    world.begin(DESIGN.model_copy(update={"arms": (4, 8)}))
    world.live(3)
    assert "no arm is left beside the launch of 4" in world.experiment.status().paused
    assert world.server.orders == []


def test_the_service_returns_to_the_launch_where_a_target_is_removed_or_it_ends(
    world: World, tmp_path: Path
) -> None:
    world.into_arm()
    empty = config_of(tmp_path / "s.db", [])
    service = ExperimentService(
        world.store,
        empty,
        now=lambda: Moment(world.now, world.now),
        status=lambda name: TargetStatus(name, "", 5.0),
        guard=lambda _: None,
    )
    assert not service.active
    service._experiments["chat"] = world.experiment
    service.turn()
    assert world.at_launch
    service.configure(empty)
    assert service.status_of("chat") is None


def test_certificates_that_cannot_be_used_are_a_reason_not_a_crash(
    world: World, tmp_path: Path
) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    target: Target = target_of(
        "https://h",
        name="chat",
        ca_file=bad,
        switch=SwitchAccess(token_file=bad),
    )
    experiment = TargetExperiment(target, DESIGN, world.store, lambda: world.now)
    experiment.turn(TargetStatus("chat", "https://h", 1.0), QUIET)
    assert "ca" in experiment.status().paused
