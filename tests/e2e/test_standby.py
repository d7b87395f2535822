"""One daemon of a name watches, others stand by; those that watch are killed, stopped, and ended.

All tests check one course of events. Every server is under traffic all the while. At the end each
target's stored counts must be what its server counted, whoever watched it, and then with two and
three shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGQUIT, SIGSTOP, Signals
from typing import Any

import pytest

from specwatch.domain.model import Window
from specwatch.store.repository import Store
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.processes import DaemonProcess, SimulatedVllm
from tests.e2e.waiting import eventually, sleep_until
from tests.e2e.witness import Counts, stored
from tests.postgres import PostgresServer

TARGETS = tuple(f"engine-{number}" for number in range(6))
NAMES = ("amber", "birch", "cedar")
INTERVAL = 1.0
TAKEN_OVER_WITHIN = 15.0
HANDED_OVER_WITHIN = 2.0
SLACK = 5.0
"""Seconds by which a busy machine may be late."""
STOPPED_SECONDS = 20.0
AWAY_SECONDS = 12.0
"""For how long Postgres is away: longer than a lease."""
DRAFTING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')


@dataclass
class Course:
    """What happened, and what became of it."""

    watched_by: dict[str, str] = field(default_factory=dict)
    """By event the daemon that watches all targets after it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By event how long it took until then."""
    counts: dict[str, Counts] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


class World:
    """The servers, their Postgres, and the daemons that watch or stand by."""

    def __init__(self, folder: Path, postgres: PostgresServer) -> None:
        self.course = Course()
        self._folder = folder
        self._postgres = postgres
        self._database = postgres.new_url()
        self.servers = {name: SimulatedVllm(folder / f"{name}.log", *DRAFTING) for name in TARGETS}
        self.daemons = {name: self._daemon(name) for name in NAMES}

    def _daemon(self, name: str, **settings: Any) -> DaemonProcess:
        targets = [
            {"name": target, "url": server.url, "interval": f"{INTERVAL:g}s"}
            for target, server in self.servers.items()
        ]
        config = {"daemon": "d", "database": self._database, "targets": targets, **settings}
        return DaemonProcess.configured(self._folder / name, self._database, config)

    def happen(self, stack: ExitStack) -> None:
        """All of it, in about three minutes."""
        for server in self.servers.values():
            stack.enter_context(server)
        for server in self.servers.values():
            server.wait_ready()
        amber, birch, cedar = self.daemons.values()
        stack.enter_context(amber)
        self._watched("one begins", "amber")
        self._wait_begun()
        stack.enter_context(birch)
        with ExitStack() as traffic:
            for server in self.servers.values():
                traffic.enter_context(Clients(server.url, 1, pause=0.8))
            self._watched("another one begins", "amber", "birch")
            amber.kill()
            self._watched("one is killed", "birch")
            amber.start()
            birch.signal(SIGSTOP)
            stopped = time.time()
            self._watched("one is stopped", "amber")
            sleep_until(stopped + STOPPED_SECONDS)
            birch.signal(SIGCONT)
            self._watched("it goes on", "amber", "birch")
            self._take_postgres_away()
            self._watched("Postgres was away", "amber", "birch")
            stack.enter_context(cedar)
            self._watched("a third one begins", *NAMES)
            amber.stop()
            self._watched("one ends in order", "birch", "cedar")
            birch.stop()
            self._watched("the next one ends in order", "cedar")
            cedar.stop()
            self._divide(stack)
        self._end()

    def _divide(self, stack: ExitStack) -> None:
        """With two shards, then with three, while one of two still watches."""
        self.halves = {f"half-{n}": self._daemon(f"half-{n}", shard=f"{n}/2") for n in range(2)}
        for half in self.halves.values():
            stack.enter_context(half)
        self._divided(*self.halves.values())
        self.halves["half-0"].kill()
        self.thirds = {f"third-{n}": self._daemon(f"third-{n}", shard=f"{n}/3") for n in range(3)}
        for third in self.thirds.values():
            stack.enter_context(third)
        self._divided(*self.thirds.values())
        self.halves["half-1"].stop()
        self.thirds["third-1"].kill()
        sleep_until(time.time() + 3)
        self.thirds["third-1"].start()
        self._divided(*self.thirds.values())

    def _end(self) -> None:
        course = self.course
        thirds = list(self.thirds.values())
        for name, server in self.servers.items():
            course.counts[name] = settled(server.metrics, thirds)
        for daemon in thirds:
            daemon.stop()
        # What one that was ended just now had counted beside another is counted by the next one.
        amber = self.daemons["amber"]
        amber.start()
        self._watched("one watches after the shards", "amber")
        amber.stop()
        for daemon in (*self.daemons.values(), *self.halves.values(), *thirds):
            course.events += daemon.events()
        course.windows = amber.windows()

    def _take_postgres_away(self) -> None:
        how: Signals
        for how, seconds in ((SIGQUIT, AWAY_SECONDS), (SIGINT, 0.0)):
            self._postgres.stop(how)
            try:
                sleep_until(time.time() + seconds)
            finally:
                self._postgres.start()

    def _watched(self, event: str, *names: str) -> None:
        """Wait until one of these daemons watches every target, and the others stand by."""
        began = time.monotonic()

        def watching() -> str | None:
            watched = {name: self._names(self.daemons[name]) for name in names}
            watching = [name for name in names if watched[name] == [*TARGETS]]
            others = [watched[name] for name in names if name not in watching]
            return watching[0] if len(watching) == 1 and all(one == [] for one in others) else None

        self.course.watched_by[event] = eventually(
            watching,
            what=f"{event}: one of {names} watches",
            within=90.0,
            every=0.1,
            evidence=lambda: {name: self._names(self.daemons[name]) for name in names},
        )
        self.course.seconds[event] = time.monotonic() - began

    def _divided(self, *daemons: DaemonProcess) -> None:
        """Wait until each target is watched by one of these daemons."""

        def divided() -> bool:
            return sorted(name for one in daemons for name in self._names(one) or ()) == [*TARGETS]

        eventually(divided, what="each is watched once", within=90.0, every=0.2)

    def _wait_begun(self) -> None:
        """Wait until it is stored where counting began."""
        store = Store(self._database, daemon="d")
        eventually(lambda: store.cursors().keys() == {*TARGETS}, what="all is stored", within=60)
        store.close()

    @staticmethod
    def _names(daemon: DaemonProcess) -> list[str] | None:
        """The targets of which a daemon has read a page; none for one that stands by, and None for
        one that begins to."""
        try:
            status = daemon.status()
        except OSError:
            return None
        names = sorted(target["name"] for target in status["targets"] if target["last_success"])
        return names if names or status["lease"]["standby"] else None


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Course]:
    """What happened."""
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("standby"), postgres)
        world.happen(stack)
        yield world.course


def test_no_count_is_lost_and_none_is_there_twice(course: Course) -> None:
    for name in TARGETS:
        windows = [window for window in course.windows if window.series.target == name]
        assert stored(windows) == course.counts[name], name


def test_one_that_stands_by_takes_over_within_fifteen_seconds(course: Course) -> None:
    assert course.seconds["one is killed"] < TAKEN_OVER_WITHIN + SLACK
    assert course.seconds["one is stopped"] < TAKEN_OVER_WITHIN + SLACK


def test_one_that_ends_in_order_hands_over_within_two_seconds(course: Course) -> None:
    """And the time until the first page was read."""
    ended = ("one ends in order", "the next one ends in order")
    assert max(course.seconds[event] for event in ended) < HANDED_OVER_WITHIN + INTERVAL + SLACK


def test_one_that_goes_on_after_another_took_over_stands_by(course: Course) -> None:
    assert course.watched_by["it goes on"] == course.watched_by["one is stopped"] == "amber"
    assert len([event for event in course.events if event["event"] == "lease_lost"]) == 1


def test_an_outage_of_postgres_hands_nothing_over(course: Course) -> None:
    assert course.watched_by["Postgres was away"] == course.watched_by["it goes on"]


def test_nothing_failed_meanwhile(course: Course) -> None:
    assert not [one for one in course.events if one["event"] in ("turn_failed", "job_failed")]
