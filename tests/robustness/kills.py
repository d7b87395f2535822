"""Daemons that are killed (SIGKILL) at random moments beside a server under load lose no count.

``python -m tests.robustness.kills --count 100`` runs the long campaign, with ``--postgres`` on a
temporary Postgres in place of SQLite, with ``--overlap`` always two daemons of one name, of which
the older one is killed after the newer one has started.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from specwatch.daemon.daemon import Daemon
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.workload import SimulatedRequest
from tests.daemon.running import FAST, Running, config_of, counts, scraped, stored, total, work
from tests.fixtures import target_of
from tests.postgres import running_postgres
from tests.robustness import processes
from tests.robustness.campaign import progress

LONGEST = 2.0
"""Seconds after its start in which a daemon is killed."""


class Outcome(NamedTuple):
    """What the server counted, and what the database has of it after the last daemon."""

    counted: dict[str, Any]
    stored: dict[str, Any]


def run(database: str, folder: Path, count: int, seed: int, *, overlap: bool = False) -> Outcome:
    """Start and kill so many daemons on a database, which is a URL; the last one ends in order."""
    rng = random.Random(seed)
    with SimulatedServer(FAST) as server:
        target = target_of(server.url, interval=0.05)
        settings = [f"database: '{database}'", "listen: 127.0.0.1:0", "daemon: d", "targets:"]
        target_line = f"  - {{name: {target.name}, url: '{server.url}', interval: 1s}}"
        folders = [folder / "one", folder / "other"]
        for own in folders:
            own.mkdir()
            (own / "c.yml").write_text("\n".join([*settings, target_line, ""]))
        older: processes.Daemon | None = None

        def look() -> None:
            with Running(Daemon(config_of(database, [target]), environ={})) as daemon:
                scraped(daemon, 2)

        look()
        for number in range(count):
            daemon = processes.Daemon(folders[number % 2])
            try:
                daemon.wait_for("started")
                with server.synced() as engine:
                    for _ in range(50):
                        engine.submit(SimulatedRequest(rng.randrange(1, 90), rng.randrange(1, 500)))
                time.sleep(rng.uniform(0.0, LONGEST))
            finally:
                if older is not None:
                    older.end(signal.SIGKILL)
                older = daemon if overlap else None
                if not overlap:
                    daemon.end(signal.SIGKILL)
            progress(f"{number + 1} of {count} killed")
        if older is not None:
            older.end(signal.SIGTERM)
        work(server)
        look()
        with server.synced() as engine:
            return Outcome(counts(engine.tally()), counts(total(stored(database))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--overlap", action="store_true", help="two daemons of one name at a time")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="specwatch-kills-"))
        url = f"sqlite:///{name}/d.db"
        if asked.postgres:
            url = stack.enter_context(running_postgres()).new_url()
        outcome = run(url, Path(name), asked.count, asked.seed, overlap=asked.overlap)
    requests = outcome.counted["requests"]
    print(f"{asked.count} killed, {sum(requests.values())} requests counted")
    print("nothing lost" if outcome.stored == outcome.counted else f"not the same: {outcome}")
    sys.exit(outcome.stored != outcome.counted)
