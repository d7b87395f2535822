"""What the daemon keeps of the last minutes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.model import ALL, Mode
from specwatch.status import Recent
from tests.segments import segment
from tests.web.statuses import minute

T0 = 1_700_000_040 // 60 * 60


def test_nothing_seen_is_nothing_merged() -> None:
    recent = Recent()
    recent.add(())
    assert recent.merged() == ()


def test_the_last_five_minutes_add_up_to_one_window() -> None:
    recent = Recent(minutes=5)
    for number in range(8):
        recent.add([minute(T0 + 60 * number, drafts=10**number)])
    (total,) = recent.merged()
    assert total.tally.drafts == 11_111_000
    assert (total.start, total.length) == (T0 + 3 * 60, 5 * 60)
    assert total.tally.ttft is not None
    assert total.tally.ttft.count == 5 * 100


def test_it_says_which_minutes_it_covers_while_there_are_few() -> None:
    recent = Recent(minutes=5)
    recent.add([minute(T0)])
    recent.add([minute(T0 + 60)])
    assert [(one.start, one.length) for one in recent.merged()] == [(T0, 120)]


def test_a_minute_that_comes_in_two_parts_counts_whole() -> None:
    """A daemon that re-reads its configuration closes a window early and opens another."""
    recent = Recent()
    recent.add([minute(T0, drafts=3)])
    recent.add([minute(T0, drafts=4)])
    (total,) = recent.merged()
    assert (total.tally.drafts, total.start, total.length) == (7, T0, 60)


def test_a_model_that_is_served_no_more_is_forgotten() -> None:
    recent = Recent(minutes=2)
    recent.add([minute(T0, model_name="gone"), minute(T0, model_name="kept")])
    recent.add([minute(T0 + 60, model_name="kept")])
    assert {one.series.model_name for one in recent.merged()} == {"gone", "kept"}
    recent.add([minute(T0 + 120, model_name="kept")])
    assert {one.series.model_name for one in recent.merged()} == {"kept"}


def test_the_minutes_before_a_restart_are_not_added_to_those_after_it() -> None:
    """Nor is the minute in which it was, whichever of the two modes it had."""
    recent = Recent()
    recent.add([minute(T0, drafts=1), minute(T0, temperature="0", drafts=1)])
    recent.add([msgspec.structs.replace(minute(T0 + 60, drafts=10, mode=Mode.OFF), restarts=1)])
    assert recent.merged() == ()
    assert recent.end == T0 + 120
    recent.add([minute(T0 + 120, drafts=100), minute(T0 + 120, temperature="0", drafts=100)])
    assert [(one.tally.drafts, one.start) for one in recent.merged()] == [(100, T0 + 120)] * 2


def test_the_minutes_before_a_change_of_mode_are_not_added_to_those_after_it() -> None:
    """Of that model; another is not concerned."""
    recent = Recent()
    for at, mode in enumerate([Mode.ON, Mode.MIXED, Mode.OFF]):
        recent.add([minute(T0 + 60 * at, mode=mode), minute(T0 + 60 * at, model_name="other")])
    series = {one.series.model_name: (one.mode, one.length) for one in recent.merged()}
    assert series == {"llama": (Mode.OFF, 60), "other": (Mode.ON, 180)}
    recent.forget({"other"})
    assert [one.series.model_name for one in recent.merged()] == ["llama"]


def test_nothing_is_summed_twice_while_nothing_comes_in() -> None:
    """Every request for health asks: summing thousands of windows each time would be felt."""
    recent = Recent()
    recent.add([minute(T0)])
    assert recent.merged() is recent.merged()
    recent.forget(())
    before = recent.merged()
    recent.add([minute(T0 + 60)])
    assert recent.merged() != before


@given(
    starts=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    minutes=st.integers(1, 6),
)
def test_exactly_the_minutes_within_reach_of_the_newest_are_kept(
    starts: list[int], minutes: int
) -> None:
    """Whatever the order in which they come, as long as none was forgotten before."""
    recent = Recent(minutes)
    ordered = sorted(starts)
    for start in ordered:
        recent.add([minute(T0 + 60 * start, drafts=1)])
    (total,) = recent.merged()
    assert total.tally.drafts == sum(start > ordered[-1] - minutes for start in ordered)


def test_reading_while_adding_sees_one_state_or_the_other() -> None:
    recent = Recent()
    recent.add([minute(T0)])
    held = recent.merged()
    recent.add([msgspec.structs.replace(minute(T0 + 60), scrapes_ok=1)])
    assert [one.scrapes_ok for one in held] == [12]
    assert [one.scrapes_ok for one in recent.merged()] == [13]


def test_sums_of_all_temperatures_come_before_those_of_buckets() -> None:
    """Where not all of them can be exported, they are what is left."""
    recent = Recent()
    recent.add([minute(T0, temperature="0"), minute(T0), minute(T0, model_name="n")])
    series = [one.series.segment for one in recent.merged()]
    assert series == [ALL, ALL, segment("0")]
