"""An hour is the exact sum of its minutes, once, also after late minutes and pruning."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import HOUR, Mode, Source, Window
from specwatch.guard.state import Cause, Incident, Order, Pause, Phase, Step
from specwatch.store import rollups_and_retention
from specwatch.store.database import Database
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from specwatch.store.schema import guards
from tests.fixtures import OpenStore, each_database
from tests.postgres import PostgresServer
from tests.store.examples import FOREVER, T0, batch, cursor, fill_tables, minute, read, starts

DAY = 24 * HOUR


def mixed_hour(start: int) -> list[Window]:
    """An hour with two modes, three loads, an upgrade of the engine and two buckets."""
    return [
        minute(
            start + 60 * n,
            temperature=temperature,
            drafts=n + 1,
            mode=Mode.OFF if n % 7 == 0 else Mode.ON,
            concurrency=(0.0, 1.0, 6.0)[n % 3],
            engine_version="0.11.0" if n < 40 else "0.12.0",
        )
        for n in range(60)
        for temperature in ("all", "0")
    ]


def of_tap(start: int) -> list[Window]:
    """An hour of a bucket that counted in every other minute, some of it not covered."""
    return [
        msgspec.structs.replace(
            window,
            source=Source.TAP,
            server_drafts=2 * n,
            source_drafts=n,
            tally=msgspec.structs.replace(
                window.tally, records={"record": n + 1}, uncovered={"several": 1}
            ),
        )
        for n, window in enumerate(
            minute(start + 60 * n, temperature=">1") for n in range(0, 60, 2)
        )
    ]


def merged(windows: list[Window]) -> list[Window]:
    """What the hours of minutes must be."""
    groups = defaultdict(list)
    for window in windows:
        hour = window.start - window.start % HOUR
        key = (window.series, window.mode, window.load_bin, window.environment, hour)
        groups[key].append(window)
    return [merge_windows(group, start=key[-1], length=HOUR) for key, group in groups.items()]


def same(windows: list[Window], expected: list[Window]) -> bool:
    return len(windows) == len(expected) and all(window in expected for window in windows)


@each_database
@pytest.mark.parametrize(
    ("make", "built"), [(mixed_hour, 4), (of_tap, 2)], ids=["modes, loads, versions", "of a tap"]
)
def test_an_hour_is_the_exact_sum_of_its_minutes_by_mode_load_and_environment(
    store: Store, make: Callable[[int], list[Window]], built: int
) -> None:
    windows = make(T0) + make(T0 + HOUR)
    store.write([batch(*windows)], now=0)
    assert store.roll_up(T0 + 2 * HOUR + 300) == built
    assert same(read(store, length=HOUR), merged(windows))


def test_an_hour_is_built_once_its_grace_is_over(store: Store) -> None:
    store.write([batch(minute(T0))], now=0)
    assert store.roll_up(T0 + HOUR + 299) == 0
    assert store.roll_up(T0 + HOUR + 300) == 1
    assert store.roll_up(T0 + HOUR + 301) == 0


def test_a_store_that_was_closed_and_opened_again_rolls_up_and_prunes(store: Store) -> None:
    store.write([batch(minute(T0), minute(T0 + HOUR))], now=0)
    store.close()
    assert store.roll_up(T0 + 2 * HOUR + 300) == 2
    store.close()
    assert store.prune(T0 + 3 * HOUR, HOUR, 100 * HOUR).minutes == 2


@each_database
def test_late_minutes_rebuild_their_hour_also_after_a_restart(
    url: str, open_store: OpenStore
) -> None:
    """The daemon was killed between writing them and the next roll-up; one minute is of both of
    its runs."""
    first = open_store(url)
    windows = mixed_hour(T0)
    first.write([batch(*windows[::2], minute(T0 + 5 * HOUR))], now=0)
    first.roll_up(T0 + DAY)
    first.write([batch(*windows[1::2])], now=0)
    second = open_store(url, pid=2)
    again = minute(T0 + 60, drafts=7, concurrency=9.0)
    second.write([batch(again)], now=0)
    assert second.roll_up(T0 + DAY) >= 1
    hours = read(second, since=T0, until=T0 + HOUR, length=HOUR)
    assert same(hours, merged([*windows, again]))


def test_a_roll_up_that_is_cut_off_goes_on_where_it_stopped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [minute(T0 + HOUR * n + 60, target=f"t{m}") for n in range(3) for m in range(5)]
    store.write([batch(*windows)], now=0)
    monkeypatch.setattr(rollups_and_retention, "_SERIES_AT_ONCE", 2)
    turns = iter(range(4))
    turn = rollups_and_retention._roll_up_turn

    def interrupted(*arguments: object) -> int | None:
        if next(turns, None) is None:
            raise KeyboardInterrupt
        return turn(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(rollups_and_retention, "_roll_up_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.roll_up(T0 + DAY)
    assert 0 < len(read(store, length=HOUR)) < 15
    store.roll_up(T0 + DAY)
    assert same(read(store, length=HOUR), merged(windows))


def test_a_daemon_rolls_up_its_own_series_only(url: str, open_store: OpenStore) -> None:
    left, right = open_store(url), open_store(url, "right")
    right.write([batch(minute(T0, daemon="right"))], now=0)
    assert left.roll_up(T0 + DAY) == 0
    assert right.roll_up(T0 + DAY) == 1


def test_pruning_deletes_only_whole_hours_that_are_older(store: Store) -> None:
    """Half an hour of minutes could not be rolled up again."""
    windows = [minute(T0 + HOUR * n + 60 * m) for n in range(30) for m in (0, 59)]
    store.write([batch(*windows)], now=0)
    store.roll_up(T0 + 30 * HOUR + 300)
    now = T0 + 30 * HOUR + 1800
    pruned = store.prune(now, minutes_kept=10 * HOUR, hours_kept=20 * HOUR)
    assert (pruned.minutes, pruned.hours) == (40, 11)
    assert read(store) == windows[40:]
    assert starts(read(store, length=HOUR)) == [T0 + HOUR * n for n in range(11, 30)]
    assert store.prune(now, 10 * HOUR, 20 * HOUR) == rollups_and_retention.Pruned()


def test_pruning_rolls_up_first_also_for_daemons_that_are_gone(
    url: str, open_store: OpenStore
) -> None:
    open_store(url, "gone").write([batch(minute(T0, daemon="gone"))], now=0)
    store = open_store(url)
    store.write([batch(minute(T0, target="other"))], now=0)
    assert store.prune(T0 + DAY, HOUR, 10 * DAY).minutes == 2
    assert read(store) == []
    assert [w.series.daemon for w in read(store, length=HOUR)] == ["gone", "left"]


@each_database
def test_minutes_later_than_retention_are_added_once_to_their_hour(store: Store) -> None:
    store.write([batch(minute(T0, drafts=100), minute(T0 + 60, drafts=10, mode=Mode.OFF))], now=0)
    store.prune(T0 + DAY, minutes_kept=HOUR, hours_kept=10 * DAY)
    store.write([batch(minute(T0 + 120, drafts=3))], now=0)
    for _ in range(2):
        store.roll_up(T0 + DAY)
        store.prune(T0 + DAY, minutes_kept=HOUR, hours_kept=10 * DAY)
        drafts = {w.mode: w.tally.drafts for w in read(store, length=HOUR)}
        assert drafts == {Mode.ON: 103, Mode.OFF: 10}
    assert read(store) == []


def test_pruning_works_in_small_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups_and_retention, "_DELETED_SERIES_AT_ONCE", 2)
    windows = [minute(T0 + HOUR * n, target=f"t{m}") for n in range(3) for m in range(5)]
    store.write([batch(*windows)], now=0)
    store.roll_up(T0 + 3 * HOUR + 300)
    sizes: list[int] = []
    turn = rollups_and_retention._prune_minutes

    def counted(*arguments: object) -> int:
        sizes.append(turn(*arguments))  # type: ignore[arg-type]
        return sizes[-1]

    monkeypatch.setattr(rollups_and_retention, "_prune_minutes", counted)
    assert store.prune(T0 + DAY, HOUR, DAY).minutes == 15
    assert max(sizes) == 2


@each_database
def test_rows_older_than_hours_are_pruned_from_every_table(store: Store) -> None:
    """Of guards their steps only: the guards stay while somebody holds them."""
    now, kept = T0 + DAY, 2 * HOUR
    for load_bin, at in enumerate((T0, now)):
        fill_tables(store, at, load_bin=load_bin)
    assert store.prune(now, HOUR, kept, kept) == rollups_and_retention.Pruned(
        minutes=1, hours=1, baselines=1, verdicts=1, guard_steps=1, experiments=1
    )
    assert starts(read(store)) == [now]
    assert [decision.at for decision in store.verdicts(**FOREVER)] == [now]
    assert [row.experiment.ended for row in store.experiments(0, now + 1)] == [now]
    book = GuardBook(store)
    assert [step.version for step in book.history()] == [book.look()["chat"].version]
    assert [measured.load_bin for measured in store.measurements()] == [1]
    assert store.prune(now, HOUR, kept, kept) == rollups_and_retention.Pruned()


@each_database
def test_what_targets_that_are_gone_have_left_is_pruned(store: Store) -> None:
    """A guard stays while it is held, or something is under way or ordered, and so does a cursor
    of a later time. A guard that comes back goes on after its steps."""
    now = time.time() + 2 * DAY
    book = GuardBook(store)
    order = Order(Mode.OFF, "ann", 0.0)
    busy = {
        "confirmed": {"phase": Phase.CONFIRMED, "incident": Incident("i", Cause.RULE, 0.0)},
        "ordered": {"order": order},
        "paused": {"pause": Pause(now + DAY, "ann")},
        "pause over": {"pause": Pause(T0, "ann")},
    }
    names = ["chat", "held", "stepped", *busy]
    book.hold(names, "gone:1", T0, able=True)
    for name, changes in busy.items():
        book.change(name, lambda s: Step(replace(s, **changes), "x"), T0, by="ann")  # noqa: B023
    book.change("stepped", lambda s: Step(s, "x"), now, by="ann")
    book.release("gone:1", T0, but=["held"])
    with store.writing(now) as connection:
        held = guards.c.target == "held"
        connection.execute(guards.update().where(held).values(lease_until=now))
    cursors = [cursor("chat", wall=T0), cursor("held", wall=now)]
    store.write([batch(cursor=one) for one in cursors], now)
    pruned = store.prune(now, HOUR, DAY, DAY)
    assert (pruned.guards, pruned.cursors) == (3, 1)
    assert sorted(book.look()) == sorted({*names} - {"chat", "pause over", "stepped"})
    assert list(store.cursors()) == ["held"]
    book.hold(["chat", "stepped"], "d:1", now, able=True)
    assert book.look()["chat"].held_by("d:1")
    book.change("stepped", lambda s: Step(s, "y"), now, by="ann")
    assert [step.reason for step in book.history(target="stepped")] == ["y", "x"]


def test_a_guard_that_was_just_given_back_is_kept(store: Store) -> None:
    """Between two runs of a daemon nobody holds it."""
    book = GuardBook(store)
    book.hold(["chat"], "d:1", T0, able=True)
    book.release("d:1", T0)
    assert store.prune(time.time(), HOUR, DAY, DAY).guards == 0
    assert list(book.look()) == ["chat"]


@each_database
def test_old_runs_are_pruned_but_not_the_last_one(url: str, open_store: OpenStore) -> None:
    for started in (0, 10, T0 + DAY):
        open_store(url, now=started)
    assert open_store(url, "right").prune(T0 + DAY, HOUR, DAY).runs == 1


def test_a_pruned_sqlite_file_gets_smaller_in_few_steps(
    open_store: OpenStore, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each freed page would keep writers out for long."""
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    empty = store.info().size
    store.write([batch(*(minute(T0 + 60 * n) for n in range(1200)))], now=0)
    before = store.info().size
    pauses: list[float] = []
    shrink = rollups_and_retention._shrink

    def watched(database: Database, stopping: threading.Event) -> None:
        monkeypatch.setattr(stopping, "wait", pauses.append)
        shrink(database, stopping)

    monkeypatch.setattr(rollups_and_retention, "_shrink", watched)
    store.prune(T0 + 10 * DAY, HOUR, HOUR)
    assert store.info().size - empty < (before - empty) / 3
    assert len(pauses) == 1


def test_closing_stops_work_in_other_threads(store: Store) -> None:
    store.write([batch(minute(T0))], now=0)
    store._stopping.set()
    assert (
        rollups_and_retention.roll_up(store._database, T0 + DAY, store._stopping, daemon=None) == 0
    )


def test_one_process_of_a_daemon_rolls_up_at_a_time(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    """The others wait until it is done: what they read next has to be there. Other daemons do not
    wait."""
    url = postgres.new_url()
    one, two = open_store(url), open_store(url)
    stranger = open_store(url, daemon="right")
    one.write([batch(minute(T0))], now=0)
    stranger.write([batch(minute(T0, daemon="right"))], now=0)
    built: list[int] = []
    waiting = threading.Thread(target=lambda: built.append(two.roll_up(T0 + 2 * HOUR)))
    with one.writing(0.0) as connection:
        assert rollups_and_retention._try_lock(
            connection, rollups_and_retention._ROLL_UP_LOCK, "left"
        )
        waiting.start()
        assert stranger.roll_up(T0 + 2 * HOUR) == 1
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(60)
    assert built == [1]
