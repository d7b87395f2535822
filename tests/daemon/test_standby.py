"""A second daemon of one name stands by, and takes over with counts, breaches and alerts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.loading import Config
from specwatch.config.rules import Condition, Rule, Rules
from specwatch.daemon.lease_keeper import LeaseKeeper
from specwatch.daemon.workloads import part_of
from specwatch.domain.model import PodInstance
from specwatch.domain.shard import Shard
from specwatch.errors import StoreError, StoreMalformed, StoreUnavailable
from specwatch.store.leases import SQLITE_LEASE_SECONDS, Holder
from specwatch.store.repository import Store
from specwatch.store.schema import leases
from tests.alerts.receiver import Receiver
from tests.daemon.running import config_of, stored, total
from tests.daemon.stepped import ALL, Stepped, StoppedClock
from tests.fixtures import Log, Serve, events, target_of
from tests.hostile import Visit, wait_for
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")

NAMES = ("chat", "code")
TURN = 20.0
"""Seconds between two scrapes."""
RESEND = 10
LIFETIME = 4 * RESEND
"""Seconds for which an alert goes on that is not sent again."""
NONE = Rule(
    name="none",
    conditions=(Condition(metric="acceptance_ratio", above=0.01),),
    window="2m",
).model_copy(update={"for_": 0.0})
"""In breach with every server that accepts some drafts."""


class World:
    """Two servers, which count ten drafts a page, a database, and daemons of one name."""

    def __init__(self, database: Path, serve: Serve, receiver: Receiver) -> None:
        self.database = database
        self.receiver = receiver
        # A breach that begins in the future would begin now.
        self.clock = StoppedClock(time.time() // 60 * 60 - 600)
        self.pages: dict[str, list[int]] = {name: [] for name in NAMES}
        """The drafts on each page of a server."""
        self.targets = [
            target_of(serve(partial(self._answer, pages)).url, name, interval=TURN)
            for name, pages in self.pages.items()
        ]
        self.daemons: list[Stepped] = []
        self.drafts = 0

    def _answer(self, pages: list[int], visit: Visit) -> bool:
        if visit.path == "/metrics":
            pages.append(self.drafts)
        visit.answer(vllm(drafts=self.drafts))
        return True

    def config(self, shard: Shard | None = None) -> Config:
        alertmanager = {"urls": [self.receiver.url], "resend": f"{RESEND}s"}
        config = config_of(self.database, self.targets, alertmanager=alertmanager)
        rules = Rules(use_defaults=False, extra=(NONE,))
        return config.model_copy(update={"rules": rules, "shard": shard})

    def start(self, config: Config | None = None, **options: Any) -> Stepped:
        # Two processes look at no time twice.
        options = {"ahead": 0.001 * len(self.daemons), **options}
        self.daemons.append(Stepped(config or self.config(), clock=self.clock, **options))
        self.daemons[-1].daemon.start()
        self.daemons[-1].finish_turns()
        return self.daemons[-1]

    def stop(self, daemon: Stepped) -> None:
        self.daemons.remove(daemon)
        daemon.stop()

    def turns(self, times: int = 4) -> None:
        """Each daemon takes so many turns, with ten drafts a server before each round."""
        for _ in range(times):
            self.drafts += 10
            for daemon in self.daemons:
                daemon.scrape(seconds=TURN / len(self.daemons))

    def end_leases(self) -> None:
        """Nobody has renewed a lease in time."""
        store = Store(f"sqlite:///{self.database}", daemon="d")
        with store.writing(0.0) as connection:
            connection.execute(leases.update().values(until=leases.c.until - SQLITE_LEASE_SECONDS))
        store.close()

    def counted(self, name: str) -> int:
        """The drafts of a server that are in the database."""
        windows = stored(self.database)
        return total(window for window in windows if window.series.target == name).drafts or 0

    def require_all_counted(self) -> None:
        """End all, and compare."""
        for daemon in self.daemons:
            daemon.scrape(2, seconds=TURN)
        for daemon in list(self.daemons):
            self.stop(daemon)
        for name, pages in self.pages.items():
            assert self.counted(name) == self.drafts - pages[0] > 80, name


@pytest.fixture
def world(database: Path, serve: Serve) -> Iterator[World]:
    with ExitStack() as stack:
        made = World(database, serve, stack.enter_context(Receiver()))
        yield made
        for daemon in list(made.daemons):
            made.stop(daemon)


def test_a_second_daemon_of_one_name_stands_by_and_takes_over_when_the_first_ends(
    world: World, log: Log
) -> None:
    """And loses nothing, also within a minute: a process has one row for each minute, and what it
    counts later goes into the next one."""
    first = world.start()
    world.turns()
    for _ in range(2):
        second = world.start()
        world.turns()
        assert (first.names, second.names) == ([*NAMES], [])
        status = second.daemon.status()
        assert (status.lease.standby, status.ready, status.targets) == (True, True, ())
        assert status.lease.holder == first.daemon.status().lease.holder != ""
        assert 0 < (status.lease.left or 0) <= SQLITE_LEASE_SECONDS
        world.stop(first)
        world.turns()
        assert second.names == [*NAMES]
        assert second.daemon.status().lease.standby is False
        first = second
    world.require_all_counted()
    assert len(events(log, "standing_by")) == len(events(log, "taking_over")) == 2
    assert not events(log, "turn_failed") + events(log, "counted_by_another")


@pytest.mark.parametrize("external_url", [None, "https://specwatch.example.com"])
def test_the_one_that_watches_is_named_by_an_address_that_other_machines_know(
    world: World, external_url: str | None
) -> None:
    """It listens on a loopback address, which is another machine there."""
    config = world.config()
    if external_url is not None:
        config = config.model_copy(update={"external_url": external_url})
    first = world.start(config)
    expected = external_url or f"http://{socket.gethostname()}:{first.daemon.http.port}"
    assert world.start().daemon.status().lease.holder == expected


def test_one_that_stands_by_says_which_of_its_targets_nobody_has_read(
    world: World, log: Log
) -> None:
    """As where two daemons of different targets have one name by default."""
    config = world.config()
    one, other = (config.model_copy(update={"targets": (target,)}) for target in config.targets[:2])
    first, second = world.start(one), world.start(other, lanes=ALL)
    same = world.start(one, lanes=ALL)
    assert second.daemon.status().lease.never_read == ()  # there was no time to read it
    world.turns(8)
    assert second.daemon.status().lease.never_read == ("code",)
    assert same.daemon.status().lease.never_read == ()
    (line,) = events(log, "targets_never_read")
    assert line["targets"] == ["code"]
    world.stop(same)
    world.stop(first)
    world.turns()
    assert second.names == ["code"]
    assert second.daemon.status().lease.never_read == ()


def test_one_that_wakes_up_after_its_lease_writes_nothing_and_ends(world: World, log: Log) -> None:
    first = world.start()
    world.turns()
    second = world.start()
    world.drafts += 10
    world.end_leases()
    second.scrape(seconds=1.0)
    assert second.names == [*NAMES], "while the first one is stopped"
    before = world.counted("chat")
    world.drafts += 10
    first.scrape(2, seconds=TURN)
    assert world.counted("chat") == before
    assert first.daemon._lease.lost
    world.stop(first)
    assert len(events(log, "lease_lost")) == 1
    world.turns()
    world.require_all_counted()


def test_one_that_has_lost_its_lease_ends_for_a_new_one_to_stand_by(world: World) -> None:
    first, second = world.start(), world.start()
    world.end_leases()
    second.scrape(seconds=1.0)
    world.clock.forward(5)
    first.jobs.run_due()
    first.daemon._main_loop()
    assert not first.daemon._stop_asked
    third = world.start(first.daemon.configured)
    assert third.daemon.status().lease.standby
    assert second.names == [*NAMES]


def test_a_breach_goes_on_with_its_alert_when_another_takes_over(world: World, log: Log) -> None:
    began = time.time()
    first = world.start(lanes=ALL)
    world.turns(8)
    assert len(events(log, "rule_breach")) == 2
    wait_for(lambda: starts(world.receiver, "chat"))
    second = world.start(lanes=ALL)
    world.turns(2)
    assert second.daemon.status().pagers[0].firing == 0
    world.stop(first)
    second.scrape(3, seconds=1.0)
    world.turns()
    assert second.names == [*NAMES]
    wait_for(lambda: second.daemon.status().pagers[0].sent > 0)
    assert len(starts(world.receiver, "chat")) == 1, "it began once"
    assert first_end(world.receiver, "chat") > began + LIFETIME, "and was never ended"
    assert len(events(log, "rule_breach")) == 2
    assert not events(log, "rule_ended") + events(log, "rule_cleared")


def starts(receiver: Receiver, name: str) -> set[str]:
    """When the alerts of a target began, as the messages say."""
    return {
        alert["startsAt"]
        for _, _, body in list(receiver.asked)
        for alert in body
        if alert["labels"]["target"] == name
    }


def first_end(receiver: Receiver, name: str) -> float:
    """The earliest time until which a message has let an alert of a target go on."""
    return min(
        datetime.fromisoformat(alert["endsAt"]).timestamp()
        for _, _, body in receiver.asked
        for alert in body
        if alert["labels"]["target"] == name
    )


def test_a_reload_while_it_stands_by_counts_when_it_takes_over(world: World) -> None:
    first = world.start()
    fewer = world.config().model_copy(update={"targets": tuple(world.targets[:1])})
    second = world.start(reload=lambda: fewer)
    second.read_again()
    assert second.names == []
    world.stop(first)
    world.turns(2)
    assert second.names == ["chat"]


@pytest.mark.parametrize("ahead", [0.1, 90.0, -90.0])
def test_a_change_of_shards_loses_and_doubles_nothing(world: World, log: Log, ahead: float) -> None:
    """Daemons of the old and of the new shards may watch the same for a while, and the clocks of
    their machines may differ."""
    halves = [world.start(world.config(Shard(number, 2))) for number in range(2)]
    world.turns()
    assert sorted(name for half in halves for name in half.names) == [*NAMES]
    thirds = []
    for number in range(3):
        config = world.config(Shard(number, 3))
        thirds.append(world.start(config, ahead=(number + 1) * ahead))
        world.turns()
    for half in halves:
        world.stop(half)
        world.turns()
    assert sorted(name for third in thirds for name in third.names) == [*NAMES]
    world.require_all_counted()
    assert events(log, "counted_by_another")
    assert not events(log, "turn_failed") + events(log, "standing_by")


def test_the_log_names_the_targets_of_the_shard(world: World, log: Log) -> None:
    config = world.config(Shard(0, 2))
    own = [target.name for target in part_of(config).targets]
    assert 0 < len(own) < len(NAMES)
    world.start(config, reload=lambda: config).read_again()
    lines = events(log, "started") + events(log, "reloaded")
    assert [line["targets"] for line in lines] == [own, own]


@pytest.mark.parametrize("of", ["group", "workload"])
def test_replicas_of_a_group_and_pods_of_a_workload_are_in_one_shard(
    database: Path, of: str
) -> None:
    group = "chat" if of == "group" else ""
    targets = [target_of(f"http://10.0.0.{n}", f"t{n}", group=group) for n in range(9)]
    if of == "workload":
        workload = target_of("http://vllm.serving", "serving/deployment/vllm")
        targets = [one.in_pod(PodInstance(one.name, 1.0), workload) for one in targets]
    config = config_of(database, targets)
    counts = [
        len(part_of(config.model_copy(update={"shard": Shard(number, 3)})).targets)
        for number in range(3)
    ]
    assert sorted(counts) == [0, 0, 9]


def test_one_that_stands_by_and_cannot_reach_its_database_says_since_when(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metric, the alert and the exit code of ``specwatch status`` follow from it."""
    world.start()
    second = world.start()
    store = second.daemon._recorder.store
    with monkeypatch.context() as outage:
        outage.setattr(store, "open", raise_unavailable)
        second.scrape(seconds=1.0)
        began = world.clock.wall
        second.scrape(5, seconds=1.0)
        status = second.daemon.status()
    assert status.lease.standby
    assert (status.store.error, status.store.behind_since) == ("away", pytest.approx(began, abs=1))
    assert not status.ready
    second.scrape(seconds=1.0)
    status = second.daemon.status()
    assert (status.store.error, status.store.behind_since, status.ready) == (None, None, True)


