"""What a day of one busy target takes in SQLite, and how long a flush of a large fleet takes.

On Postgres also three ways to insert many rows, and two to prune them.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from specwatch.domain.model import (
    Batch,
    Cursor,
    Environment,
    Gauges,
    Histogram,
    Mode,
    Series,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.store import partitions, schema
from specwatch.store.batches import PackedBatch, pack_batch
from specwatch.store.database import Database
from specwatch.store.repository import Store
from specwatch.store.statements import add_rows, fetch_rows, selected
from tests.benchmarks.figure import Figure
from tests.postgres import AS_INSTALLED, find_programs, running_postgres
from tests.segments import segment

BUCKETS = ("all", "0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")
DAY_OF_MINUTES = 1440
TARGETS = 200
DAYS = 14
INSERTED = {200: 41, 2_000: 15, 20_000: 3}
"""Windows of one minute, and how often each way inserts as many."""
T0 = 1_700_000_000 // 3600 * 3600
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
LENGTH = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
ACCEPTANCE = tuple(n / 20 for n in range(1, 20))


def run() -> list[Figure]:
    """Measure disk and time."""
    with tempfile.TemporaryDirectory(prefix="specwatch-bench-") as directory:
        size = measure_day(Path(directory) / "day.db")
        flush = measure_flush(Path(directory) / "fleet.db")
        rolled = measure_roll_up(Path(directory) / "day.db")
        pack = measure_packing()
    return _on_postgres() + [
        Figure(
            "store: a day of minutes, one busy target, 6 buckets", size, "MB", budget=3, aim=1.7
        ),
        Figure("store: flush of 200 targets x 6 buckets", flush, "ms", budget=50, aim=10),
        Figure("store: packing one window", pack, "µs"),
        Figure("store: rolling up one hour of 6 buckets", rolled, "ms"),
    ]


def _on_postgres() -> list[Figure]:
    """The same of Postgres, if it is installed."""
    if find_programs() is None:
        return []
    figures = []
    with running_postgres(AS_INSTALLED) as server:
        for windows, turns in INSERTED.items():
            took = measure_inserts(server.new_url(), windows, turns)
            figures += [
                Figure(
                    f"store: inserting {windows:,} windows into Postgres; peer: {way}",
                    took["arrays"],
                    "ms",
                    took[way],
                )
                for way in ("INSERT of each", "COPY")
            ]
        deleted, dropped = measure_retention(server.new_url())
        figures += [
            Figure(
                f"store: pruning a day of {TARGETS} targets from Postgres, {what}; peer: DELETE",
                dropped[what],
                unit,
                deleted[what],
            )
            for what, unit in (("time", "s"), ("WAL", "MB"))
        ]
    return figures


def measure_retention(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds, and megabytes of WAL, to prune a day by DELETE and VACUUM, and by DROP.

    Of a fleet without temperatures, with two weeks of minutes in the database.
    """
    first = T0 // partitions.DAY * partitions.DAY
    end = first + DAYS * partitions.DAY
    store, database = Store(url, daemon="bench"), Database(url, migrating=True)
    # The partitions are those of the second day and the two after it.
    store.open(first + partitions.DAY)
    chance = random.Random(5)
    store.write([batch(f"target-{n}", first, chance) for n in range(TARGETS)], now=0)
    others = ", ".join(column.name for column in schema.minutes.c if column.name != "start")
    with database.writing() as connection:
        for statement in (
            "DELETE FROM minute_counts USING series WHERE id = series_id AND value <> 'all'",
            f"UPDATE series SET last_start = {end - 60}, rolled_until = {end}",
            "CREATE TEMP TABLE one ON COMMIT DROP AS SELECT * FROM minute_counts",
            "SET LOCAL session_replication_role = replica",
            f"INSERT INTO minute_counts (start, {others}) SELECT {first} + 60 * n, {others}"
            f" FROM generate_series(1, {DAYS * DAY_OF_MINUTES} - 1) AS n, one",
        ):
            connection.exec_driver_sql(statement)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

        def vacuum() -> None:
            connection.exec_driver_sql("VACUUM minute_counts_default")

        def pruned(days: int) -> dict[str, float]:
            connection.exec_driver_sql("CHECKPOINT")
            before = connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn()").scalar_one()
            kept = DAYS * partitions.DAY
            took = milliseconds(lambda: store.prune(end + days * partitions.DAY, kept, 2 * kept))
            took += milliseconds(vacuum)
            written = f"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')"
            wal = float(connection.exec_driver_sql(written).scalar_one())
            return {"time": took / 1e3, "WAL": wal / 1e6}

        vacuum()
        costs = pruned(1), pruned(2)
    store.close()
    database.dispose()
    return costs


