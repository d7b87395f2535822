"""Windows come in order of time, over all daemons, each once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import asdict

from specwatch.domain.merge import merge_windows
from specwatch.domain.model import Mode, SeriesId
from specwatch.errors import StoreUnavailable
from specwatch.store import readers, schema
from specwatch.store.readers import Reader, WatchedModel
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.segments import segment
from tests.store.examples import FOREVER, T0, batch, minute, read, starts

SELECTIONS: list[dict[str, str]] = [
    {"target": "b"},
    {"dimension": "temperature", "value": "0"},
    {"target": "b", "dimension": "all"},
    {"model_name": "llama", "target": "a"},
    {"daemon": "left"},
    {"daemon": "nobody"},
    {"model_name": "nothing"},
    {},
]


def named(series: SeriesId) -> dict[str, str]:
    """What windows are selected by."""
    parts = asdict(series)
    return {**parts, **asdict(parts.pop("segment"))}


@each_database
def test_a_span_includes_its_start_and_not_its_end(store: Store) -> None:
    store.write([batch(*(minute(T0 + 60 * n) for n in range(5)))], now=0)
    assert starts(read(store, since=T0 + 60, until=T0 + 180)) == [T0 + 60, T0 + 120]
    assert starts(read(store, since=T0 + 60.5, until=T0 + 180.5)) == [T0 + 120, T0 + 180]
    assert starts(read(store, since=T0 + 60, until=T0 + 60)) == []
    assert starts(read(store, limit=2)) == [T0, T0 + 60]
    assert read(store, limit=0) == []
    with pytest.raises(ValueError, match="60 or 3600 s long, not 300"):
        store.windows(**FOREVER, length=300)


@each_database
@pytest.mark.parametrize("others", [0, 40], ids=["most series", "few of many series"])
def test_selected_windows_are_read_in_order_of_start(store: Store, others: int) -> None:
    """Few series among many are read in another way than most of them, with the same result."""
    windows = [
        minute(T0 + 60 * n, target=target, temperature=temperature)
        for n in range(10)
        for target in ("a", "b")
        for temperature in ("all", "0")
    ]
    extra = [minute(T0, target=f"x{n}", model_name="m", temperature="1") for n in range(others)]
    shuffled = random.Random(1).sample(windows, len(windows))
    store.write([batch(*shuffled, *extra)], now=0)
    in_order = sorted(windows + extra, key=lambda w: (w.start, w.series.target))
    for selection in SELECTIONS:
        expected = [
            window for window in in_order if selection.items() <= named(window.series).items()
        ]
        assert read(store, **selection) == expected, selection


@pytest.mark.parametrize("others", [0, 30])
def test_minutes_of_a_mode_are_read_alone(store: Store, others: int) -> None:
    modes = [Mode.ON, Mode.STANDBY, Mode.MIXED, Mode.STANDBY, Mode.OFF]
    windows = [minute(T0 + 60 * n, mode=mode) for n, mode in enumerate(modes)]
    store.write([batch(*windows, *(minute(T0, target=f"x{n}") for n in range(others)))], now=0)
    assert read(store, target="chat", mode=Mode.STANDBY) == [windows[1], windows[3]]
    assert read(store, target="chat", mode=None) == windows


@each_database
def test_windows_with_long_gaps_in_many_chunks_are_all_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_ROWS_AT_ONCE", 4)
    times = [T0 + 60 * n for n in (0, 1, 3, 4, 7, 50_000, 50_001, 500_000)]
    others = [minute(T0 + 60 * n, target=f"x{n}") for n in range(30)]
    store.write([batch(*(minute(start) for start in times), *others)], now=0)
    assert starts(read(store, target="chat")) == times
    assert len(read(store)) == len(times) + len(others)


def test_two_runs_in_one_minute_add_up(url: str, open_store: OpenStore) -> None:
    """A daemon restarted within a minute: each run saw a part of it."""
    first, second = minute(T0, drafts=10, scrapes_ok=5), minute(T0, drafts=32, scrapes_ok=6)
    for pid, window in enumerate((first, second)):
        open_store(url, pid=pid).write([batch(window)], now=0)
    store = open_store(url)
    assert read(store) == [merge_windows([first, second], start=T0, length=60)]
    assert read(store)[0].tally.drafts == 42


def test_of_two_daemons_the_one_with_more_good_scrapes_counts(
    url: str, open_store: OpenStore
) -> None:
    """Both saw the same drafts: never add them up. Each minute is decided for itself."""
    left, right = open_store(url), open_store(url, "right")
    left.write([batch(minute(T0, scrapes_ok=12), minute(T0 + 60, scrapes_ok=3))], now=0)
    right.write(
        [batch(*(minute(T0 + 60 * n, daemon="right", scrapes_ok=7) for n in range(3)))], now=0
    )
    assert [(w.start, w.series.daemon) for w in read(left)] == [
        (T0, "left"),
        (T0 + 60, "right"),
        (T0 + 120, "right"),
    ]
    assert starts(read(right, daemon="left")) == [T0, T0 + 60]
    open_store(url, pid=2).write([batch(minute(T0 + 60, scrapes_ok=5))], now=0)
    both_runs = read(left)[1]
    assert (both_runs.series.daemon, both_runs.scrapes_ok) == ("left", 8)


def test_of_two_daemons_hours_only_one_counts(url: str, open_store: OpenStore) -> None:
    """With all of its modes and loads."""
    left, right = open_store(url), open_store(url, "right")
    left.write(
        [batch(minute(T0), minute(T0 + 60, mode=Mode.OFF), minute(T0 + 120, concurrency=9))], now=0
    )
    right.write([batch(minute(T0, daemon="right", scrapes_ok=35))], now=0)
    for store in (left, right):
        store.roll_up(T0 + 4000)
    hours = read(left, length=3600)
    assert {(w.series.daemon, w.mode, w.load_bin) for w in hours} == {
        ("left", Mode.ON, 0),
        ("left", Mode.ON, 4),
        ("left", Mode.OFF, 0),
    }


def test_targets_lists_the_watched_models(url: str, open_store: OpenStore) -> None:
    left, right = open_store(url), open_store(url, "right")
    left.write([batch(minute(T0 + 600), minute(T0 + 660, temperature="0"))], now=0)
    left.write([batch(minute(T0, temperature="0"))], now=0)
    right.write([batch(minute(T0, daemon="right", target="a"))], now=0)
    assert left.targets() == [
        WatchedModel("right", "a", "llama", T0, T0),
        WatchedModel("left", "chat", "llama", T0, T0 + 660),
    ]


def test_segments_are_selected_by_dimension_and_value(store: Store) -> None:
    labels = ("all", "output=schema", "output=text", "0")
    store.write([batch(*(minute(T0, temperature=label) for label in labels))], now=0)
    known = {
        name: [window.series.segment for window in read(store, **selection)]
        for name, selection in {
            "every": {},
            "all": {"dimension": "all"},
            "kind": {"dimension": "output"},
            "one": {"dimension": "output", "value": "text"},
        }.items()
    }
    every = list(map(segment, labels))
    assert known == {
        "every": every,
        "all": every[:1],
        "kind": every[1:3],
        "one": [segment("output=text")],
    }


@each_database
def test_info_counts_rows_and_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write([batch(minute(T0), minute(T0 + 60))], now=0)
    info = store.info()
    assert (info.revision, info.rows["minute_counts"], info.rows["hour_counts"]) == (
        schema.CURRENT,
        2,
        0,
    )
    assert info.size > 10_000
    assert "minute_counts" in info.exact
    monkeypatch.setattr(readers, "_MOST_COUNTED", 2)
    assert "minute_counts" not in store.info().exact


def test_reading_a_sqlite_file_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/none.db", daemon="d")
    for act in (Reader.of(store.url).targets, store.cursors, store.measurements):
        with pytest.raises(StoreUnavailable, match="does not exist"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_reading_a_database_without_tables_says_what_to_do(empty_url: str) -> None:
    reader = Reader.of(empty_url)
    reader._database.prepare()
    with reader._database.writing():
        pass
    with pytest.raises(StoreUnavailable, match="specwatch db upgrade"):
        list(reader.windows(**FOREVER))
    reader.close()
