"""A damaged row is passed over by all who read it, set aside, counted and told."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from specwatch.daemon.recorder import Recorder
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import HOUR, MINUTE, Batch, Moment
from specwatch.errors import DamagedRow, StoreMalformed
from specwatch.guard.state import GuardState, Phase, Step
from specwatch.report.reader import read_report
from specwatch.report.text import plain
from specwatch.rules.decisions import Decision
from specwatch.store import damaged_rows, schema
from specwatch.store.database import Database
from specwatch.store.guard_records import GuardBook
from specwatch.store.repair import check, repair
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue
from tests.fixtures import OpenStore
from tests.store.examples import FOREVER, T0, batch, cursor, minute, read, starts
from tests.store.test_experiments import bench

NOW = T0 + 5 * HOUR
TABLES: dict[str, tuple[str, object, Callable[[Store], int]]] = {
    "minutes": ("data", b"\xc1", lambda store: len(read(store))),
    "hours": ("data", b"\x90", lambda store: len(read(store, length=HOUR))),
    "cursors": ("counters", b"\x91", lambda store: len(store.cursors())),
    "baselines": ("data", b"", lambda store: len(store.measurements())),
    "verdicts": ("inputs", "[]", lambda store: len(store.verdicts(**FOREVER))),
    "guards": ("state", "{", lambda store: len(GuardBook(store).look())),
    "guard_steps": ("inputs", "null", lambda store: len(GuardBook(store).history())),
    "experiments": ("data", b'{"format": 1}', lambda store: len(store.experiments(0, 1e11))),
}
"""By table a column, a value that it cannot have, and how many of its rows can be read."""


def write(url: str, statement: str, **values: object) -> None:
    """Change rows behind the store's back."""
    database = Database(url, migrating=True)
    with database.writing() as connection:
        connection.execute(sa.text(statement), values)
    database.dispose()


@pytest.fixture
def filled(url: str, open_store: OpenStore) -> Store:
    """A store with two rows in every table, of two targets."""
    store = open_store(url)
    for number, target in enumerate(("chat", "code")):
        store.write([batch(minute(T0, target=target), cursor=cursor(target))], NOW)
        point = Point(float(T0), 2.0, 60.0, 3000.0, by_token=True)
        key = BaselineKey(target, "llama", None, None)
        store.write_measurements([Measurement(key, 1, Origin.WINDOWS, (point,))], NOW)
        decision = Decision(
            "left", target, "llama", "all", "r", T0, "breach", "critical", "alert", {}
        )
        store.write_verdicts([decision], NOW)
        store.add_experiment(bench(T0 + number, target), NOW)
        book = GuardBook(store)
        book.hold([target], f"holder:{number}", NOW, able=True)
        book.change(target, _note, NOW, by="ann")
    store.roll_up(NOW)
    return store


def _note(state: GuardState) -> Step:
    return Step(state, "a note")


@pytest.fixture
def recorder(filled: Store) -> Recorder:
    opened = Recorder(
        filled,
        queue_limit=9,
        now=lambda: Moment(NOW, NOW),
        resume=lambda cursors: None,
        supersede=lambda cursors: None,
    )
    opened.open()
    return opened


def aside(store: Store) -> list[tuple[str, str]]:
    """The table and the target of each row that was set aside."""
    with store.connected() as connection:
        return [(row.table, row.target) for row in damaged_rows.read(connection)]


@pytest.mark.parametrize("table", TABLES)
def test_one_that_cannot_be_decoded_hides_no_other_and_is_set_aside(
    filled: Store, recorder: Recorder, url: str, table: str
) -> None:
    column, value, count = TABLES[table]
    assert count(filled) == 2
    chosen = "(SELECT id FROM series WHERE target = 'chat')"
    where = f"series_id = {chosen}" if table in ("minutes", "hours") else "target = 'chat'"
    write(url, f"UPDATE {table} SET {column} = :value WHERE {where}", value=value)
    assert count(filled) == 1
    (row,) = filled.damage.rows
    assert row.table == table
    recorder.flush()
    assert (filled.damage.count, filled.damage.rows) == (1, [])
    assert aside(filled) == [(table, "chat")]
    # A guard is not without a state: it is held then.
    assert count(filled) == (2 if table == "guards" else 1)
    assert check(url).sound


