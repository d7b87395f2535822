"""The hours of a target are the same, whether they are rolled up already or not."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import (
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    MAPPINGS,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.errors import StoreUnavailable
from specwatch.report.hours import hours_of, members_by_target
from specwatch.store import row_sums
from specwatch.store.damage import Damage
from specwatch.store.database import Database
from specwatch.store.packing import MODES, pack
from specwatch.store.repository import Store
from specwatch.store.row_sums import fold
from tests.fixtures import OpenStore
from tests.store.examples import FOREVER, T0, batch, before_down_seconds, minute, unpack

SERIES = SeriesId("left", "chat", "llama", "0")
COUNTS = (0, 1, 17, 2**31, 2**55, 2**62)


@given(seed=st.integers(0, 2**32))
def test_minutes_fold_into_what_merging_them_one_by_one_gives(seed: int) -> None:
    """Whatever is unknown, empty, of unlike lengths, or too large for a float."""
    chance = random.Random(seed)
    starts = sorted(chance.randrange(3 * HOUR // 60) for _ in range(chance.randrange(1, 40)))
    packed = [pack(_any(T0 + 60 * at, chance, most=seed % len(COUNTS))) for at in starts]
    groups = defaultdict(list)
    for each in packed:
        window = unpack(each)
        bin_ = -1 if window.load_bin is None else window.load_bin
        place = (window.start - window.start % HOUR, each.context.id, window.mode, bin_)
        groups[place].append(window)
    expected = {
        place: merge_windows(group, start=place[0], length=HOUR) for place, group in groups.items()
    }
    rows = [(each.start, 1, each.context.id, *each.columns()) for each in packed]
    contents = {each.context.id: each.context.content for each in packed}
    found = {
        (place.start, place.context, MODES[place.mode], place.load_bin): window
        for place, window in fold(rows, {1: (SERIES, ())}, contents, Damage())
    }
    assert _comparable(found) == _comparable(expected)


@pytest.mark.parametrize("reason", ["stop", "of a later vLLM", "x" * 40, "\u00e9" * 150])
def test_minutes_of_a_server_are_folded_all_at_once(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever reasons it knows: one by one would take ten times as long."""
    monkeypatch.setattr(row_sums, "windows_by_hour", lambda *_: pytest.fail("one by one"))
    packed = []
    for at in range(3):
        window = minute(T0 + 60 * at, temperature="all", drafts=300 * at)
        counts = {reason: 70_000 * at, "length": at}
        packed.append(
            pack(
                msgspec.structs.replace(
                    window, tally=msgspec.structs.replace(window.tally, requests=counts)
                )
            )
        )
    rows = [(each.start, 1, each.context.id, *each.columns()) for each in packed]
    contents = {each.context.id: each.context.content for each in packed}
    ((_, found),) = row_sums.fold(rows, {1: (SERIES, ())}, contents, Damage())
    assert (found.tally.drafts, found.tally.requests) == (900, {reason: 210_000, "length": 3})


def test_down_time_adds_up_beside_minutes_that_were_stored_without() -> None:
    packed = [
        pack(msgspec.structs.replace(minute(T0 + 60 * at), down_seconds=at + 0.5))
        for at in range(3)
    ]
    columns = [before_down_seconds(packed[0].columns()), *(each.columns() for each in packed[1:])]
    rows = [(each.start, 1, each.context.id, *c) for each, c in zip(packed, columns, strict=True)]
    contents = {each.context.id: each.context.content for each in packed}
    ((_, found),) = row_sums.fold(rows, {1: (SERIES, ())}, contents, Damage())
    assert found.down_seconds == 1.5 + 2.5