def raise_unavailable(_: float) -> None:
    raise StoreUnavailable("away")


class Row:
    """A lease that a test gives to somebody, in a database that may be away."""

    def __init__(self) -> None:
        self.ours: bool | None = False
        self.lost = self.held = False
        self.away = self.damaged = False
        self.seconds = 8.0
        self.taken = 0
        self.holder: Holder | None = None

    def take(self, _: float) -> bool | None:
        if self.away:
            raise StoreUnavailable("away")
        if self.damaged:
            raise StoreMalformed("database disk image is malformed")
        self.taken += 1
        return self.ours


def keeper_of(row: Row, clock: StoppedClock, *, alive: bool = True, **more: Any) -> LeaseKeeper:
    return LeaseKeeper(row, now=clock, alive=lambda: alive, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("watches", [True, False])
def test_who_watches_is_told_of_a_damaged_file_at_once(watches: bool) -> None:
    """Another that stands by would take the lease meanwhile, and put the file aside itself."""
    row, told = Row(), list[StoreError]()
    row.ours = watches
    keeper = keeper_of(row, StoppedClock(), damaged=told.append)
    keeper.begin()
    row.damaged = True
    keeper.turn()
    assert len(told) == watches


def test_without_its_database_it_watches_until_it_learns_that_another_does(log: Log) -> None:
    row, clock = Row(), StoppedClock()
    row.away = True
    keeper = keeper_of(row, clock)
    for turn in (keeper.begin, keeper.turn, keeper.turn):
        turn()
        assert keeper.watching
        assert not keeper.lost
    assert keeper.status().error == "away"
    assert len(events(log, "lease_unknown")) == 1
    row.away = False
    keeper.turn()
    assert keeper.lost


def test_while_an_earlier_holder_may_go_on_a_new_process_stands_by_and_another_keeps_on() -> None:
    row, clock = Row(), StoppedClock()
    row.ours = None
    new = keeper_of(row, clock)
    new.begin()
    assert not new.watching
    row.away = True
    begun_without_database = keeper_of(row, clock)
    begun_without_database.begin()
    row.away = False
    for keeper, watches in ((new, False), (begun_without_database, True)):
        keeper.turn()
        assert keeper.watching is watches
        assert not keeper.lost
    row.ours = True
    new.turn()
    assert new.watching


def test_after_an_outage_a_daemon_that_has_just_started_takes_nothing_from_the_watcher(
    world: World, log: Log
) -> None:
    first = world.start()
    world.turns()
    world.end_leases()
    second = world.start()
    world.turns(6)
    assert (first.names, second.names) == ([*NAMES], [])
    assert not first.daemon._lease.lost
    world.require_all_counted()
    assert not events(log, "taking_over")


def test_one_that_hangs_does_not_renew_its_lease() -> None:
    row, clock = Row(), StoppedClock()
    row.ours = True
    keeper = keeper_of(row, clock, alive=False)
    keeper.begin()
    keeper.turn()
    assert row.taken == 1
