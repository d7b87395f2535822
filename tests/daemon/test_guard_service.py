"""Several daemons on one database: one of them acts, and another goes on where it ended."""

from __future__ import annotations

import threading

import pytest

from specwatch.actuators import base, owner
from specwatch.actuators.base import boottime
from specwatch.actuators.child_process import OUTLIVES
from specwatch.config.guard import Guard, Hooks
from specwatch.daemon import target_guard
from specwatch.daemon.target_guard import TargetGuard
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import state_machine
from specwatch.guard.observation import Situation
from specwatch.guard.plan import Service
from specwatch.guard.state import Phase
from specwatch.rules.decisions import TargetDecision
from specwatch.status import TargetStatus
from specwatch.store.guard_records import GuardBook
from tests.daemon.stores import StoreOf
from tests.fixtures import Log
from tests.guard import daemons as in_turns
from tests.guard.daemons import ACT, GuardingDaemon, config, expire
from tests.guard.living import Killed

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else

OBSERVE = ACT.model_copy(update={"mode": "observe"})


class World(in_turns.World):
    """Its daemons take a turn every four seconds: half as many as they really do."""

    def wait(self, seconds: float = 4.0) -> None:
        super().wait(seconds)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pair(guards_of: StoreOf, world: World) -> tuple[GuardingDaemon, GuardingDaemon]:
    """Two daemons of one target."""
    return GuardingDaemon(world, guards_of("a")), GuardingDaemon(world, guards_of("b"))


def modes(world: World) -> list[Mode]:
    return [mode for _, mode in world.server.starts]


def who(daemon: GuardingDaemon) -> list[str]:
    """Whose steps there are, each once, in their order."""
    daemons = [step.daemon for step in reversed(GuardBook(daemon.store).history())]
    return [name for index, name in enumerate(daemons) if index == 0 or daemons[index - 1] != name]


def test_of_two_in_turn_one_restarts_once_and_the_other_looks(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World
) -> None:
    a, b = pair
    for _ in range(18):
        a.turn()
        b.turn()
        world.wait()
    assert a.state().phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]
    assert who(a) == ["a"]
    assert (a.ours(), b.ours()) == (True, False)
    status = b.guarding.status_of("chat")
    assert (status.holder, status.state) == ("a", a.state())
    assert status.max_actions_per_day == 4
    done = a.guarding.status_of("chat")
    assert {action: count for action, count in done.actions.items() if count} == {
        ("disable", "done"): 1
    }
    assert (a.judging.forgotten["chat"], b.judging.forgotten["chat"]) == (1, 0)


def test_of_three_at_once_one_restarts_once(guards_of: StoreOf, world: World) -> None:
    daemons = [GuardingDaemon(world, guards_of(name), threads=True) for name in "abc"]
    ready = threading.Barrier(len(daemons) + 1)

    def turn(daemon: GuardingDaemon) -> None:
        for _ in range(18):
            ready.wait(120)
            daemon.turn()
            ready.wait(120)

    threads = [threading.Thread(target=turn, args=(daemon,)) for daemon in daemons]
    for thread in threads:
        thread.start()
    for _ in range(18):
        ready.wait(120)
        ready.wait(120)
        world.wait()
    for thread, daemon in zip(threads, daemons, strict=True):
        thread.join()
        daemon.guarding.close()
    assert daemons[0].state().phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]
    assert len(who(daemons[0])) == 1


@pytest.mark.parametrize(
    "phase", [Phase.CONFIRMED, Phase.DRAINING, Phase.VERIFYING, Phase.DISABLED]
)
def test_one_that_dies_is_followed_by_the_other(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World, phase: Phase
) -> None:
    """At no phase is the server restarted again, nor left half done."""
    a, b = pair
    world.server.load = 1.0
    if phase is Phase.CONFIRMED:
        world.server.fault = "no-status"  # or else it is over at once
    a.live(90, until=phase)
    assert a.state().phase is phase
    world.server.fault = ""
    started = len(world.server.starts)
    b.live(20)
    assert len(world.server.starts) == started, "a lease lasts"
    expire(a.store)
    b.live(90, until=Phase.DISABLED)
    assert b.state().phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]
    assert who(b) == ["a"] if phase is Phase.DISABLED else ["a", "b"]
    a.turn()
    assert (a.ours(), b.ours()) == (False, True)


@pytest.mark.parametrize("point", ["before the drop-in", "before the restart", "after the restart"])
def test_one_that_dies_while_it_switches_is_followed_by_the_other(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World, point: str
) -> None:
    a, b = pair

    def die(what: str) -> None:
        if what == point:
            world.server.point = lambda _: None
            raise Killed(what)

    world.server.point = die
    with pytest.raises(Killed):
        a.live(60)
    assert a.state().phase is Phase.RESTARTING
    expire(b.store)
    b.live(90, until=Phase.DISABLED)
    assert b.state().phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]


