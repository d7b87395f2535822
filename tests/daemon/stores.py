"""Databases that tests share: to make the tables and to compile each statement takes longer than
what most tests do with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.store.database import create
from specwatch.store.repository import Store
from specwatch.store.schema import guard_steps, guards
from tests.guard.living import Book, Living

StoreOf = Callable[..., Store]
"""The store of a daemon, by its name."""


class GuardDatabase:
    """A database for guards, and its stores by daemon."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: dict[str, Store] = {}

    def store(self, daemon: str = "d") -> Store:
        if daemon not in self._stores:
            self._stores[daemon] = Store(self._url, daemon=daemon)
            self._stores[daemon].open(0.0)
        return self._stores[daemon]

    def clear(self) -> None:
        """Delete every guard."""
        with self.store().writing(1.0) as connection:
            connection.execute(guard_steps.delete())
            connection.execute(guards.delete())

    def close(self) -> None:
        for store in self._stores.values():
            store._database.dispose()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables, to be copied."""
    file = tmp_path_factory.mktemp("empty") / "d.db"
    assert create(f"sqlite:///{file}")
    return file


@pytest.fixture
def database(tmp_path: Path, empty_database: Path) -> Path:
    """A database of a test's own."""
    return Path(shutil.copy(empty_database, tmp_path / "d.db"))


@pytest.fixture(scope="session")
def guard_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardDatabase]:
    """One that is not empty: see ``guards_of``."""
    made = GuardDatabase(f"sqlite:///{tmp_path_factory.mktemp('guards')}/s.db")
    yield made
    made.close()


@pytest.fixture
def guards_of(guard_database: GuardDatabase) -> StoreOf:
    """The stores, by daemon, of a database without any guard."""
    guard_database.clear()
    return guard_database.store


@pytest.fixture
def new_living(guard_database: GuardDatabase) -> Callable[..., Living]:
    """Makes a guardian whose guard is the only one; see ``Living``."""

    def made(**options: Any) -> Living:
        guard_database.clear()
        living = Living(Path("not used"), **{"every": 5.0} | options)
        living.store = guard_database.store()
        living.book = Book(living.store, living.point)
        living.guardian = living._born()
        return living

    return made


NewLiving = Callable[..., Living]
