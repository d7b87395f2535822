"""The hours of a target are the same, whether they are rolled up already or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from specwatch.domain.model import (
    HOUR,
    Gauges,
    Mode,
    Window,
)
from specwatch.errors import StoreUnavailable
from specwatch.report.hours import hours_of, members_by_target
from specwatch.store.database import Database
from specwatch.store.repository import Store
from tests.fixtures import OpenStore
from tests.store.examples import FOREVER, T0, batch, minute


def _history() -> list[Window]:
    """Three hours with a change of mode, of load, of version, and of bounds."""
    changes: dict[int, dict[str, Any]] = {
        20: {"mode": Mode.OFF},
        40: {"concurrency": 6.0},
        70: {"engine_version": "0.12.0"},
        100: {"bounds": (0.2, 0.5)},
        130: {"concurrency": 0.0},
    }
    found = []
    for at in range(150):
        if 80 <= at < 90:
            continue
        changed = next((changes[key] for key in sorted(changes, reverse=True) if key <= at), {})
        for temperature in ("all", "0", ">1"):
            found.append(minute(T0 + 60 * at, temperature=temperature, drafts=3 + at, **changed))
    return found


def _in_order(found: Iterable[Window]) -> list[Window]:
    """By start and temperature; among those of one the order says nothing."""
    windows = list(found)
    order = [(window.start, window.series.segment) for window in windows]
    assert order == sorted(order)
    return sorted(windows, key=lambda each: (each.start, each.series.segment, repr(each)))


def _hours(store: Store, until: float = FOREVER["until"], since: float = 0) -> list[Window]:
    members = members_by_target(store).get("chat", {})
    return _in_order(hours_of(store, members, since, until))


def _rolled_up(store: Store) -> list[Window]:
    store.roll_up(T0 + 30 * HOUR)
    return _in_order(store.windows(since=0, until=10**11, length=HOUR, target="chat"))


def test_hours_are_those_of_rolling_up_before_and_after_it(store: Store) -> None:
    store.write([batch(*_history(), minute(T0, target="other"))], now=0)
    before = _hours(store)
    assert before == _rolled_up(store) == _hours(store)
    assert len({window.start for window in before}) == 3


def test_what_is_rolled_up_and_what_is_not_follow_one_another(store: Store) -> None:
    history = _history()
    store.write([batch(*(each for each in history if each.start < T0 + HOUR + 1800))], now=0)
    store.roll_up(T0 + HOUR + 400)
    store.write([batch(*(each for each in history if each.start >= T0 + HOUR + 1800))], now=0)
    before = _hours(store)
    assert before == _rolled_up(store)
    assert len({window.start for window in before}) == 3


def test_late_minutes_count_beside_hours_whose_minutes_were_deleted(store: Store) -> None:
    late = minute(T0 + 60 * 85)
    store.write([batch(*_history())], now=0)
    store.roll_up(T0 + 30 * HOUR)
    store.prune(T0 + 2 * HOUR + 10 * HOUR, 10 * HOUR, 1e9)
    store.write([batch(late)], now=0)
    before = _hours(store)
    assert before == _rolled_up(store)
    assert sum(each.tally.drafts or 0 for each in before if each.start == T0 + HOUR) == (
        sum(
            each.tally.drafts or 0
            for each in [*_history(), late]
            if each.start // HOUR == T0 // HOUR + 1
        )
    )


def test_of_two_daemons_that_with_more_good_scrapes_counts(url: str, open_store: OpenStore) -> None:
    left, right = open_store(url), open_store(url, daemon="right")
    starts = [T0 + 60 * at for at in range(60)]
    ours = [minute(at, scrapes_ok=12 if at < T0 + 1200 else 6) for at in starts]
    left.write([batch(*ours)], now=0)
    right.write([batch(*(minute(at, daemon="right", scrapes_ok=9) for at in starts))], now=0)
    assert {hour.series.daemon for hour in _hours(left)} == {"right"}
    left.roll_up(T0 + 30 * HOUR)
    assert {hour.series.daemon for hour in _hours(left)} == {"right"}
    right.roll_up(T0 + 30 * HOUR)
    assert _hours(left) == _in_order(left.windows(since=0, until=10**11, length=HOUR))


def test_two_runs_of_one_daemon_add_up(url: str, open_store: OpenStore) -> None:
    first = open_store(url, pid=1)
    first.write([batch(minute(T0, drafts=3))], now=0)
    second = open_store(url, now=5.0, pid=2)
    second.write([batch(minute(T0, drafts=4))], now=0)
    (found,) = _hours(second)
    assert found.tally.drafts == 7
    assert [found] == _rolled_up(second)


def test_hours_start_in_the_span(store: Store) -> None:
    """Whether they are rolled up or not."""
    store.write([batch(*_history())], now=0)
    for _ in range(2):
        for since, until, hours in (
            (T0, T0 + HOUR, [0]),
            (T0 + 0.5, T0 + 3 * HOUR, [1, 2]),
            (T0 + HOUR, T0 + 2 * HOUR + 1, [1, 2]),
            (T0 - 90 * HOUR, T0, []),
            (T0 + 3 * HOUR, T0 + 90 * HOUR, []),
        ):
            found = {(each.start - T0) // HOUR for each in _hours(store, until, since)}
            assert sorted(found) == hours, (since, until)
        store.roll_up(T0 + 30 * HOUR)


def test_of_an_hour_that_is_not_rolled_up_only_minutes_before_the_end_count(store: Store) -> None:
    store.write([batch(*(minute(T0 + 60 * at, drafts=1) for at in range(60)))], now=0)
    (found,) = _hours(store, T0 + 600)
    assert found.tally.drafts == 10


def test_a_gauge_is_the_greatest_that_is_known(store: Store) -> None:
    known = msgspec.structs.replace(
        minute(T0), gauges=Gauges(60.0, 60.0, 60.0, 0.0, 4, 1, 0.25, 7, 9)
    )
    unknown = msgspec.structs.replace(
        minute(T0 + 60), gauges=Gauges(60.0, 60.0, 60.0, 0.0, 2, 3, None, None, 9)
    )
    store.write([batch(known, unknown)], now=0)
    (found,) = _hours(store)
    assert found.gauges == Gauges(120.0, 120.0, 120.0, 0.0, 4, 3, 0.25, 7, 9)


def test_hours_that_cannot_be_read_say_where_and_why(store: Store) -> None:
    store.write([batch(*_history())], now=0)
    members = members_by_target(store)["chat"]
    database = Database(store.url, migrating=True)
    with database.writing() as connection:
        connection.exec_driver_sql("DROP VIEW minutes")
        connection.exec_driver_sql("DROP TABLE minute_counts")
    database.dispose()
    with pytest.raises(StoreUnavailable, match="minute_counts"):
        list(hours_of(store, members, 0, FOREVER["until"]))
    assert members_by_target(store), "the connection is of use"
