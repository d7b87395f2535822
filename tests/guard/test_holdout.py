"""One member of a group serves without speculation, whichever daemon guards it, until it leaves."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.guard import Guard
from specwatch.domain.holdout import Holdout
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import holdout
from specwatch.guard.state import Cause, GuardState, Incident, Order, Pause, Phase
from specwatch.store.guard_records import GuardBook
from tests.fixtures import OpenStore
from tests.guard.daemons import ACT as SHORT
from tests.guard.daemons import GuardingDaemon, World, config
from tests.guard.situations import ACT, CALM, NOW, UP, check_step, seen

ONE = ACT.model_copy(update={"holdout": 1})
QUICK = SHORT.model_copy(update={"cooldown": 0.0, "holdout": 1, "start_timeout": 120.0})
CALM_LOOK = {"breaches": (), "group": "tiny", "chosen": True}
READY = replace(CALM, group="tiny")
HOLDOUT = replace(
    READY,
    phase=Phase.DISABLED,
    goal=Mode.OFF,
    disabled_at=NOW,
    incident=Incident("i", Cause.HOLDOUT, NOW),
)
OFF_LOOK = {
    "mode": Mode.OFF,
    "breaches": (),
    "group": "tiny",
    "service": replace(UP, mode=Mode.OFF),
}


def members(count: int, *first: GuardState) -> tuple[GuardState, ...]:
    others = [replace(READY, target=f"chat-{number}") for number in range(count - len(first))]
    return (*first, *others)


def a_holdout(name: str, began: float = NOW) -> GuardState:
    return replace(HOLDOUT, target=name, incident=Incident("j", Cause.HOLDOUT, began))


@pytest.mark.parametrize(
    ("count", "wanted", "holdouts"),
    [(2, 1, 0), (3, 1, 1), (5, 2, 1), (6, 2, 2), (40, 2, 2), (9, 0, 0)],
)
def test_a_third_of_the_group_are_holdouts_at_most(count: int, wanted: int, holdouts: int) -> None:
    policy = ACT.model_copy(update={"holdout": wanted})
    group = members(count)
    for _ in range(count):
        chosen = [
            member
            for member in group
            if holdout.is_chosen(member, [e for e in group if e is not member], policy, NOW)
        ]
        if not chosen:
            break
        (member,) = chosen
        group = tuple(a_holdout(e.target) if e is member else e for e in group)
    assert sum(member.holdout for member in group) == holdouts


def test_the_lot_falls_on_a_member_that_speculates_and_in_time_on_each() -> None:
    group = members(5, replace(READY, goal=Mode.OFF), replace(READY, phase=Phase.TRIAL))
    fell = {
        member.target
        for number in range(200)
        for member in group
        if holdout.is_chosen(member, [e for e in group if e is not member], ONE, NOW + number * 900)
    }
    assert fell == {"chat-0", "chat-1", "chat-2"}


NOT_YET: dict[str, tuple[dict[str, Any], dict[str, Any], Guard]] = {
    "not chosen": ({}, {"chosen": False}, ONE),
    "observing too short": ({"since": NOW - 800}, {}, ONE),
    "already off": ({"goal": Mode.OFF}, {"mode": Mode.OFF}, ONE),
    "cannot be read": ({}, {"mode": None, "scraped_at": None}, ONE),
    "not told yet how it runs": ({}, {"service": None}, ONE),
    "only observed": ({}, {}, ONE.model_copy(update={"mode": "observe"})),
    "paused": ({"pause": Pause(NOW + HOUR, "ann")}, {}, ONE),
    "switched by others": ({"elsewhere": NOW - 60}, {}, ONE),
    "the budget is used up": ({"actions": (NOW - 7200,) * 4}, {}, ONE),
    "another restarts": (
        {},
        {"others": (replace(READY, target="b", phase=Phase.DRAINING),), "switchable": True},
        ONE,
    ),
}


@pytest.mark.parametrize("case", NOT_YET)
def test_a_holdout_begins_under_the_conditions_of_any_action(case: str) -> None:
    changes, look, policy = NOT_YET[case]
    check_step(replace(READY, **changes), seen(**CALM_LOOK | look), None, policy)


def test_a_holdout_is_restarted_and_verified_and_has_no_trial() -> None:
    state = check_step(
        READY,
        seen(**CALM_LOOK, switchable=True),
        {
            "phase": Phase.DRAINING,
            "goal": Mode.OFF,
            "standby": False,
            "actions": (NOW,),
            "reason": "it becomes the holdout of the group tiny: their baseline at the same time",
        },
        ONE,
    )
    assert state.holdout
    verifying = replace(state, phase=Phase.VERIFYING, issued=NOW, began=NOW, instance="0")
    look = seen(60.0, **OFF_LOOK, healthy=True, scraped_at=NOW + 60, others=members(3))
    state = check_step(verifying, look, {"phase": Phase.DISABLED, "rearm_at": None}, ONE)
    assert holdout.serving([state, READY]) == (Holdout("chat", NOW, NOW + 60),)
    later = seen(90 * 24 * HOUR, **OFF_LOOK, scraped_at=NOW + 90 * 24 * HOUR, others=members(3))
    check_step(state, later, None, ONE)


def test_a_breach_comes_before_the_holdout() -> None:
    check_step(
        READY, seen(**CALM_LOOK | {"breaches": seen().breaches}), {"phase": Phase.CONFIRMED}, ONE
    )


OVER: dict[str, tuple[dict[str, Any], Guard, str]] = {
    "it cannot be read": (
        {"scraped_at": None, "mode": None, "others": members(3)},
        ONE,
        "it cannot be read",
    ),
    "the group is too small": (
        {"others": members(1)},
        ONE,
        "guard.holdout is 1, and the group has 2 members",
    ),
    "the key is gone": (
        {"others": members(3)},
        ACT,
        "guard.holdout is 0, and the group has 4 members",
    ),
    "another is one for longer": (
        {"others": members(3, a_holdout("b", NOW - 60))},
        ONE,
        "b is a holdout of the group already",
    ),
}


@pytest.mark.parametrize("case", OVER)
def test_a_holdout_that_is_not_needed_is_tried_again_after_a_while(case: str) -> None:
    look, policy, why = OVER[case]
    now = HOUR
    scraped = {"scraped_at": NOW + now} | OFF_LOOK | look
    waits = check_step(HOLDOUT, seen(now, **scraped), {"reason": why, "waiting": why}, policy)
    assert waits.holdout
    check_step(waits, seen(now + 899, **scraped), None, policy)
    ended = check_step(
        waits,
        seen(now + 900, **scraped),
        {
            "reason": f"it is not the holdout of its group any more: {why}",
            "waiting": "",
        },
        policy,
    )
    assert not ended.holdout
    back = seen(now + 1800, **OFF_LOOK, scraped_at=NOW + now + 1800, others=look["others"])
    trial = check_step(ended, back, {"phase": Phase.DRAINING, "goal": Mode.ON}, policy)
    assert trial.incident is not None
    assert trial.incident.cause is Cause.TRIAL


def test_a_holdout_that_was_away_for_a_moment_stays_one() -> None:
    away = replace(HOLDOUT, down_since=NOW + 60, waiting="it cannot be read")
    look = seen(120.0, **OFF_LOOK, scraped_at=NOW + 120, others=members(3))
    back = check_step(away, look, {"down_since": None, "waiting": ""}, ONE)
    check_step(back, look, None, ONE)


def test_of_two_that_began_at_once_one_stays() -> None:
    first, second = a_holdout("a"), a_holdout("b")
    look = partial(seen, **OFF_LOOK, scraped_at=NOW)
    check_step(first, look(others=members(3, second)), None, ONE)
    check_step(
        second,
        look(others=members(3, first)),
        {"waiting": "a is a holdout of the group already"},
        ONE,
    )


def test_an_order_of_a_person_ends_it() -> None:
    told = replace(HOLDOUT, order=Order(Mode.ON, "ann", NOW))
    look = seen(**OFF_LOOK, others=members(3))
    state = check_step(told, look, {"phase": Phase.DRAINING, "goal": Mode.ON}, ONE)
    assert not state.holdout


# Several daemons


def good(*names: str) -> World:
    """Servers whose drafts help."""
    world = World(*names)
    for server in world.servers.values():
        server.bad = False
    return world


def run(world: World, daemons: list[GuardingDaemon], seconds: float) -> None:
    end = world.now + seconds
    turn = 0
    while world.now < end:
        for daemon in random.Random(turn).sample(daemons, len(daemons)):
            daemon.turn()
            assert sum(not server.up for server in world.servers.values()) <= 1
        assert len(holdouts(daemons[0])) <= 1
        world.wait(60.0)
        turn += 1


def holdouts(daemon: GuardingDaemon) -> list[str]:
    entries = GuardBook(daemon.store).look()
    return [name for name, entry in entries.items() if entry.state.holdout]


def pool(url: str, open_store: OpenStore, world: World, policy: Guard) -> list[GuardingDaemon]:
    configured = config(world.servers, policy, group="")
    return [GuardingDaemon(world, open_store(url, name), configured) for name in "xy"]


def check_one_holdout(world: World, daemons: list[GuardingDaemon]) -> None:
    """Daemons agree on it and keep it; it is replaced when it stays down, and tried then."""
    run(world, daemons, 1200)
    (name,) = holdouts(daemons[0])
    assert world.servers[name].running is Mode.OFF
    assert daemons[0].state(name).phase is Phase.DISABLED
    run(world, daemons, 300)
    assert holdouts(daemons[0]) == [name]
    assert sum(len(server.starts) for server in world.servers.values()) == 1
    for daemon in daemons:
        for other in world.servers:
            assert [one.target for one in daemon.judging.holdouts[other]] == [name]
    world.servers[name].fault, world.servers[name].fault_with = "crash", Mode.OFF
    end = world.now + 600
    while world.now < end:
        for daemon in daemons:
            daemon.turn()
        world.wait(60.0)
    (second,) = holdouts(daemons[0])
    assert second != name
    world.servers[name].fault = ""
    world.servers[name].started = world.now
    run(world, daemons, 600)
    assert holdouts(daemons[0]) == [second]
    assert world.servers[name].running is Mode.ON


def test_daemons_agree_on_one_holdout_until_it_stays_down(
    sqlite_file: Path, open_store: OpenStore
) -> None:
    world = good("a", "b", "c")
    check_one_holdout(world, pool(f"sqlite:///{sqlite_file}", open_store, world, QUICK))
