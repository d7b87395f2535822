"""Databases of tests of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.store.repository import Store
from specwatch.store.schema import guard_steps, guards
from tests.fixtures import OpenStore
from tests.guard.living import Book, Living

StoreOf = Callable[..., Store]
"""The store of a daemon, by its name."""
NewLiving = Callable[..., Living]


class GuardDatabase:
    """A database that tests of guards use one after another, and its stores by daemon."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: dict[str, Store] = {}

    def store(self, daemon: str = "d") -> Store:
        if daemon not in self._stores:
            self._stores[daemon] = Store(self._url, daemon=daemon)
            self._stores[daemon].open(0.0)
        return self._stores[daemon]

    def clear(self) -> None:
        """Delete every guard, which is all that these tests store."""
        with self.store().writing(1.0) as connection:
            connection.execute(guard_steps.delete())
            connection.execute(guards.delete())

    def close(self) -> None:
        for store in self._stores.values():
            store._database.dispose()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the database of a daemon will lie."""
    return tmp_path / "d.db"


@pytest.fixture
def stores(database: Path, open_store: OpenStore) -> StoreOf:
    """The stores of a new database."""
    return lambda daemon: open_store(f"sqlite:///{database}", daemon)


@pytest.fixture(scope="session")
def guard_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardDatabase]:
    made = GuardDatabase(f"sqlite:///{tmp_path_factory.mktemp('guards')}/s.db")
    yield made
    made.close()


@pytest.fixture
def guards_of(guard_database: GuardDatabase) -> StoreOf:
    """The stores of a database without any guard."""
    guard_database.clear()
    return guard_database.store


@pytest.fixture
def new_living(guard_database: GuardDatabase) -> NewLiving:
    """Makes a guardian whose guard is the only one; see ``Living``."""

    def made(**options: Any) -> Living:
        guard_database.clear()
        living = Living(Path("not used"), **options)
        living.store = guard_database.store()
        living.book = Book(living.store, living.point)
        living.guardian = living._born()
        return living

    return made
