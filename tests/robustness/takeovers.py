"""Daemons that watch and stand by, killed, stopped and cut off at random, count all once.

``python -m tests.robustness.takeovers --events 30 --seed 1`` has six daemons watch eight simulated
servers under traffic in two shards, of each of which two stand by. It kills one (SIGKILL), stops
one for longer or shorter than its lease (SIGSTOP), ends one in order, or takes their Postgres away,
two to ten seconds apart; those that ended are started again. At the end each target's stored counts
must be its server's.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGQUIT, SIGSTOP
from typing import Any

from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.processes import DaemonProcess, SimulatedVllm
from tests.e2e.waiting import eventually
from tests.e2e.witness import difference, stored
from tests.postgres import PostgresServer, running_postgres
from tests.robustness.campaign import progress, show

TARGETS = tuple(f"engine-{number}" for number in range(8))
DAEMONS = {
    f"{name}-{shard}": f"{shard}/2" for name in ("amber", "birch", "cedar") for shard in (0, 1)
}
"""The shard of each."""
DRAFTING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')
FLUSH = 6.0
LONGEST_STOP = 16.0
"""Seconds: a lease is eight."""


class Campaign:
    """The daemons, their servers and their Postgres."""

    def __init__(self, folder: Path, postgres: PostgresServer, seed: int) -> None:
        self._postgres = postgres
        self._random = random.Random(seed)
        self.servers = {name: SimulatedVllm(folder / f"{name}.log", *DRAFTING) for name in TARGETS}
        database = postgres.new_url()
        targets = [
            {"name": name, "url": server.url, "interval": "1s"}
            for name, server in self.servers.items()
        ]
        config = {"daemon": "d", "database": database, "targets": targets}
        self.daemons = {
            name: DaemonProcess.configured(folder / name, database, {**config, "shard": shard})
            for name, shard in DAEMONS.items()
        }
        self.happened = Counter[str]()
        self.defects: list[str] = []

    def run(self, events: int) -> None:
        """Let so many events happen, and compare."""
        with ExitStack() as stack:
            for process in (*self.servers.values(), *self.daemons.values()):
                stack.enter_context(process)
            for server in self.servers.values():
                server.wait_ready()
            self._wait_divided()
            time.sleep(FLUSH)  # until it is stored where counting begins
            with ExitStack() as traffic:
                for server in self.servers.values():
                    traffic.enter_context(Clients(server.url, 1, pause=0.3))
                for number in range(events):
                    self._happen()
                    progress(f"{number + 1} of {events} events")
                self._start_all()
                self._wait_divided()
            self._end()

    def _happen(self) -> None:
        time.sleep(self._random.uniform(2, 10))
        self._start_all()
        event = self._random.choice(("kill", "pause", "end", "outage"))
        self.happened[event] += 1
        daemon = self.daemons[self._random.choice([*DAEMONS])]
        if event == "kill":
            daemon.kill()
        elif event == "end":
            assert daemon.url, "it has begun to handle signals"
            daemon.stop()
        elif event == "pause":
            daemon.signal(SIGSTOP)
            time.sleep(self._random.uniform(1, LONGEST_STOP))
            daemon.signal(SIGCONT)
        else:
            self._postgres.stop(self._random.choice((SIGINT, SIGQUIT)))
            time.sleep(self._random.uniform(0, LONGEST_STOP))
            self._postgres.start()

    def _start_all(self) -> None:
        for daemon in self.daemons.values():
            if not daemon.running:
                daemon.start()

    def _wait_divided(self, *names: str) -> None:
        def divided() -> bool:
            try:
                statuses = [self.daemons[name].status() for name in names or self.daemons]
            except OSError:
                return False  # one begins to stand by
            watched = [t["name"] for s in statuses for t in s["targets"] if t["last_scrape"]]
            return sorted(watched) == list(TARGETS)

        eventually(divided, what="every target is watched once", within=90.0)

    def _end(self) -> None:
        served = {
            name: settled(server.metrics, self.daemons.values())
            for name, server in self.servers.items()
        }
        for daemon in self.daemons.values():
            daemon.stop()
        # Whoever comes next goes on from what is stored.
        for name in ("amber-0", "amber-1"):
            self.daemons[name].start()
        self._wait_divided("amber-0", "amber-1")
        for name in ("amber-0", "amber-1"):
            self.daemons[name].stop()
        for name, daemon in self.daemons.items():
            self.defects += [
                f"{name}: {event}"
                for event in daemon.events()
                if event["event"] in ("turn_failed", "job_failed")
            ]
        windows = daemon.windows()
        for name, counts in served.items():
            own = [window for window in windows if window.series.target == name]
            if stored(own) != counts:
                missing = difference(stored(own), counts)
                self.defects.append(f"{name}: {missing.get('requests length', 0)} requests lost")


def takeovers(folder: Path, events: int, seed: int) -> dict[str, Any]:
    """What became of the daemons to which so many events have happened."""
    with running_postgres() as postgres:
        campaign = Campaign(folder, postgres, seed)
        campaign.run(events)
    return {"events": dict(campaign.happened), "defects": campaign.defects}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = takeovers(Path(folder), chosen.events, chosen.seed)
    show({"takeovers": figures}, as_json=chosen.json)
    sys.exit(bool(figures["defects"]))
