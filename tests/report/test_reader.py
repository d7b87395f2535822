"""What a report is made of is read from the store: periods, targets, and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.config.loading import Config, from_targets
from specwatch.domain.model import ALL, HOUR, MINUTE, Mode, Objective
from specwatch.errors import ConfigError, StoreUnavailable
from specwatch.guard.state import Step
from specwatch.report import reader
from specwatch.report.grouped_data import ReportSources
from specwatch.report.model import Report
from specwatch.report.reader import period, read_report
from specwatch.rules.decisions import Decision
from specwatch.store import schema
from specwatch.store.guard_records import GuardBook
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests.cli import history
from tests.fixtures import OpenStore
from tests.postgres import PostgresServer
from tests.report.experiments import probe, switchback
from tests.segments import segment
from tests.store.examples import T0, batch, minute

DAY = 86400
NOW = T0 + 8 * DAY + 1234.5


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[ReportSources, list[Any]]]:
    """What the report of each target was made of, by its name."""
    result: dict[str, tuple[ReportSources, list[Any]]] = {}

    def build(sources: ReportSources, since: float, until: float) -> tuple[()]:
        result[sources.target] = sources, list(sources.windows)
        return ()

    monkeypatch.setattr(reader, "build", build)
    return result


def _read(store: Store, since: float = T0, until: float = NOW, **more: Any) -> Report:
    return read_report(store, since=since, until=until, now=NOW, **more)


def _config(*targets: str, **settings: Any) -> Config:
    named = [
        {"url": f"http://{name}:8000", "name": name, "gpus": [0, 1], "objective": "tpot"}
        for name in targets
    ]
    return from_targets((), environ={}, hostname="h", settings={"targets": named, **settings})


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (T0 + 10, T0 + DAY + 10, (T0, T0 + DAY + HOUR)),
        (T0 + 10, NOW, (T0, NOW // HOUR * HOUR)),
        (T0 + 10, NOW + 9 * DAY, (T0, NOW // HOUR * HOUR)),
        (T0 + 70, T0 + 3601, (T0 + 60, T0 + 3660)),
        (NOW - 2 * HOUR, NOW, ((NOW - 2 * HOUR) // MINUTE * MINUTE, NOW // MINUTE * MINUTE)),
        (NOW - 3, NOW, (NOW // MINUTE * MINUTE, NOW // MINUTE * MINUTE + MINUTE)),
    ],
    ids=["days", "days until now", "the future", "an hour", "hours until now", "seconds"],
)
def test_a_period_is_in_whole_hours_or_minutes_and_ends_by_now(
    since: float, until: float, expected: tuple[float, float]
) -> None:
    assert period(since, until, NOW) == expected


def test_a_short_history_is_told_to_the_last_minute() -> None:
    assert period(NOW - 7 * DAY, NOW, NOW, first=NOW - HOUR)[1] == NOW // MINUTE * MINUTE
    assert period(NOW - 7 * DAY, NOW, NOW, first=NOW - DAY)[1] == NOW // HOUR * HOUR


def test_a_period_that_has_not_begun_is_refused() -> None:
    with pytest.raises(ConfigError, match="give an earlier since"):
        period(NOW + 60, NOW + 120, NOW)


def test_a_period_and_the_one_before_it_are_read_as_hours(store: Store, taken: Any) -> None:
    store.write([batch(*(minute(T0 + HOUR * at) for at in range(0, 6 * 24, 4)))], now=0)
    store.roll_up(T0 + 4 * DAY)
    _read(store, T0 + 4 * DAY, T0 + 5 * DAY)
    _, windows = taken["chat"]
    starts = [window.start for window in windows]
    assert starts == [T0 + 3 * DAY + HOUR * at for at in range(0, 2 * 24, 4)]
    assert {window.length for window in windows} == {HOUR}


def test_minutes_in_standby_are_read_as_far_back_as_a_baseline_holds(
    store: Store, taken: Any
) -> None:
    modes = {0: Mode.STANDBY, 30: Mode.STANDBY, 31: Mode.ON}
    known = [minute(T0 + DAY + 60 * n, mode=mode) for n, mode in modes.items()]
    store.write([batch(minute(T0, mode=Mode.STANDBY), *known)], now=0)
    config = _config("chat", baseline={"max_age": "6d"})
    _read(store, T0 + 6 * DAY, T0 + 7 * DAY, config=config)
    assert taken["chat"][0].standby() == known[:2]


@pytest.mark.parametrize(
    ("hours", "since", "length"),
    [(8, T0 + 7 * HOUR, MINUTE), (5, T0 - 7 * DAY, MINUTE), (8, T0 - 7 * DAY, HOUR)],
    ids=["a short period", "a short history", "neither"],
)
def test_what_is_short_is_read_as_minutes(
    store: Store, taken: Any, hours: int, since: float, length: int
) -> None:
    store.write([batch(*(minute(T0 + HOUR * at) for at in range(hours)))], now=0)
    _read(store, since, T0 + 8 * HOUR)
    assert {window.length for window in taken["chat"][1]} == {length}


def test_a_short_period_whose_minutes_were_deleted_is_read_as_hours(
    store: Store, taken: Any
) -> None:
    store.write([batch(*(minute(T0 + HOUR * at) for at in range(8)))], now=0)
    store.roll_up(T0 + DAY)
    store.prune(T0 + 2 * DAY, DAY, 9 * DAY)
    _read(store, T0 + 6 * HOUR, T0 + 8 * HOUR)
    assert {window.length for window in taken["chat"][1]} == {HOUR}


def test_each_target_has_what_is_its_own(store: Store, taken: Any) -> None:
    store.write([batch(minute(T0), minute(T0, target="other"))], now=0)
    decisions = [
        Decision(
            daemon="left",
            target=name,
            model_name="llama",
            segment=ALL,
            rule="r",
            verdict="breach",
            severity="warning",
            action="alert",
            at=float(T0),
            inputs={},
        )
        for name in ("chat", "other")
    ]
    store.write_verdicts(decisions, 0)
    store.write_measurements([history._measurement()], 0)
    book = GuardBook(store)
    book.hold(["chat"], "left:1:abc", T0, able=True)
    entry = book.look("chat")["chat"]
    for at in (T0 + 5.0, T0 + 9.0):
        step = Step(entry.state, f"because {at - T0:.0f}")
        entry = book.advance(entry, step, at, by="left")
    slos = [{"name": "first", "metric": "ttft", "threshold": "500ms", "objective": "99%"}]
    _read(store, T0, config=_config("chat", slos=slos, baseline={"max_age": "3d"}))
    chat, other = taken["chat"][0], taken["other"][0]
    assert [step.reason for step in chat.steps] == ["because 5", "because 9"]
    assert [measurement.key.target for measurement in chat.measurements] == ["chat"]
    assert [decision.target for decision in chat.decisions] == ["chat"]
    assert (chat.gpus, chat.max_age, [slo.name for slo in chat.slos]) == (2, 3 * DAY, ["first"])
    assert (other.steps, other.measurements, other.gpus) == ([], [], None)
    assert (chat.objective, other.objective) == (Objective.TPOT, Objective.E2E)


def test_the_budget_of_an_objective_is_read_as_far_back_as_it_goes(
    store: Store, taken: Any
) -> None:
    windows = [
        minute(T0 + HOUR * at, temperature=temperature)
        for at in range(0, 8 * 24, 6)
        for temperature in ("all", "0")
    ]
    store.write([batch(*windows)], now=0)
    slo = {"name": "a", "metric": "ttft", "threshold": "1s", "objective": "99%", "window": "6d"}
    for rolled_up in (False, True):
        if rolled_up:
            store.roll_up(T0 + 9 * DAY)
        _read(store, T0 + 7 * DAY, T0 + 8 * DAY, config=_config("chat", slos=[slo]))
        result = [getattr(recorded, "window", recorded) for recorded in taken["chat"][1]]
        wholes = [w.start for w in result if w.series.segment == ALL]
        assert wholes == [T0 + 2 * DAY + HOUR * n for n in range(0, 6 * 24, 6)]
        assert all(w.start >= T0 + 6 * DAY for w in result if w.series.segment == segment("0"))


def test_a_short_period_has_the_whole_budget_of_an_objective_too(store: Store, taken: Any) -> None:
    store.write([batch(*(minute(T0 + HOUR * at) for at in range(8 * 24)))], now=0)
    slo = {"name": "a", "metric": "ttft", "threshold": "1s", "objective": "99%", "window": "6d"}
    _read(store, NOW - 5 * HOUR, NOW, config=_config("chat", slos=[slo]))
    _, result = taken["chat"]
    assert result[0].start == T0 + 2 * DAY + HOUR
    starts = [window.start for window in result]
    assert starts == sorted(set(starts))
    assert {w.length for w in result if w.start < NOW - 11 * HOUR} == {HOUR}
    assert {w.length for w in result if w.start >= NOW - 10 * HOUR} == {MINUTE}


def test_targets_are_those_configured_and_then_all_that_were_watched(
    store: Store, taken: Any
) -> None:
    store.write([batch(*(minute(T0, target=name) for name in "dcb"))], now=0)
    calls: list[tuple[int, int, str]] = []
    _read(store, T0, config=_config("c", "a"), progress=lambda *found: calls.append(found))
    assert list(taken) == ["c", "b", "d"]
    assert calls == [(0, 4, "c"), (1, 4, "a"), (2, 4, "b"), (3, 4, "d"), (4, 4, "")]
    taken.clear()
    _read(store, T0, targets=["d", "c"])
    assert list(taken) == ["c", "d"]


def test_pods_whose_minutes_are_in_those_of_their_workload_are_left_out(
    store: Store, taken: Any
) -> None:
    """But not those from before it was guarded, and those of other workloads."""
    names = (
        "ns/deployment/vllm",
        "ns/vllm-5d8f9c7b6-x2x9z",
        "ns/vllm-7b-5d8f9c7b6-x2x9z",
        "ns/statefulset/big",
        "ns/big-0",
        "other/big-0",
    )
    windows = [minute(T0, target=name) for name in names]
    store.write([batch(minute(T0 - MINUTE, target="ns/big-1"), *windows)], now=0)
    _read(store, T0 - HOUR)
    left_out = {"ns/vllm-5d8f9c7b6-x2x9z", "ns/big-0"}
    assert set(taken) == {*names, "ns/big-1"} - left_out
    taken.clear()
    _read(store, T0 - HOUR, targets=["ns/big-0"])
    assert list(taken) == ["ns/big-0"], "it is there for who asks"


def test_processes_share_the_targets_after_the_connections_are_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes cannot use one connection. Real ones make a report nightly."""
    store.write([batch(*(minute(T0 + HOUR * at) for at in range(3)))], now=0)
    alone = _read(store)
    opened: list[bool] = []

    @contextmanager
    def spread(function: Any, names: Any, prepare: Callable[[], None]) -> Iterator[Any]:
        prepare()
        opened.append(store._database.engine.pool.checkedin() > 0)
        yield map(function, names)

    monkeypatch.setattr(reader, "spread", spread)
    assert _read(store) == alone
    assert opened == [False]


