"""Postgres restarted or killed: nothing is lost or doubled."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from specwatch.errors import StoreUnavailable
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue
from tests.postgres import PostgresServer, running_postgres
from tests.store.examples import T0, batch, cursor, minute, read, starts


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server that no other test uses."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_url()


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
