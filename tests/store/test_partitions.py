"""Minutes on Postgres are in partitions of a day: old days are dropped, and no row is ever lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specwatch.domain.model import HOUR
from specwatch.store.database import Database
from specwatch.store.partitions import DAY
from specwatch.store.repository import Store
from tests.fixtures import Log, OpenStore, events
from tests.postgres import PostgresServer
from tests.store.examples import T0, batch, minute, read, starts

TODAY = T0 // DAY * DAY
AHEAD = ["minute_counts_20231114", "minute_counts_20231115", "minute_counts_20231116"]
PARTITIONS = """
SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid
WHERE inhparent = 'minute_counts'::regclass AND relname !~ '^minute_counts_1970' ORDER BY relname
"""
STORAGE = """
SELECT relname, reloptions FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL
"""


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database with the partitions of three days long ago, which are left out here."""
    with postgres.lent_url() as lent:
        yield lent


@pytest.fixture
def store(url: str, open_store: OpenStore) -> Store:
    return open_store(url, now=TODAY + HOUR)


def asked(store: Store, query: str) -> list[Any]:
    with store.connected() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def names(store: Store) -> list[str]:
    return [name for (name,) in asked(store, PARTITIONS)]


def places(store: Store) -> list[str]:
    """The partition of each minute, by their start."""
    query = "SELECT tableoid::regclass::text FROM minute_counts ORDER BY start"
    return [name for (name,) in asked(store, query)]


def test_a_minute_is_in_the_partition_of_its_day_or_else_in_the_default_one(store: Store) -> None:
    windows = [minute(TODAY + n * DAY) for n in (-40, 0, 2, 3)]
    store.write([batch(*windows)], TODAY)
    assert read(store) == windows
    assert places(store) == ["minute_counts_default", AHEAD[0], AHEAD[2], "minute_counts_default"]


def test_the_size_of_a_database_is_that_of_its_partitions_too(store: Store) -> None:
    before = store.info().size
    store.write([batch(*(minute(TODAY + 60 * n) for n in range(1000)))], TODAY)
    assert store.info().size > before + 200_000


def test_days_that_are_over_are_dropped_once_their_minutes_are_in_hours(store: Store) -> None:
    days = [minute(TODAY + n * DAY + m * HOUR, drafts=7) for n in range(3) for m in (0, 20)]
    store.write([batch(*days)], TODAY)
    now = TODAY + 2 * DAY + 22 * HOUR
    assert store.prune(now, DAY, 99 * DAY).minutes == 2
    assert read(store) == days[2:], "of a day that is not over nothing is deleted"
    assert names(store) == [
        *AHEAD[1:],
        "minute_counts_20231117",
        "minute_counts_20231118",
        "minute_counts_default",
    ]
    assert starts(read(store, length=HOUR)) == starts(days[:4])
    store.write([batch(minute(TODAY + 120, drafts=3))], now)
    for _ in range(2):
        store.roll_up(now)
        assert read(store) == days[2:]
        assert [hour.tally.drafts for hour in read(store, length=HOUR)] == [10, 7, 7, 7, 7, 7]


def test_rows_of_a_day_that_came_before_its_partition_stay_where_they_are(
    store: Store, log: Log
) -> None:
    """Nobody made partitions in time. The rows are deleted one by one later."""
    now = TODAY + 5 * DAY
    early = [minute(now), minute(now + 60)]
    store.write([batch(*early)], now)
    store.prune(now, DAY, 99 * DAY)
    assert [entry["partition"] for entry in events(log, "partition_unchanged")] == [
        "minute_counts_20231119"
    ]
    assert {"minute_counts_20231120", "minute_counts_20231121"} < set(names(store))
    assert read(store) == early
    assert places(store) == ["minute_counts_default"] * 2
    assert store.prune(now + 9 * DAY, DAY, 99 * DAY).minutes == 2
    assert len(read(store, length=HOUR)) == 1


def test_who_reads_is_not_held_up_for_long_and_the_day_is_dropped_next_time(
    url: str, store: Store, log: Log
) -> None:
    store.write([batch(minute(TODAY))], TODAY)
    now = TODAY + 3 * DAY
    reader = Database(url)
    with reader.reading() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM minute_counts")
        assert store.prune(now, DAY, 99 * DAY).minutes == 0
        assert "lock timeout" in events(log, "partition_unchanged")[0]["detail"]
        store.write([batch(minute(TODAY + 60))], now)
    reader.dispose()
    assert store.prune(now, DAY, 99 * DAY).minutes == 2
    assert AHEAD[0] not in names(store)


def test_one_process_changes_partitions_at_a_time(
    url: str, store: Store, open_store: OpenStore
) -> None:
    database = Database(url)
    with database.writing() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(x'73707061'::int)")
        open_store(url, now=TODAY + 10 * DAY)
        assert names(store) == [*AHEAD, "minute_counts_default"]
    database.dispose()
    open_store(url, now=TODAY + 10 * DAY)
    assert len(names(store)) == 7
