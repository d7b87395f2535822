"""Damaged rows are skipped by every reader, set aside, counted and reported."""

from __future__ import annotations

import math
import threading
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
from specwatch.errors import DamagedRow, StoreMalformed, StoreUnavailable
from specwatch.guard.state import GuardState, Phase, Step
from specwatch.report.reader import read_report
from specwatch.report.text import plain
from specwatch.store import damaged_rows, schema
from specwatch.store.database import Database
from specwatch.store.guard_records import GuardBook
from specwatch.store.repair import check, repair
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue
from tests.fixtures import OpenStore, each_database
from tests.store.examples import FOREVER, T0, batch, cursor, fill_tables, minute, read, starts

NOW = T0 + 5 * HOUR
POINT = Point(float(T0), 2.0, 60.0, 3000.0, by_token=True)
OF_CHAT = "series_id = (SELECT id FROM series WHERE target = 'chat')"
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


def write(url: str, *statements: str, **values: object) -> None:
    """Change rows without the store."""
    database = Database(url, migrating=True)
    with database.writing() as connection:
        for statement in statements:
            connection.execute(sa.text(statement), values)
    database.dispose()


def fill(store: Store) -> None:
    """Write two rows into every table, of two targets."""
    for number, target in enumerate(("chat", "code")):
        fill_tables(store, T0 + number, target)
    store.roll_up(NOW)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a filled store."""
    path = tmp_path_factory.mktemp("source") / "source.db"
    store = Store(f"sqlite:///{path}", daemon="left")
    store.open(0)
    fill(store)
    store.close(0)
    return path.read_bytes()


@pytest.fixture
def filled(url: str, source: bytes, open_store: OpenStore) -> Store:
    """A store with two rows in every table, of two targets."""
    if url.startswith("postgres"):
        store = open_store(url)
        fill(store)
        return store
    path = Path(url.removeprefix("sqlite:///"))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(source)
    return open_store(url)


def note(state: GuardState) -> Step:
    return Step(state, "a note")


@pytest.fixture
def recorder(filled: Store) -> Recorder:
    opened = Recorder(
        filled, queue_limit=9, now=lambda: Moment(NOW, NOW), resume=lambda _: None,
        supersede=lambda _: None, configuring=threading.Lock(),
    )  # fmt: skip
    opened.open()
    return opened


def aside(store: Store) -> list[tuple[str, str]]:
    """The table and the target of each row that was set aside."""
    with store.connected() as connection:
        return [(row.table, row.target) for row in damaged_rows.read(connection)]


@each_database
def test_a_damaged_row_hides_no_other_and_is_set_aside(
    filled: Store, recorder: Recorder, url: str
) -> None:
    for number, (table, (column, value, count)) in enumerate(TABLES.items()):
        assert count(filled) == 2, table
        where = OF_CHAT if table in ("minutes", "hours") else "target = 'chat'"
        write(url, f"UPDATE {table} SET {column} = :value WHERE {where}", value=value)
        assert count(filled) == 1, table
        (row,) = filled.damage.rows
        assert row.table == table
        recorder.flush()
        assert (filled.damage.count, filled.damage.rows) == (number + 1, [])
        # A guard without a state is held.
        assert count(filled) == (2 if table == "guards" else 1), table
    assert sorted(aside(filled)) == sorted((table, "chat") for table in TABLES)
    assert check(url).sound


def test_a_damaged_row_is_kept_unchanged_and_reported_once(
    filled: Store, recorder: Recorder, url: str
) -> None:
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
    with filled.connected() as connection:
        (content,) = connection.execute(sa.select(schema.damaged_rows.c.content)).scalars()
        (row,) = damaged_rows.read(connection)
    assert msgspec.msgpack.decode(content) == {
        "at": T0, "daemon": "left", "target": "chat", "model_name": "llama", "temperature": "all",
        "rule": "r", "verdict": "breach", "severity": "critical", "action": "alert", "inputs": "{",
    }  # fmt: skip
    assert (row.found_at, row.at, row.reason) == (NOW, T0, "Input data was truncated")
    assert row.key.startswith("verdicts (at=")


def test_rows_that_could_not_be_moved_are_tried_again(
    filled: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("", {}, Exception("locked"))

    write(url, "UPDATE verdicts SET inputs = '{' WHERE target = 'chat'")
    filled.verdicts(**FOREVER)
    with monkeypatch.context() as patched:
        patched.setattr(damaged_rows, "set_aside", locked)
        with pytest.raises(StoreUnavailable):
            filled.set_aside(NOW)
    assert len(filled.set_aside(NOW)) == 1
    assert filled.damage.rows == []


@pytest.mark.parametrize(
    ("change", "built", "drafts"),
    [
        (f"data = :value WHERE start = {T0 + HOUR + 60}", 1, [200]),
        (f"drafts = {2**62} WHERE {OF_CHAT} AND start > {T0 + 1}", 1, []),
    ],
    ids=["a minute cannot be decoded", "the sum is too large to be stored"],
)
def test_hours_are_built_from_the_minutes_that_can_be_added_up(
    url: str, filled: Store, change: str, built: int, drafts: list[int]
) -> None:
    filled.write([batch(*(minute(T0 + HOUR + 60 * number) for number in range(3)))], NOW)
    values = {"value": b"\xc1"} if ":value" in change else {}
    write(url, f"UPDATE minutes SET {change}", **values)
    assert filled.roll_up(NOW) == built
    hours = read(filled, since=T0 + HOUR, length=HOUR)
    assert [hour.tally.drafts for hour in hours] == drafts
    assert filled.damage.count == 1


@pytest.mark.parametrize(
    "change", ["state = '{'", f"target = '{'[' * 2000}'"], ids=["its state", "its name"]
)
def test_a_guard_whose_row_is_damaged_is_held_until_a_person_resumes_it(
    filled: Store, recorder: Recorder, url: str, change: str
) -> None:
    """It cannot know what it has done to the server."""
    write(url, f"UPDATE guards SET {change} WHERE target = 'chat'")
    book = GuardBook(filled)
    assert set(book.look()) == {"code"}
    book.hold(["code"], "holder:2", NOW, able=True)
    recorder.flush()
    entries = book.look()
    assert {name: entry.state.phase for name, entry in entries.items()} == {
        "chat": Phase.HELD, "code": Phase.OBSERVING,
    }  # fmt: skip
    assert "damaged" in entries["chat"].state.why
    assert check(url).sound
    book.change("chat", note, NOW, by="ann")
    assert book.history(target="chat")[0].version > 1, "its steps go on where they were"


@each_database
def test_a_damaged_context_is_repaired_when_a_daemon_writes_it_again(
    filled: Store, url: str, open_store: OpenStore
) -> None:
    """Its id is a digest of its content, so a change is noticed."""
    write(url, "UPDATE contexts SET content = replace(content, '0.11.0', '0.12.0')")
    assert read(filled) == []
    assert {row.table for row in filled.damage.rows} == {"contexts"}
    later = open_store(url, now=NOW)
    later.write([batch(minute(T0 + MINUTE), cursor=cursor())], NOW)
    assert starts(read(later, target="chat")) == [T0, T0 + MINUTE]
    assert filled.set_aside(NOW) != []
    assert aside(filled) == [], "a daemon moves nothing that may be repaired"


@each_database
def test_a_repair_moves_the_rows_of_a_lost_context(filled: Store, url: str) -> None:
    write(url, "UPDATE contexts SET content = '{}'")
    done = repair(url, NOW)
    assert (done.rebuilt, done.left) == (None, [])
    assert sorted({table for table, _ in aside(filled)}) == [
        "contexts", "cursors", "hours", "minutes",
    ]  # fmt: skip
    assert check(url).sound
    queue = WriteQueue()
    queue.put(batch(minute(T0 + MINUTE)))
    for now in (NOW, NOW + 60):  # a running daemon still takes it for stored
        queue.drain(filled, now)
    assert starts(read(filled)) == [T0 + MINUTE]


@pytest.mark.parametrize("damaged", ["minutes", "hours"])
def test_a_report_counts_the_rows_that_it_leaves_out(
    filled: Store, recorder: Recorder, url: str, damaged: str
) -> None:
    """Those still in their table, and those that were set aside."""
    filled.write([batch(*(minute(T0 + HOUR * number) for number in range(-30, 5)))], NOW)
    filled.roll_up(NOW)
    write(url, f"UPDATE {damaged} SET data = :v WHERE start = {T0 + 2 * HOUR}", v=b"\xc1")
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


def test_a_damaged_experiment_is_named(filled: Store, url: str) -> None:
    write(url, "UPDATE experiments SET data = :value WHERE id = 1", value=b"\xff")
    with pytest.raises(DamagedRow, match=r"experiments \(id=1\).*specwatch db repair"):
        filled.experiment(1)


@each_database
def test_rows_are_written_beside_and_over_damaged_ones(
    filled: Store, recorder: Recorder, url: str
) -> None:
    write(url, "UPDATE baselines SET data = :v", "UPDATE minutes SET data = :v", v=b"\xc1")
    own = Measurement(BaselineKey("chat", "llama", None, None), 1, Origin.WINDOWS, (POINT,))
    filled.write_measurements([own], NOW)
    assert filled.measurements("chat") == [own]
    recorder.put(Batch((minute(T0 + MINUTE),), None))
    recorder.flush()
    assert starts(read(filled)) == [T0 + MINUTE]
    assert recorder.ready


class TestSqlite:
    """Only SQLite stores values of any type in any column."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/specwatch.db"

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
        rule = "UPDATE verdicts SET rule = CAST(x'ff80' AS TEXT) WHERE target = 'chat'"
        write(url, f"UPDATE minutes SET {change}", rule)
        assert read(filled) == []
        assert {row.reason for row in filled.damage.rows} == {reason}
        assert [verdict.target for verdict in filled.verdicts(**FOREVER)] == ["code"]
        assert filled.set_aside(NOW)[-1].reason == "rule is not UTF-8"
        assert check(url).sound

    def test_a_damaged_series_keeps_its_windows_with_readable_names_and_computed_times(
        self, filled: Store, url: str
    ) -> None:
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
        assert filled.roll_up(NOW) == 2, "all hours that have minutes"
        assert aside(filled) == [("series", "chat")]

    @pytest.mark.parametrize(
        ("change", "hours_kept", "pruned"),
        [
            (f"hours SET start = {T0 + 7} WHERE start = {T0}", 0.0, (2, 2)),
            ("series SET rolled_until = 'x' WHERE target = 'chat'", math.inf, (1, 0)),
        ],
        ids=["an hour that begins in its middle", "minutes that may not be rolled up are kept"],
    )
    def test_pruning_ends_with_damaged_rows(
        self, filled: Store, url: str, change: str, hours_kept: float, pruned: tuple[int, int]
    ) -> None:
        write(url, f"UPDATE {change}")
        deleted = filled.prune(NOW + 900 * HOUR, 0, hours_kept)
        assert (deleted.minutes, deleted.hours) == pruned
        assert len(read(filled)) == 0
        filled.set_aside(NOW)
        assert len(read(filled)) == 2 - pruned[0]

    def test_a_table_with_another_definition_is_reported(self, filled: Store, url: str) -> None:
        write(
            url,
            "PRAGMA writable_schema=ON",
            "UPDATE sqlite_master SET sql = replace(sql, 'model_name TEXT', 'model TEXT')"
            " WHERE name = 'series'",
        )
        with pytest.raises(StoreMalformed, match="specwatch db repair"):
            Store(url, daemon="right").targets()
