"""Databases fail under load and come back: nothing is lost, nothing is there twice.

All tests check one course of events. Twenty targets, all of them one simulated vLLM under traffic,
are watched by two daemons. One writes to a Postgres that is stopped and started again, first in
order and then as in a crash; the other to SQLite on a small disk that is full meanwhile. Windows
close, and must be written, each minute. A real Prometheus scrapes a daemon.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGQUIT, Signals
from typing import Any

import pytest

from specwatch.domain.model import Window
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.conftest import unavailable
from tests.e2e.monitoring import RunningPrometheus
from tests.e2e.processes import DaemonProcess, SimulatedVllm
from tests.e2e.waiting import eventually, next_minute, sleep_until
from tests.e2e.witness import Counts, counted, stored
from tests.lab.http_get import get
from tests.lab.traffic import Request, requests_at
from tests.postgres import PostgresServer

TARGETS = tuple(f"engine-{number:02}" for number in range(20))
TEMPERATURES = (0.0, 0.4, 0.8, 1.2)
LEAD_SECONDS = 6
"""How long before a minute's end a database fails."""


@dataclass
class Outage:
    """What one daemon showed while its database was away."""

    status: dict[str, Any]
    healthy: int
    ready: int
    """HTTP status of /healthz and of /readyz."""
    resident: int
    """Bytes."""


@dataclass
class Watched:
    """What one daemon saw and wrote."""

    resident_before: int = 0
    outages: list[Outage] = field(default_factory=list)
    last_status: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)


class Disk:
    """A small file system that can be filled up and freed again."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Take the last byte."""
        with open(self._filler, "ab", buffering=0) as filler:
            for size in (1 << 16, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give all back."""
        self._filler.unlink()


def _mixed_streams(user: int) -> Iterator[Request]:
    yield from itertools.cycle(requests_at(TEMPERATURES, 8, stream=True, max_tokens=24)[user:])


class Outages:
    """Two daemons, ``postgres`` and ``full``, and what happens to them."""

    def __init__(self, folder: Path, server: SimulatedVllm, postgres: PostgresServer, disk: Path):
        self._seen_by_others: Callable[[], object] = lambda: None
        self.counts: Counts = {}
        self._server = server
        self._postgres = postgres
        self._disk = Disk(disk)
        self.watched = {"postgres": Watched(), "full": Watched()}
        databases = {"postgres": postgres.new_url(), "full": f"sqlite:///{disk}/specwatch.db"}
        targets = [{"name": name, "url": server.url, "interval": "2s"} for name in TARGETS]
        self.daemons = {
            name: DaemonProcess.configured(
                folder / name, database, {"daemon": name, "targets": targets}
            )
            for name, database in databases.items()
        }

    def begin(self, stack: ExitStack) -> None:
        """Start the daemons before anything is counted."""
        for daemon in self.daemons.values():
            stack.enter_context(daemon)
        for daemon in self.daemons.values():
            daemon.wait_scraped(0)
        assert counted(self._server.metrics()) == {}

    def happen(self, seen_by_others: Callable[[], object]) -> None:
        """Two outages of each database, each over the end of a minute, under traffic.

        Each lasts until ``seen_by_others`` returns.
        """
        self._seen_by_others = seen_by_others
        with Clients(self._server.url, 4, _mixed_streams) as clients:
            sleep_until(time.time() + 5)
            for name, daemon in self.daemons.items():
                self.watched[name].resident_before = daemon.resident_bytes()
            for how in (SIGINT, SIGQUIT):
                self._outage(how)
        assert clients.errors() == []

    def end(self) -> None:
        """Let the daemons see the last of it, stop them, and read what they wrote."""
        self.counts = settled(self._server.metrics, self.daemons.values())
        for name, daemon in self.daemons.items():
            watched = self.watched[name]
            watched.last_status = daemon.status()
            daemon.stop()
            watched.events = [event["event"] for event in daemon.events()]
            watched.windows = daemon.windows()

    def _outage(self, how: Signals) -> None:
        minute = next_minute(time.time() + LEAD_SECONDS)
        sleep_until(minute - LEAD_SECONDS)
        self._postgres.stop(how)
        self._disk.fill()
        try:
            for name, daemon in self.daemons.items():
                daemon.wait(
                    lambda status: status["store"]["queued"] >= len(TARGETS),
                    what=f"windows wait for the database of {name}",
                )
                daemon.wait(lambda status: status["store"]["error"], what="a write failed")
                self.watched[name].outages.append(look(daemon))
            self._seen_by_others()
        finally:
            self._disk.free()
            self._postgres.start()
        for daemon in self.daemons.values():
            daemon.wait_written(minute)


def look(daemon: DaemonProcess) -> Outage:
    """What a daemon shows, once no target's answer is late."""
    return Outage(
        daemon.wait(
            lambda status: not any(target["failure"] for target in status["targets"]),
            what="it goes on watching",
        ),
        get(daemon.url + "/healthz")[0],
        get(daemon.url + "/readyz")[0],
        daemon.resident_bytes(),
    )


MEGABYTE = 1 << 20
DRAFTING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')
DISK_SIZE = "1m"


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        unavailable("mounting a small tmpfs needs root")
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "specwatch", disk], check=True
    )
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@dataclass
class Story:
    """What happened, and a Prometheus that scraped the daemon meanwhile."""

    outages: Outages
    prometheus: RunningPrometheus
    at: float
    """Unix time after the outages, when the daemon still ran."""

    def value(self, expression: str) -> float:
        """The one value of an expression at that time."""
        (series,) = self.prometheus.query(expression, self.at)
        return series.last


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, small_disk: Path
) -> Iterator[Story]:
    """The outages, with Prometheus watching."""
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as stack:
        server = stack.enter_context(SimulatedVllm(folder / "simulated.log", *DRAFTING))
        server.wait_ready()
        outages = Outages(folder, server, postgres, small_disk)
        outages.begin(stack)
        jobs = {"specwatch": [outages.daemons["postgres"].url]}
        prometheus = stack.enter_context(RunningPrometheus(folder / "prometheus", jobs))
        queued = f"specwatch_store_windows_queued >= {len(TARGETS)}"
        outages.happen(
            lambda: eventually(
                lambda: prometheus.query(queued), what="Prometheus sees what waits", within=120
            )
        )
        at = time.time()
        outages.end()
        yield Story(outages, prometheus, at)


