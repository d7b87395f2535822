"""The members of a group: few restart at once, one goes first, and the others learn from it."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.errors import StoreUnavailable
from specwatch.guard import groups, state_machine
from specwatch.guard.state import Cause, GuardState, Order, Phase
from specwatch.status import TargetStatus
from specwatch.store.guard_records import GuardBook
from specwatch.store.guard_rows import Entry
from tests.fixtures import OpenStore
from tests.guard.daemons import ACT as SHORT
from tests.guard.daemons import GuardingDaemon, World, config, expire
from tests.guard.situations import ACT, CALM, CONFIRMED, DISABLED, NOW, TRIAL, check_step, seen

QUICK = SHORT.model_copy(update={"cooldown": 0.0})


def other(state: GuardState, **changes: Any) -> GuardState:
    return replace(state, target="first", **changes)


def under_way(phase: Phase, cause: Cause = Cause.RULE, **changes: Any) -> GuardState:
    incident = CONFIRMED.incident and replace(CONFIRMED.incident, cause=cause)
    goal = Mode.ON if cause is Cause.TRIAL else Mode.OFF
    return other(CONFIRMED, phase=phase, goal=goal, incident=incident, **changes)


NOT_OFF_YET: dict[str, tuple[list[GuardState], str]] = {
    "nobody has begun": ([other(CALM), other(CONFIRMED)], ""),
    "one drains": ([under_way(Phase.DRAINING)], "first goes first"),
    "one is measured": (
        [under_way(Phase.VERIFYING, healthy_at=NOW)],
        "first goes first",
    ),
    "one is measured in standby": (
        [under_way(Phase.VERIFYING, standby=True)],
        "first goes first",
    ),
    "it has helped": ([other(DISABLED)], ""),
    "it has helped one, and another restarts": (
        [other(DISABLED), under_way(Phase.RESTARTING)],
        "first is out of service, and",
    ),
    "it has helped one, and another is measured": (
        [other(DISABLED), under_way(Phase.VERIFYING, healthy_at=NOW)],
        "",
    ),
    "a person switched it off": (
        [under_way(Phase.DISABLED, Cause.PERSON), under_way(Phase.VERIFYING, healthy_at=NOW)],
        "first goes first",
    ),
    "it has helped one, which is not back in its load balancer": (
        [other(DISABLED, hooked=True)],
        "first is out of service, and",
    ),
    "one that failed is not put back": (
        [other(DISABLED), other(CALM, phase=Phase.HELD, why="vLLM is gone", hooked=True)],
        "switching failed for first: vLLM is gone",
    ),
    "it has not helped": (
        [other(CALM, rests_until=NOW + 60)],
        "switching off did not help first",
    ),
    "that is long ago": ([other(CALM, rests_until=NOW)], ""),
    "it failed": (
        [other(CALM, phase=Phase.HELD, why="vLLM does not run")],
        "switching failed for first: vLLM does not run",
    ),
    "one restarts for a person": (
        [under_way(Phase.RESTARTING, Cause.PERSON)],
        "first is out of service, and",
    ),
}


@pytest.mark.parametrize("case", NOT_OFF_YET)
def test_one_goes_first_and_the_others_follow_if_it_helped(case: str) -> None:
    others, why = NOT_OFF_YET[case]
    why = why and f"{groups.QUEUED} ({why}"
    after = check_step(CONFIRMED, seen(others=tuple(others)), {})
    assert (after.phase, after.waiting[: len(why)]) == (
        Phase.CONFIRMED if why else Phase.DRAINING,
        why,
    )


NOT_ON_YET: dict[str, tuple[list[GuardState], str]] = {
    "all are off": ([other(DISABLED)], ""),
    "one is on its way": (
        [under_way(Phase.DRAINING, Cause.TRIAL)],
        "first goes first",
    ),
    "one is tried": ([other(TRIAL)], "first goes first"),
    "one has won": ([other(CALM), other(TRIAL)], ""),
    "one has lost": (
        [under_way(Phase.DISABLED, Cause.TRIAL_LOST, rearm_at=NOW + 7 * HOUR)],
        "first has lost a trial",
    ),
    "that is over": ([under_way(Phase.DISABLED, Cause.TRIAL_LOST, rearm_at=NOW + 6 * HOUR)], ""),
}


@pytest.mark.parametrize("case", NOT_ON_YET)
def test_one_tries_speculation_again_and_the_others_follow_if_it_won(case: str) -> None:
    others, why = NOT_ON_YET[case]
    look = seen(6 * HOUR, mode=Mode.OFF, breaches=(), others=tuple(others))
    why = why and f"a trial is due; {groups.QUEUED} ({why}"
    after = check_step(DISABLED, look, {})
    assert (after.phase, after.waiting[: len(why)]) == (
        Phase.DISABLED if why else Phase.DRAINING,
        why,
    )


def test_the_group_is_stored_with_the_next_step_or_by_itself() -> None:
    calm = {"breaches": (), "group": "tiny"}
    check_step(replace(CALM, goal=None), seen(**calm), {"group": "tiny", "goal": Mode.ON})
    check_step(CALM, seen(**calm), {"group": "tiny", "reason": "it is of the group tiny"})
    check_step(replace(CALM, group="tiny"), seen(**calm), None)
    check_step(replace(CALM, group="tiny"), seen(breaches=()), None)


def test_targets_whose_group_is_not_known_form_none(
    sqlite_file: Path, open_store: OpenStore
) -> None:
    world = World("a", "b")
    store = open_store(f"sqlite:///{sqlite_file}")
    daemon = GuardingDaemon(world, store, config(world.servers, QUICK, group=""))
    no_model_yet = {"last_scrape": 1.0}
    daemon.guarding._status = lambda name: TargetStatus(name, "", 0.0, **no_model_yet)
    daemon.turn()
    assert [daemon.guarding._others(name) for name in "ab"] == [{}] * 2


def test_an_order_waits_for_room_but_for_no_measurement() -> None:
    told = replace(CALM, order=Order(Mode.OFF, "ann", NOW))
    waits = check_step(told, seen(others=(under_way(Phase.DRAINING),)), {"phase": CALM.phase})
    assert (
        waits.waiting
        == "it waits for its group (first is out of service, and guard.max_unavailable is 1)"
    )
    check_step(waits, seen(others=(under_way(Phase.DRAINING),)), None)
    measured = under_way(Phase.VERIFYING, healthy_at=NOW)
    check_step(waits, seen(others=(measured,)), {"phase": Phase.DRAINING})
    two = ACT.model_copy(update={"max_unavailable": 2})
    check_step(told, seen(others=(under_way(Phase.DRAINING),)), {"phase": Phase.DRAINING}, two)
    failed = other(CALM, phase=Phase.HELD, hooked=True)
    check_step(waits, seen(others=(failed,)), {"phase": Phase.DRAINING})


def test_a_switch_that_needs_no_restart_waits_for_no_room() -> None:
    look = seen(switchable=True, others=(other(DISABLED), under_way(Phase.RESTARTING)))
    check_step(CONFIRMED, look, {"phase": Phase.RESTARTING, "standby": True})


def test_a_switch_that_fails_restarts_once_there_is_room() -> None:
    standby = replace(CONFIRMED, phase=Phase.VERIFYING, goal=Mode.OFF, standby=True)
    look = seen(60.0, mode=None, followed=False, switchable=True, in_standby=True)
    busy = replace(look, others=(under_way(Phase.RESTARTING),))
    waits = check_step(standby, busy, {"phase": Phase.VERIFYING})
    assert waits.waiting.startswith("the server does not follow its switch; it waits for its group")
    check_step(waits, look, {"phase": Phase.DRAINING})


def test_a_member_without_a_daemon_counts_until_its_restart_must_have_ended() -> None:
    removed = Entry(under_way(Phase.RESTARTING), 1, "d:1", left=-60.0)
    for age, counts in ((ACT.start_timeout - 1, True), (ACT.start_timeout, False)):
        assert bool(groups.guarded([removed], NOW + age, ACT)) is counts
    assert groups.guarded([structs.replace(removed, left=1.0)], NOW + 1e6, ACT) == (removed.state,)


# Several daemons


def pool(
    url: str, open_store: OpenStore, world: World, policy: Guard, names: str = "xy"
) -> list[GuardingDaemon]:
    configured = config(world.servers, policy, group="")
    return [GuardingDaemon(world, open_store(url, name), configured) for name in names]


def unavailable(world: World) -> list[str]:
    return [name for name, server in world.servers.items() if not server.up]


def check_one_after_the_other(world: World, daemons: list[GuardingDaemon]) -> None:
    """One is switched off and verified before the others follow, one at a time."""
    members = [*world.servers]
    first: list[str] = []
    verified: list[str] = []
    turn = 0
    while len(verified) < len(members) and turn < 50 * len(members):
        turn += 1
        for daemon in random.Random(turn).sample(daemons, len(daemons)):
            daemon.turn()
            assert len(unavailable(world)) <= 1
        off = [name for name in members if daemons[0].state(name).goal is Mode.OFF]
        if len(off) == 1 and not first:
            first = off
        verified = [name for name in members if daemons[0].state(name).phase is Phase.DISABLED]
        assert len(off) <= 1 or first[0] in verified
        world.wait()
    assert [len(server.starts) for server in world.servers.values()] == [1] * len(members)
    assert {daemons[0].state(name).phase for name in members} == {Phase.DISABLED}
    assert {daemons[0].state(name).group for name in members} == {"tiny"}


def test_a_group_is_switched_off_one_after_the_other(
    sqlite_file: Path, open_store: OpenStore
) -> None:
    world = World("a", "b", "c")
    daemons = pool(f"sqlite:///{sqlite_file}", open_store, world, QUICK)
    check_one_after_the_other(world, daemons)


def test_a_first_one_that_fails_stops_the_others(sqlite_file: Path, open_store: OpenStore) -> None:
    world = World("a", "b", "c")
    for server in world.servers.values():
        server.fault = "crash"  # without speculation
    daemons = pool(f"sqlite:///{sqlite_file}", open_store, world, QUICK)
    for _ in range(30):  # it is held after two thirds of them
        for daemon in daemons:
            daemon.turn()
        world.wait()
    states = [daemons[0].state(name) for name in world.servers]
    assert sorted(state.phase for state in states) == [Phase.CONFIRMED] * 2 + [Phase.HELD]
    assert unavailable(world) == []
    (held,) = (state.target for state in states if state.phase is Phase.HELD)
    assert {state.waiting.partition(":")[0] for state in states if state.target != held} == {
        f"it waits for its group (switching failed for {held}"
    }


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """The database fails now and then, before a write or after it."""
    chance = random.Random(0)
    advance = GuardBook.advance

    def sometimes(*what: Any, **how: Any) -> Any:
        if chance.random() < 0.05:
            raise StoreUnavailable("the database is away")
        done = advance(*what, **how)
        if chance.random() < 0.05:
            raise StoreUnavailable("the database is away")
        return done

    monkeypatch.setattr(GuardBook, "advance", sometimes)
    return chance


def check_room(
    url: str, open_store: OpenStore, chance: random.Random, members: str, daemons: str, turns: int
) -> None:
    """Daemons stop for good or for a while, leases end early, persons give orders, vLLMs break."""
    most = chance.choice([1, 1, 2])
    world = World(*members)
    for server in world.servers.values():
        server.fault = chance.choices(["", "crash", "sick", "timeout"], [12, 1, 1, 1])[0]
    policy = QUICK.model_copy(update={"max_unavailable": most})
    guarding = pool(url, open_store, world, policy, daemons)
    asleep: dict[int, int] = {}
    for turn in range(turns):
        if chance.random() < 0.1:
            asleep[chance.randrange(len(daemons))] = turn + chance.randrange(1, 20)
        if chance.random() < 0.05:
            expire(guarding[0].store)
        if chance.random() < 0.02:
            name, goal = chance.choice(members), chance.choice([Mode.ON, Mode.OFF])
            book = GuardBook(guarding[0].store)
            if name in book.look():
                told = partial(state_machine.order, goal=goal, by="ann", now=world.now)
                book.change(name, told, world.now, by="ann")
        for number, daemon in enumerate(guarding):
            if asleep.get(number, 0) <= turn:
                daemon.turn()
                assert len(unavailable(world)) <= most
        world.wait()


def test_never_too_many_restart_whoever_dies(
    sqlite_file: Path, open_store: OpenStore, failing: random.Random
) -> None:
    failing.seed(2)
    check_room(f"sqlite:///{sqlite_file}", open_store, failing, "abc", "xy", 60)
