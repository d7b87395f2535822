"""SQLite full, locked, read-only, deleted or damaged: a clear message, and recovery."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from specwatch.errors import StoreMalformed, StoreUnavailable
from specwatch.store import database
from specwatch.store.leases import Lease
from specwatch.store.repository import Store
from specwatch.store.schema import leases
from specwatch.store.write_queue import WriteQueue
from tests.daemon.stepped import StoppedClock
from tests.fixtures import OpenStore
from tests.store.examples import T0, batch, cursor, minute, read, starts


@pytest.fixture
def store(sqlite_file: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An open store in SQLite that does not wait long for locks."""
    monkeypatch.setattr(database, "SQLITE_BUSY_SECONDS", 0.05)
    return open_store(f"sqlite:///{sqlite_file}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    if os.getuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "specwatch", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_loses_nothing_once_there_is_room(
    small_disk: Path, open_store: OpenStore
) -> None:
    store, queue = open_store(f"sqlite:///{small_disk}/x.db"), WriteQueue(per_transaction=60)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(2_400_000))
    written = 0
    for written in range(20_000):
        queue.put(
            batch(
                minute(T0 + 60 * written, temperature=str(written % 6)),
                cursor=cursor(value=written),
            )
        )
        if written % 50 == 0 and (error := queue.drain(store, now=written).error):
            break
    else:
        pytest.fail("the disk never was full")
    assert isinstance(error, StoreUnavailable)
    assert f"{small_disk}/x.db" in str(error)
    assert "no space" in str(error)
    assert len(read(store)) == written + 1 - queue.depth
    filler.unlink()
    assert queue.drain(store, now=1e6).error is None
    assert starts(read(store)) == [T0 + 60 * n for n in range(written + 1)]
    assert store.cursors()["chat"] == cursor(value=written)


def test_on_a_full_disk_no_time_passes_in_which_the_holder_of_a_lease_comes_first(
    small_disk: Path, open_store: OpenStore
) -> None:
    """It could not renew it."""
    clock = StoppedClock()
    stores = [open_store(f"sqlite:///{small_disk}/x.db") for _ in range(2)]
    one, two = (Lease(store, str(n), clock=clock) for n, store in enumerate(stores))
    one.take(0.0)
    with stores[0].writing(0.0, leased=False) as connection:
        connection.execute(leases.update().values(until=leases.c.until - one.seconds))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="no space"):
            two.take(0.0)
        clock.forward(two.seconds)
    filler.unlink()
    assert two.take(0.0) is None
    assert one.take(0.0)