def test_what_was_set_aside_is_kept_as_it_was(filled: Store, recorder: Recorder, url: str) -> None:
    write(url, "UPDATE verdicts SET inputs = '{' WHERE target = 'chat'")
    filled.verdicts(**FOREVER)
    recorder.flush()
    with filled.connected() as connection:
        (content,) = connection.execute(sa.select(schema.damaged_rows.c.content)).scalars()
        (row,) = damaged_rows.read(connection)
    assert msgspec.msgpack.decode(content) == {
        "at": T0, "daemon": "left", "target": "chat", "model_name": "llama", "temperature": "all",
        "rule": "r", "verdict": "breach", "severity": "critical", "action": "alert", "inputs": "{",
    }  # fmt: skip
    assert (row.found_at, row.at, row.reason) == (NOW, T0, "Input data was truncated")
    assert row.key.startswith("verdicts (at=")


def test_it_is_told_once_and_counted(filled: Store, recorder: Recorder, url: str) -> None:
    write(url, "UPDATE verdicts SET inputs = '{' WHERE target = 'chat'")
    with capture_logs() as log:
        for _ in range(3):
            filled.verdicts(**FOREVER)
            recorder.flush()
    entries = [entry for entry in log if entry["event"] in ("row_damaged", "rows_damaged")]
    assert [entry["event"] for entry in entries] == ["row_damaged", "rows_damaged"]
    assert entries[0]["table"] == "verdicts"
    assert "specwatch db check" in entries[1]["remedy"]
    status = recorder.status()
    assert (status.damaged, status.error) == (1, None)
    assert status.last_damaged is not None
    assert status.last_damaged.endswith("rule=r): Input data was truncated")


def test_hours_are_built_of_the_minutes_that_can_be_read(
    url: str, open_store: OpenStore, filled: Store
) -> None:
    filled.write([batch(*(minute(T0 + HOUR + 60 * number) for number in range(3)))], NOW)
    write(url, f"UPDATE minutes SET data = :value WHERE start = {T0 + HOUR + 60}", value=b"\xc1")
    assert filled.roll_up(NOW) == 1
    (hour,) = read(filled, since=T0 + HOUR, target="chat", length=HOUR)
    assert hour.tally.drafts == 200
    assert filled.damage.count == 1


def test_numbers_that_cannot_be_added_up_stop_no_other_hour(url: str, filled: Store) -> None:
    """Each may be stored, and their sum may not."""
    filled.write([batch(*(minute(T0 + HOUR + 60 * number) for number in range(3)))], NOW)
    filled.write([batch(minute(T0 + HOUR, target="code"))], NOW)
    chosen = "(SELECT id FROM series WHERE target = 'chat')"
    write(url, f"UPDATE minutes SET drafts = {2**62} WHERE series_id = {chosen}")
    assert filled.roll_up(NOW) == 2
    assert [window.series.target for window in read(filled, since=T0 + HOUR, length=HOUR)] == [
        "code"
    ]


def test_a_guard_whose_state_is_lost_waits_for_a_person(
    filled: Store, recorder: Recorder, url: str
) -> None:
    """It cannot know what it has done to the server."""
    write(url, "UPDATE guards SET state = '{' WHERE target = 'chat'")
    book = GuardBook(filled)
    assert set(book.look()) == {"code"}
    book.hold(["chat", "code"], "holder:2", NOW, able=True)
    recorder.flush()
    entry = book.look()["chat"]
    assert entry.state.phase is Phase.HELD
    assert "damaged" in entry.state.why
    book.change("chat", _note, NOW, by="ann")
    assert book.history(target="chat")[0].version > 1, "its steps go on where they were"