def test_a_report_from_postgres_is_that_from_sqlite(
    store: Store, open_store: OpenStore, postgres: PostgresServer
) -> None:
    """With hours, minutes that are not rolled up yet, a baseline, a guard and an experiment."""
    with postgres.lent_url() as lent:
        stores = (store, open_store(lent))
        for one in stores:
            one.write([batch(*(minute(T0 + HOUR * at) for at in range(0, 48, 3)))], now=0)
            one.roll_up(T0 + 40 * HOUR)
            one.write([batch(minute(T0 + 46 * HOUR), minute(T0, target="other"))], now=0)
            one.write_measurements([history._measurement()], 0)
            one.add_experiment(probe(T0 + HOUR), T0)
            book = GuardBook(one)
            book.hold(["chat"], "left:1:abc", T0, able=True)
            entry = book.look("chat")["chat"]
            book.advance(entry, Step(entry.state, "because"), T0 + 30.0 * HOUR, by="left")
        found, expected = (_read(one, T0 + 24 * HOUR, T0 + 48 * HOUR) for one in stores)
    assert expected.targets
    assert found == expected


def test_a_target_that_nobody_knows_is_refused_with_the_nearest(store: Store) -> None:
    store.write([batch(minute(T0, target="chat-70b"))], now=0)
    with pytest.raises(ConfigError, match=r'"chat-7b".*did you mean "chat-70b"\?'):
        _read(store, targets=["chat-7b"])
    with pytest.raises(
        ConfigError, match='"x" is configured or was ever watched; known here: chat-70b'
    ):
        _read(store, targets=["x"])


