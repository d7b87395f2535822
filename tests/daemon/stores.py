"""Databases that tests share: to make the tables and to compile each statement takes longer than
what most tests do with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from specwatch.store.database import create
from specwatch.store.repository import Store
from specwatch.store.schema import guard_steps, guards, metadata
from tests.guard.living import Book, Living

StoreOf = Callable[..., Store]
"""The store of a daemon, by its name."""


class SharedDatabase:
    """A database that tests use one after another, and its stores by daemon."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: dict[str, Store] = {}

    def store(self, daemon: str = "d") -> Store:
        if daemon not in self._stores:
            self._stores[daemon] = Store(self._url, daemon=daemon)
        self._stores[daemon].open(0.0)
        return self._stores[daemon]

    def clear_guards(self) -> None:
        """Delete every guard, which is all that tests of guards store."""
        self._delete(guard_steps, guards)

    def clear(self) -> None:
        """Delete everything."""
        self._delete(*reversed(metadata.sorted_tables))
        for store in self._stores.values():
            store._forget()

    def _delete(self, *tables: sa.Table) -> None:
        with self.store().writing(1.0) as connection:
            for table in tables:
                connection.execute(table.delete())

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
def shared_database(empty_database: Path) -> Iterator[SharedDatabase]:
    made = SharedDatabase(f"sqlite:///{shutil.copy(empty_database, f'{empty_database}.shared')}")
    yield made
    made.close()


@pytest.fixture
def stores(shared_database: SharedDatabase) -> StoreOf:
    """The stores of an empty database."""
    shared_database.clear()
    return shared_database.store


@pytest.fixture(scope="session")
def guard_database(empty_database: Path) -> Iterator[SharedDatabase]:
    made = SharedDatabase(f"sqlite:///{shutil.copy(empty_database, f'{empty_database}.guards')}")
    yield made
    made.close()


@pytest.fixture
def guards_of(guard_database: SharedDatabase) -> StoreOf:
    """The stores of a database without any guard."""
    guard_database.clear_guards()
    return guard_database.store


@pytest.fixture
def new_living(guard_database: SharedDatabase) -> Callable[..., Living]:
    """Makes a guardian whose guard is the only one; see ``Living``."""

    def made(**options: Any) -> Living:
        guard_database.clear_guards()
        living = Living(Path("not used"), **{"every": 5.0} | options)
        living.store = guard_database.store()
        living.book = Book(living.store, living.point)
        living.guardian = living._born()
        return living

    return made


NewLiving = Callable[..., Living]
