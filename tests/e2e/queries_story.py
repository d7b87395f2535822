"""A real Prometheus beside the daemon and a real vLLM with its tap, under load.

Windows are whole minutes and it takes five of them without speculation, and five with it, to know
the speedup, for which no test has the time. So the daemon remembers some that it did not see: a
real minute without speculation and a real one with it, each watched by an earlier daemon, repeated.
What Prometheus sees is live.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specwatch.domain.baseline import BaselineKey, Origin, measured
from specwatch.domain.model import ALL, MINUTE, Batch, Window
from specwatch.domain.sample import samples_of
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.e2e.clients import Clients
from tests.e2e.monitoring import RunningAlertmanager, RunningPrometheus
from tests.e2e.processes import DaemonProcess
from tests.e2e.tap_traffic import covered, refused, several, with_usage
from tests.e2e.waiting import eventually, next_minute, sleep_until
from tests.lab.traffic import Request
from tests.lab.vllm_server import VllmServer, free_port

TARGET, TWIN, AWAY = "tiny", "twin", "unreachable"
USERS = 8
UNUSUAL = 11
"""Of so many requests one is followed by some that are not covered."""
WARM_UP, REMEMBERED = 60, 150
"""Requests that are answered before a minute that is remembered, and in it at least."""
OFF_MINUTES, ON_MINUTES = 12, 12
SCRAPE_SECONDS = 2.0
WITHIN = 300.0
LEAST_SECONDS = 40.0
"""Of the load at the end, which ends with a whole minute."""


@dataclass(frozen=True)
class Period:
    """A Prometheus, and the Unix seconds for which it has data."""

    prometheus: RunningPrometheus
    begun: float
    ended: float
    rules: Sequence[Mapping[str, Any]]
    """The rules at the end, with their health."""


class Story:
    """Runs it for a server with speculation; ``off`` is the same server without."""

    def __init__(self, folder: Path, server: VllmServer, off: VllmServer) -> None:
        self._folder = folder
        self._server = server
        self._off = off
        self._alertmanager = RunningAlertmanager(folder / "alertmanager")

    @contextmanager
    def play(self, rule_files: Mapping[str, str], minutes: int = 0) -> Iterator[Period]:
        """Run all of it, with so many minutes more of load than necessary."""
        with ThreadPoolExecutor(2) as pool:
            off, on = pool.map(self._life, (self._off, self._server))
        self._off.stop()
        database = f"sqlite:///{self._folder}/specwatch.db"
        remember(database, off, on, time.time())
        nowhere = f"http://127.0.0.1:{free_port()}"
        with self._alertmanager, self._watching(self._server, database, nowhere) as daemon:
            jobs = {"vllm": [self._server.url], "specwatch": [daemon.url]}
            with RunningPrometheus(
                self._folder / "prometheus", jobs, rule_files=rule_files, interval=SCRAPE_SECONDS
            ) as prometheus:
                whole = next_minute(time.time() + LEAST_SECONDS) + minutes * MINUTE
                begun = whole - minutes * MINUTE - LEAST_SECONDS
                sleep_until(begun)
                with users_of(self._server):
                    sleep_until(whole)
                    daemon.wait_written(whole)
                    ended = seen_by(prometheus, time.time())
                    rules = prometheus.rules()
                daemon.stop()
                self._server.stop()
                yield Period(prometheus, begun, ended, rules)

    def _life(self, server: VllmServer) -> list[Window]:
        """The windows of a daemon that watched some traffic."""
        database = f"sqlite:///{self._folder}/{server.port}.db"
        with users_of(server) as users:
            wait_answered(users, WARM_UP)
            with self._watching(server, database) as daemon:
                daemon.wait_scraped(0)
                wait_answered(users, len(users.outcomes) + REMEMBERED)
                daemon.stop()
        return daemon.windows()

    def _watching(self, server: VllmServer, database: str, *nowhere: str) -> DaemonProcess:
        config = configuration(server.url, self._alertmanager.url, nowhere)
        folder = self._folder / f"{server.port}-{len(nowhere)}"
        return DaemonProcess.configured(folder, database, config)


@contextmanager
def users_of(server: VllmServer) -> Iterator[Clients]:
    """Users meanwhile who ask without a pause; all are answered but for what is refused."""
    with Clients(server.url, USERS, kinds) as users:
        yield users
    lost = [o for o in users.outcomes if not o.ok and (o.status or 0) // 100 != 4]
    assert {outcome.error for outcome in lost} == set()


def wait_answered(users: Clients, count: int) -> None:
    """Return once so many requests are answered."""
    eventually(lambda: len(users.outcomes) >= count, what=f"{count} are answered", within=WITHIN)


def seen_by(prometheus: RunningPrometheus, after: float) -> float:
    """A Unix time at which Prometheus has scraped everything after another, alerts too."""
    shown = (
        f"timestamp(specwatch_acceptance_length) > {after}",
        f"timestamp(vllm:num_requests_running) > {after}",
        "rate(specwatch_alertmanager_failures_total[1m])",
        "specwatch_guard_incident == 1",
    )

    def look() -> float | None:
        now = time.time()
        return now if all(prometheus.query(each, now) for each in shown) else None

    return eventually(look, what="Prometheus has seen it", within=WITHIN)


def kinds(number: int) -> Iterator[Request]:
    """Endless requests of every kind; some ask for several completions, some are refused."""
    for at in itertools.count(number, USERS):
        yield from with_usage(covered(1, at, max_tokens=24))
        if at % UNUSUAL == 0:
            yield from (*several(1), *refused(1))


def configuration(url: str, alertmanager: str, nowhere: Sequence[str]) -> dict[str, Any]:
    """A guard that observes, rules that find something, one of them of segments, and objectives.

    ``nowhere`` are URLs at which nobody answers, neither as a target nor as an Alertmanager; with
    them the server is a second target too, so that it is in a group.
    """
    asked = {
        "metric": "acceptance_ratio",
        "below": 1,
        "window": "1m",
        "for": "0s",
        "min_drafts": 20,
    }
    of_segments = {"name": "low-for", **asked, "scope": {"dimension": "output"}}
    switch = {"kind": "command", "disable": ["/bin/true"], "enable": ["/bin/true"]}
    return {
        "daemon": "story",
        "discovery": [{"file_sd": {"files": ["/run/specwatch-without-targets/*.json"]}}],
        "targets": [
            {"name": TARGET, "url": url, "interval": "1s", "service": switch},
            *({"name": TWIN, "url": url, "interval": "1s"} for _ in nowhere),
            *({"name": AWAY, "url": each, "interval": "1s"} for each in nowhere),
        ],
        "rules": {"extra": [{"name": "low", **asked, "action": "disable"}, of_segments]},
        "slos": [
            {"name": "first-token", "metric": "ttft", "threshold": "500ms", "objective": "99%"},
            {"name": "next-token", "metric": "tpot", "threshold": "50ms", "objective": "99%"},
        ],
        "alertmanager": {"urls": [alertmanager, *nowhere], "resend": "10s"},
    }


def remember(url: str, off: Sequence[Window], on: Sequence[Window], now: float) -> None:
    """Write an hour with the busiest minute of each again and again, and the baseline of it.

    The baseline is what a daemon would have made of those minutes as they passed. All are said to
    be at the load of the users, as the minutes that follow are: those here are watched in part,
    and may seem to be at another one.
    """
    last = int(now // MINUTE) * MINUTE - MINUTE
    ons = repeated(busiest(on), last - ON_MINUTES * MINUTE, ON_MINUTES)
    offs = repeated(busiest(off), last - (ON_MINUTES + OFF_MINUTES) * MINUTE, OFF_MINUTES)
    (gauges,) = {each.gauges for each in ons if each.series.segment == ALL}
    gauges = replace(gauges, running_seconds=USERS * gauges.busy_seconds)
    ons, offs = ([replace(each, gauges=gauges) for each in minutes] for minutes in (ons, offs))
    one = offs[0]
    key = BaselineKey(
        one.series.target,
        one.series.model_name,
        one.environment.engine_version,
        one.environment.configuration,
    )
    store = Store(url, daemon=one.series.daemon)
    store.open(now)
    store.write([pack_batch(Batch((*offs, *ons), None))], now)
    store.write_measurements(measured(key, Origin.WINDOWS, samples_of(offs)), now)
    store.close(now)


def repeated(minute: Sequence[Window], start: int, count: int) -> list[Window]:
    """The windows of a minute, in so many minutes."""
    starts = range(start, start + count * MINUTE, MINUTE)
    # One that a slow scrape fell into would decide nothing, an hour long.
    sound = [
        replace(each, restarts=0, down_seconds=0.0, observed_seconds=float(MINUTE))
        for each in minute
    ]
    return [replace(window, start=at) for at in starts for window in sound]


def busiest(windows: Sequence[Window]) -> list[Window]:
    """Those of the minute in which most was generated, of all temperatures and of each."""
    wholes = [window for window in windows if window.series.segment == ALL]
    start = max(wholes, key=lambda each: each.tally.generation_tokens or 0).start
    return [window for window in windows if window.start == start]