def test_a_target_without_windows_in_the_period_has_a_note(store: Store) -> None:
    store.write([batch(minute(T0), minute(T0 + 2 * DAY, target="late"))], now=0)
    report = _read(store, T0 + DAY, T0 + 2 * DAY, config=_config("chat", "new"))
    assert report.targets == ()
    assert report.notes == (
        "chat: not watched in this period; last seen 2023-11-14 22:01 UTC",
        "new: never watched yet",
    )


def test_what_was_measured_on_purpose_goes_to_its_model_and_else_into_notes(store: Store) -> None:
    end = T0 + 2 * HOUR
    store.write([batch(*(minute(T0 + MINUTE * at) for at in range(120)))], now=0)
    for item in (
        *(probe(T0 + ended) for ended in (-1, 0, 5, 2 * HOUR)),
        probe(T0 + 9, "else"),
        probe(T0 + 7, "other"),
    ):
        model = "llama" if item.subject.target == "chat" else "tiny"
        target = item.subject.target.replace("else", "chat")
        subject = msgspec.structs.replace(item.subject, target=target, model_name=model)
        store.add_experiment(msgspec.structs.replace(item, subject=subject), end)
    report = _read(store, T0, end)
    (model_report,) = report.targets
    assert [experiment.at - T0 for experiment in model_report.experiments] == [5, 0], (
        "by time, newest first"
    )
    assert [note.partition(", probe")[0] for note in report.notes] == [
        "chat, tiny: 2023-11-14 22:00 UTC",
        "other, tiny: 2023-11-14 22:00 UTC",
    ]
    assert _read(store, T0, end, targets=["other"]).notes[0] == "other: never watched yet"


