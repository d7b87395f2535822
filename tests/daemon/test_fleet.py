"""Two daemons share targets: they move with their counts, their breaches and their alerts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.loading import Config
from specwatch.config.operation import Fleet
from specwatch.config.rules import Condition, Rule, Rules
from specwatch.config.target import Target
from specwatch.daemon.fleet_service import FleetService
from specwatch.domain.fleet import owner_of
from specwatch.domain.model import Batch, Cursor
from specwatch.errors import ConfigError
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.alerts.receiver import Receiver
from tests.daemon.running import config_of, stored, total
from tests.daemon.stepped import ALL, Stepped, StoppedClock
from tests.discovery.sources import source_of
from tests.fixtures import Log, OpenStore, Serve, events, target_of
from tests.hostile import Visit, wait_for
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")

MEMBERS = ("amber", "birch")
NAMES = [f"engine-{number}" for number in range(30)]
STAYS = next(name for name in NAMES if owner_of(name, MEMBERS) == "amber")
MOVES = next(name for name in NAMES if owner_of(name, MEMBERS) == "birch")
BOTH = sorted([STAYS, MOVES])
TURN = 20.0
"""Seconds between two scrapes, and between two renewals of a lease."""
RESEND = 10
LIFETIME = 4 * RESEND
"""Seconds for which an alert goes on that is not sent again."""
NONE = Rule(
    name="none",
    conditions=(Condition(metric="acceptance_ratio", above=0.01),),
    window="2m",
).model_copy(update={"for_": 0.0})
"""In breach with every server that accepts some drafts."""


class Shared:
    """Two servers, which count ten drafts a page, a database, and daemons that share them."""

    def __init__(self, database: Path, serve: Serve, receiver: Receiver) -> None:
        self.database = database
        self.receiver = receiver
        # A breach that begins in the future would begin now.
        self.clock = StoppedClock(time.time() // 60 * 60 - 600)
        self.pages: dict[str, list[int]] = {STAYS: [], MOVES: []}
        """The drafts on each page of a server."""
        self.servers = {
            name: serve(partial(self._answer, pages)) for name, pages in self.pages.items()
        }
        self.targets = [
            target_of(server.url, name, interval=TURN) for name, server in self.servers.items()
        ]
        self.members: list[Stepped] = []
        self.drafts = 0

    def _answer(self, pages: list[int], visit: Visit) -> bool:
        if visit.path == "/metrics":
            pages.append(self.drafts)
        visit.answer(vllm(drafts=self.drafts))
        return True

    def config(self, member: str, targets: list[Target] | None = None) -> Config:
        alertmanager = {"urls": [self.receiver.url], "resend": f"{RESEND}s"}
        config = config_of(self.database, targets or self.targets, alertmanager=alertmanager)
        rules = Rules(use_defaults=False, extra=(NONE,))
        fleet = Fleet(member=member, heartbeat=f"{TURN:g}s")
        return config.model_copy(update={"rules": rules, "fleet": fleet})

    def start(self, member: str, config: Config | None = None, **options: Any) -> Stepped:
        config = config or self.config(member)
        self.members.append(Stepped(config, clock=self.clock, **options))
        self.members[-1].daemon.start()
        return self.members[-1]

    def stop(self, member: Stepped) -> None:
        self.members.remove(member)
        member.stop()

    def turns(self, times: int = 4) -> None:
        """Each member takes so many turns, with ten drafts a server before each round."""
        for _ in range(times):
            self.drafts += 10
            for member in self.members:
                member.scrape(seconds=TURN / len(self.members))

    def counted(self, name: str) -> int:
        """The drafts of a server that are in the database."""
        windows = stored(self.database)
        return total(window for window in windows if window.series.target == name).drafts or 0


@pytest.fixture
def shared(database: Path, serve: Serve) -> Iterator[Shared]:
    with ExitStack() as stack:
        made = Shared(database, serve, stack.enter_context(Receiver()))
        yield made
        for member in list(made.members):
            made.stop(member)


@pytest.fixture
def open_member(database: Path, open_store: OpenStore) -> Callable[[str], Store]:
    """The store of a member."""
    return lambda name: open_store(f"sqlite:///{database}", member=name)


Members = Callable[[str], Store]


def service_of(store: Store, clock: StoppedClock, **options: Any) -> FleetService:
    """The part of a member that divides two targets; it renews every five seconds."""
    usual: dict[str, Any] = {
        "ready": lambda: True, "address": lambda: "http://x", "acting": set,
        "settle": lambda: True, "watch": lambda _: None,
    }  # fmt: skip
    service = FleetService(store, Fleet(), now=clock, **usual | options)
    service.configure({STAYS: STAYS, MOVES: MOVES})
    return service


def test_a_target_moves_to_a_member_that_joins_and_back_when_it_ends(
    shared: Shared, log: Log
) -> None:
    """And loses nothing, also where it comes back within a minute: a process has one row for each
    minute, and what it counts later goes into the next one."""
    amber = shared.start("amber")
    shared.turns()
    assert amber.names == BOTH
    for _ in range(2):
        birch = shared.start("birch")
        shared.turns()
        assert (amber.names, birch.names) == ([STAYS], [MOVES])
        shared.stop(birch)
        shared.turns(2)
        assert amber.names == BOTH
    shared.stop(amber)
    for name, pages in shared.pages.items():
        assert shared.counted(name) == pages[-1] - pages[0] > 100, name
    assert not events(log, "identity_shared")
    assert not events(log, "turn_failed")


def test_a_breach_goes_on_with_its_alert_when_its_target_moves(shared: Shared, log: Log) -> None:
    began = time.time()
    amber = shared.start("amber", lanes=ALL)
    shared.turns(8)
    assert len(events(log, "rule_breach")) == 2
    wait_for(lambda: starts(shared.receiver, MOVES))
    birch = shared.start("birch", lanes=ALL)
    shared.turns()
    assert birch.names == [MOVES]
    assert [one.daemon.status().pagers[0].firing for one in (amber, birch)] == [1, 1]
    wait_for(lambda: birch.daemon.status().pagers[0].sent > 0)
    wait_for(lambda: not amber.daemon.status().pagers[0].behind)
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


def test_a_reload_divides_new_targets(shared: Shared) -> None:
    few = [target for target in shared.targets if target.name == STAYS]
    amber = shared.start(
        "amber", shared.config("amber", few), reload=lambda: shared.config("amber")
    )
    shared.turns(2)
    assert amber.names == [STAYS]
    amber.read_again()
    shared.turns(2)
    assert amber.names == BOTH
    assert amber.daemon.status().fleet.targets == 2


def test_a_second_member_of_one_name_watches_nothing(shared: Shared, log: Log) -> None:
    amber = shared.start("amber")
    shared.turns(2)
    twin = shared.start("amber")
    shared.turns(2)
    assert events(log, "fleet_failed")
    assert "is the name of a live member" in twin.daemon.status().fleet.error
    assert (amber.names, twin.names) == (BOTH, [])


def test_a_reload_in_the_middle_of_a_turn_watches_the_new_targets(open_member: Members) -> None:
    seen: list[tuple[set[str], set[str]]] = []
    refuse = [ConfigError("its ca_file cannot be used"), None]

    everything = config_of(Path("none"), [target_of(f"http://{n}", n) for n in (STAYS, MOVES)])

    def watch(_: object) -> None:
        ours = {target.name for target in service.part_of(everything).targets}
        seen.append((ours, set(service.watched)))
        if (error := refuse.pop(0)) is not None:
            raise error

    clock = StoppedClock()
    service = service_of(open_member("amber"), clock, watch=watch)
    service.turn()
    assert not service.watched, "what could not be watched is tried again"
    clock.forward(5)
    service.turn()
    assert seen == [({STAYS, MOVES}, {STAYS, MOVES})] * 2


def test_an_end_waits_for_the_turn_under_way_and_there_is_none_after_it(
    open_member: Members,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def watch(_: object) -> None:
        entered.set()
        go_on.wait(20)

    clock = StoppedClock()
    service = service_of(open_member("amber"), clock, watch=watch)
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
    open_member: Members, log: Log
) -> None:
    clock = StoppedClock()
    services = [service_of(open_member(name), clock) for name in MEMBERS]

    def differ(seconds: int) -> None:
        services[1].configure({STAYS: STAYS})
        for _ in range(0, seconds, 25):
            clock.forward(25)
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
    source = source_of(f"{files}, target: {{interval: 20s}}")
    groups = [
        {"targets": [server.url.removeprefix("http://")], "labels": {"instance": name}}
        for name, server in shared.servers.items()
    ]
    listed.write_text(json.dumps(groups))
    configs = {
        name: shared.config(name).model_copy(update={"targets": (), "discovery": (source,)})
        for name in MEMBERS
    }
    amber = shared.start("amber", configs["amber"])
    shared.turns(3)
    assert amber.names == BOTH
    birch = shared.start("birch", configs["birch"])
    shared.turns()
    assert (amber.names, birch.names) == ([STAYS], [MOVES])
    listed.write_text(json.dumps(groups[:1]))
    shared.turns()
    assert (amber.names, birch.names) == ([STAYS], [])
    assert not events(log, "fleet_differs") + events(log, "fleet_failed")


def test_a_target_on_which_the_guard_acts_stays_until_it_is_done(open_member: Members) -> None:
    clock, acting = StoppedClock(), {MOVES}
    watches: dict[str, set[str]] = {}

    def member(name: str) -> FleetService:
        service = service_of(
            open_member(name), clock, acting=lambda: acting,
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


def test_what_is_not_written_is_not_given_back(open_member: Members) -> None:
    clock, written = StoppedClock(), [True]
    amber = service_of(open_member("amber"), clock, settle=lambda: written[0])
    birch = service_of(open_member("birch"), clock)
    for service in (amber, birch):
        service.turn()
    assert amber.watched == {STAYS, MOVES}
    for settled in (False, True):
        written[0] = settled
        for service in (amber, birch):
            clock.forward(5)
            service.turn()
        assert (birch.watched == {MOVES}) is settled


def test_what_was_counted_of_a_target_that_comes_back_is_written_first(
    open_member: Members,
) -> None:
    """From an older cursor it would count the same again, and that would be refused."""
    store, given, written = open_member("amber"), [], [False]

    def settle() -> bool:
        batch = Batch((), Cursor(MOVES, {}, None, 60.0))
        if written[0]:
            store.write([pack_batch(batch)], 60.0)
        return written[0]

    clock = StoppedClock()
    service = service_of(store, clock, settle=settle, watch=given.append)
    service.turn()
    assert not given, "it waits until all is written"
    written[0] = True
    clock.forward(5)
    service.turn()
    assert [{name: cursor.wall for name, cursor in one.items()} for one in given] == [{MOVES: 60.0}]
    assert service.watched == {STAYS, MOVES}