def test_a_minute_is_read_to_its_end_or_damaged() -> None:
    """Thousands lie side by side, where nobody sees that one of them has more than it says."""
    packed = [pack(minute(T0 + 60 * at)) for at in range(3)]
    contents = {each.context.id: each.context.content for each in packed}
    rows = [(each.start, 1, each.context.id, *each.columns()) for each in packed]
    rows[0] = (*rows[0][:-1], rows[0][-1] + b"\0")
    damage = Damage()
    ((_, found),) = row_sums.fold(rows, {1: (SERIES, ())}, contents, damage)
    assert found.tally.drafts == 200
    (row,) = damage.rows
    assert (row.table, row.key) == ("minutes", {"start": T0, "series_id": 1})


def _any(start: int, chance: random.Random, *, most: int) -> Window:
    """A window of which anything may be unknown; its counts go up to one of COUNTS."""

    def count() -> int:
        return chance.randrange(COUNTS[most] + 1)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.3 else value

    def histogram(bounds: tuple[float, ...]) -> Histogram:
        counts = tuple(chance.choice((0, count())) for _ in range(len(bounds) + 1))
        return Histogram(bounds, counts, chance.choice((0.0, 12.0, chance.random() * 1e6)))

    bounds = chance.choice(((0.1, 0.5), (0.1, 0.2, 0.5, 1.0), ()))
    keys = ("stop", "length", "a key of its own", "error")
    mappings: dict[str, Any] = {
        name: {key: count() for key in chance.sample(keys, chance.randrange(4))}
        for name in MAPPINGS
    }
    seconds = chance.choice((0.0, 60.0, 59.9 + chance.random() / 10))
    positions = tuple(count() for _ in range(chance.randrange(5)))
    return Window(
        series=SERIES,
        start=start,
        length=60,
        mode=chance.choice(list(Mode)),
        tally=Tally(
            **{name: maybe(count()) for name in COUNTERS},
            **{name: maybe(histogram(bounds)) for name in HISTOGRAMS},
            **mappings,
            accepted_per_position=maybe(positions),
        ),
        gauges=Gauges(
            60.0, seconds, seconds * chance.choice((0.0, 0.4, 2.5, 70.0)), chance.random(),
            count(), count(), maybe(chance.random()), maybe(count()), chance.choice((None, 80)),
        ),
        environment=Environment(chance.choice((None, "0.32.0")), "abc-4"),
        source=chance.choice(list(Source)[:4]),
        server_drafts=maybe(count()),
        source_drafts=maybe(count()),
        observed_seconds=seconds,
        scrapes_ok=count(),
        scrapes_failed=count(),
        restarts=chance.randrange(3),
        down_seconds=chance.choice((0.0, 5.0, chance.random() * 60)),
    )  # fmt: skip


def _comparable(found: Mapping[Any, Window]) -> dict[Any, str]:
    return {
        place: repr(msgspec.structs.replace(window, tally=_sorted(window.tally)))
        for place, window in found.items()
    }


def _sorted(tally: Tally) -> Tally:
    ordered: dict[str, Any] = {
        name: dict(sorted(getattr(tally, name).items())) for name in MAPPINGS
    }
    return msgspec.structs.replace(tally, **ordered)


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
    order = [(window.start, window.series.temperature) for window in windows]
    assert order == sorted(order)
    return sorted(windows, key=lambda each: (each.start, each.series.temperature, repr(each)))


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


def test_histograms_that_are_not_wanted_are_left_out(store: Store) -> None:
    store.write([batch(*_history())], now=0)
    for _ in range(2):
        members = members_by_target(store)["chat"]
        found = hours_of(
            store, members, 0, FOREVER["until"],
            without=lambda series: ("ttft",) if series.temperature == "0" else (),
        )  # fmt: skip
        for window in found:
            assert (window.tally.ttft is None) == (window.series.temperature == "0")
        store.roll_up(T0 + 30 * HOUR)


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
        connection.exec_driver_sql("DROP TABLE minutes")
    database.dispose()
    with pytest.raises(StoreUnavailable, match="minutes"):
        list(hours_of(store, members, 0, FOREVER["until"]))
    assert members_by_target(store), "the connection is of use"