def test_a_guard_whose_name_is_damaged_is_held_for_whom_its_state_names(
    filled: Store, recorder: Recorder, url: str
) -> None:
    write(url, f"UPDATE guards SET target = '{'[' * 2000}' WHERE target = 'chat'")
    book = GuardBook(filled)
    assert set(book.look()) == {"code"}
    recorder.flush()
    assert {name: entry.state.phase for name, entry in book.look().items()} == {
        "chat": Phase.HELD,
        "code": Phase.OBSERVING,
    }
    assert check(url).sound


def test_a_damaged_context_is_whole_again_once_a_daemon_writes_it(
    filled: Store, url: str, open_store: OpenStore
) -> None:
    """Its content gives it its id, so that what was stored is known to be what is read."""
    write(url, "UPDATE contexts SET content = replace(content, '0.11.0', '0.12.0')")
    assert read(filled) == []
    assert {row.table for row in filled.damage.rows} == {"contexts"}
    later = open_store(url, now=NOW)
    later.write([batch(minute(T0 + MINUTE), cursor=cursor())], NOW)
    assert starts(read(later, target="chat")) == [T0, T0 + MINUTE]
    assert filled.set_aside(NOW) != []
    assert aside(filled) == [], "a daemon moves nothing that may be whole again"


def test_rows_of_a_context_that_is_lost_are_set_aside_by_hand(filled: Store, url: str) -> None:
    write(url, "UPDATE contexts SET content = '{}'")
    done = repair(url, NOW)
    assert (done.rebuilt, done.left) == (None, [])
    assert sorted({table for table, _ in aside(filled)}) == [
        "contexts", "cursors", "hours", "minutes",
    ]  # fmt: skip
    assert check(url).sound
    queue = WriteQueue()
    queue.put(batch(minute(T0 + MINUTE)))
    for now in (NOW, NOW + 60):  # a daemon that ran meanwhile takes it for stored
        queue.drain(filled, now)
    assert starts(read(filled)) == [T0 + MINUTE]


@pytest.mark.parametrize("damaged", ["minutes", "hours"])
def test_a_report_says_what_it_leaves_out(
    filled: Store, recorder: Recorder, url: str, damaged: str
) -> None:
    """Whether it is still in its table or was set aside."""
    filled.write([batch(*(minute(T0 + HOUR * number) for number in range(-30, 5)))], NOW)
    filled.roll_up(NOW)
    chosen = f"start = {T0 + 2 * HOUR}"
    write(url, f"UPDATE {damaged} SET data = :value WHERE {chosen}", value=b"\xc1")
    since = T0 + HOUR if damaged == "minutes" else T0 - 20 * HOUR
    for _ in range(2):
        report = read_report(filled, since=since, until=NOW, now=NOW)
        (chat,) = (target for target in report.targets if target.target == "chat")
        assert chat.health.damaged == 1
        assert "1 stored row damaged and left out; `specwatch db check` lists them" in " ".join(
            plain(report).split()
        )
        recorder.flush()
    assert filled.damage.rows == []