@pytest.fixture(params=["postgres", "full"])
def watched(request: pytest.FixtureRequest, story: Story) -> Watched:
    """What one of the daemons saw."""
    return story.outages.watched[request.param]


def test_no_count_is_lost_or_stored_twice(story: Story, watched: Watched) -> None:
    """Each target is the one server, so each must add up to all that it counted."""
    assert story.outages.counts["accepted_tokens"] > 0
    for target in TARGETS:
        windows = [window for window in watched.windows if window.series.target == target]
        assert len({window.start for window in windows}) == len(windows) >= 2
        assert stored(windows) == story.outages.counts


def test_the_daemon_says_what_is_wrong_and_goes_on_watching(watched: Watched) -> None:
    assert len(watched.outages) == 2
    for outage in watched.outages:
        store = outage.status["store"]
        assert store["queued"] >= len(TARGETS)
        assert re.match(r"\w+ database \S+", store["error"])
        assert (outage.healthy, outage.ready) == (200, 503)
        assert [target["failure"] for target in outage.status["targets"]] == [None] * len(TARGETS)
    store = watched.last_status["store"]
    assert (store["error"], store["dropped"], store["queued"]) == (None, 0, 0)
    assert store["failures"] >= 2


def test_each_outage_is_logged_with_its_end(watched: Watched) -> None:
    store_events = [event for event in watched.events if event.startswith("store_")]
    assert store_events.count("store_recovered") == 2
    assert store_events[-1] == "store_recovered"
    assert "turn_failed" not in watched.events


def test_memory_stays_bounded_while_windows_wait(watched: Watched) -> None:
    """A few windows take a few kilobytes: what is allowed for is the noise of the allocator."""
    for outage in watched.outages:
        assert outage.resident < watched.resident_before + 20 * MEGABYTE
        assert outage.resident < 150 * MEGABYTE


def test_prometheus_scrapes_the_daemon_all_the_while(story: Story) -> None:
    """Half a minute and more; in each outage of the daemon's database it saw what waits for it.

    A scrape may take a second: on a machine that stops for a while, one or two are late.
    """
    assert story.value("up") == 1
    assert story.value("count_over_time(up[2m])") >= 30
    assert story.value("avg_over_time(up[2m])") > 0.8
    log = story.prometheus.log_text()
    assert not re.search(r"level=(warn|error).*(scrape|append|ingest)", log)


def test_prometheus_has_the_daemons_figures(story: Story) -> None:
    assert story.value("sum(specwatch_speculation_enabled)") == len(TARGETS)
    queued = story.value("max_over_time(specwatch_store_windows_queued[2m])")
    assert queued >= len(TARGETS)
