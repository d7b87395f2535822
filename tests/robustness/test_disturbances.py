"""The campaign of clocks and crashes, on a small scale."""

from pathlib import Path

from tests.robustness.disturbances import clock, sound


def test_a_clock_that_is_set_again_and_again_loses_no_count(tmp_path: Path) -> None:
    figures = clock(tmp_path, 4, seed=5)

    assert sound(figures)
    assert figures["requests"] > 0
    assert sum(figures["steps"].values()) == 4


def test_a_lost_count_and_a_minute_stored_twice_are_not_sound() -> None:
    assert not sound({"same_counts": False, "minutes_twice": 0})
    assert not sound({"same_counts": True, "minutes_twice": 1})
