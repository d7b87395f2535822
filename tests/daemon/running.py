"""A daemon in this process, with a clock that can be moved, and what it stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specwatch.config.loading import Config, from_targets
from specwatch.config.target import Target
from specwatch.daemon.daemon import Daemon
from specwatch.domain.merge import merge_tallies
from specwatch.domain.model import Moment, Tally, Window
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedRequest
from specwatch.store.repository import Store
from tests.hostile import wait_for

FAST = SimulatedSettings(port=0, speculation=SimulatedSpeculation(4), time_scale=500.0)


class MovableClock:
    """The time of day and the monotonic clock, which tests move."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.monotonic = 0.0

    def __call__(self) -> Moment:
        return Moment(time.time() + self.wall, time.monotonic() + self.monotonic)

    def forward(self, seconds: float) -> None:
        """Time passes, on both clocks."""
        self.wall += seconds
        self.monotonic += seconds


def config_of(
    database: Path | str, targets: Iterable[Target], daemon: str = "d", **settings: Any
) -> Config:
    """A configuration with targets as they are."""
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    base = from_targets(
        ["http://127.0.0.1:1"],
        environ={},
        hostname=daemon,
        settings={"database": url, "listen": "127.0.0.1:0", **settings},
    )
    return base.model_copy(update={"targets": tuple(targets)})


class Running:
    """``run`` of a daemon in a thread, ended with the block."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="daemon", daemon=True)

    def __enter__(self) -> Daemon:
        self._thread.start()
        wait_for(lambda: self.daemon._looked is not None or not self._thread.is_alive())
        return self.daemon

    def __exit__(self, *_: object) -> None:
        self.daemon.ask_to_stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the daemon did not stop"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self.daemon.run()
        except BaseException as error:
            self.error = error


def scraped(daemon: Daemon, times: int = 1, names: Iterable[str] = ()) -> None:
    """Wait until each target was scraped so many more times."""
    chosen = set(names) or {target.name for target in daemon.status().targets}

    def counts() -> dict[str, int]:
        return {t.name: t.scrapes for t in daemon.status().targets if t.name in chosen}

    before = counts()
    wait_for(lambda: all(n >= before.get(name, 0) + times for name, n in counts().items()))


def work(server: SimulatedServer, requests: int = 20) -> None:
    """Let the engine serve some requests, and wait until it is idle."""
    with server.synced() as engine:
        for number in range(requests):
            engine.submit(SimulatedRequest(prompt_tokens=50 + number, max_tokens=40 + number))

    def idle() -> bool:
        with server.synced() as engine:
            return engine.running == 0 and engine.waiting == 0

    wait_for(idle)


def stored(database: Path | str, daemon: str = "d") -> list[Window]:
    """Every minute in the database."""
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    store = Store(url, daemon="reader")
    try:
        return list(store.windows(since=0, until=1e11, length=60, daemon=daemon))
    finally:
        store._database.dispose()


def total(windows: Iterable[Window]) -> Tally:
    """All that windows counted."""
    summed = Tally()
    for window in windows:
        summed = merge_tallies(summed, window.tally)
    return summed


def counts(tally: Tally) -> dict[str, Any]:
    """What of a tally must agree to the last digit: counts, not sums of seconds."""
    histograms = ("ttft", "tpot", "inter_token", "e2e", "output_length")
    return {
        "plain": [
            getattr(tally, name)
            for name in (
                "drafts",
                "draft_tokens",
                "accepted_tokens",
                "accepted_per_position",
                "prompt_tokens",
                "generation_tokens",
                "preemptions",
                "prefix_cache_queries",
                "prefix_cache_hits",
            )
        ],
        "requests": {reason: count for reason, count in tally.requests.items() if count},
        "histograms": {name: getattr(tally, name).counts for name in histograms},
    }


def until_logged(log: Iterable[Any], event: str) -> Callable[[], bool]:
    """A condition: that event was logged."""
    return lambda: any(entry["event"] == event for entry in list(log))