def measure_inserts(url: str, windows: int, turns: int) -> dict[str, float]:
    """Median milliseconds to insert the windows of one minute, by the way, all in turn."""
    chance = random.Random(4)
    store = Store(url, daemon="bench")
    store.open(0)
    targets = -(-windows // len(BUCKETS))
    store.write([batch(f"target-{n}", T0, chance) for n in range(targets)], now=0)
    columns = tuple(schema.minutes.c.keys())
    with store.connected() as connection:
        texts, lists = (
            fetch_rows(connection, f"SELECT {names} FROM minute_counts")[:windows]
            for names in (selected(connection, schema.minutes, columns), ", ".join(columns))
        )
    ways = {
        "arrays": (add_rows, texts),
        "INSERT of each": (_inserted_each, lists),
        "COPY": (_copied, lists),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    minutes = itertools.count(T0 + 60, 60)
    for _ in range(turns):
        for way, (work, stored) in ways.items():
            start = next(minutes)
            rows = [(start, *row[1:]) for row in stored]
            with store.writing(0) as connection:
                took[way].append(
                    milliseconds(lambda: work(connection, schema.minutes, columns, rows))  # noqa: B023
                )
    store.close(0)
    return {way: statistics.median(times) for way, times in took.items()}


def _inserted_each(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    marks = ", ".join("%s" for _ in columns)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING",
        list(rows),
    )


def _copied(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    """COPY knows no ON CONFLICT: it fills a temporary table."""
    driver: Any = connection.connection.driver_connection
    names = ", ".join(columns)
    with driver.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE copied (LIKE {table.name}) ON COMMIT DROP")
        with cursor.copy(f"COPY copied ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(
                [table.c[name].type.compile(connection.dialect).lower() for name in columns]
            )
            for row in rows:
                copy.write_row(row)
        cursor.execute(
            f"INSERT INTO {table.name} ({names}) SELECT {names} FROM copied ON CONFLICT DO NOTHING"
        )


def measure_day(file: Path) -> float:
    """Megabytes of a day of minutes of one target, after a checkpoint."""
    chance = random.Random(1)
    store = Store(f"sqlite:///{file}", daemon="bench")
    store.open(0)
    for n in range(DAY_OF_MINUTES):
        store.write([batch("chat-70b", T0 + 60 * n, chance)], now=0)
    store.close(0)
    return file.stat().st_size / 1e6


def measure_flush(file: Path) -> float:
    """Median milliseconds to write one minute of a fleet."""
    chance = random.Random(2)
    store = Store(f"sqlite:///{file}", daemon="bench")
    store.open(0)

    took = []
    for n in range(15):
        batches = [batch(f"target-{m}", T0 + 60 * n, chance) for m in range(TARGETS)]
        took.append(milliseconds(lambda: store.write(batches, now=0)))  # noqa: B023
    store.close(0)
    return statistics.median(took)


def measure_roll_up(file: Path) -> float:
    """Milliseconds to roll up one hour, of the database that measure_day left."""
    store = Store(f"sqlite:///{file}", daemon="bench")
    store.open(0)
    took = milliseconds(lambda: store.roll_up(T0 + 25 * 3600))
    store.close(0)
    return took / 24


def measure_packing() -> float:
    """Microseconds to pack one window."""
    batches = [Batch(tuple(windows("t", T0, random.Random(3))), None) for _ in range(200)]
    took = milliseconds(lambda: [pack_batch(batch) for batch in batches])
    return took * 1e3 / (len(batches) * len(BUCKETS))


def milliseconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def batch(target: str, start: int, chance: random.Random) -> PackedBatch:
    """One minute of a target, with a cursor of 97 series as a page of vLLM has."""
    series = [Series("ttft", "bucket", "llama-3.3-70b", "0", str(n)) for n in range(97)]
    samples = {each: float(chance.randrange(10**6)) for each in series}
    cursor = Cursor(target, samples, 1_700_000_000.25, start + 60.5)
    return pack_batch(Batch(tuple(windows(target, start, chance)), cursor))


def windows(target: str, start: int, chance: random.Random) -> Iterator[Window]:
    """One minute of a target that serves some 120 requests, one window a bucket."""
    for bucket in BUCKETS:
        requests = 120 if bucket == "all" else 24
        yield Window(
            series=SeriesId("bench", target, "llama-3.3-70b", segment(bucket)),
            start=start,
            length=60,
            mode=Mode.ON,
            tally=tally(requests, chance, whole=bucket == "all"),
            gauges=gauges(chance) if bucket == "all" else Gauges(),
            environment=Environment("0.11.0", "3f2a9c01d4e5"),
            source=Source.SERVER if bucket == "all" else Source.TAP,
            server_drafts=None if bucket == "all" else requests * 80,
            observed_seconds=60 + chance.uniform(-0.01, 0.01),
            scrapes_ok=12,
        )


def tally(requests: int, chance: random.Random, *, whole: bool) -> Tally:
    """What that many requests count; ``whole`` has what only the server knows."""
    drafts = requests * chance.randrange(70, 90)
    accepted = [int(drafts * share) for share in (0.81, 0.62, 0.45)]
    prompts = requests * chance.randrange(400, 600)
    return Tally(
        drafts=drafts,
        draft_tokens=3 * drafts,
        accepted_tokens=sum(accepted),
        accepted_per_position=tuple(accepted),
        prompt_tokens=prompts,
        generation_tokens=drafts + sum(accepted),
        preemptions=0 if whole else None,
        prefix_cache_queries=prompts if whole else None,
        prefix_cache_hits=prompts // 3 if whole else None,
        requests={"stop": requests - 9, "length": 8, "abort": 1, "error": 0},
        ttft=histogram(TTFT, requests, 0.08, chance),
        tpot=histogram(TPOT, requests, 0.03, chance),
        inter_token=histogram(TPOT, drafts, 0.03, chance) if whole else None,
        e2e=histogram(E2E, requests, 6.0, chance),
        output_length=histogram(LENGTH, requests, 200.0, chance),
        request_acceptance=None if whole else histogram(ACCEPTANCE, requests, 0.6, chance),
    )


def gauges(chance: random.Random) -> Gauges:
    """Samples of a busy minute."""
    return Gauges(
        sampled_seconds=60 + chance.uniform(-0.01, 0.01),
        busy_seconds=60 + chance.uniform(-0.01, 0.01),
        running_seconds=chance.uniform(500, 900),
        waiting_seconds=0.0,
        running_max=chance.randrange(12, 30),
        kv_cache_usage_max=chance.uniform(0.3, 0.6),
        gpu_memory_used_max=70 * 2**30,
        gpu_memory_total=80 * 2**30,
    )


def histogram(
    bounds: tuple[float, ...], count: int, center: float, chance: random.Random
) -> Histogram:
    """Observations spread around a center as latencies are."""
    counts = [0] * (len(bounds) + 1)
    shares = [1 / (1 + (bound / center - 1) ** 4 * 8) for bound in bounds]
    for index, share in enumerate(shares):
        counts[index] = int(count * share / sum(shares) * chance.uniform(0.7, 1.3))
    total = count * center * chance.uniform(0.9, 1.1)
    return Histogram(bounds, tuple(counts), float(int(total)) if center >= 100 else total)
