"""Tallies, gauges and windows add up in any order and grouping."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specwatch.domain.merge import (
    TallySum,
    merge_gauges,
    merge_modes,
    merge_tallies,
    merge_windows,
    sum_tallies,
)
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

counts = st.none() | st.integers(0, 10**6)
GRIDS = ((1.0, 2.0, 4.0), (1.0, 4.0), (2.0, 8.0), ())


@st.composite
def some_histograms(draw: st.DrawFn) -> Histogram | None:
    bounds = draw(st.sampled_from([None, *GRIDS]))
    if bounds is None:
        return None
    of = st.integers(0, 1000)
    size = len(bounds) + 1
    return Histogram(bounds, tuple(draw(st.lists(of, min_size=size, max_size=size))), draw(of) / 64)


tallies = st.builds(
    Tally,
    **dict.fromkeys(COUNTERS, counts),
    **dict.fromkeys(HISTOGRAMS, some_histograms()),
    accepted_per_position=st.none() | st.lists(st.integers(0, 99), max_size=4).map(tuple),
    **{
        name: st.dictionaries(st.sampled_from(["stop", "length", "abort"]), st.integers(0, 9))
        for name in MAPPINGS
    },
)
seconds = st.integers(0, 6400).map(lambda n: n / 64)
gauges = st.builds(
    Gauges,
    sampled_seconds=seconds,
    busy_seconds=seconds,
    running_seconds=seconds,
    waiting_seconds=seconds,
    running_max=st.integers(0, 300),
    waiting_max=st.integers(0, 300),
    kv_cache_usage_max=st.none() | st.floats(0, 1),
    gpu_memory_used_max=counts,
    gpu_memory_total=counts,
)
ME = SeriesId("d", "t", "m")
windows = st.lists(
    st.builds(
        Window,
        series=st.just(ME),
        start=st.integers(0, 59).map(lambda minute: minute * MINUTE),
        length=st.just(MINUTE),
        mode=st.sampled_from(Mode),
        tally=tallies,
        gauges=gauges,
        environment=st.builds(Environment, engine_version=st.sampled_from(["0.31", "0.32"])),
        source=st.sampled_from(Source),
        server_drafts=counts,
        source_drafts=counts,
        observed_seconds=seconds,
        scrapes_ok=st.integers(0, 12),
        scrapes_failed=st.integers(0, 12),
        restarts=st.integers(0, 2),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda window: window.start,
)


@given(st.lists(tallies, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_sum_of_tallies_has_the_sums_of_the_known_counts_in_any_order_and_grouping(parts, rng):
    """Unknown only where nobody knew it."""
    total = reduce(merge_tallies, parts)
    pile = list(parts)
    while len(pile) > 1:
        rng.shuffle(pile)
        pile.append(merge_tallies(pile.pop(), pile.pop()))
    assert pile[0] == total == sum_tallies(parts)
    for name in COUNTERS:
        known = [n for part in parts if (n := getattr(part, name)) is not None]
        assert getattr(total, name) == (sum(known) if known else None)
    for name in MAPPINGS:
        for key in ("stop", "length", "abort"):
            merged = getattr(total, name).get(key, 0)
            assert merged == sum(getattr(part, name).get(key, 0) for part in parts)
    for name in HISTOGRAMS:
        observed = [h for part in parts if (h := getattr(part, name)) is not None]
        merged = getattr(total, name)
        assert (merged is None) == (not observed)
        if merged is not None:
            assert merged.count == sum(h.count for h in observed)
            assert merged.sum == sum(h.sum for h in observed)
            assert merged.coarsened == (len({h.bounds for h in observed}) > 1)
    on_demand = TallySum(parts)
    for name in [*Tally.__struct_fields__, *Tally.__struct_fields__]:
        assert getattr(on_demand, name) == getattr(total, name)


def test_a_sum_of_nothing_is_unknown_and_has_no_other_fields():
    assert sum_tallies([]) == Tally()
    with pytest.raises(AttributeError):
        _ = TallySum([]).nothing


def test_positions_of_unlike_numbers_add_up():
    """k changed over a restart: the longer vector's end stands alone."""
    merged = merge_tallies(
        Tally(accepted_per_position=(5, 3)), Tally(accepted_per_position=(4, 2, 1))
    )
    assert merged.accepted_per_position == (9, 5, 1)


def test_all_fields_of_a_tally_are_merged():
    """A field that is added to the vocabulary is not forgotten here."""
    assert set(Tally.__struct_fields__) == {
        *COUNTERS,
        *HISTOGRAMS,
        *MAPPINGS,
        "accepted_per_position",
    }


@given(st.lists(gauges, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_gauges_combine_in_any_order(parts, rng):
    expected = reduce(merge_gauges, parts)
    rng.shuffle(parts)
    assert reduce(merge_gauges, parts) == expected
    assert expected.running_seconds == sum(part.running_seconds for part in parts)
    assert expected.running_max == max(part.running_max for part in parts)
    usage = [u for part in parts if (u := part.kv_cache_usage_max) is not None]
    assert expected.kv_cache_usage_max == (max(usage) if usage else None)


def test_means_of_merged_gauges_are_weighted_by_time():
    long = Gauges(sampled_seconds=90.0, busy_seconds=90.0, running_seconds=90.0)
    short = Gauges(sampled_seconds=10.0, busy_seconds=5.0, running_seconds=50.0)
    merged = merge_gauges(long, short)
    assert merged.running_mean == 1.4
    assert merged.concurrency == 140 / 95


@pytest.mark.parametrize("mode", Mode)
def test_modes_that_differ_are_mixed(mode):
    assert merge_modes(mode, mode) is mode
    assert merge_modes(Mode.ON, Mode.OFF) is merge_modes(mode, Mode.MIXED) is Mode.MIXED


@given(windows, st.randoms(use_true_random=False), st.integers(1, 4))
def test_an_hour_is_the_same_from_minutes_and_from_parts_of_hours(parts, rng, cut):
    """Except for environment and source, which are those of the latest window."""
    whole = merge_windows(parts, start=0, length=HOUR)
    shuffled = list(parts)
    rng.shuffle(shuffled)
    halves = [half for half in (shuffled[:cut], shuffled[cut:]) if half]
    merged = [merge_windows(half, start=min(w.start for w in half), length=HOUR) for half in halves]
    again = merge_windows(merged, start=0, length=HOUR)
    last = max(parts, key=lambda window: window.start)
    assert (whole.environment, whole.source) == (last.environment, last.source)
    assert replace(again, environment=last.environment, source=last.source) == whole
    for name in (
        "server_drafts",
        "source_drafts",
        "observed_seconds",
        "scrapes_ok",
        "scrapes_failed",
        "restarts",
        "down_seconds",
    ):
        known = [n for window in parts if (n := getattr(window, name)) is not None]
        assert getattr(whole, name) == (sum(known) if known else None)
    modes = {window.mode for window in parts}
    known = modes - {Mode.UNKNOWN} or modes
    assert whole.mode is (known.pop() if len(known) == 1 else Mode.MIXED)


def test_windows_of_different_series_are_not_merged():
    mine = Window(ME, 0, MINUTE, Mode.ON, Tally())
    other = replace(mine, series=SeriesId("d", "t", "other"))
    with pytest.raises(ValueError, match="different series"):
        merge_windows([mine, other], start=0, length=HOUR)
    with pytest.raises(ValueError, match="at least one window"):
        merge_windows([], start=0, length=HOUR)
