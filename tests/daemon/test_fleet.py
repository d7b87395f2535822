"""Two daemons share targets: they move with their counts, their breaches and their alerts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.loading import Config
from specwatch.config.operation import Fleet
from specwatch.config.rules import Condition, Rule, Rules
from specwatch.config.target import Target
from specwatch.daemon.daemon import Daemon
from specwatch.daemon.fleet_service import FleetService
from specwatch.domain.fleet import owner_of
from specwatch.domain.model import Batch, Cursor
from specwatch.errors import ConfigError
from specwatch.simulator.server import SimulatedServer
from specwatch.store.packing import pack_batch
from specwatch.store.repository import Store
from tests.alerts.receiver import Receiver
from tests.daemon.running import (
    FAST,
    MovableClock,
    Running,
    config_of,
    counts,
    scraped,
    stored,
    total,
    until_logged,
    work,
)
from tests.discovery.sources import source_of
from tests.fixtures import Log, OpenStore, events, target_of
from tests.hostile import wait_for
from tests.postgres import PostgresServer

MEMBERS = ("amber", "birch")
NAMES = [f"engine-{number}" for number in range(30)]
STAYS = next(name for name in NAMES if owner_of(name, MEMBERS) == "amber")
MOVES = next(name for name in NAMES if owner_of(name, MEMBERS) == "birch")
RESEND = 10
LIFETIME = 4 * RESEND
"""Seconds for which an alert goes on that is not sent again."""
NONE = Rule(
    name="none",
    conditions=(Condition(metric="acceptance_ratio", above=0.01),),
    window="2m",
).model_copy(update={"for_": 0.0})
"""In breach with every simulated engine, which accepts some drafts."""


class Shared:
    """Two targets, a database, and daemons that share them."""

    def __init__(self, url: str, servers: dict[str, SimulatedServer], receiver: Receiver) -> None:
        self.url = url
        self.servers = servers
        self.receiver = receiver
        self.clock = MovableClock()
        self.clock.wall = -600.0  # a breach that begins in the future would begin now
        self.targets = [
            target_of(server.url, name, interval=0.05) for name, server in servers.items()
        ]

    def config(self, member: str, targets: list[Target] | None = None) -> Config:
        alertmanager = {"urls": [self.receiver.url], "resend": f"{RESEND}s"}
        config = config_of(self.url, targets or self.targets, alertmanager=alertmanager)
        rules = Rules(use_defaults=False, extra=(NONE,))
        fleet = Fleet(member=member, heartbeat="1s")
        return config.model_copy(update={"rules": rules, "fleet": fleet})

    @contextmanager
    def member(self, member: str, config: Config | None = None, **options: Any) -> Iterator[Daemon]:
        chosen = config or self.config(member)
        with Running(Daemon(chosen, environ={}, now=self.clock, seed=1, **options)) as daemon:
            yield daemon
            # A process ends with its jobs; a thread that reads on would leave its connection open.
            daemon._schedule.stop()
            for executor in daemon._schedule._scheduler._executors.values():
                executor._pool.shutdown(wait=True)

    def work(self) -> None:
        for server in self.servers.values():
            work(server)


@pytest.fixture
def shared(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    for name in ("_FLUSH_SECONDS", "_LOOK_SECONDS", "FLEET_SECONDS"):
        monkeypatch.setattr(f"specwatch.daemon.daemon.{name}", 0.05)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(SimulatedServer(FAST)) for name in (STAYS, MOVES)}
        receiver = stack.enter_context(Receiver())
        yield Shared(postgres.new_url(), servers, receiver)


def service_of(store: Store, clock: MovableClock, **options: Any) -> FleetService:
    """The part of a member that divides two targets; it renews every five seconds."""
    usual: dict[str, Any] = {
        "ready": lambda: True, "address": lambda: "http://x", "acting": set,
        "settle": lambda: True, "watch": lambda _: None,
    }  # fmt: skip
    service = FleetService(store, Fleet(), now=clock, **usual | options)
    service.configure({STAYS: STAYS, MOVES: MOVES})
    return service


def watched(daemon: Daemon) -> list[str]:
    return sorted(target.name for target in daemon.status().targets)


def test_a_target_moves_to_a_member_that_joins_and_back_when_it_ends(
    shared: Shared, log: Log
) -> None:
    with shared.member("amber") as amber:
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        scraped(amber)
        shared.work()
        scraped(amber, 2)
        with shared.member("birch") as birch:
            wait_for(lambda: (watched(amber), watched(birch)) == ([STAYS], [MOVES]))
            scraped(birch)
            shared.work()
            scraped(birch, 2)
            shared.clock.forward(60)
            scraped(birch, 2)
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        shared.work()
        scraped(amber, 2)
    windows = stored(shared.url)
    for name in (STAYS, MOVES):
        served = counts(total(window for window in windows if window.series.target == name))
        assert sum(served["requests"].values()) == 60, name
    assert not events(log, "identity_shared")
    assert not events(log, "turn_failed") + events(log, "job_failed")


def test_a_target_that_comes_back_within_a_minute_loses_nothing(shared: Shared) -> None:
    """A process has one row for each minute: what it counts later goes into the next one."""
    with shared.member("amber") as amber:
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        for _ in range(3):
            scraped(amber)
            shared.work()
            scraped(amber, 2)
            with shared.member("birch") as birch:
                wait_for(lambda: (watched(amber), watched(birch)) == ([STAYS], [MOVES]))
            wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        scraped(amber)
        shared.work()
        scraped(amber, 2)
    windows = stored(shared.url)
    for name in (STAYS, MOVES):
        served = counts(total(window for window in windows if window.series.target == name))
        assert sum(served["requests"].values()) == 80, name


def test_a_breach_goes_on_with_its_alert_when_its_target_moves(shared: Shared, log: Log) -> None:
    began = time.time()
    with shared.member("amber") as amber:
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        scraped(amber)
        shared.work()
        scraped(amber, 2)
        shared.clock.forward(60)
        wait_for(lambda: len(events(log, "rule_breach")) == 2)
        wait_for(lambda: len(starts(shared.receiver, MOVES)) > 0)
        with shared.member("birch") as birch:
            wait_for(lambda: watched(birch) == [MOVES])
            wait_for(lambda: birch.status().pagers[0].firing == 1)
            wait_for(lambda: amber.status().pagers[0].firing == 1)
            wait_for(lambda: not amber.status().pagers[0].behind)
            wait_for(lambda: birch.status().pagers[0].sent > 0)
    assert len(starts(shared.receiver, MOVES)) == 1, "it began once"
    assert first_end(shared.receiver, MOVES) > began + LIFETIME, "and was never ended"
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


def test_a_reload_divides_new_targets(shared: Shared, log: Log) -> None:
    few = [target for target in shared.targets if target.name == STAYS]
    lists = [shared.config("amber")]
    config = shared.config("amber", few)
    with shared.member("amber", config, reload=lists.pop) as amber:
        wait_for(lambda: watched(amber) == [STAYS])
        amber.ask_to_reload()
        wait_for(until_logged(log, "reloaded"))
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        wait_for(lambda: getattr(amber.status().fleet, "targets", 0) == 2)


def test_a_second_member_of_one_name_watches_nothing(shared: Shared, log: Log) -> None:
    with shared.member("amber") as amber:
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        with shared.member("amber") as twin:
            wait_for(until_logged(log, "fleet_failed"))
            assert watched(twin) == []
            assert "is the name of a live member" in twin.status().fleet.error
        assert watched(amber) == sorted([STAYS, MOVES])


def test_a_reload_in_the_middle_of_a_turn_watches_the_new_targets(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    seen: list[tuple[set[str], set[str]]] = []
    refuse = [ConfigError("its ca_file cannot be used"), None]

    url = postgres.new_url()
    everything = config_of(url, [target_of(f"http://{n}", n) for n in (STAYS, MOVES)])

    def watch(_: object) -> None:
        ours = {target.name for target in service.part_of(everything).targets}
        seen.append((ours, set(service.watched)))
        if (error := refuse.pop(0)) is not None:
            raise error

    clock = MovableClock()
    service = service_of(open_store(url, member="amber"), clock, watch=watch)
    service.turn()
    assert not service.watched, "what could not be watched is tried again"
    clock.forward(5)
    service.turn()
    assert seen == [({STAYS, MOVES}, {STAYS, MOVES})] * 2


def test_an_end_waits_for_the_turn_under_way_and_there_is_none_after_it(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def watch(_: object) -> None:
        entered.set()
        go_on.wait(20)

    clock = MovableClock()
    service = service_of(open_store(postgres.new_url(), member="amber"), clock, watch=watch)
    turn, end = threading.Thread(target=service.turn), threading.Thread(target=service.end)
    turn.start()
    entered.wait(20)
    end.start()
    end.join(0.1)
    assert end.is_alive()
    go_on.set()
    end.join(20)
    service.configure({STAYS: STAYS})
    clock.forward(5)
    service.turn()
    assert service.watched == {STAYS, MOVES}
    turn.join(20)


def test_members_that_find_other_targets_for_a_moment_are_no_warning(
    postgres: PostgresServer, open_store: OpenStore, log: Log
) -> None:
    url, clock = postgres.new_url(), MovableClock()
    services = [service_of(open_store(url, member=name), clock) for name in MEMBERS]

    def differ(seconds: int) -> None:
        services[1].configure({STAYS: STAYS})
        for _ in range(0, seconds, 5):
            clock.forward(5)
            for service in services:
                service.turn()

    differ(100)
    services[1].configure({STAYS: STAYS, MOVES: MOVES})
    for service in (*services, *services):
        clock.forward(5)
        service.turn()
    differ(100)
    assert not events(log, "fleet_differs")
    differ(100)
    assert len(events(log, "fleet_differs")) == 2, "each member says it once"


def test_members_that_discover_their_targets_divide_them(
    shared: Shared, tmp_path: Path, log: Log
) -> None:
    """None announces itself before it has read its sources: the others would take its targets."""
    listed = tmp_path / "targets.json"
    files = f"file_sd: {{files: ['{listed}'], refresh_interval: 1s}}"
    source = source_of(f"{files}, target: {{interval: 1s}}")
    groups = [
        {"targets": [server.url.removeprefix("http://")], "labels": {"instance": name}}
        for name, server in shared.servers.items()
    ]
    listed.write_text(json.dumps(groups))
    configs = {
        name: shared.config(name).model_copy(update={"targets": (), "discovery": (source,)})
        for name in MEMBERS
    }
    with shared.member("amber", configs["amber"]) as amber:
        wait_for(lambda: watched(amber) == sorted([STAYS, MOVES]))
        with shared.member("birch", configs["birch"]) as birch:
            wait_for(lambda: (watched(amber), watched(birch)) == ([STAYS], [MOVES]))
            listed.write_text(json.dumps(groups[:1]))
            wait_for(lambda: (watched(amber), watched(birch)) == ([STAYS], []))
    assert not events(log, "fleet_differs")
    assert not events(log, "fleet_failed") + events(log, "job_failed")


def test_a_target_on_which_the_guard_acts_stays_until_it_is_done(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    url = postgres.new_url()
    clock, acting = MovableClock(), {MOVES}
    watches: dict[str, set[str]] = {}

    def member(name: str) -> FleetService:
        service = service_of(
            open_store(url, member=name), clock, acting=lambda: acting,
            watch=lambda _: watches.update({name: set(service.watched)}),
        )  # fmt: skip
        return service

    amber, birch = member("amber"), member("birch")

    def turns() -> dict[str, set[str]]:
        for service in (amber, birch, amber, birch):
            clock.forward(5)
            service.turn()
        return watches

    amber.turn()
    assert turns() == {"amber": {STAYS, MOVES}}
    acting.clear()
    assert turns() == {"amber": {STAYS}, "birch": {MOVES}}


def test_what_is_not_written_is_not_given_back(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    url = postgres.new_url()
    clock, written = MovableClock(), [False]
    services = {}
    for name in MEMBERS:
        store = open_store(url, member=name)
        services[name] = service_of(store, clock, settle=lambda: written[0])
        services[name].turn()
    for settled in (False, True):
        written[0] = settled
        for name in MEMBERS:
            clock.forward(5)
            services[name].turn()
        assert (services["birch"].watched == {MOVES}) is settled


def test_what_was_counted_of_a_target_that_comes_back_is_written_first(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    """From an older cursor it would count the same again, and that would be refused."""
    store, given, written = open_store(postgres.new_url(), member="amber"), [], [False]

    def settle() -> bool:
        batch = Batch((), Cursor(MOVES, {}, None, 60.0))
        if written[0]:
            store.write([pack_batch(batch)], 60.0)
        return written[0]

    clock = MovableClock()
    service = service_of(store, clock, settle=settle, watch=given.append)
    service.turn()
    assert not given, "it waits until all is written"
    written[0] = True
    clock.forward(5)
    service.turn()
    assert [{name: cursor.wall for name, cursor in one.items()} for one in given] == [{MOVES: 60.0}]
    assert service.watched == {STAYS, MOVES}
