"""A real vLLM and its watchers: one course of events that many tests check.

Four lives of one server: drafting with k = 4, the same again after SIGKILL, without speculation,
and with another draft and k = 3. Two daemons watch all of it, one into SQLite and one into
Postgres, and are themselves killed in the middle of traffic. What vLLM counts between the last
scrape and its death is lost: so before a life ends, traffic stops and all daemons scrape
again.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwatch.domain.model import Window
from tests.e2e.api import settled
from tests.e2e.processes import DaemonProcess, specwatch
from tests.e2e.tap_traffic import leave
from tests.e2e.waiting import eventually, next_minute, sleep_until
from tests.e2e.witness import Counts, counted, difference, running
from tests.lab.http_get import get
from tests.lab.traffic import Outcome, Request, requests_at, send_all
from tests.lab.vllm_server import VllmServer

TEMPERATURES = (0.0, 0.4, 0.8, 1.2)
INTERVAL = 1.0


@dataclass
class ProcessState:
    """One process of vLLM, from the first moment at which it could be scraped to its end.

    Every daemon has scraped it between ``begun`` and ``watched``, and between ``idle``, after which
    it counted nothing more, and ``ended``.
    """

    on: bool
    begun: float
    watched: float
    idle: float
    ended: float
    version: str
    counts: Counts


@dataclass
class Story:
    """What happened, and what was seen of it."""

    lives: list[ProcessState] = field(default_factory=list)
    streams: list[Outcome] = field(default_factory=list)
    """The first requests of all, every one streamed."""
    streams_page: str = ""
    """What vLLM showed after them."""
    streams_until: int = 0
    """The minute before which there was nothing but them."""
    outcomes: list[Outcome] = field(default_factory=list)
    """All others."""
    killed_amid: int = 0
    """Requests under way when the daemons were killed."""
    scraped: dict[str, Any] = field(default_factory=dict)
    scraped_page: Counts = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    last_status: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By daemon."""
    windows: dict[str, list[Window]] = field(default_factory=dict)
    """By daemon, each from its own database."""
    off_windows: list[Window] = field(default_factory=list)
    """Of the daemon that only knew the server without speculation."""
    off_counts: Counts = field(default_factory=dict)


