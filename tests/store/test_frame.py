"""The one sum of many rows is that of adding their windows up one after another."""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import (
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    MAPPINGS,
    MINUTE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.store import schema
from specwatch.store.counts import (
    Context,
    context_of,
    pack,
    row_of,
)
from specwatch.store.frame import Frame
from specwatch.store.frame_sum import Group, sum_by_hour, sum_rows
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.segments import segment
from tests.store.examples import T0, batch, frame_of, minute, read, unpack

SERIES = SeriesId("left", "chat", "llama", segment("0"))
COUNTS = (0, 1, 17, 2**31, 2**40, 2**52)
_MOST = 2**63 - 1


def same(found: Window, expected: Window) -> bool:
    """Whether two windows are stored alike: sums of floats differ in their last digits."""
    return (
        row_of(found, _MOST) == row_of(expected, _MOST)
        and context_of(found) == context_of(expected)
        and (found.series, found.start, found.length)
        == (expected.series, expected.start, expected.length)
    )


@given(seed=st.integers(0, 2**32))
def test_any_rows_add_up_to_what_merging_their_windows_gives(seed: int) -> None:
    """Whatever is unknown, empty, of unlike lengths or bounds, or in another mode."""
    chance = random.Random(seed)
    starts = sorted(chance.randrange(3 * HOUR // 60) for _ in range(chance.randrange(1, 40)))
    packed = [pack(a_window(T0 + 60 * at, chance, most=seed % len(COUNTS))) for at in starts]
    wanted = [chance.randrange(3) for _ in packed]
    wanted[: len(packed)] = sorted(set(wanted)) + wanted[len(set(wanted)) :]
    numbers = {number: place for place, number in enumerate(sorted(set(wanted)))}
    group = np.array([numbers[number] for number in wanted], np.int64)
    groups: dict[int, list[Window]] = defaultdict(list)
    for number, each in zip(group.tolist(), packed, strict=True):
        groups[number].append(unpack(each))
    found = sum_rows(frame_of(packed), group, [Group(SERIES, T0, HOUR)] * len(numbers))
    for number, window in enumerate(found):
        assert same(window, merge_windows(groups[number], start=T0, length=HOUR))


@given(seed=st.integers(0, 2**32))
def test_minutes_make_an_hour_for_each_context_and_load(seed: int) -> None:
    chance = random.Random(seed)
    starts = sorted(chance.randrange(3 * HOUR // 60) for _ in range(chance.randrange(1, 40)))
    packed = [pack(a_window(T0 + 60 * at, chance, most=seed % len(COUNTS))) for at in starts]
    groups: dict[Any, list[Window]] = defaultdict(list)
    for each in packed:
        window = unpack(each)
        load_bin = -1 if window.load_bin is None else window.load_bin
        groups[window.start - window.start % HOUR, each.context, load_bin].append(window)
    frame = frame_of(packed)
    found = {
        (key.start, frame.contexts[key.context_id], key.load_bin): window
        for key, window in sum_by_hour(frame, {1: SERIES})
    }
    assert found.keys() == groups.keys()
    for key, windows in groups.items():
        assert same(found[key], merge_windows(windows, start=key[0], length=HOUR))


def test_a_frame_of_nothing_has_no_hours() -> None:
    assert list(sum_by_hour(frame_of([]), {})) == []


@each_database
def test_rows_are_read_by_start_however_the_database_finds_them(store: Store) -> None:
    written = [minute(T0 + 60 * n, drafts=1 + n, engine_version=str(n % 2)) for n in range(9)]
    store.write([batch(*reversed(written))], now=0)
    contexts: dict[int, Context] = {}
    with store.connected() as connection:
        frame = Frame.read(connection, schema.minutes, "start > 0", {1}, contexts)
    assert frame.starts.tolist() == [window.start for window in written]
    assert frame.numbers["drafts"].tolist() == list(range(1, 10))
    assert {frame.context(row).engine_version for row in range(0, 9, 2)} == {"0"}
    frame.keep(frame.numbers["drafts"] > 7)
    (window,) = sum_rows(frame, np.zeros(2, np.int64), [Group(SERIES, T0)])
    assert same(window, merge_windows(_of(written[7:]), start=T0, length=HOUR))


def test_rows_of_a_series_that_was_added_meanwhile_are_left_out(store: Store) -> None:
    """Its rows are there, and whoever reads does not know it yet."""
    store.write([batch(minute(T0), minute(T0, target="new"))], now=0)
    with store.connected() as connection:
        frame = Frame.read(connection, schema.minutes, "start > 0", {1}, {})
    assert frame.series.tolist() == [1]
    (window,) = sum_rows(frame, np.zeros(1, np.int64), [Group(SERIES, T0)])
    assert window.tally.drafts == 100


def _of(windows: list[Window]) -> list[Window]:
    return [msgspec.structs.replace(window, series=SERIES) for window in windows]


def test_sums_are_exact_beyond_63_bits() -> None:
    """As of a server that counts what none can: the report of the others is made all the same."""
    packed = [pack(minute(T0 + 60 * n)) for n in range(3)]
    frame = frame_of(packed)
    frame.numbers["drafts"] = np.full(3, 2**62 + 1)
    entries = frame.arrays["ttft"]
    frame.arrays["ttft"] = entries._replace(counts=np.full(len(entries.counts), 2**62))
    rows, counts = frame.keys["requests"]["stop"]
    frame.keys["requests"]["stop"] = rows, np.full(len(counts), 2**62)
    (window,) = sum_rows(frame, np.zeros(3, np.int64), [Group(SERIES, T0)])
    assert window.tally.drafts == 3 * (2**62 + 1)
    assert window.tally.requests["stop"] == 3 * 2**62
    assert window.tally.ttft is not None
    assert max(window.tally.ttft.counts) == 3 * 2**62


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("ttft", "[0,1,2,3,4,5,6,7]"),
        ("ttft", "[-9,1]"),
        ("finish_reasons", '{"stop"}'),
        ("finish_reasons", '{"stop":'),
        ("finish_reasons", "[1,2]"),
        ("finish_reasons", '{"stop":-1}'),
        ("context_id", 99),
        ("finish_reasons", '{"stop": "many"}'),
        ("drafts", "many"),
        ("drafts", 1.5),
        ("drafts", -7),
    ],
)
def test_a_row_that_cannot_be_decoded_is_left_out_and_logged(
    open_store: OpenStore, tmp_path: Path, column: str, value: object
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/edited.db")
    store.write([batch(*(minute(T0 + 60 * n) for n in range(3)))], now=0)
    with closing(sqlite3.connect(f"{tmp_path}/edited.db")) as by_hand, by_hand:
        edit = f"UPDATE minute_counts SET {column} = ? WHERE start = {T0 + 60}"
        by_hand.execute(edit, (value,))
    with capture_logs() as log, store.connected() as connection:
        frame = Frame.read(connection, schema.minutes, "start > 0", {1}, {})
    assert frame.starts.tolist() == [T0, T0 + 120]
    (entry,) = log
    assert (entry["event"], entry["table"], entry["row"]) == (
        "row_unreadable",
        "minute_counts",
        f"start={T0 + 60}, series_id=1",
    )
    with capture_logs():
        assert len(read(store)) == 2


def a_window(start: int, chance: random.Random, *, most: int) -> Window:
    """A window of which anything may be unknown; its counts go up to one of COUNTS."""

    def count() -> int:
        return chance.randrange(COUNTS[most] + 1)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.3 else value

    def histogram(bounds: tuple[float, ...]) -> Histogram:
        counts = tuple(chance.choice((0, count())) for _ in range(len(bounds) + 1))
        return Histogram(bounds, counts, chance.choice((0.0, 12.0, chance.randrange(10**9) / 1e6)))

    def millionths() -> float:
        return chance.randrange(10**6) / 1e6

    bounds = chance.choice(((0.1, 0.5), (0.1, 0.2, 0.5, 1.0), ()))
    keys = ("stop", "length", "a key of its own", "error")
    mappings: dict[str, Any] = {
        name: {key: 1 + count() for key in chance.sample(keys, chance.randrange(4))}
        for name in MAPPINGS
    }
    seconds = chance.choice((0.0, 60.0, 59.9 + chance.randrange(10**5) / 1e6))
    positions = tuple(count() for _ in range(chance.randrange(5)))
    return Window(
        series=SERIES,
        start=start,
        length=MINUTE,
        mode=chance.choice(list(Mode)),
        tally=Tally(
            **{name: maybe(count()) for name in COUNTERS},
            **{name: maybe(histogram(bounds)) for name in HISTOGRAMS},
            **mappings,
            accepted_per_position=maybe(positions),
        ),
        gauges=Gauges(
            60.0,
            seconds,
            seconds * chance.choice((0.0, 0.4, 2.5, 70.0)),
            millionths(),
            count(),
            count(),
            maybe(millionths()),
            maybe(count()),
            chance.choice((None, 80)),
        ),
        environment=Environment(chance.choice((None, "0.32.0")), "abc-4"),
        source=chance.choice(list(Source)[:4]),
        server_drafts=maybe(count()),
        source_drafts=maybe(count()),
        observed_seconds=seconds,
        scrapes_ok=count(),
        scrapes_failed=count(),
        restarts=chance.randrange(3),
        down_seconds=chance.choice((0.0, 5.0, chance.randrange(60) / 7)),
    )
