"""What is written is stored once, exactly, however often and by whomever it is written."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from structlog.testing import capture_logs

from specwatch.domain.model import Cursor, Window
from specwatch.errors import StoreUnavailable
from specwatch.store import schema
from specwatch.store.batches import PackedBatch
from specwatch.store.counts import pack
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.store.examples import T0, batch, cursor, cursors, minute, read, starts, windows


@each_database
def test_any_window_and_cursor_is_read_equal(store: Store) -> None:
    written: list[Window] = []

    most = max(5, settings().max_examples // 4)  # the tests of packing have the others

    @settings(max_examples=most, suppress_health_check=[HealthCheck.too_slow])
    @given(windows, cursors)
    def check(window: Window, cursor: Cursor) -> None:
        own = msgspec.structs.replace(window.series, target=f"t{len(written)}")
        window = msgspec.structs.replace(window, series=own)
        written.append(window)
        store.write([batch(window, cursor=cursor)], now=0)
        assert read(store, target=own.target) == [window]
        assert store.cursors()[cursor.target] == cursor

    check()
    assert len(read(store)) == len(written)


@each_database
@pytest.mark.parametrize("since", [1.0, 59.0])
def test_counts_that_another_process_has_written_are_left_out(store: Store, since: float) -> None:
    """Only those of its target; counts that begin where the other one stopped are written."""
    other = [batch(minute(T0), cursor=replace(cursor(wall=60.0), after=1.0))]
    assert store.write(other, now=0) == store.write(other, now=0) == frozenset()
    same = batch(minute(T0), cursor=replace(cursor(wall=61.0), after=since))
    elsewhere = batch(minute(T0, target="b"), cursor=replace(cursor("b", wall=61.0), after=since))
    before = read(store)
    assert store.write([same, elsewhere], now=0) == {"chat"}
    assert read(store, target="chat") == before
    assert store.cursors()["chat"].wall == 60.0
    assert len(read(store, target="b")) == 1
    for after, wall in ((60.0, 120.0), (120.0, 50.0), (50.0, 55.0)):  # the clock was set back
        follows = batch(minute(T0 + 60), cursor=replace(cursor(wall=wall), after=after))
        assert store.write([follows], now=0) == frozenset()


def test_what_follows_on_counts_that_were_not_written_is_not_written(
    url: str, open_store: OpenStore
) -> None:
    """A process counts on until it hears that another one has counted the same."""
    one, two = open_store(url), open_store(url)
    two.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    late = replace(cursor(wall=T0 + 62.0), after=T0 + 1.0)
    assert one.write([batch(minute(T0), cursor=late)], 0.0) == {"chat"}
    next_one = replace(cursor(wall=T0 + 122.0), after=T0 + 62.0)
    assert one.write([batch(minute(T0 + 60), cursor=next_one)], 0.0) == {"chat"}
    again = replace(cursor(wall=T0 + 182.0), after=T0 + 60.0)
    assert one.write([batch(minute(T0 + 120), cursor=again)], 0.0) == set()
    assert starts(read(one)) == [T0, T0 + 120]


@pytest.mark.parametrize("ahead", [-90.0, 0.0, 90.0])
def test_whose_counts_are_written_does_not_depend_on_clocks(
    url: str, open_store: OpenStore, ahead: float
) -> None:
    """Two processes count the same from one cursor; the clock of the second one is ``ahead``."""
    one, two = open_store(url), open_store(url)
    one.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    second = replace(cursor(wall=T0 + 120.0 + ahead), after=T0 + 60.0)
    assert two.write([batch(minute(T0 + 60), cursor=second)], 0.0) == set()
    first = replace(cursor(wall=T0 + 120.0), after=T0 + 60.0)
    assert one.write([batch(minute(T0 + 60), cursor=first)], 0.0) == {"chat"}
    third = replace(cursor(wall=T0 + 180.0 + ahead), after=T0 + 120.0 + ahead)
    assert two.write([batch(minute(T0 + 120), cursor=third)], 0.0) == set()
    assert starts(read(one)) == [T0, T0 + 60, T0 + 120]


def test_what_waits_from_an_earlier_time_does_not_take_the_rest_with_it(
    url: str, open_store: OpenStore
) -> None:
    """Another process has counted the target meanwhile."""
    one, two = open_store(url), open_store(url)
    two.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    old = replace(cursor(wall=T0 + 30.0), after=T0 + 1.0)
    new = replace(cursor(wall=T0 + 119.0), after=T0 + 60.0)
    batches = [batch(minute(T0), cursor=old), batch(minute(T0 + 60), cursor=new)]
    for _ in range(2):
        assert one.write(batches, 0.0) == set()
        assert starts(read(one)) == [T0, T0 + 60]
        assert [window.tally.drafts for window in read(one)] == [100, 100]


def test_the_last_cursor_of_each_target_and_daemon_is_kept(url: str, open_store: OpenStore) -> None:
    left, right = open_store(url), open_store(url, "right")
    left.write([batch(cursor=cursor(value=n)) for n in range(3)], now=0)
    left.write([batch(cursor=cursor("other", value=7.0))], now=0)
    right.write([batch(cursor=cursor(value=5.0))], now=0)
    assert left.info().rows["layouts"] == 1, "equal layouts are shared"
    assert left.cursors() == {"chat": cursor(value=2), "other": cursor("other", value=7.0)}
    left.write([batch(cursor=cursor(value=9.0, model="mistral"))], now=0)
    assert left.cursors()["chat"] == cursor(value=9.0, model="mistral")
    assert right.cursors() == {"chat": cursor(value=5.0)}


def test_the_layouts_of_a_server_that_makes_up_names_are_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the target has no cursor, as an older one would count twice what came after it."""
    monkeypatch.setattr("specwatch.store.repository.MOST_LAYOUT_BYTES", 2000)

    def write(n: int, model: str) -> None:
        cursors = [cursor(value=float(n)), cursor("other", value=float(n), model=model * 200)]
        store.write([batch(minute(T0 + 60 * n), cursor=one) for one in cursors], now=T0 + 60 * n)

    with capture_logs() as log:
        for n in range(20):
            write(n, chr(ord("a") + n))
    assert store.cursors() == {"chat": cursor(value=19.0)}
    assert len(read(store)) == 20
    stored = store.info().rows["layouts"]
    assert stored < 8
    (entry,) = [entry for entry in log if entry["event"] == "cursor_not_stored"]
    assert entry["target"] == "other"
    write(20, "a")
    write(60, "z")
    assert store.cursors()["other"] == cursor("other", value=60.0, model="z" * 200)
    assert store.info().rows["layouts"] == stored + 1


