"""What the daemon costs as a process, beside Prometheus at the same work.

Both watch the same page server in turn, for a whole number of minutes, so that closing windows and
writing them has its share. What is judged on fills in an hour only: that hour is fed to the judges
in their own process.

``python -m tests.benchmarks.bench_fleet TARGETS ...`` shows how the costs grow with the number of
targets, every 15 s: of the daemon on SQLite and on Postgres, and of Prometheus.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from specwatch.config.loading import Config, from_targets
from specwatch.daemon.rule_service import RuleService
from specwatch.domain import histogram
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import HISTOGRAMS, HOUR, MINUTE, Batch, Histogram, Moment, Window
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests.benchmarks import bench_store, watcher
from tests.benchmarks.figure import Figure
from tests.benchmarks.page_server import PageServer
from tests.postgres import AS_INSTALLED, PostgresServer, running_postgres

TARGETS = 200
INTERVAL = 5
MINUTES = 75
"""Of what is fed to judges: an hour and the longest that is kept unmerged."""
TIMED_MINUTES = 10
DAY = 24 * HOUR
_LOADS = {3: 7.0, 4: 12.0, 5: 24.0}
"""Concurrencies of the baseline by load bin, around what is served."""
_TEMPERATURES = ("all", "0", "(0,0.3]", "(0.3,0.7]")
_WARM_UP = 12.0
_FAST_DISK = Path("/dev/shm")
_ENOUGH = 100
"""Targets below which a short run does not fill pages of a database, so a row has no size."""
_COLUMNS = (
    "targets",
    "watcher",
    "CPU s/s",
    "of Postgres",
    "MB",
    "late P50 ms",
    "P99 ms",
    "rows/s",
    "MB a day",
    "load",
    "start s",
    "stop s",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a fleet at constant load leaves in the database: rows a second, bytes a day."""

    rows: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one watcher: CPU in milliseconds a scrape and a second, memory in MB, times in seconds.

    ``late`` and ``very_late`` are P50 and P99 of how much later a scrape came than the earliest
    turn of its target.
    """

    cpu: float
    cpu_a_second: float
    resident: float
    proportional: float
    start: float
    stop: float
    late: float
    very_late: float
    database_cpu_a_second: float
    """Of the Postgres server."""
    stored: Stored | None


@dataclass(frozen=True, slots=True)
class JudgingCost:
    """Of judges who remember all that they may: memory in MB, CPU in ms a target and minute.

    ``added`` has numpy in it, which is loaded for the first baseline.
    """

    added: float
    cpu: float


def run(seconds: float = 60.0) -> list[Figure]:
    """Measure a daemon with 200 targets and one with a single one, and Prometheus with 200."""
    fleet = measure("daemon", TARGETS, seconds)
    everything: Cost | None = None
    ours: Cost | None = None
    if watcher.PROMETHEUS is not None:
        everything = measure("prometheus", TARGETS, seconds)
        ours = measure("prometheus, ours", TARGETS, seconds)
    single = measure("daemon", 1, seconds / 2)
    judged = {targets: measure_judging(targets) for targets in (1, TARGETS)}
    many, one = f"{TARGETS} targets, {INTERVAL} s", "1 target"
    return [
        Figure(
            f"CPU of a scrape in the daemon, {many}; peer: Prometheus",
            fleet.cpu,
            "ms",
            _of(everything, "cpu"),
            1.0,
            0.5,
            of_peer=True,
        ),
        Figure(
            "the same; peer: Prometheus keeping our families only",
            fleet.cpu,
            "ms",
            _of(ours, "cpu"),
            1.0,
            0.5,
            of_peer=True,
        ),
        Figure(f"CPU of the daemon a second, {one}", single.cpu_a_second, "ms"),
        Figure(f"resident memory, {one}", single.resident, "MB", None, 90, 70),
        Figure(
            f"resident memory, {many}; peer: Prometheus",
            fleet.resident,
            "MB",
            _of(everything, "resident"),
            150,
            100,
        ),
        Figure(
            f"proportional memory, {many}; peer: Prometheus",
            fleet.proportional,
            "MB",
            _of(everything, "proportional"),
        ),
        Figure(
            f"CPU of judging a target's minute, history full, {one}",
            judged[1].cpu,
            "ms",
        ),
        Figure(
            f"CPU of judging a target's minute, history full, {many}",
            judged[TARGETS].cpu,
            "ms",
        ),
        Figure(f"memory that an hour of history adds, {one}", judged[1].added, "MB"),
        Figure(f"memory that an hour of history adds, {many}", judged[TARGETS].added, "MB"),
        Figure(
            f"resident memory with it, {one}",
            single.resident + judged[1].added,
            "MB",
            None,
            90,
            70,
        ),
        Figure(
            f"resident memory with it, {many}",
            fleet.resident + judged[TARGETS].added,
            "MB",
            None,
            150,
            100,
        ),
        Figure(f"start to READY, {many}", fleet.start, "s", _of(everything, "start")),
        Figure(f"SIGTERM to exit, {many}", fleet.stop, "s", _of(everything, "stop")),
    ]


def _of(cost: Cost | None, name: str) -> float | None:
    return None if cost is None else float(getattr(cost, name))


def measure(
    who: str,
    targets: int,
    seconds: float,
    interval: int = INTERVAL,
    postgres: PostgresServer | None = None,
) -> Cost:
    """Run a watcher against its own page server; the daemon on SQLite, unless there is Postgres."""
    with contextlib.ExitStack() as stack:
        place = _FAST_DISK if _FAST_DISK.is_dir() else None
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place))) / "run"
        server = stack.enter_context(PageServer(targets))
        database = postgres.new_url() if postgres else f"sqlite:///{directory / 'bench.db'}"
        running = stack.enter_context(
            watcher.daemon(server.ports, interval, directory, database)
            if who == "daemon"
            else watcher.prometheus(
                server.ports, interval, directory, ours_only=who != "prometheus"
            )
        )

        def used() -> tuple[float, float]:
            of_postgres = watcher.cpu_seconds_with_children(postgres.pid) if postgres else 0.0
            return running.cpu_seconds(), of_postgres

        time.sleep(max(_WARM_UP, 1.5 * interval))
        if postgres:
            _settle(database)
        server.times()
        scrapes, cpu, began = server.scrapes(), used(), time.monotonic()
        time.sleep(seconds)
        scrapes = server.scrapes() - scrapes
        cpu_seconds, of_postgres = (
            after - before for before, after in zip(cpu, used(), strict=True)
        )
        took = time.monotonic() - began
        late = statistics.quantiles(_lateness(server.times(), interval), n=100)
        expected = targets * took / interval
        if not 0.9 * expected - 1 <= scrapes <= 1.1 * expected + 1:
            raise RuntimeError(f"{who}: {scrapes} scrapes instead of {expected:.0f}")
        resident, proportional = running.resident_megabytes(), running.proportional_megabytes()
        return Cost(
            cpu=1e3 * cpu_seconds / scrapes,
            cpu_a_second=1e3 * cpu_seconds / took,
            resident=resident,
            proportional=proportional,
            start=running.started_in,
            stop=running.stop(),
            late=late[49],
            very_late=late[98],
            database_cpu_a_second=1e3 * of_postgres / took,
            stored=_stored(database) if who == "daemon" else None,
        )


def _settle(database: str) -> None:
    """Wait until each guard has stored its first steps, or for two minutes."""
    store = Reader.of(database)
    steps = -1
    for _ in range(12):
        before, steps = steps, store.info().rows["guard_steps"]
        if steps == before:
            break
        time.sleep(10)
    store.close()


def _lateness(times: Sequence[Sequence[float]], interval: int) -> list[float]:
    """How much later each scrape came than the earliest turn of its target, in seconds."""
    late = []
    for of_target in times:
        turns = [at - interval * round((at - of_target[0]) / interval) for at in of_target]
        late += [turn - min(turns) for turn in turns]
    return late


def _stored(database: str) -> Stored:
    """What a day leaves, by the rows of a full minute, of an hour, and their sizes."""
    store = Store(database, daemon="bench")
    now = time.time()
    store.roll_up(now + 2 * HOUR, everybody=True)
    a_second = a_day = 0.0
    with store.writing(now) as connection:
        for table, length in (("minute_counts", MINUTE), ("hour_counts", HOUR)):
            rows, most = connection.exec_driver_sql(
                "SELECT sum(n), max(n) FROM"
                f" (SELECT count(*) AS n FROM {table} GROUP BY start) AS starts"
            ).one()
            if connection.dialect.name == "sqlite":
                size = f"SELECT sum(pgsize) FROM dbstat WHERE name = '{table}'"
            else:  # without what transactions that failed have left
                connection.exec_driver_sql(f"CREATE TABLE packed (LIKE {table} INCLUDING ALL)")
                connection.exec_driver_sql(f"INSERT INTO packed SELECT * FROM {table}")
                size = "SELECT pg_total_relation_size('packed')"
            bytes_a_row = connection.exec_driver_sql(size).scalar_one() / float(rows)
            if connection.dialect.name != "sqlite":
                connection.exec_driver_sql("DROP TABLE packed")
            a_second += most / length
            a_day += most * DAY / length * bytes_a_row
    store.close()
    return Stored(a_second, a_day)


def scale(counts: Sequence[int], seconds: float) -> Iterator[tuple[str, ...]]:
    """Rows of a table: how the costs of each watcher grow with the number of targets."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_postgres(AS_INSTALLED))
        for targets in counts:
            watchers = {
                "specwatch, SQLite": ("daemon", None),
                "specwatch, Postgres": ("daemon", postgres),
                "Prometheus": ("prometheus", None),
            }
            for name, (who, server) in watchers.items():
                cost = measure(who, targets, seconds, 15, server)
                stored = cost.stored
                yield (
                    f"{targets:,}",
                    name,
                    f"{cost.cpu_a_second / 1e3:.3f}",
                    f"{cost.database_cpu_a_second / 1e3:.3f}" if server else "",
                    f"{cost.resident:.0f}",
                    f"{cost.late * 1e3:.0f}",
                    f"{cost.very_late * 1e3:.0f}",
                    f"{stored.rows:.2f}" if stored else "",
                    f"{stored.bytes / 1e6:.1f}" if stored and targets >= _ENOUGH else "",
                    f"{os.getloadavg()[0]:.1f}",
                    f"{cost.start:.1f}",
                    f"{cost.stop:.1f}",
                )


