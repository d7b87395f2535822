"""A stored window or cursor is the same window or cursor, in columns that people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from specwatch.domain.model import Cursor, Histogram, Series, SeriesId, Tally, Window
from specwatch.store.counts import LARGEST, pack, row_of
from specwatch.store.cursor_rows import pack_cursor, unpack_cursor
from tests.segments import segment
from tests.store.examples import T0, cursors, minute, unpack, windows


@given(windows)
def test_a_window_is_unpacked_equal_in_every_field(window: Window) -> None:
    assert unpack(pack(window)) == window


@given(cursors)
def test_a_cursor_is_unpacked_equal(cursor: Cursor) -> None:
    assert unpack_cursor(pack_cursor(cursor)) == cursor


def test_cursors_share_a_layout_whatever_the_order_of_their_series() -> None:
    """A tap's series are in the order of its first requests, which differs at each start."""
    samples = {
        Series("drafts", "", "m", "", "", segment(temperature)): 1.0
        for temperature in ("0", ">1", "unknown")
    }
    reversed_samples = dict(reversed(samples.items()))
    one, other = Cursor("t", samples, None, 2.0), Cursor("t", reversed_samples, None, 2.0)
    assert pack_cursor(one) == pack_cursor(other)


def test_of_counts_by_key_zeros_are_left_out_but_for_one() -> None:
    counts = {"stop": 0, "length": 3, "abort": 0}
    stored = [
        unpack(pack(replace(minute(T0), tally=Tally(requests=requests)))).tally.requests
        for requests in (counts, dict.fromkeys(counts, 0), {})
    ]
    assert stored == [{"length": 3}, {"stop": 0}, {}]


def test_an_unknown_count_is_not_zero() -> None:
    drafts = [
        unpack(pack(replace(minute(T0), tally=tally))).tally.drafts
        for tally in (Tally(), Tally(drafts=0))
    ]
    assert drafts == [None, 0]


@pytest.mark.parametrize(
    "other",
    [
        minute(T0, engine_version="0.11.1"),
        minute(T0, bounds=(0.1, 0.5, 1.0, 2.0)),
        replace(minute(T0), tally=Tally(ttft=Histogram((0.1, 0.5, 1.0), (1, 1, 1, 1), 1.0, True))),
    ],
    ids=["engine version", "bounds", "coarsened"],
)
def test_windows_that_must_not_be_mixed_have_different_contexts(other: Window) -> None:
    own = pack(minute(T0)).context
    assert own is pack(minute(T0 + 60, drafts=5)).context
    assert own.row()["digest"] != pack(other).context.row()["digest"]


def test_a_context_is_found_by_the_same_digest_in_every_version() -> None:
    assert pack(minute(T0)).context.row()["digest"] == 72640178649884


@pytest.mark.parametrize("drafts", [-1, LARGEST + 1, 10**300])
def test_a_count_that_no_database_can_store_is_refused(drafts: int) -> None:
    with pytest.raises(ValueError, match=f"window {T0} of .*chat.* cannot be stored"):
        pack(replace(minute(T0), tally=Tally(drafts=drafts)))
    with pytest.raises(ValueError, match="cannot be stored"):
        pack(replace(minute(T0), restarts=10**30))


def test_characters_that_postgres_cannot_store_are_replaced() -> None:
    window = minute(T0, model_name="a\0b\ud800c")
    tally = replace(window.tally, requests={"x\0": 1})
    unpacked = unpack(pack(replace(window, tally=tally)))
    assert unpacked.series == SeriesId("left", "chat", "a\ufffdb\ufffdc")
    assert unpacked.tally.requests == {"x\ufffd": 1}
    cursor = Cursor("t", {Series("drafts", "", "a\0\ud800", "0", ""): 1.0}, None, 2.0)
    assert pack_cursor(cursor).layout.content.isprintable()
    assert unpack_cursor(pack_cursor(cursor)) == cursor


def test_a_mapping_of_many_keys_takes_bounded_bytes() -> None:
    """An hour adds up its minutes, each of which may have different keys."""
    tally = Tally(requests={f"{n}{'x' * 60}": n for n in range(5000)})
    packed = pack(replace(minute(0), tally=tally))
    assert len(packed.row) < 4000
    assert sum(unpack(packed).tally.requests.values()) == sum(range(5000))


def test_names_too_long_to_be_indexed_are_cut_and_stay_different() -> None:
    names = ["m" * 5000 + end for end in "ab"] + ["\U0001f600" * 5000]
    stored = [pack(minute(T0, model_name=name)).series.model_name for name in names]
    assert len(set(stored)) == 3
    assert all(len(name.encode()) <= 603 for name in stored)
    assert pack(minute(T0, model_name="é" * 300)).series.model_name == "é" * 300


def test_quantiles_of_latencies_and_acceptance_are_columns() -> None:
    ttft = Histogram((0.1, 0.5, 1.0), (50, 45, 4, 1), 30.0)
    acceptance = Histogram((0.25, 0.5, 0.75), (10, 40, 40, 10), 50.0)
    window = replace(minute(T0), tally=Tally(ttft=ttft, request_acceptance=acceptance))
    *_, requests, p10, p50, p90, ttft50, ttft95, ttft99, tpot50, tpot95, tpot99 = row_of(
        window, LARGEST
    )
    assert (requests, tpot50, tpot95, tpot99) == (None, None, None, None)
    assert (p10, p50, p90) == (250_000, 500_000, 750_000)
    assert (ttft50, ttft95, ttft99) == (100_000, 500_000, 1_000_000)


def test_keys_that_become_equal_are_added_up() -> None:
    tally = Tally(requests={'a"b': 2, "a\\b": 3, "c": 4})
    stored = unpack(pack(replace(minute(T0), tally=tally)))
    assert stored.tally.requests == {"a\ufffdb": 5, "c": 4}


def test_a_minute_may_count_a_week_of_a_busy_server() -> None:
    """The first scrape after a gap brings what happened meanwhile."""
    seconds = 7 * 86400.0 * 2000
    e2e = Histogram((1.0,), (0, 10**7), seconds)
    window = replace(minute(T0), tally=Tally(e2e=e2e), observed_seconds=7 * 86400.0)
    assert unpack(pack(window)) == window