@each_database
def test_a_write_that_fails_in_the_middle_stores_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("", {}, Exception("gone"))

    with monkeypatch.context() as patched:
        patched.setattr("specwatch.store.cursor_rows.put", fail)
        with pytest.raises(StoreUnavailable, match="gone"):
            store.write([batch(minute(T0), cursor=cursor())], now=0)
    assert (read(store), store.cursors()) == ([], {})
    store.write([batch(minute(T0), cursor=cursor())], now=0)
    assert (read(store), store.cursors()) == ([minute(T0)], {"chat": cursor()})


@pytest.mark.parametrize("change", [{"length": 3600}, {"start": T0 + 1}], ids=str)
def test_only_whole_minutes_are_written(store: Store, change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="only whole minutes"):
        store.write(
            [PackedBatch((pack(msgspec.structs.replace(minute(T0), **change)),), None)], now=0
        )


def test_a_run_is_registered_and_ended(url: str, open_store: OpenStore) -> None:
    """The run of its successor does not end with it."""
    store = Store(url, daemon="left", version="1.2", host="h", pid=42)
    store.open(now=100.5)
    other = open_store(url, now=150.0, version="1.3", host="h", pid=43)
    store.close(now=200.5)
    with other.connected() as connection:
        runs = connection.execute(sa.select(schema.runs).order_by(schema.runs.c.id)).all()
    assert [tuple(run)[1:] for run in runs] == [
        ("left", 100, 200, "1.2", "h", 42),
        ("left", 150, None, "1.3", "h", 43),
    ]


@each_database
def test_threads_can_write_read_and_roll_up_at_once(store: Store) -> None:
    def write(target: str) -> None:
        for n in range(8):
            store.write([batch(minute(T0 + 60 * n, target=target))], now=0)

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(write, target) for target in ("a", "b")]
        work += [pool.submit(store.roll_up, T0 + 4000) for _ in range(8)]
        work += [pool.submit(read, store) for _ in range(8)]
        for future in work:
            future.result(60)
    assert len(read(store)) == 16


@each_database
def test_hostile_names_can_be_stored(store: Store) -> None:
    """One that cannot would stop everything behind it in the queue for ever."""
    long = "".join(map(chr, range(0x10000, 0x10000 + 3000)))
    store.write([batch(minute(T0, target=long, model_name=long, temperature=long))], now=0)
    store.write([batch(minute(T0, target="\0'\"\ud800%s?{}"))], now=0)
    assert len(read(store)) == 2


def test_closing_does_not_wait_for_a_write_that_hangs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.store.repository.CLOSE_SECONDS", 0.01)
    began, let_go = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        began.set()
        let_go.wait(10)

    monkeypatch.setattr("specwatch.store.cursor_rows.put", hang)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.write, [batch(minute(T0))], 0)
        began.wait(10)
        with pytest.raises(StoreUnavailable, match="still waits"):
            store.close(now=0)
        let_go.set()
    assert read(store) == [minute(T0)]