def mixture(count: int) -> list[Request]:
    """Requests of every temperature, streamed and whole, chat and completion."""
    shapes = [(stream, chat) for stream in (True, False) for chat in (True, False)]
    return [
        request
        for stream, chat in shapes
        for request in requests_at(TEMPERATURES, count // len(shapes), stream=stream, chat=chat)
    ]


class StoryRunner:
    """Runs all of it; every step waits for what it needs, with a deadline."""

    def __init__(self, folder: Path, server: VllmServer, databases: dict[str, str]) -> None:
        self.story = Story()
        self._folder = folder
        self._server = server
        self._begun = self._watched = 0.0
        self._version = ""
        self.daemons = {
            name: DaemonProcess.configured(
                folder / name,
                database,
                {
                    "daemon": name,
                    "targets": [{"name": "tiny", "url": server.url, "interval": f"{INTERVAL:g}s"}],
                },
            )
            for name, database in databases.items()
        }

    def run(self) -> Story:
        """All of it, in about four minutes."""
        with ExitStack() as stack:
            for daemon in self.daemons.values():
                stack.enter_context(daemon)
            self._first_life()
            self._second_life()
            self._life_without_speculation()
            self._last_life()
            for name, daemon in self.daemons.items():
                self.story.last_status[name] = daemon.status()
                daemon.stop()
                self.story.windows[name] = daemon.windows(daemon=name)
        return self.story

    def _first_life(self) -> None:
        self._begin()
        assert counted(self._server.metrics()) == {}, "vLLM counts before anybody asked"
        self._stream()
        self._kill_daemons_amid_traffic()
        self._ends(on=True)

    def _second_life(self) -> None:
        self._server.kill()
        self._server.start()
        self._begin()
        self._send(mixture(32))
        # It ends as a minute begins, so that the next begins within the same and its mode is mixed.
        sleep_until(next_minute(time.time()))
        self._ends(on=True)

    def _life_without_speculation(self) -> None:
        self._server.restart(speculation=None)
        self._begin()
        self._watch_from_a_url_alone()
        self._ends(on=False)

    def _last_life(self) -> None:
        self._server.restart(speculation="draft-bad", k=3)
        self._begin()
        self._send(mixture(32))
        self._end_early()
        self._ask_the_command_line()
        self._ends(on=True)

    def _begin(self) -> None:
        self._server.wait_healthy()
        self._begun = time.time()
        self._version = json.loads(get(self._server.url + "/version")[1])["version"]
        self._scraped(self._begun)
        self._watched = time.time()

    def _ends(self, *, on: bool) -> None:
        """Write down a life whose books are closed; nothing may be sent any more."""
        counts = self._settled()
        idle = time.time()
        self._scraped(idle)
        ended = time.time()
        life = ProcessState(on, self._begun, self._watched, idle, ended, self._version, counts)
        self.story.lives.append(life)

    def _settled(self) -> Counts:
        return settled(self._server.metrics, self.daemons.values())

    def _scraped(self, after: float) -> None:
        for daemon in self.daemons.values():
            daemon.wait_scraped(after)

    def _send(self, requests: list[Request], concurrency: int = 4) -> None:
        self.story.outcomes += send_all(self._server.url, requests, concurrency)

    def _stream(self) -> None:
        """Streams only, few and many at a time; then wait until their windows are stored."""
        for concurrency, count in ((1, 40), (4, 40), (12, 40)):
            for chat in (True, False):
                requests = requests_at(
                    TEMPERATURES, count // 2, stream=True, chat=chat, max_tokens=48
                )
                self.story.streams += send_all(self._server.url, requests, concurrency)
        self._settled()
        self.story.streams_page = self._server.metrics()
        self.story.streams_until = next_minute(time.time())
        for daemon in self.daemons.values():
            daemon.wait_written(self.story.streams_until)

    def _kill_daemons_amid_traffic(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(self._send, mixture(64))
            eventually(lambda: running(self._server.metrics()), what="traffic", within=120)
            for daemon in self.daemons.values():
                daemon.kill()
            self.story.killed_amid = running(self._server.metrics())
            for daemon in self.daemons.values():
                daemon.start()
            self._scraped(time.time())
            sending.result()

    def _watch_from_a_url_alone(self) -> None:
        """A third daemon, which gets only a URL, runs for a while when speculation is off."""
        before = counted(self._server.metrics())
        database = f"sqlite:///{self._folder}/alone/specwatch.db"
        alone = DaemonProcess(self._folder / "alone.log", database, "--target", self._server.url)
        with alone:
            alone.wait_scraped(0)
            self._send(mixture(32))
            after = self._settled()
            alone.wait_scraped(time.time())
            alone.stop()
        self.story.off_windows = alone.windows()
        self.story.off_counts = difference(before, after)

    def _end_early(self) -> None:
        """Requests that end for another reason than their length: a stop string, and an abort."""
        early = {"stop": ["a", "e", "i", "o"]}
        self._send([Request(temperature=t, more=early, max_tokens=200) for t in TEMPERATURES])
        leave(self._server.url, Request(stream=True, max_tokens=800))

    def _ask_the_command_line(self) -> None:
        self.story.scraped_page = self._settled()
        scraped = specwatch("scrape", self._server.url, "--json")
        assert scraped.returncode == 0, scraped.stderr
        self.story.scraped = json.loads(scraped.stdout)
        daemon = next(iter(self.daemons.values()))
        shown = specwatch("status", "--url", daemon.url, "--json")
        assert shown.returncode == 0, shown.stderr + shown.stdout
        self.story.status = json.loads(shown.stdout)
