"""The campaign of clocks and crashes finds what it looks for."""

from tests.robustness.disturbances import sound


def test_a_lost_count_and_a_minute_stored_twice_are_not_sound() -> None:
    assert not sound({"same_counts": False, "minutes_twice": 0})
    assert not sound({"same_counts": True, "minutes_twice": 1})
