"""Postgres restarted, killed or locked: nothing is lost or doubled, and no password is shown."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator

import psycopg
import pytest

from specwatch.errors import StoreUnavailable
from specwatch.store import database
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue
from tests.fixtures import OpenStore
from tests.postgres import PostgresServer
from tests.store.examples import T0, batch, cursor, minute, read, starts


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of a server that runs again afterwards, whatever the test did to it."""
    yield postgres.new_url()
    postgres.stop()
    postgres.start()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_windows_wait_while_the_server_is_away(
    postgres: PostgresServer, store: Store, how: signal.Signals
) -> None:
    queue = WriteQueue()
    queue.put(batch(minute(T0), cursor=cursor(value=0)))
    queue.drain(store, now=0)
    postgres.stop(how)
    for n in range(1, 5):
        queue.put(batch(minute(T0 + 60 * n), cursor=cursor(value=n)))
        outcome = queue.drain(store, now=100 * n)
        assert isinstance(outcome.error, StoreUnavailable)
        assert outcome.error.retry
    assert (queue.depth, queue.failures, queue.behind_since) == (4, 4, 100)
    postgres.start()
    assert queue.drain(store, now=1000).written == 4
    assert starts(read(store)) == [T0 + 60 * n for n in range(5)]
    assert store.cursors() == {"chat": cursor(value=4)}
    assert store.info().rows["runs"] == 1


def test_nothing_is_lost_or_doubled_by_restarts_in_the_middle_of_writes(
    postgres: PostgresServer, store: Store
) -> None:
    queue, stop = WriteQueue(limit=10**6, per_transaction=20), threading.Event()
    put: list[int] = []

    def keep_writing() -> None:
        while not stop.is_set():
            start = T0 + 60 * len(put)
            queue.put(batch(minute(start, drafts=len(put)), cursor=cursor(value=len(put))))
            put.append(start)
            queue.drain(store, now=0, force=True)

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        for how in (signal.SIGQUIT, signal.SIGINT, signal.SIGQUIT):
            reached = len(put) + 30
            while len(put) < reached:
                thread.join(0.01)
            postgres.stop(how)
            postgres.start()
    finally:
        stop.set()
        thread.join()
    queue.drain(store, now=0, force=True)
    assert queue.failures > 0
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


def test_tables_dropped_under_a_running_daemon_are_created_again(
    postgres: PostgresServer, url: str, store: Store
) -> None:
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
