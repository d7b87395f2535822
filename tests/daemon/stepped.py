"""A daemon whose time passes only when a test says so."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from specwatch.config.loading import Config
from specwatch.daemon.daemon import Daemon
from specwatch.domain.model import Moment
from specwatch.runtime.http_server import HttpServer
from specwatch.runtime.scheduler import Schedule
from specwatch.status import TargetStatus

MINUTE = 1_790_000_040.0
WITHIN = 60.0
"""Seconds in which the turns of a test end, on any machine."""


class StoppedClock:
    """The time of day and the monotonic clock, which only tests move."""

    def __init__(self, wall: float = MINUTE) -> None:
        self.wall = wall
        self.monotonic = 1000.0

    def __call__(self) -> Moment:
        return Moment(self.wall, self.monotonic)

    def forward(self, seconds: float) -> None:
        """Time passes, on both clocks."""
        self.wall += seconds
        self.monotonic += seconds


class StoppedLoop(asyncio.SelectorEventLoop):
    """An event loop by that clock: what is due begins when the loop is woken up."""

    def __init__(self, clock: StoppedClock) -> None:
        self._stopped_clock = clock
        self.closed = threading.Event()
        super().__init__()

    def time(self) -> float:
        return self._stopped_clock.monotonic

    def close(self) -> None:
        super().close()
        self.closed.set()


SCRAPING = ("loop", "flush", "discovery", "lease")
"""The lanes of jobs without which nothing is found, watched or stored."""
ALL = (*SCRAPING, "upkeep", "guard", "experiments", "gpu")


@dataclass(slots=True)
class Job:
    """A job of a lane, due at ``at`` on the wall clock."""

    lane: str
    seconds: float
    at: float
    run: Callable[..., None]
    args: tuple[Any, ...]


class Jobs:
    """In place of a schedule: jobs of some lanes run in the thread of the test, and what they raise
    fails it."""

    def __init__(self, clock: StoppedClock, lanes: Collection[str]) -> None:
        self._clock = clock
        self._lanes = lanes
        self.jobs: list[Job] = []

    def start(self) -> None:
        """Jobs run when the test says so."""

    def clear(self) -> None:
        self.jobs.clear()

    def every(
        self, seconds: float, job: Callable[..., None], *args: Any, delay: float, lane: str
    ) -> Callable[[], None]:
        added = Job(lane, seconds, self._clock.wall + delay, job, args)
        self.jobs.append(added)
        return lambda: self.jobs.remove(added)

    def run_due(self) -> None:
        """Run each job that is due, once."""
        for job in list(self.jobs):
            if job.lane in self._lanes and job.at <= self._clock.wall:
                job.at = self._clock.wall + job.seconds
                job.run(*job.args)

    def stop(self) -> None:
        self.jobs.clear()


class NoServer:
    """In place of the HTTP server of a daemon that nobody asks."""

    host, port, url = "127.0.0.1", 0, "http://127.0.0.1:0"

    def start(self) -> None:
        """Nothing listens."""

    def stop(self, timeout: float) -> bool:
        return True


class Stepped:
    """A running daemon as a context manager; it serves over HTTP with ``http`` only, and does the
    jobs of ``lanes``."""

    def __init__(
        self,
        config: Config,
        *,
        clock: StoppedClock | None = None,
        environ: Mapping[str, str] | None = None,
        http: bool = False,
        lanes: Collection[str] = SCRAPING,
        ahead: float = 0.0,
        **options: Any,
    ) -> None:
        """Its time of day is so many seconds ``ahead`` of that of the clock."""
        self.clock = clock or StoppedClock()
        self.jobs = Jobs(self.clock, lanes)
        self._loop: StoppedLoop | None = None
        self.daemon = Daemon(
            config,
            environ=environ or {},
            now=lambda: Moment(self.clock.wall + ahead, self.clock.monotonic),
            seed=1,
            schedule=cast(Schedule, self.jobs),
            new_loop=self._new_loop,
            **options,
        )
        if not http:
            self.daemon.http = cast(HttpServer, NoServer())
        self._stopped = False

    def _new_loop(self) -> StoppedLoop:
        self._loop = StoppedLoop(self.clock)
        return self._loop

    def __enter__(self) -> Self:
        self.daemon.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the daemon, once."""
        if not self._stopped:
            self._stopped = True
            self.daemon.stop()
            assert self._loop is None or self._loop.closed.wait(WITHIN)

    def kill(self) -> None:
        """End as by SIGKILL: nothing more is written. The lease of a process that has ended is
        free."""
        self.daemon._write_last = self.daemon._lease.release  # type: ignore[method-assign]
        self.stop()

    def scrape(self, times: int = 1, seconds: float = 5.0, *, hung: int = 0) -> None:
        """Let time pass so often; scrapes that are due then have ended, but for so many."""
        for _ in range(times):
            self._run(asyncio.sleep(0))  # new targets are scheduled by the time that it is now
            self.clock.forward(seconds)
            self.finish_turns(hung)
            self.jobs.run_due()
            self.daemon.look()

    @property
    def loop(self) -> StoppedLoop:
        """The event loop of its scrapes."""
        assert self._loop is not None
        return self._loop

    def finish_turns(self, hung: int = 0) -> None:
        """Return when no more than so many turns are under way."""
        self._run(self._turns_ended(hung))

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:  # it stands by
            what.close()
            return
        asyncio.run_coroutine_threadsafe(what, self._loop).result(WITHIN)

    async def _turns_ended(self, hung: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)  # what is due begins
        while len(turns := [t for t in self.daemon.targets._turns if not t.done()]) > hung:
            await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)

    def target(self, name: str = "t") -> TargetStatus:
        return next(one for one in self.daemon.status().targets if one.name == name)

    @property
    def names(self) -> list[str]:
        return sorted(scraper.target.name for scraper in self.daemon.targets)

    def read_again(self) -> None:
        """As a SIGHUP does."""
        self.daemon.ask_to_reload()
        self.daemon.look()


def scrapes(daemon: Stepped, names: Iterable[str]) -> list[int]:
    """How often targets were scraped."""
    return [daemon.target(name).scrapes for name in names]


class Manager:
    """The end of systemd, which holds ten messages until a test reads them."""

    def __init__(self, address: Path) -> None:
        self.address = str(address)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def heard(self) -> list[str]:
        """The lines since the last time."""
        lines = []
        while True:
            try:
                lines += self.socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return lines
