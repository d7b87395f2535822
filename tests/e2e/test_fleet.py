"""Three daemons share eight servers over one Postgres; members are killed, stopped, and come back.

All tests check one course of events. Every server is under traffic all the while. At the end each
target's stored counts must be what its server counted, however often the target has moved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGQUIT, SIGSTOP, Signals
from typing import Any

import pytest

from specwatch.domain.model import Window
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.processes import DaemonProcess, SimulatedVllm, specwatch
from tests.e2e.waiting import eventually, sleep_until
from tests.e2e.witness import Counts, stored
from tests.postgres import PostgresServer

TARGETS = tuple(f"engine-{number}" for number in range(8))
MEMBERS = ("amber", "birch", "cedar")
INTERVAL = 1.0
TAKEN_OVER_WITHIN = 30.0
STOPPED_SECONDS = 40.0
AWAY_SECONDS = 20.0
"""For how long Postgres is away: longer than a lease."""
DRAFTING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')


@dataclass
class Sharing:
    """What happened to a fleet, and what became of it."""

    shares: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """By event the targets of each member that runs, once all are watched again."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By event how long that took."""
    status: dict[str, Any] = field(default_factory=dict)
    """The answer of ``specwatch fleet status`` while one member was killed."""
    watched_while_away: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Fleet:
    """The members, their servers and their Postgres, and what happens to them."""

    def __init__(self, folder: Path, postgres: PostgresServer) -> None:
        self.sharing = Sharing()
        self._postgres = postgres
        self._database = postgres.new_url()
        self.servers = {name: SimulatedVllm(folder / f"{name}.log", *DRAFTING) for name in TARGETS}
        targets = [
            {"name": name, "url": server.url, "interval": f"{INTERVAL:g}s"}
            for name, server in self.servers.items()
        ]
        self.members = {
            member: DaemonProcess.configured(
                folder / member,
                self._database,
                {
                    "daemon": "fleet", "database": self._database, "targets": targets,
                    "fleet": {"member": member},
                },
            )
            for member in MEMBERS
        }  # fmt: skip

    def happen(self, stack: ExitStack) -> None:
        """All of it, in less than four minutes."""
        for server in self.servers.values():
            stack.enter_context(server)
        for server in self.servers.values():
            server.wait_ready()
        amber, birch, cedar = self.members.values()
        for member in (amber, birch):
            stack.enter_context(member)
        self._divided("two begin", "amber", "birch")
        self._wait_scraped("amber", "birch")
        began = time.time()
        with ExitStack() as traffic:
            for server in self.servers.values():
                traffic.enter_context(Clients(server.url, 1, pause=0.8))
            stack.enter_context(cedar)
            self._divided("one joins", *MEMBERS)
            sleep_until(time.time() + 8)
            self._divided("all three", *MEMBERS)
            amber.kill()
            self._divided("one is killed", "birch", "cedar")
            self._ask()
            birch.signal(SIGSTOP)
            stopped = time.time()
            self._divided("one is stopped", "cedar")
            sleep_until(stopped + STOPPED_SECONDS)
            birch.signal(SIGCONT)
            self._divided("it goes on", "birch", "cedar")
            amber.start()
            self._divided("the killed one is started again", *MEMBERS)
            sleep_until(time.time() + 8)
            self._divided("the killed one is started again", *MEMBERS)
            self._restart_postgres(SIGQUIT)
            for daemon in self.members.values():
                daemon.wait(
                    lambda status: not status["store"]["error"] and not status["fleet"]["error"],
                    what="it writes again",
                )
            self._divided("Postgres crashes", *MEMBERS)
            cedar.stop()
            self._divided("one ends in order", "amber", "birch")
            self._restart_postgres(SIGINT, 0.0)
        self._end(began)

    def _end(self, began: float) -> None:
        sharing = self.sharing
        running = [self.members[name] for name in ("amber", "birch")]
        for name, server in self.servers.items():
            sharing.counts[name] = settled(server.metrics, running)
            sharing.spans[name] = began, time.time()
        for daemon in running:
            daemon.stop()
        for name, daemon in self.members.items():
            sharing.events[name] = daemon.events()
        sharing.windows = running[0].windows()

    def _restart_postgres(self, how: Signals, seconds: float = AWAY_SECONDS) -> None:
        self._postgres.stop(how)
        try:
            sleep_until(time.time() + seconds)
            if seconds:
                running = [name for name, daemon in self.members.items() if daemon.running]
                self._wait_scraped(*running)
                self.sharing.watched_while_away = self._shares(*running)
        finally:
            self._postgres.start()

    def _divided(self, event: str, *names: str) -> None:
        """Wait until these members watch every target, and each by one of them."""
        began = time.monotonic()

        def divided() -> dict[str, tuple[str, ...]] | None:
            shares = self._shares(*names)
            watched = [target for share in shares.values() for target in share]
            whole = sorted(watched) == list(TARGETS) and all(shares.values())
            return shares if whole else None

        self.sharing.shares[event] = eventually(
            divided, what=f"{event}: all is watched once by {names}", within=90.0,
            evidence=lambda: self._shares(*names),
        )  # fmt: skip
        self.sharing.seconds[event] = time.monotonic() - began

    def _shares(self, *names: str) -> dict[str, tuple[str, ...]]:
        statuses = {name: self.members[name].status() for name in names}
        return {
            name: tuple(target["name"] for target in status["targets"] if target["last_scrape"])
            for name, status in statuses.items()
        }

    def _wait_scraped(self, *names: str) -> None:
        now = time.time()
        for name in names:
            self.members[name].wait_scraped(now)

    def _ask(self) -> None:
        command = ("fleet", "status", "--database", self._database, "--json")
        self.sharing.status = json.loads(specwatch(*command).stdout)


