"""The report of a week of a fleet, from hours and from minutes, on SQLite and Postgres.

Each is made by its own process and those that it shares the work with, whose memory is looked
at when they end. The rows are those of real windows, of which there are a few dozen, so that
writing them takes less than reading.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec.structs import asdict, replace

from specwatch.cli import report
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import (
    HOUR,
    MINUTE,
    Environment,
    Gauges,
    Mode,
    SeriesId,
    Source,
    Window,
)
from specwatch.report import reader
from specwatch.report.grouped_data import ReportSources
from specwatch.report.model import ModelReport
from specwatch.store import schema
from specwatch.store.counts import COLUMNS, LARGEST, Context, context_of, row_of
from specwatch.store.database import Database
from specwatch.store.repository import Store
from specwatch.store.statements import add_contexts, add_rows
from tests.benchmarks.bench_store import tally
from tests.benchmarks.figure import Figure
from tests.postgres import running_postgres
from tests.segments import segment

BUCKETS = ("all", "0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1", "unknown")
TARGETS = 50
_TARGETS_OF_MINUTES = 8
DAY = 86400
T0 = 1_700_000_000 // DAY * DAY
NOW = T0 + 14 * DAY
"""The end of two weeks."""
_MODEL = "llama-3.3-70b"
_LOAD = 12.0
_VARIANTS = 61
_ROWS_AT_ONCE = 50_000
_MOST_MEGABYTES = 150.0


def run() -> list[Figure]:
    """Seconds, of the clock and of all processors, and peak memory of each; what Postgres itself
    takes of the processors and the memory is not counted."""
    figures: list[Figure] = []
    for name, url in _databases():
        figures += _figures(name, "hours", url(), HOUR, 14, TARGETS, (2.0, 0.5))
        figures += _figures(name, "minutes", url(), MINUTE, 7, _TARGETS_OF_MINUTES, (25.0, 5.0))
    return figures


def _figures(
    name: str, of: str, url: str, length: int, days: int, targets: int, limits: tuple[float, float]
) -> Iterator[Figure]:
    fill(url, length, days, targets)
    found = _measured(url)
    budget, aim = limits
    # Each target takes as long as the next.
    times = TARGETS / targets
    known = "" if times == 1 else f" ({targets} measured)"
    what = f"report: {TARGETS} targets x 7 days from {of}, {name}{known}"
    yield Figure(what, found["seconds"] * times, "s", budget=budget, aim=aim)
    yield Figure(f"{what}: processors", found["processors"] * times, "s")
    yield Figure(f"{what}: reading alone", found["reading"] * times, "s")
    yield Figure(f"{what}: peak memory", found["megabytes"], "MB", budget=_MOST_MEGABYTES)
    yield Figure(f"{what}: peak memory, each of its processes", found["each"], "MB")


def _databases() -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="specwatch-bench-") as folder:
        numbers = iter(range(9))
        yield "SQLite", lambda: f"sqlite:///{folder}/{next(numbers)}.db"
    with running_postgres() as server:
        yield "Postgres", server.new_url


def fill(url: str, length: int, days: int, targets: int = TARGETS) -> None:
    """Write windows of that length of the last days, up to the last whole hour."""
    store = Store(url, daemon="bench")
    store.open(0.0)
    store.write_measurements([_baseline(f"target-{n}") for n in range(targets)], float(NOW))
    store.close(0.0)
    starts = range(NOW - days * DAY, NOW, length)
    table = schema.hours if length == HOUR else schema.minutes
    own = ("load_bin",) if length == HOUR else ("run_id",)
    names = ("start", "series_id", "context_id", *own, *COLUMNS)
    variants = _variants(length)
    shared = 4 if length == HOUR else 1  # the load bin of an hour, or the run of a minute
    database = Database(url, migrating=True)
    with database.writing() as connection:
        ids = [(n, bucket) for n in range(targets) for bucket in BUCKETS]
        connection.execute(
            schema.series.insert(),
            [
                {
                    "id": 1 + at,
                    "daemon": "bench",
                    "target": f"target-{n}",
                    "model_name": _MODEL,
                    **asdict(segment(bucket)),
                    "first_start": starts[0],
                    "last_start": starts[-1],
                    "rolled_until": NOW if length == HOUR else 0,
                    "pruned_until": 0,
                }
                for at, (n, bucket) in enumerate(ids)
            ],
        )
        contexts = {context for of in variants.values() for context, _ in of}
        numbers = add_contexts(connection, contexts, {})
        rows = (
            (start, at + 1, numbers[context], shared, *values)
            for start in starts
            for at, (n, bucket) in enumerate(ids)
            for context, values in (variants[bucket][(start // length * 7 + n) % _VARIANTS],)
        )
        _insert(connection, table, names, rows)
    if not database.is_sqlite:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
    database.dispose()


def _insert(connection: Any, table: Any, names: tuple[str, ...], rows: Iterator[Any]) -> None:
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        add_rows(connection, table, names, some)


def _variants(length: int) -> dict[str, list[tuple[Context, tuple[Any, ...]]]]:
    """Contexts and columns of some windows, by bucket."""
    chance = random.Random(7)
    largest = LARGEST * length // MINUTE
    return {
        bucket: [
            (context_of(window), row_of(window, largest))
            for window in (_window(bucket, length, chance) for _ in range(_VARIANTS))
        ]
        for bucket in BUCKETS
    }


def _window(bucket: str, length: int, chance: random.Random) -> Window:
    whole = bucket == "all"
    requests = (120 if whole else 20) * length // MINUTE
    running = Gauges(
        float(length), float(length), length * _LOAD, 0.0, 20, 0, 0.5, 70 << 30, 80 << 30
    )
    return Window(
        series=SeriesId("bench", "target", _MODEL, segment(bucket)),
        start=T0,
        length=length,
        mode=Mode.ON,
        tally=replace(tally(requests, chance, whole=whole), uncovered={}),
        gauges=running,
        environment=Environment("0.32.0", "3f2a9c01d4e5-3"),
        source=Source.SERVER if whole else Source.TAP,
        server_drafts=None if whole else requests * 80,
        source_drafts=None if whole else requests * 78,
        observed_seconds=float(length),
        scrapes_ok=length // 5,
    )


def _baseline(target: str) -> Measurement:
    points = tuple(
        Point(NOW - 600.0 * at, _LOAD, 30.0 * (1 + at % 3 / 50), 1000.0) for at in range(30)
    )
    key = BaselineKey(target, _MODEL, "0.32.0", "3f2a9c01d4e5")
    return Measurement(key, 4, Origin.CALIBRATION, points)


def _measured(url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_report", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(url: str) -> dict[str, float]:
    """Make the report: seconds, those of all processors, those of reading, and peak memory.

    What is imported for the first report does not count.
    """
    report.made(url, None, since=NOW - HOUR, until=NOW, now=NOW, targets=["target-0"])
    report.made(url, None, since=NOW - DAY, until=NOW, now=NOW, targets=["target-0"])
    began, busy = time.monotonic(), _processors()
    made = report.made(url, None, since=NOW - 7 * DAY, until=NOW, now=NOW)
    seconds, processors = time.monotonic() - began, _processors() - busy
    megabytes, each = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    assert made.targets, made.notes
    assert all(target.answer.speedup for target in made.targets)
    setattr(reader, "build", _only_read)  # noqa: B010
    began = time.monotonic()
    report.made(url, None, since=NOW - 7 * DAY, until=NOW, now=NOW)
    reading = time.monotonic() - began
    return {
        "seconds": seconds,
        "processors": processors,
        "reading": reading,
        "megabytes": megabytes,
        "each": each,
    }


def _processors() -> float:
    """Seconds that this process and those that it started took of them."""
    return sum(os.times()[:4])


def _only_read(sources: ReportSources, since: float, until: float) -> tuple[ModelReport, ...]:
    for _ in sources.windows:
        pass
    return ()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