def test_where_nothing_was_watched_what_was_just_measured_on_purpose_is_told(store: Store) -> None:
    store.add_experiment(probe(NOW - 120), NOW)
    report = _read(store, NOW - 7 * DAY, NOW)
    (note,) = report.notes
    assert note.startswith("chat, chat: ")
    assert report.targets == ()


def test_a_database_that_nobody_wrote_to_makes_a_report_that_says_so(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "specwatch.db").touch()
    reader = Reader.of(url)
    report = read_report(reader, since=T0, until=NOW, now=NOW)
    reader.close()
    assert (report.targets, report.generated) == ((), NOW)
    assert report.notes == ("nothing was recorded yet: no daemon has written to this database",)


def test_a_database_without_rows_is_the_same_as_one_without_tables(store: Store) -> None:
    assert _read(store).notes[0].startswith("nothing was recorded yet")


def test_a_database_that_cannot_be_read_is_an_error(
    url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.store.schema.CURRENT", "next")
    monkeypatch.setattr("specwatch.store.schema.REVISIONS", (*schema.REVISIONS, "next"))
    reader = Reader.of(url)
    monkeypatch.setattr(reader, "is_set_up", lambda: True)
    with pytest.raises(StoreUnavailable):
        read_report(reader, since=T0, until=NOW, now=NOW)
    reader.close()


def test_the_experiment_on_live_traffic_is_that_of_the_target_if_it_ran_in_the_period(
    store: Store, taken: dict[str, tuple[ReportSources, list[Any]]]
) -> None:
    store.write([batch(minute(T0)), batch(minute(T0, target="code"))], now=0)
    running = switchback(T0 + HOUR)
    store.change_switchback("chat", lambda _: running, T0)
    ended = running.state.counted
    for since, until, present in (
        (T0, T0 + HOUR, None),
        (T0, T0 + 2 * HOUR, running),
        (ended - HOUR, NOW, running),
        (ended + HOUR, NOW, None),
    ):
        _read(store, since, until)
        assert taken["chat"][0].switchback == present
        assert taken["code"][0].switchback is None
