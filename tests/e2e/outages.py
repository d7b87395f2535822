"""Databases that fail under a daemon: one course of events that many tests check.

Twenty targets, all of them one simulated vLLM under traffic, are watched by two daemons. One writes
to a Postgres that is stopped and started again, first in order and then as in a crash; the other to
SQLite on a small disk that is full meanwhile. Windows close, and so must be written, each minute.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGQUIT, Signals
from typing import Any

from specwatch.domain.model import Window
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.processes import DaemonProcess, SimulatedVllm
from tests.e2e.waiting import next_minute, sleep_until
from tests.e2e.witness import Counts, counted
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
