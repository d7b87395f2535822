"""Postgres away, locked or emptied: nothing is lost or doubled, and no password is shown.

Its connections break and it takes no new ones; tests/nightly restarts and kills a real server.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator

import psycopg
import pytest

from specwatch.errors import StoreUnavailable
from specwatch.store import database, postgres_connection
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue
from tests.fixtures import OpenStore
from tests.postgres import PostgresServer
from tests.store.examples import T0, batch, cursor, minute, read, starts

USER = "faulty"


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    """A database of a user whom no other test is."""
    postgres.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN")
    with postgres.lent_url() as lent:
        yield lent.replace("specwatch@", f"{USER}@")
    postgres.execute(f"REASSIGN OWNED BY {USER} TO specwatch; DROP ROLE {USER}")


def break_connections(postgres: PostgresServer) -> None:
    postgres.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
    )


def test_windows_wait_while_the_server_is_away(postgres: PostgresServer, store: Store) -> None:
    queue = WriteQueue()
    queue.put(batch(minute(T0), cursor=cursor(value=0)))
    queue.drain(store, now=0)
    postgres.execute(f"ALTER ROLE {USER} NOLOGIN")
    break_connections(postgres)
    for n in range(1, 5):
        queue.put(batch(minute(T0 + 60 * n), cursor=cursor(value=n)))
        outcome = queue.drain(store, now=100 * n)
        assert isinstance(outcome.error, StoreUnavailable)
        assert outcome.error.retry
    assert (queue.depth, queue.failures, queue.behind_since) == (4, 4, 100)
    postgres.execute(f"ALTER ROLE {USER} LOGIN")
    assert queue.drain(store, now=1000).written == 4
    assert starts(read(store)) == [T0 + 60 * n for n in range(5)]
    assert store.cursors() == {"chat": cursor(value=4)}
    assert store.info().rows["runs"] == 1


def test_nothing_is_lost_or_doubled_by_connections_that_break_in_the_middle_of_writes(
    postgres: PostgresServer, store: Store
) -> None:
    queue, stop = WriteQueue(limit=10**6, per_transaction=20), threading.Event()
    put: list[int] = []
    more = threading.Semaphore(0)

    def keep_writing() -> None:
        while not stop.is_set():
            start = T0 + 60 * len(put)
            queue.put(batch(minute(start, drafts=len(put)), cursor=cursor(value=len(put))))
            put.append(start)
            queue.drain(store, now=0, force=True)
            more.release()

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        for _ in range(5):
            for _ in range(8):
                assert more.acquire(timeout=60)
            break_connections(postgres)
    finally:
        stop.set()
        thread.join()
    queue.drain(store, now=0, force=True)
    assert starts(read(store)) == put
    assert [window.tally.drafts for window in read(store)] == list(range(len(put)))
    assert store.cursors() == {"chat": cursor(value=len(put) - 1)}


def test_locks_and_statements_are_not_waited_for_long(
    url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "POSTGRES_LOCK_MS", 50)
    monkeypatch.setattr(database, "POSTGRES_STATEMENT_MS", 200)
    store = open_store(url)
    other = psycopg.connect(url)
    other.execute("LOCK TABLE minutes")
    with pytest.raises(StoreUnavailable, match="lock timeout"):
        store.write([batch(minute(T0))], now=0)
    other.close()
    store.write([batch(minute(T0))], now=0)
    assert read(store) == [minute(T0)]
    with (
        pytest.raises(StoreUnavailable, match="statement timeout"),
        store.connected() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(5)")


def test_a_server_that_hangs_fails_like_one_that_is_away(
    url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges, and no limit of its own ends anything: here they are off."""
    monkeypatch.setattr(database, "POSTGRES_LOCK_MS", 0)
    monkeypatch.setattr(database, "POSTGRES_STATEMENT_MS", 0)
    monkeypatch.setattr(postgres_connection, "SILENT_SECONDS", 0.2)
    store, queue = open_store(url), WriteQueue()
    queue.put(batch(minute(T0)))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE minutes")
        error = queue.drain(store, now=0).error
        assert isinstance(error, StoreUnavailable)
        assert "the server hangs: it did not answer for" in str(error)
        with pytest.raises(StoreUnavailable, match="hangs"), store.connected() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(60)")
    assert queue.drain(store, now=1e6).written == 1
    assert read(store) == [minute(T0)]


def test_tables_dropped_under_a_running_daemon_are_created_again(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    url = postgres.new_url()
    store = open_store(url)
    store.write([batch(minute(T0))], now=0)
    name = url.rpartition("%3D")[2]
    postgres.execute(f"DROP SCHEMA {name} CASCADE")
    postgres.execute(f"CREATE SCHEMA {name}")
    with pytest.raises(StoreUnavailable):
        store.write([batch(minute(T0 + 60), cursor=cursor())], now=0)
    store.write([batch(minute(T0 + 60), cursor=cursor())], now=0)
    assert starts(read(store)) == [T0 + 60]


def test_no_error_shows_a_password() -> None:
    """Neither the sentence nor anything chained to it."""
    store = Store("postgresql://me:sesame@127.0.0.1:1/db?connect_timeout=1", daemon="d")
    with pytest.raises(StoreUnavailable, match=r"Postgres database db on 127\.0\.0\.1:1") as caught:
        store.open(0)
    assert "sesame" not in "".join(traceback.format_exception(caught.value))
    assert "sesame" not in store.where
