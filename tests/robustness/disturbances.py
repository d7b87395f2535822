"""A clock that is set, and a Postgres that crashes, below a daemon at work: no count is lost.

``python -m tests.robustness.disturbances --clock-steps 40 --crashes 20 --seed 1`` sets the clock of
a daemon by an hour or a day, forward and back, and cuts its Postgres off (SIGQUIT, as in a crash,
or SIGINT) for up to two seconds, beside a simulated server at work. At the end all counts of the
database must be the server's, and no minute may be stored twice.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from specwatch.daemon.daemon import Daemon
from specwatch.lab.simulator.server import SimulatedServer
from tests.daemon.running import (
    FAST,
    MovableClock,
    Running,
    config_of,
    counts,
    scraped,
    stored,
    total,
    work,
)
from tests.fixtures import target_of
from tests.hostile import wait_for
from tests.postgres import running_postgres
from tests.robustness.campaign import progress, show

STEPS = (3600.0, -3600.0, 86400.0, -86400.0)
LONGEST = 2.0
"""Seconds for which a database is away."""


def clock(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """What became of a daemon whose clock was set so many times."""
    rng, moving_clock, steps = random.Random(seed), MovableClock(), Counter[str]()
    database = folder / "clock.db"
    with SimulatedServer(FAST) as server:
        config = config_of(database, [target_of(server.url, interval=0.05)])
        with Running(Daemon(config, environ={}, now=moving_clock)) as daemon:
            scraped(daemon)
            for number in range(count):
                work(server, rng.randrange(1, 20))
                step = rng.choice(STEPS)
                steps[f"{step / 3600:+g} h"] += 1
                moving_clock.wall += step
                scraped(daemon, rng.randrange(1, 4))
                progress(f"{number + 1} of {count} steps of the clock")
            work(server)
            scraped(daemon, 2)
        return {**_compared(server, database), "steps": dict(steps)}


def crashes(count: int, seed: int) -> dict[str, Any]:
    """What became of a daemon whose Postgres was cut off so many times."""
    rng, ways, away, queued = random.Random(seed), Counter[str](), 0.0, 0
    moving_clock = MovableClock()
    with running_postgres() as postgres, SimulatedServer(FAST) as server:
        url = postgres.new_url()
        config = config_of(url, [target_of(server.url, interval=0.05)])
        with Running(Daemon(config, environ={}, now=moving_clock)) as daemon:
            scraped(daemon)
            for number in range(count):
                how = rng.choice((signal.SIGQUIT, signal.SIGINT))
                ways[how.name] += 1
                work(server, rng.randrange(1, 20))
                if rng.random() < 0.5:
                    moving_clock.forward(60)  # a minute is written, perhaps while the server leaves
                postgres.stop(how)
                begun = time.monotonic()
                work(server, rng.randrange(1, 20))
                scraped(daemon, 2)
                moving_clock.forward(60)
                time.sleep(rng.uniform(0.0, LONGEST))
                queued = max(queued, daemon.status().store.queued)
                postgres.start()
                away += time.monotonic() - begun
                progress(f"{number + 1} of {count} crashes")
            work(server)
            scraped(daemon, 2)
            moving_clock.forward(60)
            wait_for(lambda: daemon.status().store.queued == 0)
        figures = _compared(server, url)
    return {**figures, "ways": dict(ways), "away_seconds": round(away), "most_queued": queued}


def _compared(server: SimulatedServer, database: Path | str) -> dict[str, Any]:
    windows = stored(database)
    with server.synced() as engine:
        counted = counts(engine.tally())
    starts = Counter(window.start for window in windows)
    return {
        "requests": sum(counted["requests"].values()),
        "minutes": len(windows),
        "same_counts": counts(total(windows)) == counted,
        "minutes_twice": sum(times - 1 for times in starts.values()),
    }


def sound(figures: dict[str, Any]) -> bool:
    """Whether nothing was lost."""
    return bool(figures["same_counts"]) and not figures["minutes_twice"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock-steps", type=int, default=40)
    parser.add_argument("--crashes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures = {}
    if asked.clock_steps:
        with tempfile.TemporaryDirectory(prefix="specwatch-disturbances-") as name:
            figures["clock"] = clock(Path(name), asked.clock_steps, asked.seed)
    if asked.crashes:
        figures["postgres"] = crashes(asked.crashes, asked.seed)
    show(figures, as_json=asked.json)
    sys.exit(not all(map(sound, figures.values())))
