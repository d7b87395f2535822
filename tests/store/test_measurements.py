"""Baselines belong to a target; all daemons read the same ones."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.baseline import MAX_AGE, MOST_POINTS, BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import HOUR, Histogram
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.store.examples import T0, histograms

KEY = BaselineKey("chat", "llama", "0.32.0", "abc")


def measurement(
    *times: float, load_bin: int = 0, origin: Origin = Origin.CALIBRATION, key: BaselineKey = KEY
) -> Measurement:
    """Points at those times, one request in the histogram for each."""
    points = tuple(Point(time, 1.5, 3.25, 100.0) for time in times)
    return Measurement(
        key, load_bin, origin, points, Histogram((0.1,), (len(times), 0), 0.5), None, len(times)
    )


_amounts = st.floats(allow_nan=False, allow_infinity=False)
_points = st.lists(
    st.builds(
        Point,
        st.floats(0, 1e11),
        _amounts,
        _amounts,
        _amounts,
        st.booleans(),
        _amounts,
        st.none() | _amounts,
        _amounts,
        _amounts,
        _amounts,
        st.none() | _amounts,
        st.none() | _amounts,
    ),
    min_size=1,
)


@each_database
def test_any_measurement_is_read_equal(store: Store) -> None:
    written: list[Measurement] = []

    @given(
        _points,
        st.none() | histograms(),
        st.none() | histograms(),
        st.sampled_from(Origin),
        st.integers(0, 480),
    )
    def check(
        points: list[Point],
        ttft: Histogram | None,
        tpot: Histogram | None,
        origin: Origin,
        behind: int,
    ) -> None:
        key = BaselineKey(f"t{len(written)}", "llama")
        one = Measurement(key, 3, origin, tuple(points), ttft, tpot, behind)
        written.append(one)
        store.write_measurements([one], now=0)
        assert store.measurements(key.target) == [one]

    check()
    assert len(store.measurements()) == len(written)


@each_database
def test_a_new_calibration_replaces_the_older_of_its_key_load_and_origin_only(
    store: Store, url: str, open_store: OpenStore
) -> None:
    others = [
        measurement(T0, load_bin=1),
        measurement(T0, origin=Origin.IMPORTED),
        measurement(T0, key=dataclasses.replace(KEY, engine_version="0.33.0")),
        measurement(T0, key=dataclasses.replace(KEY, configuration=None)),
        measurement(T0, key=dataclasses.replace(KEY, model_name="qwen")),
        measurement(T0, key=dataclasses.replace(KEY, target="code")),
    ]
    long = BaselineKey("t" * 128, "m\0" * 5000, "v" * 5000, "c" * 5000)
    without_points = measurement(load_bin=2)
    store.write_measurements([measurement(T0), *others, without_points], now=0)
    newer = measurement(T0 + 60)
    open_store(url, "right").write_measurements([newer], now=0)
    measurements = store.measurements()
    assert newer in measurements
    assert len(measurements) == 1 + len(others)
    assert all(other in measurements for other in others)
    store.write_measurements([measurement(T0, key=long)], now=0)
    assert len(store.measurements("t" * 128)) == 1


def test_points_that_are_written_twice_count_once(store: Store) -> None:
    """Whoever wrote it does not know whether the database had it when the connection broke."""
    past, first, second = (
        measurement(*times, origin=Origin.WINDOWS)
        for times in ((T0, T0 + 60), (T0 + 120, T0 + 180, T0 + 240), (T0 + 300,))
    )
    for one in (past, past, first, first, second, first, past):
        store.write_measurements([one], now=0)
    (stored,) = store.measurements()
    assert [point.at for point in stored.points] == [T0 + 60 * n for n in range(6)]
    assert stored.ttft is not None
    assert (stored.ttft.count, stored.ttft.sum, stored.points_behind) == (6, 1.5, 6)


def test_latencies_stay_counted_when_the_oldest_points_go(store: Store) -> None:
    """Its first points are gone, and the latencies that came with them are still counted."""
    times = [T0 + 60 * n for n in range(MOST_POINTS + 40)]
    for first in range(0, len(times), 20):
        new = measurement(*times[first : first + 20], origin=Origin.WINDOWS)
        store.write_measurements([new], now=0)
    (stored,) = store.measurements()
    assert [point.at for point in stored.points] == times[40:]
    assert stored.ttft is not None
    assert stored.ttft.count == stored.points_behind == len(times)


@each_database
def test_two_daemons_that_write_one_row_at_once_lose_nothing(
    url: str, open_store: OpenStore
) -> None:
    """The first write of all makes the row: each has to find what the other had made."""
    stores = [open_store(url, daemon) for daemon in ("left", "right")]
    barrier = threading.Barrier(len(stores))

    def write(store: Store, first: int) -> None:
        for load_bin in range(6):
            barrier.wait(10)
            times = [T0 + 60.0 * n for n in range(first, first + 5)]
            one = measurement(*times, load_bin=load_bin, origin=Origin.WINDOWS)
            store.write_measurements([one], now=0)

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(write, store, 5 * n) for n, store in enumerate(stores)]
        for future in futures:
            future.result(60)
    measurements = stores[0].measurements()
    assert [(len(stored.points), stored.ttft and stored.ttft.count) for stored in measurements] == [
        (10, 10)
    ] * 6


@pytest.mark.parametrize(("hours", "expiry"), [(2, 72), (72, 2), (2, 2)])
def test_baselines_are_kept_until_they_expire_and_as_long_as_hours(
    store: Store, hours: int, expiry: int
) -> None:
    old, new = measurement(T0 - 3 * HOUR), measurement(T0, load_bin=1)
    store.write_measurements([old, new], now=0)
    pruned = store.prune(T0, HOUR, hours * HOUR, expiry * HOUR).baselines
    expired = max(hours, expiry) == 2
    assert (pruned, store.measurements()) == ((1, [new]) if expired else (0, [old, new]))
    assert store.prune(T0, HOUR, 2 * HOUR).baselines == 0, (
        "kept long, if nobody says when they expire"
    )
    assert store.prune(T0 + MAX_AGE + 1, HOUR, 2 * HOUR).baselines == 2 - pruned
