"""Several daemons that start at once on an empty database get along."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from specwatch.store import database, repository
from tests.fixtures import OpenStore
from tests.store.examples import T0, batch, cursor, minute, read

DAEMONS = [f"daemon{number}" for number in range(3)]


def test_three_daemons_can_start_at_once_on_an_empty_database(
    empty_url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "create", database.create)
    together = threading.Barrier(len(DAEMONS))

    def live(daemon: str) -> None:
        together.wait(30)
        store = open_store(empty_url, daemon)
        for n in range(2):
            windows = [minute(T0 + 60 * n, daemon=daemon, target=t) for t in (daemon, "shared")]
            store.write([batch(*windows, cursor=cursor(daemon, value=n))], 0)
        store.roll_up(T0 + 4000)
        store.close(0)

    with ThreadPoolExecutor(len(DAEMONS)) as pool:
        list(pool.map(live, DAEMONS))
    store = open_store(empty_url)
    rows = {name: count for name, count in store.info().rows.items() if count}
    assert rows == {
        "runs": 4,
        "series": 6,
        "contexts": 1,
        "layouts": 1,
        "minute_counts": 12,
        "hour_counts": 6,
        "cursors": 3,
    }
    assert len(read(store)) == 8