def measure_judging(targets: int) -> JudgingCost:
    """Feed an hour and more to the judges of a fleet, in a process that does nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_judge, (targets,))


def _judge(targets: int) -> JudgingCost:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    begun = bench_store.T0 + 0.0
    clock = [begun]
    names = [f"t{number}" for number in range(targets)]
    with tempfile.TemporaryDirectory() as directory:
        store = Store(f"sqlite:///{directory}/bench.db", daemon="bench")
        store.open(begun)
        store.write_measurements([each for name in names for each in _baseline(name)], begun)
        judging = RuleService(store, _watching(names), now=lambda: Moment(clock[0], clock[0]))
        chance = random.Random(1)
        before = _resident_megabytes()
        cpu = 0.0
        for minute in range(MINUTES):
            start = bench_store.T0 + MINUTE * minute
            clock[0] = start + MINUTE
            judging.catch_up()
            for name in names:
                batch = Batch(tuple(_scraped(name, start, chance)), None)
                at = time.process_time()
                judging.observe(name, batch)
                cpu += time.process_time() - at if minute >= MINUTES - TIMED_MINUTES else 0.0
        if judging.status().defects or not all(map(_measured(judging), names)):
            raise RuntimeError("the judges had nothing to compare with")
        added = _resident_megabytes() - before
        store.close(clock[0])
        return JudgingCost(added, 1e3 * cpu / targets / TIMED_MINUTES)


def _measured(judging: RuleService) -> Callable[[str], bool]:
    """Whether the speedup of a target was measured."""
    return lambda name: all(
        model.assessment.measured for model in judging.decision_of(name).models.values()
    )


def _watching(names: Sequence[str]) -> Config:
    targets = [{"name": name, "url": f"http://127.0.0.1:1/{name}"} for name in names]
    return from_targets((), environ={}, hostname="bench", settings={"targets": targets})


def _baseline(target: str) -> list[Measurement]:
    """Two hours without speculation, in three load bins."""
    chance = random.Random(target)
    key = BaselineKey(target, "llama-3.3-70b", "0.11.0")
    found = []
    for load_bin, concurrency in _LOADS.items():
        points = tuple(
            Point(bench_store.T0 - MINUTE * (n + 1.0), concurrency, chance.uniform(3, 4), 100.0)
            for n in reversed(range(120))
        )
        ttft, tpot = (
            bench_store.histogram(bounds, 120 * 100, center, chance)
            for bounds, center in ((bench_store.TTFT, 0.08), (bench_store.TPOT, 0.03))
        )
        found.append(Measurement(key, load_bin, Origin.WINDOWS, points, ttft, tpot, len(points)))
    return found


def _scraped(target: str, start: int, chance: random.Random) -> Iterator[Window]:
    """A minute of a target, with nothing shared that scrapes do not share."""
    for window in bench_store.windows(target, start, chance):
        if window.series.segment.value in _TEMPERATURES:
            again: dict[str, Any] = {
                name: _read_again(getattr(window.tally, name))
                for name in HISTOGRAMS
                if getattr(window.tally, name) is not None
            }
            yield msgspec.structs.replace(
                window, tally=msgspec.structs.replace(window.tally, **again)
            )


def _read_again(one: Histogram) -> Histogram | None:
    """A histogram as it is read from a page, its bounds from text."""
    bounds = [float(str(bound)) for bound in (*one.bounds, math.inf)]
    cumulative = map(float, itertools.accumulate(one.counts))
    return histogram.from_cumulative(dict(zip(bounds, cumulative, strict=True)), one.sum)


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    print("|", " | ".join(_COLUMNS), "|\n" + "|---" * len(_COLUMNS) + "|")
    for row in scale([int(count) for count in sys.argv[1:]], 60.0):
        print("|", " | ".join(row), "|", flush=True)