class TestSqlite:
    """What only SQLite stores: anything anywhere."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/specwatch.db"

    def test_a_text_that_is_none_hides_no_other(self, filled: Store, url: str) -> None:
        write(url, "UPDATE verdicts SET rule = CAST(x'ff80' AS TEXT) WHERE target = 'chat'")
        assert [verdict.target for verdict in filled.verdicts(**FOREVER)] == ["code"]
        assert filled.set_aside(NOW)[0].reason == "rule is not UTF-8"
        assert check(url).sound

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("scrapes_ok = 'x'", "scrapes_ok is text"),
            ("scrapes_ok = 1.5", "scrapes_ok is a fraction"),
            ("data = 'x'", "data is text"),
            ("drafts = -1", "drafts is -1"),
        ],
    )
    def test_a_value_of_another_type_is_damage(
        self, filled: Store, url: str, change: str, reason: str
    ) -> None:
        write(url, f"UPDATE minutes SET {change}")
        assert read(filled) == []
        assert {row.reason for row in filled.damage.rows} == {reason}

    def test_a_series_stays_with_readable_names_and_its_own_times(
        self, filled: Store, url: str
    ) -> None:
        """Its windows would be lost with it."""
        filled.write([batch(minute(T0 + 3 * HOUR))], NOW)
        write(
            url,
            "UPDATE series SET model_name = CAST(x'61ff' AS TEXT), last_start = 'x',"
            " rolled_until = NULLIF(rolled_until, rolled_until + 1) WHERE target = 'chat'",
        )
        assert {window.series.target for window in read(filled)} == {"code"}
        assert filled.roll_up(NOW) == 0
        filled.set_aside(NOW)
        (chat, code) = filled.targets()
        assert (chat.target, chat.model_name, code.target) == ("chat", "a\ufffd", "code")
        assert (chat.first_start, chat.last_start) == (T0, T0 + 3 * HOUR)
        assert starts(read(filled, target="chat")) == [T0, T0 + 3 * HOUR]
        assert filled.roll_up(NOW) == 2, "all that there are minutes of"
        assert aside(filled) == [("series", "chat")]

    def test_pruning_ends_with_an_hour_that_begins_in_the_middle_of_one(
        self, filled: Store, url: str
    ) -> None:
        write(url, f"UPDATE hours SET start = {T0 + 7} WHERE start = {T0}")
        assert filled.prune(NOW + 900 * HOUR, 0, 0).hours == 2

    def test_a_damaged_series_keeps_its_minutes_from_pruning(self, filled: Store, url: str) -> None:
        """Nobody knows whether they were rolled up."""
        write(url, "UPDATE series SET rolled_until = 'x' WHERE target = 'chat'")
        assert filled.prune(NOW + 900 * HOUR, 0, math.inf).minutes == 1
        assert filled.set_aside(NOW)
        assert starts(read(filled, target="chat")) == [T0]

    def test_a_table_that_is_defined_otherwise_is_told(self, filled: Store, url: str) -> None:
        database = Database(url, migrating=True)
        with database.writing() as connection:
            connection.exec_driver_sql("PRAGMA writable_schema=ON")
            connection.exec_driver_sql(
                "UPDATE sqlite_master SET sql = replace(sql, 'model_name TEXT', 'model TEXT')"
                " WHERE name = 'series'"
            )
        database.dispose()
        with pytest.raises(StoreMalformed, match="specwatch db repair"):
            Store(url, daemon="right").targets()


def test_a_single_result_that_is_damaged_is_named(filled: Store, url: str) -> None:
    write(url, "UPDATE experiments SET data = :value WHERE id = 1", value=b"\xff")
    with pytest.raises(DamagedRow, match=r"experiments \(id=1\).*specwatch db repair"):
        filled.experiment(1)


def test_a_batch_written_over_a_damaged_baseline_counts(filled: Store, url: str) -> None:
    write(url, "UPDATE baselines SET data = :value", value=b"\xc1")
    point = Point(float(T0 + 60), 2.0, 60.0, 3000.0, by_token=True)
    own = Measurement(BaselineKey("chat", "llama", None, None), 1, Origin.WINDOWS, (point,))
    filled.write_measurements([own], NOW)
    assert filled.measurements("chat") == [own]


def test_windows_are_still_put_while_rows_are_damaged(
    filled: Store, recorder: Recorder, url: str
) -> None:
    write(url, "UPDATE minutes SET data = :value", value=b"\xc1")
    recorder.put(Batch((minute(T0 + MINUTE),), None))
    recorder.flush()
    assert starts(read(filled)) == [T0 + MINUTE]
    assert recorder.ready
