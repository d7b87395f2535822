"""Records of guards: each step is taken once, and each lease has one holder."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import structs
from structlog.testing import capture_logs

from specwatch.domain.model import ALL, Mode
from specwatch.errors import StoreUnavailable
from specwatch.guard import state_machine
from specwatch.guard.state import Cause, GuardState, Incident, Phase, Step
from specwatch.store import guard_records
from specwatch.store.guard_records import GuardBook, Lost
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store
from specwatch.store.schema import guards
from tests.fixtures import OpenStore, each_database

NOW = 1_800_000_000.0
HOSTILE = ["a", "~a", "a~", "%", "_", "a:b", "~", "'; --", 'a"b', "\\", "ä" * 128, "東京\U0001f600"]


@pytest.fixture
def book(store: Store) -> GuardBook:
    return GuardBook(store)


def held(book: GuardBook, target: str = "chat", holder: str = "d:1") -> Entry:
    book.hold([target], holder, NOW, able=True)
    entry = book.look(target)[target]
    assert entry.held_by(holder)
    return entry


def expire(store: Store) -> None:
    """All leases end: they last by the database's clock, which no test waits for."""
    with store.writing(NOW) as connection:
        connection.execute(guards.update().values(lease_until=1.0))


def to(entry: Entry, phase: Phase, reason: str = "because", incident: str = "") -> Step:
    open_incident = Incident(incident, Cause.RULE, NOW) if incident else None
    return Step(
        replace(entry.state, phase=phase, incident=open_incident), reason, {"x": [1, None, "ä"]}
    )


def test_a_step_is_stored_with_its_reason_and_its_numbers(book: GuardBook) -> None:
    entry = held(book)
    after = book.advance(entry, to(entry, Phase.SUSPECT, incident="i"), NOW + 1, by="d")
    stored = book.look()["chat"]
    assert structs.replace(stored, left=after.left) == after
    (record,) = book.history()
    assert (record.target, record.at, record.daemon) == ("chat", NOW + 1, "d")
    assert record.version == stored.version
    assert (record.phase_before, record.phase) == ("observing", "suspect")
    assert (record.incident, record.reason) == ("i", "because")
    assert record.inputs == {"x": [1, None, "ä"]}


@each_database
def test_a_step_that_does_not_follow_is_refused_and_not_stored(
    store: Store, book: GuardBook
) -> None:
    first = held(book)
    second = book.advance(first, to(first, Phase.SUSPECT), NOW, by="d")
    before = book.look()["chat"]
    expire(store)
    book.hold(["chat"], "other:1", NOW, able=True)
    theirs = book.look()["chat"]
    not_next = {
        "an older state": first,
        "a state to come": structs.replace(theirs, version=theirs.version + 1),
        "a lease that went to another": second,
        "nobody's": structs.replace(theirs, holder=""),
    }
    for what, entry in not_next.items():
        with pytest.raises(Lost):
            book.advance(entry, to(entry, Phase.CONFIRMED), NOW, by="d")
        assert book.look()["chat"].state == before.state, what
        assert len(book.history()) == 1, what
    book.advance(theirs, to(theirs, Phase.CONFIRMED), NOW, by="other")


@each_database
def test_steps_and_changes_of_many_at_once_are_each_stored_once(
    url: str, book: GuardBook, open_store: OpenStore
) -> None:
    """Three take each step of a daemon, and two persons change the guard through another store."""
    held(book)
    other = GuardBook(open_store(url, "e"))

    def advance(_: int) -> int:
        done = 0
        while done < 3:
            entry = book.look("chat")["chat"]
            try:
                book.advance(entry, to(entry, Phase.SUSPECT), NOW, by="d")
            except Lost:
                continue
            done += 1
        return done

    def change(number: int) -> None:
        until = NOW + number
        for _ in range(3):
            other.change("chat", lambda s: state_machine.pause(s, until=until, by="p"), NOW, by="p")

    with ThreadPoolExecutor(5) as pool:
        steps = pool.map(advance, range(3))
        list(pool.map(change, (1, 2)))
        assert sum(steps) == 9
    versions = [step.version for step in book.history()]
    assert sorted(versions) == [int(NOW) + number for number in range(15)]
    assert book.look()["chat"].version == max(versions)