@pytest.mark.parametrize(("dead", "seconds"), [(False, 3600.0), (True, OUTLIVES)])
def test_one_that_follows_waits_for_a_command_that_may_still_run(
    pair: tuple[GuardingDaemon, GuardingDaemon],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    dead: bool,
    seconds: float,
) -> None:
    """Not for long where its process has certainly ended."""
    a, b = pair
    monkeypatch.setattr(owner, "is_gone", lambda _: dead)
    world.server.handover = 3600.0

    def die(what: str) -> None:
        world.server.point = lambda _: None
        raise Killed(what)

    world.server.point = die
    with pytest.raises(Killed):
        a.live(60)
    expire(b.store)
    b.live(90)
    assert (b.state().phase, modes(world)) == (Phase.RESTARTING, [])
    monkeypatch.setattr(target_guard, "boottime", lambda: boottime() + seconds + 1.0)
    b.live(90, until=Phase.DISABLED)
    assert (b.state().phase, modes(world)) == (Phase.DISABLED, [Mode.OFF])


def test_one_whose_lease_has_ended_restarts_nothing(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after it has stored that it restarts, while the other one did, and put it back."""
    a, b = pair
    moved = 0.0
    monkeypatch.setattr(base, "boottime", lambda: boottime() + moved)

    def stopped(what: str) -> None:
        nonlocal moved
        if what == "before the claim is checked":
            world.server.point = lambda _: None
            expire(b.store)
            b.live(90, until=Phase.DISABLED)
            moved = 60.0

    world.server.point = stopped
    a.live(60)
    assert modes(world) == [Mode.OFF]
    assert a.guarding.status_of("chat").actions["disable", "failed"] == 1
    assert who(a) == ["a", "b"]


def test_one_that_was_too_slow_takes_no_further_step(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World
) -> None:
    """The other has gone on meanwhile: the slow one neither undoes nor repeats it."""
    a, b = pair

    def stall(what: str) -> None:
        if what == "after the restart":
            expire(b.store)
            b.live(60)

    world.server.point = stall
    a.live(20)
    assert who(a) == ["a", "b"]
    a.live(60)
    assert (a.state().phase, modes(world)) == (Phase.DISABLED, [Mode.OFF])
    assert who(a) == ["a", "b"]


@pytest.mark.parametrize("policy", [ACT, OBSERVE])
def test_who_cannot_act_gives_way_to_who_can(
    guards_of: StoreOf, world: World, policy: Guard
) -> None:
    """Whether it may not, or has nothing to act with."""
    looks = GuardingDaemon(world, guards_of("looks"), config(policy=policy), acts=policy is OBSERVE)
    looks.live(20)
    assert looks.ours()
    assert looks.state().phase is Phase.CONFIRMED
    assert looks.state().waiting
    acts = GuardingDaemon(world, guards_of("acts"))
    for _ in range(18):
        looks.turn()
        acts.turn()
        world.wait()
    assert (looks.ours(), acts.ours()) == (False, True)
    assert (acts.state().phase, modes(world)) == (Phase.DISABLED, [Mode.OFF])
    assert who(acts) == ["looks", "acts"]


def test_who_leaves_gives_its_lease_back(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World
) -> None:
    a, b = pair
    a.live(10)
    assert a.ours()
    a.guarding.close()
    b.turn()
    assert b.ours()
    before = a.entry().version
    a.turn()
    assert a.entry().version == before, "who has left takes no step"


def test_who_leaves_while_it_switches_keeps_that_lease(guards_of: StoreOf) -> None:
    """Nobody else may throw the switch while ours is being thrown."""
    world = World("chat", "code")
    world.servers["code"].bad = False
    daemon = GuardingDaemon(world, guards_of())
    left: list[dict[str, bool]] = []

    def leave(what: str) -> None:
        if what == "before the restart":
            daemon.guarding.close()
            left.append({name: daemon.entry(name).left > 0 for name in world.servers})

    world.servers["chat"].point = leave
    daemon.live(20)
    assert left == [{"chat": True, "code": False}]


def test_a_reload_while_it_switches_neither_waits_nor_restarts_again(
    guards_of: StoreOf, world: World
) -> None:
    """Though the target has changed, and with it who guards it."""
    daemon = GuardingDaemon(world, guards_of(), threads=True)
    switching, go_on = threading.Event(), threading.Event()

    def hang(what: str) -> None:
        if what == "before the restart":
            switching.set()
            assert go_on.wait(30)

    world.server.point = hang
    while not switching.wait(0.05):
        daemon.guarding.turn()
        world.wait()
    daemon.guarding.configure(config(interval=9.0))
    for _ in range(5):
        daemon.guarding.turn()
        world.wait()
    assert daemon.state().phase is Phase.RESTARTING
    go_on.set()
    assert daemon.live(900, until=Phase.DISABLED).phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]
    daemon.guarding.close()


def test_a_guard_whose_target_another_daemon_watches_begins_nothing(
    guards_of: StoreOf, world: World
) -> None:
    """The target moved during its turn: whether its server speculates is not known here any more,
    nor whether the order still has to be carried out."""
    daemon = GuardingDaemon(world, guards_of())
    daemon.live(4)
    daemon.guarding._status = lambda name: TargetStatus(name, "", 0.0)
    GuardBook(daemon.store).change(
        "chat",
        lambda state: state_machine.order(state, Mode.ON, by="ann", now=world.now),
        world.now,
        by="ann",
    )
    assert daemon.live(20).order is not None
    daemon.guarding._status = daemon._status
    assert (daemon.live(4).order, modes(world)) == (None, [])


def test_a_reload_that_takes_the_leave_away_ends_what_is_not_begun(
    guards_of: StoreOf, world: World
) -> None:
    world.server.load = 1.0
    daemon = GuardingDaemon(world, guards_of())
    daemon.live(20, until=Phase.DRAINING)
    daemon.guarding.configure(config(policy=OBSERVE))
    assert daemon.live(20).phase is Phase.CONFIRMED
    daemon.guarding.configure(config(policy=ACT))
    daemon.live(30, until=Phase.VERIFYING)
    daemon.guarding.configure(config(policy=OBSERVE))
    assert daemon.live(90, until=Phase.DISABLED).phase is Phase.DISABLED, (
        "what is begun is finished"
    )
    assert modes(world) == [Mode.OFF]


def test_a_target_that_leaves_the_configuration_is_guarded_no_more(guards_of: StoreOf) -> None:
    world = World("chat", "code")
    daemon = GuardingDaemon(world, guards_of())
    daemon.live(6)
    daemon.guarding.configure(config(["code"]))
    version = daemon.entry("chat").version
    daemon.live(60)
    assert daemon.entry("chat").version == version
    assert daemon.guarding.status_of("chat") is None
    assert daemon.state("code").phase is Phase.DISABLED


def test_a_defect_in_one_does_not_stop_the_others(guards_of: StoreOf, log: Log) -> None:
    world = World("chat", "code", "math")
    daemon = GuardingDaemon(world, guards_of())
    daemon.broken.add("chat")
    daemon.live(90, until=Phase.DISABLED, name="math")
    assert daemon.state("code").phase is daemon.state("math").phase is Phase.DISABLED
    assert daemon.entry("chat").version == 0
    assert {entry["target"] for entry in log if entry["event"] == "guard_failed"} == {"chat"}
    daemon.broken.clear()
    assert daemon.live(90, until=Phase.DISABLED).phase is Phase.DISABLED


def test_without_a_database_only_who_holds_the_guard_goes_on(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World
) -> None:
    """The other has seen that a restart was claimed, and must not take that for its own."""
    a, b = pair

    def vanish(what: str) -> None:
        b.turn()
        a.lose_database()
        b.lose_database()
        world.server.point = lambda _: None
        raise Killed(what)

    world.server.point = vanish
    with pytest.raises(Killed):
        a.live(60)
    b.live(60)
    assert modes(world) == []
    a.live(30)
    assert modes(world) == [Mode.OFF]
    for daemon in pair:
        daemon.find_database()
    a.live(60)
    assert (a.state().phase, modes(world)) == (Phase.DISABLED, [Mode.OFF])


def test_without_a_database_nothing_begins_and_it_is_said(guards_of: StoreOf, world: World) -> None:
    daemon = GuardingDaemon(world, guards_of())
    daemon.turn()
    daemon.lose_database()
    daemon.live(60)
    status = daemon.guarding.status_of("chat")
    assert (status.error, modes(world)) == ("the database is away", [])
    daemon.find_database()
    daemon.live(60)
    status = daemon.guarding.status_of("chat")
    assert (status.error, modes(world)) == (None, [Mode.OFF])


@pytest.mark.parametrize("away", [False, True])
def test_a_persons_word_during_the_switch_does_not_repeat_it(
    guards_of: StoreOf, world: World, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Where the manager cannot tell what is done, and the database was away or not."""
    daemon = GuardingDaemon(world, guards_of())
    plain = world.server.status
    monkeypatch.setattr(
        world.server, "status", lambda: Service(plain().life, None, None), raising=True
    )

    def say(what: str) -> None:
        if what == "after the restart":
            if away:
                daemon.lose_database()
                return
            daemon_book = GuardBook(daemon.store)
            daemon_book.change(
                "chat",
                lambda s: state_machine.pause(s, until=world.now + 9, by="ann"),
                1.0,
                by="ann",
            )

    world.server.point = say
    daemon.live(30)
    if away:
        assert modes(world) == [Mode.OFF]
        GuardBook(daemon.store).change(
            "chat", lambda s: state_machine.pause(s, until=world.now + 9, by="ann"), 1.0, by="ann"
        )
        daemon.find_database()
    assert daemon.live(90, until=Phase.DISABLED).phase is Phase.DISABLED
    assert modes(world) == [Mode.OFF]
    reasons = [step.reason for step in GuardBook(daemon.store).history()]
    assert "the pause of ann is over" in reasons


def test_the_server_is_taken_out_of_the_balancer_before_it_stops(
    guards_of: StoreOf, world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where requests are not waited for."""
    calls = tmp_path_factory.mktemp("hooks") / "calls"
    hooks = {which: ["/bin/sh", "-c", f"echo {which} >> {calls}"] for which in ("before", "after")}
    policy = ACT.model_copy(update={"drain_timeout": 0.0, "hooks": Hooks.model_validate(hooks)})
    daemon = GuardingDaemon(world, guards_of(), config(policy=policy))
    heard: list[str] = []
    world.server.point = lambda what: heard.append(calls.read_text())
    daemon.live(90, until=Phase.DISABLED)
    daemon.live(6)
    assert set(heard) == {"before\n"}
    assert calls.read_text() == "before\nafter\n"
    assert daemon.state().phase is Phase.DISABLED


def test_a_calm_guard_looks_again_when_what_it_decides_on_changes_or_after_a_while(
    guards_of: StoreOf, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world.server
    server.bad = False
    looks: list[float] = []
    find = TargetGuard._steps

    def look(guard: TargetGuard) -> Situation | None:
        looks.append(world.now)
        return find(guard)

    monkeypatch.setattr(TargetGuard, "_steps", look)
    daemon = GuardingDaemon(world, guards_of())
    decisions = [TargetDecision()]
    monkeypatch.setattr(daemon.judging, "decision_of", lambda _: decisions[-1])

    def looked() -> bool:
        before = len(looks)
        daemon.turn()
        world.wait(2.0)
        return len(looks) > before

    assert [looked() for _ in range(3)] == [True, True, False]
    assert sum(looked() for _ in range(30)) == 3, "in 60 seconds"
    while looked():
        pass
    server.bad, server.started = True, server.started - 100.0
    decisions.append(server.decision())
    assert looked()
    assert daemon.state().phase is not Phase.OBSERVING


def test_a_clock_that_is_set_back_moves_trials_and_pauses(guards_of: StoreOf, world: World) -> None:
    """Even by less than has passed since the last step, and once only."""
    daemon = GuardingDaemon(world, guards_of())
    before = daemon.live(300, until=Phase.DISABLED)
    end = world.now + 9 * HOUR
    GuardBook(daemon.store).change(
        "chat", lambda s: state_machine.pause(s, until=end, by="ann"), world.now, by="ann"
    )
    world.wait(1200.0)
    daemon.live(8)
    world.set_clock_back(600.0)
    state = daemon.live(20)
    assert (state.since, state.rearm_at) == (before.since - 600, before.rearm_at - 600)
    assert state.pause.until == end - 600
    reason = "the clock was set back by 10m; the times of the guard move with it"
    assert [step.reason for step in GuardBook(daemon.store).history()].count(reason) == 1


def test_only_its_holder_moves_the_times_of_a_guard(
    pair: tuple[GuardingDaemon, GuardingDaemon], world: World
) -> None:
    a, b = pair
    before = a.live(300, until=Phase.DISABLED)
    b.turn()
    world.wait(1200.0)
    world.set_clock_back(600.0)
    a.turn()
    b.turn()
    expire(b.store)
    b.live(8)
    assert (b.ours(), b.state().rearm_at) == (True, before.rearm_at - 600)


def test_a_clock_that_goes_forward_moves_nothing(guards_of: StoreOf, world: World) -> None:
    """It does that, too, while the machine is suspended."""
    daemon = GuardingDaemon(world, guards_of())
    before = daemon.live(300, until=Phase.DISABLED)
    world.set_clock_back(-HOUR)
    assert daemon.live(20).rearm_at == before.rearm_at


def test_a_calm_guard_looks_at_once_at_a_server_that_another_tool_switched(
    guards_of: StoreOf, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = GuardingDaemon(world, guards_of())
    decision = TargetDecision()
    monkeypatch.setattr(daemon.judging, "decision_of", lambda _: decision)
    daemon.live(10)
    world.server.running = Mode.OFF
    daemon.turn()
    assert daemon.state().elsewhere == world.now
