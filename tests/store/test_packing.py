"""A packed window or cursor is the same window or cursor, in few bytes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from specwatch.domain.model import Cursor, Histogram, Series, SeriesId, Tally, Window
from specwatch.store.cursor_rows import pack_cursor, unpack_cursor
from specwatch.store.packing import (
    assemble,
    pack,
    unpack,
)
from tests.store.examples import T0, before_down_seconds, cursors, minute, windows


@given(windows)
def test_a_window_comes_back_equal_in_every_field(window: Window) -> None:
    assert unpack(pack(window)) == window


def test_a_row_from_before_there_was_down_time_is_read_without_any() -> None:
    window = minute(T0)
    packed = pack(dataclasses.replace(window, down_seconds=12.5))
    old = before_down_seconds(packed.columns())
    assert assemble(packed.series, T0, 60, packed.context.content, old) == window


@given(cursors)
def test_a_cursor_comes_back_equal(cursor: Cursor) -> None:
    assert unpack_cursor(pack_cursor(cursor)) == cursor


def test_cursors_share_a_layout_whatever_the_order_of_the_page() -> None:
    """A tap's series stand on the page as its first requests came, at each start otherwise."""
    samples = {
        Series("drafts", "", "m", "", "", temperature): 1.0
        for temperature in ("0", ">1", "unknown")
    }
    back = dict(reversed(samples.items()))
    one, other = Cursor("t", samples, None, 2.0), Cursor("t", back, None, 2.0)
    assert pack_cursor(one) == pack_cursor(other)


def test_a_mapping_without_entries_takes_no_byte() -> None:
    window = minute(T0)
    tally = dataclasses.replace(window.tally, uncovered={"several": 1})
    more = pack(dataclasses.replace(window, tally=tally))
    # One byte for the empty records before it, three for the entry itself.
    assert len(more.row) - len(pack(window).row) == 4


def test_unknown_stays_unlike_zero() -> None:
    unknown, zero = (
        dataclasses.replace(minute(T0), tally=tally) for tally in (Tally(), Tally(drafts=0))
    )
    assert unpack(pack(unknown)).tally.drafts is None
    assert unpack(pack(zero)).tally.drafts == 0


def test_windows_alike_share_one_context() -> None:
    assert pack(minute(T0)).context is pack(minute(T0 + 60, drafts=5)).context


@pytest.mark.parametrize(
    "other",
    [
        minute(T0, engine_version="0.11.1"),
        minute(T0, bounds=(0.1, 0.5, 1.0, 2.0)),
        dataclasses.replace(
            minute(T0), tally=Tally(ttft=Histogram((0.1, 0.5, 1.0), (1, 1, 1, 1), 1.0, True))
        ),
    ],
    ids=["engine version", "bounds", "coarsened"],
)
def test_what_must_not_be_mixed_has_another_context(other: Window) -> None:
    assert pack(minute(T0)).context.id != pack(other).context.id


def test_a_contexts_id_follows_from_its_content_alone() -> None:
    """Ids are made while the database is away, by every daemon: they must never change."""
    context = pack(minute(T0)).context
    assert (context.id, context.id < 2**47) == (125429485411687, True)


def test_a_window_takes_few_bytes() -> None:
    assert len(pack(minute(T0)).row) < 120


@pytest.mark.parametrize("drafts", [-1, 2**63, 10**300])
def test_a_count_that_no_database_can_hold_is_refused(drafts: int) -> None:
    window = dataclasses.replace(minute(T0), tally=Tally(drafts=drafts))
    with pytest.raises(ValueError, match=f"window {T0} of .*chat.* cannot be stored"):
        pack(window)


def test_a_packed_number_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        pack(dataclasses.replace(minute(T0), restarts=10**30))


def test_characters_that_postgres_cannot_hold_are_replaced() -> None:
    window = minute(T0, model_name="a\0b\ud800c")
    tally = dataclasses.replace(window.tally, requests={"x\0": 1})
    returned = unpack(pack(dataclasses.replace(window, tally=tally)))
    assert returned.series == SeriesId("left", "chat", "a\ufffdb\ufffdc", "all")
    assert returned.tally.requests == {"x\ufffd": 1}


def test_a_cursors_series_keep_characters_that_no_text_column_holds() -> None:
    cursor = Cursor("t", {Series("drafts", "", "a\0\ud800", "0", ""): 1.0}, None, 2.0)
    assert unpack_cursor(pack_cursor(cursor)) == cursor
    assert pack_cursor(cursor).layout.content.isprintable()


def test_a_mapping_of_many_keys_takes_bounded_bytes() -> None:
    """An hour adds up what its minutes had, which may have been different keys in each."""
    many = dataclasses.replace(
        minute(0), tally=Tally(requests={f"{n}{'x' * 60}": n for n in range(5000)})
    )
    packed = pack(many)
    assert len(packed.row) < 4000
    assert sum(unpack(packed).tally.requests.values()) == sum(range(5000))


def test_names_too_long_to_be_indexed_are_cut_but_stay_apart() -> None:
    names = ["m" * 5000 + end for end in "ab"] + ["\U0001f600" * 5000]
    stored = [pack(minute(T0, model_name=name)).series.model_name for name in names]
    assert len(set(stored)) == 3
    assert all(len(name.encode()) <= 603 for name in stored)
    assert pack(minute(T0, model_name="é" * 300)).series.model_name == "é" * 300