def test_a_later_step_has_a_greater_version_whatever_guard_takes_it(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """Systemd and commands refuse older orders: so no order of a target that got another name and
    its old one again, or of a new database, may look older than those before."""
    books = [GuardBook(open_store(f"sqlite:///{tmp_path}/{name}.db")) for name in ("old", "new")]
    order = [(0, "chat"), (0, "chat"), (0, "chat-70b"), (0, "chat"), (1, "chat"), (0, "chat")]
    versions = []
    for minute, (book, target) in enumerate(order):
        entry = held(books[book], target)
        after = books[book].advance(
            entry, to(entry, Phase.SUSPECT), NOW + 60 * minute + 0.5, by="d"
        )
        versions.append(after.version)
        assert books[book].look()[target].version == after.version
    assert versions == sorted(set(versions))


def test_versions_grow_while_the_clock_is_set_back(book: GuardBook) -> None:
    entry = held(book)
    for now in (NOW, NOW, NOW - 86_400, 5.0, NOW - 10):
        after = book.advance(entry, to(entry, Phase.SUSPECT), now, by="d")
        assert after.version > entry.version
        entry = after


def test_a_person_can_change_any_guard_and_its_lease_stays(store: Store, book: GuardBook) -> None:
    entry = held(book)
    book.change("chat", lambda s: state_machine.pause(s, until=NOW, by="ann"), NOW, by="person")
    assert book.look()["chat"].held_by("d:1")
    with pytest.raises(Lost):
        book.advance(entry, to(entry, Phase.SUSPECT), NOW, by="d")
    expire(store)
    state = book.change(
        "chat", lambda s: state_machine.order(s, Mode.OFF, by="ann", now=NOW), NOW, by="person"
    )
    assert state.order is not None
    assert state.pause is not None
    assert book.look()["chat"].left < 0
    assert [step.daemon for step in book.history()] == ["person", "person"]


def test_a_change_that_changes_nothing_stores_nothing(book: GuardBook) -> None:
    held(book)
    book.change("chat", lambda s: state_machine.resume(s, by="ann", now=NOW), NOW, by="person")
    assert book.history() == []
    assert book.look()["chat"].version == 0
    with pytest.raises(StoreUnavailable, match="no daemon guards nobody"):
        book.change("nobody", lambda s: state_machine.resume(s, by="a", now=NOW), NOW, by="p")


@each_database
def test_guards_are_read_again_only_after_a_change(
    url: str, store: Store, book: GuardBook, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = [0]
    read = guard_records._entries

    def counted(*of: Any) -> dict[str, Entry]:
        reads[0] += 1
        return read(*of)

    monkeypatch.setattr(guard_records, "_entries", counted)
    other = GuardBook(open_store(url, "e"))
    entry = held(book)

    changes: dict[str, Callable[[], object]] = {
        "nothing before": lambda: None,
        "a guard more": lambda: other.hold(["code"], "e:1", NOW, able=False),
        "a step": lambda: other.advance(entry, to(entry, Phase.SUSPECT), NOW, by="d"),
        "a renewed lease": lambda: (time.sleep(0.01), other.hold(["chat"], "d:1", NOW, able=True)),
        "a released lease": lambda: other.release("e:1", NOW),
        "another holder": lambda: other.hold(["code"], "f:1", NOW, able=True),
    }
    for what, change in changes.items():
        change()
        reads[0] = 0
        found = book.look()
        assert reads[0] == 1, what
        time.sleep(0.01)
        again = book.look()
        assert reads[0] == 1, what
        assert again.keys() == found.keys()
        for name, later in again.items():
            assert later == structs.replace(found[name], left=later.left)
            assert found[name].left - 5 < later.left < found[name].left


def test_a_guard_that_somebody_has_edited_is_left_alone_and_logged(
    store: Store, book: GuardBook
) -> None:
    held(book)
    with store.writing(NOW) as connection:
        connection.execute(guards.update().values(state="{"))
    with capture_logs() as log:
        assert book.look() == {}
        assert book.look() == {}
    (entry,) = log
    assert (entry["event"], entry["row"]) == ("row_unreadable", "target=chat")


@each_database
def test_a_lease_belongs_to_its_holder_until_it_ends_or_is_released(
    store: Store, book: GuardBook
) -> None:
    held(book)
    book.hold(["chat"], "other:1", NOW, able=True)
    assert book.look()["chat"].held_by("d:1")
    expire(store)
    assert not book.look()["chat"].held_by("d:1"), "a lease that has ended is nobody's"
    book.hold(["chat"], "other:1", NOW, able=True)
    assert (book.look()["chat"].daemon, book.look()["chat"].held_by("d:1")) == ("other", False)
    book.release("d:1", NOW)
    assert book.look()["chat"].held_by("other:1"), "only its own is given back"
    book.release("other:1", NOW, but=["chat"])
    assert book.look()["chat"].held_by("other:1")
    book.release("other:1", NOW)
    book.hold(["chat"], "d:1", NOW, able=True)
    assert book.look()["chat"].held_by("d:1")


def test_a_holder_that_can_act_takes_the_lease_from_one_that_cannot(book: GuardBook) -> None:
    book.hold(["chat"], "looks:1", NOW, able=False)
    assert book.look()["chat"].held_by("looks:1")
    book.hold(["chat"], "acts:1", NOW, able=True)
    book.hold(["chat"], "looks:1", NOW, able=False)
    assert book.look()["chat"].held_by("acts:1")
    book.hold(["chat"], "acts:1", NOW, able=False)
    assert book.look()["chat"].held_by("acts:1"), "who can act no more keeps it until another can"
    book.hold(["chat"], "other:1", NOW, able=True)
    assert book.look()["chat"].held_by("other:1")


@each_database
def test_names_with_a_meaning_in_sql_keep_their_own_leases(book: GuardBook) -> None:
    """Neither of a daemon nor of a target, whatever means something to SQL or to us."""
    for name in HOSTILE:
        book.hold([name], f"{name}:1", NOW, able=True)
    for other in ("%", "_", "~", "a", "~a", "a~"):
        book.hold(HOSTILE, f"{other}:2", NOW, able=True)
        book.hold(HOSTILE, f"{other}:2", NOW, able=False)
        book.release(f"{other}:2", NOW)
    entries = book.look()
    assert sorted(entries) == sorted(HOSTILE)
    for name, entry in entries.items():
        assert entry.held_by(f"{name}:1"), name
        assert entry.daemon == name
        book.advance(entry, to(entry, Phase.SUSPECT, "x", incident=name), NOW, by=name)
    for name in HOSTILE:
        assert [step.daemon for step in book.history(target=name, incident=name)] == [name]


@each_database
def test_history_is_newest_first_and_selected(book: GuardBook) -> None:
    for number, target in enumerate(["a", "b", "a", "a"]):
        entry = held(book, target)
        step = to(entry, Phase.SUSPECT, str(number), incident=f"{target}-{number // 2}")
        book.advance(entry, step, NOW + min(number, 2), by="d")

    def reasons(**chosen: object) -> str:
        return "".join(step.reason for step in book.history(**chosen))  # type: ignore[arg-type]

    assert reasons() == "3210"
    assert reasons(target="a") == "320"
    assert reasons(incident="a-1") == "32"
    assert reasons(target="b", incident="a-1") == ""
    assert reasons(since=NOW + 1) == "321"
    assert reasons(limit=2) == "32"
    assert reasons(target="a", limit=1) == "3"


@each_database
def test_the_state_of_a_guard_is_read_equal(book: GuardBook) -> None:
    entry = held(book)
    incident = Incident("i", Cause.TRIAL_LOST, NOW, "r", "tiny", ALL, {"speedup": 0.5, "n": None})
    state = replace(
        entry.state,
        phase=Phase.VERIFYING,
        since=NOW + 0.123456789,
        goal=Mode.OFF,
        incident=incident,
        models=("a", "b"),
        costs=(1.5, 2.0),
        hooked=True,
        rearm_at=NOW / 3,
    )
    state = state_machine.order(state, Mode.ON, by="ann", now=NOW, why="ä\0", until=NOW).state
    state = state_machine.pause(state, until=NOW, by="bob").state
    book.advance(entry, Step(state, "r"), NOW, by="d")
    assert book.look()["chat"].state == state


@each_database
def test_daemons_that_begin_at_once_create_each_guard_once(url: str, open_store: OpenStore) -> None:
    books = [GuardBook(open_store(url, name)) for name in "abcd"]
    names = [f"t{number}" for number in range(20)]

    def hold(number: int) -> None:
        books[number].hold(names[number:] + names[:number], f"{number}:1", NOW, able=True)

    with ThreadPoolExecutor(len(books)) as pool:
        list(pool.map(hold, range(len(books))))
    entries = books[0].look()
    assert sorted(entries) == sorted(names)
    assert all(sum(entry.held_by(f"{n}:1") for n in range(4)) == 1 for entry in entries.values())
    assert all(entry.state == GuardState(name, since=NOW) for name, entry in entries.items())


@each_database
def test_leases_are_measured_by_the_clock_of_the_database(store: Store, book: GuardBook) -> None:
    """A daemon whose own clock is off by years holds a lease as long as any other."""
    book.hold(["chat"], "d:1", 5.0, able=True)
    assert 20 < book.look()["chat"].left <= 30
    with store.connected() as connection:
        until = connection.execute(sa.select(guards.c.lease_until)).scalar_one()
    assert until > 1_700_000_000
