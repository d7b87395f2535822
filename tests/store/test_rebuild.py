"""A malformed SQLite file: readable rows are copied into a new one, and the old one is kept."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specwatch.domain.model import HOUR, MINUTE
from specwatch.errors import StoreMalformed, StoreUnavailable
from specwatch.store import repair as repairing
from specwatch.store.repair import check, repair
from specwatch.store.repository import Store
from tests.fixtures import OpenStore
from tests.store.examples import T0, batch, minute, read, starts

NOW = T0 + 400 * HOUR
MINUTES = 150
PAGE = 4096


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a closed store with many minutes."""
    path = tmp_path_factory.mktemp("source") / "source.db"
    store = Store(f"sqlite:///{path}", daemon="left")
    store.open(0)
    windows = (
        minute(T0 + MINUTE * number, target=("chat", "code")[number % 2])
        for number in range(MINUTES)
    )
    store.write([batch(*windows)], NOW)
    store.close(NOW)
    return path.read_bytes()


@pytest.fixture
def url(sqlite_file: Path, source: bytes) -> str:
    """A store with many minutes."""
    sqlite_file.parent.mkdir(mode=0o700)
    sqlite_file.write_bytes(source)
    return f"sqlite:///{sqlite_file}"


def damage_page(path: Path, number: int | None = None) -> None:
    """Overwrite a page; by default the last but one, which has minutes."""
    number = path.stat().st_size // PAGE - 2 if number is None else number
    with path.open("r+b") as file:
        file.seek(number * PAGE)
        file.write(b"\xa5" * PAGE)


def page_of(path: Path, table: str) -> int:
    """The root page of a table, counted from 0."""
    with closing(sqlite3.connect(path)) as connection:
        cursor = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        return int(cursor.fetchone()[0]) - 1


def test_rows_on_other_pages_are_saved(url: str, sqlite_file: Path) -> None:
    sqlite_file.chmod(0o640)
    damage_page(sqlite_file)
    damaged = sqlite_file.read_bytes()
    assert check(url).problems
    done = repair(url, NOW)
    assert done.rebuilt is not None
    assert done.rebuilt.kept.read_bytes() == damaged
    assert done.rebuilt.kept.name == f"{sqlite_file.name}.damaged-20231201T140000Z"
    assert done.rebuilt.incomplete == ("minutes",)
    assert MINUTES - 50 < done.rebuilt.rows["minutes"] < MINUTES
    assert check(url).sound
    assert len(read(Store(url, daemon="left"))) == done.rebuilt.rows["minutes"]
    assert list(sqlite_file.parent.glob("*.repaired*")) == []
    status = sqlite_file.stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o640, os.getuid())


def test_a_table_that_is_lost_loses_no_other(url: str, sqlite_file: Path) -> None:
    damage_page(sqlite_file, page_of(sqlite_file, "minutes"))
    done = repair(url, NOW)
    assert done.rebuilt is not None
    assert (done.rebuilt.rows["minutes"], done.rebuilt.rows["series"]) == (0, 2)
    assert done.rebuilt.incomplete == ("minutes",)


def test_windows_of_a_series_that_is_lost_are_set_aside(url: str, sqlite_file: Path) -> None:
    damage_page(sqlite_file, page_of(sqlite_file, "series"))
    done = repair(url, NOW)
    assert (done.left, len(done.moved)) == ([], MINUTES)
    assert "there is no such series" in done.moved[0].reason
    assert check(url).sound


def test_a_file_without_a_header_is_replaced_by_an_empty_database(
    url: str, sqlite_file: Path
) -> None:
    damage_page(sqlite_file, 0)
    with pytest.raises(StoreMalformed, match="`specwatch db repair` keeps it"):
        Store(url, daemon="left").open(NOW)
    done = repair(url, NOW)
    assert done.rebuilt is not None
    assert sum(done.rebuilt.rows.values()) == 0
    Store(url, daemon="left").open(NOW)


def test_a_running_daemon_goes_on_in_the_new_file(
    url: str, sqlite_file: Path, open_store: OpenStore
) -> None:
    """Its last rows are in the log beside the old file."""
    store = open_store(url, now=NOW)
    late = T0 + MINUTE * (MINUTES + 9)
    store.write([batch(minute(late))], NOW)
    damage_page(sqlite_file)
    assert repair(url, NOW).rebuilt is not None
    store.write([batch(minute(late + MINUTE))], NOW)
    store.close(NOW)
    assert starts(read(Store(url, daemon="left"), since=late)) == [late, late + MINUTE]


def test_a_file_that_another_process_writes_to_is_unchanged(
    url: str, sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "SQLITE_BUSY_SECONDS", 0.01)
    damage_page(sqlite_file)
    before = sqlite_file.read_bytes()
    with closing(sqlite3.connect(sqlite_file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked; it is unchanged"):
            repair(url, NOW)
    assert sqlite_file.read_bytes() == before
    assert [path.name for path in sqlite_file.parent.iterdir()] == [sqlite_file.name]


def test_an_undamaged_file_is_not_rebuilt(url: str, sqlite_file: Path) -> None:
    identity = sqlite_file.stat().st_ino
    assert repair(url, NOW) == (None, [], [])
    assert sqlite_file.stat().st_ino == identity
