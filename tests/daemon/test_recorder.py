"""Recording through failures: what is shown, and when that ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from specwatch.daemon.recorder import Recorder
from specwatch.domain.model import Batch, Moment
from specwatch.errors import StoreUnavailable
from specwatch.store.repository import Store
from tests.daemon.stores import StoreOf
from tests.store.examples import T0, minute, read


@pytest.fixture
def store(stores: StoreOf) -> Store:
    return stores("left")


@pytest.fixture
def recorder(store: Store) -> Recorder:
    """A recorder whose database is there."""
    now = Moment(T0 + 90.0, 90.0)
    opened = Recorder(
        store,
        queue_limit=100,
        now=lambda: now,
        resume=lambda cursors: None,
        supersede=lambda cursors: None,
        configuring=threading.Lock(),
    )
    opened.open()
    return opened


def test_a_failed_roll_up_is_made_good_by_the_next_write(
    recorder: Recorder, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the next roll-up, minutes later: until then the daemon would not be ready."""

    def away(now: float) -> int:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as outage:
        outage.setattr(store, "roll_up", away)
        recorder.roll_up()
    assert recorder.status().error == "the database is away"
    assert recorder.status().failures == 1
    recorder.put(Batch((minute(T0),), None))
    recorder.flush()
    status = recorder.status()
    assert (status.written, status.error, status.behind_since) == (1, None, None)
    assert recorder.ready


@pytest.mark.parametrize("first", ["write", "roll_up"])
def test_the_end_of_an_outage_is_told_once_whatever_failed_in_it(
    recorder: Recorder, store: Store, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """And whichever of them works first again."""

    def away(*_: object) -> int:
        raise StoreUnavailable("the database is away")

    with capture_logs() as log:
        with monkeypatch.context() as outage:
            outage.setattr(store, "roll_up", away)
            outage.setattr(store, "write", away)
            recorder.roll_up()
            recorder.put(Batch((minute(T0),), None))
            recorder.flush()
        if first == "roll_up":
            recorder.roll_up()
        recorder.flush(force=True)
    assert [entry["event"] for entry in log].count("store_recovered") == 1
    assert recorder.ready


def test_no_target_comes_while_the_first_cursors_are_handed_over(
    tmp_path: Path,
) -> None:
    """One that came then would begin without its cursor, and would not be resumed either."""
    configuring = threading.Lock()
    held: list[tuple[bool, bool]] = []
    recorder = Recorder(
        Store(f"sqlite:///{tmp_path}/d.db", daemon="d"),
        queue_limit=100,
        now=lambda: Moment(T0, T0),
        resume=lambda _: held.append((configuring.locked(), recorder.opened)),
        supersede=lambda _: None,
        configuring=configuring,
    )
    recorder.flush()
    recorder.flush()
    recorder.close()
    assert held == [(True, True)]
    assert not configuring.locked()


def test_a_database_that_is_damaged_under_a_daemon_is_put_aside_and_writing_goes_on(
    recorder: Recorder, store: Store
) -> None:
    """Nothing is counted again: who counts goes on, and what waited is written to the new file."""
    sqlite_file = Path(store.url.removeprefix("sqlite:///"))
    recorder.put(Batch(tuple(minute(T0 + 60 * n) for n in range(500)), None))
    recorder.flush()
    store.close()  # whose connections remember pages
    with sqlite_file.open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * (sqlite_file.stat().st_size - 4096))
    recorder.put(Batch((minute(T0 + 60 * 500),), None))
    with capture_logs() as log:
        recorder.flush(force=True)
    assert "database_damaged" in [entry["event"] for entry in log]
    assert "resumed_late" not in [entry["event"] for entry in log]
    (name,) = recorder.status().damaged_files
    recorder.flush(force=True)
    status = recorder.status()
    assert (status.queued, status.error) == (0, None)
    assert [window.start for window in read(store)] == [T0 + 60 * 500]
    (sqlite_file.parent / name).unlink()
    assert recorder.status().damaged_files == ()


def test_a_check_that_could_not_be_made_is_tried_again(
    recorder: Recorder, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a week later."""
    checked: list[float] = []

    def check(now: float, malformed: object) -> tuple[list[str], None]:
        checked.append(now)
        if len(checked) == 1:
            raise StoreUnavailable("the database is away")
        return [], None

    monkeypatch.setattr(store, "check", check)
    for _ in range(3):
        recorder.check_if_due()
    assert len(checked) == 2