def test_a_locked_database_can_be_read_and_is_written_later(
    store: Store, sqlite_file: Path
) -> None:
    assert sqlite_file.parent.stat().st_mode & 0o777 == 0o700
    store.write([batch(minute(T0))], now=0)
    queue = WriteQueue()
    queue.put(batch(minute(T0 + 60)))
    other = sqlite3.connect(sqlite_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM minute_counts")
    assert read(store) == [minute(T0)]
    error = queue.drain(store, now=0).error
    assert "another process holds it locked" in str(error)
    other.close()
    assert queue.drain(store, now=2).written == 1
    assert starts(read(store)) == [T0, T0 + 60]


@contextmanager
def read_only(file: Path) -> Iterator[None]:
    """Nobody can write to a file: no mode stops root, but a read-only mount does."""
    if os.getuid() == 0:
        subprocess.run(["mount", "--bind", "-o", "ro", file.parent, file.parent], check=True)
        yield
        subprocess.run(["umount", "--lazy", file.parent], check=True)
    else:
        file.chmod(0o400)
        file.parent.chmod(0o500)
        yield
        file.parent.chmod(0o700)
        file.chmod(0o600)


def test_a_database_that_became_read_only_is_explained_and_recovered_from(
    store: Store, sqlite_file: Path
) -> None:
    queue = WriteQueue()
    store.write([batch(minute(T0))], now=0)
    store.close(now=0)
    queue.put(batch(minute(T0 + 60)))
    with read_only(sqlite_file):
        error = queue.drain(store, now=0).error
    assert "permissions" in str(error) or "is writable" in str(error)
    assert queue.drain(store, now=5).written == 1
    assert starts(read(store)) == [T0, T0 + 60]


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_daemon_goes_on_in_a_new_file_under_the_name(
    store: Store, sqlite_file: Path, tmp_path: Path, open_store: OpenStore, *, replaced: bool
) -> None:
    """It registers its run again, as another run may have the same number there."""
    store.write([batch(minute(T0))], now=0)
    shutil.rmtree(sqlite_file.parent)
    if replaced:
        open_store(f"sqlite:///{tmp_path}/other.db", "right").close(now=0)
        sqlite_file.parent.mkdir()
        (tmp_path / "other.db").rename(sqlite_file)
    store.write([batch(minute(T0 + 60))], now=0)
    assert starts(read(Store(store.url, daemon="reader"))) == [T0 + 60]
    assert store.info().rows["runs"] == 1 + replaced


def test_a_path_that_cannot_be_a_database_is_explained_and_left_alone(sqlite_file: Path) -> None:
    sqlite_file.parent.write_text("in the way")
    with pytest.raises(StoreUnavailable, match=f"{sqlite_file}: "):
        Store(f"sqlite:///{sqlite_file}", daemon="d").open(0)
    sqlite_file.parent.unlink()
    sqlite_file.parent.mkdir()
    sqlite_file.write_bytes(b"my thesis\n" * 1000)
    store = Store(f"sqlite:///{sqlite_file}", daemon="d")
    with pytest.raises(StoreUnavailable, match="not an SQLite database, or damaged; move it"):
        store.open(0)
    assert sqlite_file.read_bytes() == b"my thesis\n" * 1000
    sqlite_file.unlink()
    store.open(0)
    store.close(0)


@pytest.fixture
def damaged_file(store: Store, sqlite_file: Path) -> Path:
    """A SQLite file all of whose pages but the first are random."""
    store.write([batch(*(minute(T0 + 60 * n) for n in range(500)))], now=0)
    store.close(now=0)
    with sqlite_file.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(sqlite_file.stat().st_size - 4096))
    return sqlite_file


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(store: Store, damaged_file: Path) -> None:
    """Its bytes stay for a person, under another name, until they are moved or deleted."""
    content = damaged_file.read_bytes()
    queue = WriteQueue()
    queue.put(batch(minute(T0)))
    error = queue.drain(store, now=0).error
    assert isinstance(error, StoreMalformed)
    assert "it is damaged; a daemon puts it aside" in str(error)
    problems, kept = store.check(now=1_700_000_000)
    assert problems
    assert kept == damaged_file.with_name(f"{damaged_file.name}.damaged-20231114T221320Z")
    assert kept.read_bytes() == content
    assert queue.drain(store, now=2).written == 1
    assert read(store) == [minute(T0)]
    assert store.check(now=1_700_000_001) == ([], None)
    assert store.damaged_files == (kept.name,)
    kept.unlink()
    assert store.damaged_files == ()


def test_a_damaged_file_that_somebody_writes_or_that_is_no_database_stays(
    store: Store, damaged_file: Path
) -> None:
    with read_only(damaged_file), pytest.raises(StoreUnavailable, match=r"owner|is writable"):
        store.check(now=0)
    assert store.damaged_files == ()
    damaged_file.write_bytes(b"my thesis\n" * 1000)
    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        store.check(now=0)
    assert damaged_file.read_bytes() == b"my thesis\n" * 1000


def test_the_log_beside_the_file_stays_small(
    sqlite_file: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SQLITE_WAL_PAGES", 10)
    monkeypatch.setattr(database, "SQLITE_WAL_BYTES", 80_000)
    store = open_store(f"sqlite:///{sqlite_file}")
    for n in range(10):
        store.write([batch(*(minute(T0 + 60 * (50 * n + m)) for m in range(50)))], now=0)
    assert sqlite_file.with_suffix(".db-wal").stat().st_size <= 80_000
