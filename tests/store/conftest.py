"""An empty database of each kind, and stores that are closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.store import upkeep
from specwatch.store.repository import Store

OpenStore = Callable[..., Store]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else waits for the database while hours are built or deleted one by one."""
    monkeypatch.setattr(upkeep, "_PAUSE", 0.001)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state/specwatch.db"
    else:
        yield request.getfixturevalue("postgres").new_url()


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    """Where a SQLite database will lie."""
    return tmp_path / "state" / "specwatch.db"


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Open stores by URL and daemon (``left`` by default)."""
    stores: list[Store] = []

    def opened(url: str, daemon: str = "left", now: float = 0.0, **options: int) -> Store:
        store = Store(url, daemon=daemon, **options)
        stores.append(store)
        store.open(now)
        return store

    yield opened
    for store in stores:
        store._database.dispose()


@pytest.fixture
def store(url: str, open_store: OpenStore) -> Store:
    """An open store of the daemon ``left`` on an empty database."""
    return open_store(url)