@pytest.fixture(scope="module")
def sharing(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[Sharing]:
    """What became of the fleet."""
    with ExitStack() as stack:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), postgres)
        fleet.happen(stack)
        yield fleet.sharing


def test_no_count_is_lost_and_none_is_there_twice(sharing: Sharing) -> None:
    for name in TARGETS:
        windows = [window for window in sharing.windows if window.series.target == name]
        assert stored(windows) == sharing.counts[name], name


def test_no_time_is_covered_twice(sharing: Sharing) -> None:
    """What was watched adds up to the time from the first page to the last."""
    for name, (began, ended) in sharing.spans.items():
        windows = [window for window in sharing.windows if window.series.target == name]
        covered = sum(window.observed_seconds for window in windows)
        assert ended - began - 3 < covered < ended - began + 60, name
        assert len({window.start for window in windows}) == len(windows)


def test_a_dead_members_targets_are_taken_over_within_thirty_seconds(sharing: Sharing) -> None:
    assert sharing.seconds["one is killed"] < TAKEN_OVER_WITHIN
    assert sharing.seconds["one is stopped"] < TAKEN_OVER_WITHIN
    assert sharing.seconds["one ends in order"] < TAKEN_OVER_WITHIN


def test_every_member_that_lives_has_a_share(sharing: Sharing) -> None:
    shares = {event: set(share) for event, share in sharing.shares.items()}
    assert shares["one joins"] == set(MEMBERS)
    assert shares["one is stopped"] == {"cedar"}
    assert sharing.shares["it goes on"] == sharing.shares["one is killed"], "the same division"


def test_only_the_targets_of_the_dead_move(sharing: Sharing) -> None:
    before, after = sharing.shares["all three"], sharing.shares["one is killed"]
    assert set(before["birch"]) <= set(after["birch"])
    assert set(before["cedar"]) <= set(after["cedar"])


def test_the_command_shows_who_watches_what(sharing: Sharing) -> None:
    (fleet,) = sharing.status["fleets"]
    assert {one["member"]: one["live"] for one in fleet["members"]} == {
        "amber": False, "birch": True, "cedar": True,
    }  # fmt: skip
    assert fleet["unwatched"] == []
    watched = {one["target"]: one["member"] for one in fleet["watched"]}
    share = sharing.shares["one is killed"]
    assert watched == {target: member for member in share for target in share[member]}


def test_all_go_on_watching_while_postgres_is_away(sharing: Sharing) -> None:
    assert sharing.watched_while_away == sharing.shares["the killed one is started again"]


def test_an_outage_of_postgres_moves_nothing(sharing: Sharing) -> None:
    assert sharing.shares["Postgres crashes"] == sharing.watched_while_away


def test_members_are_no_strangers_to_each_other(sharing: Sharing) -> None:
    events = [event["event"] for log in sharing.events.values() for event in log]
    assert "identity_shared" not in events
    assert not [
        event for event in events if event in ("turn_failed", "job_failed", "fleet_differs")
    ]
