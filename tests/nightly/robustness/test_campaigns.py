"""The campaigns, on a scale between that of the fast tests and their own."""

from pathlib import Path

from tests.robustness import kills, pages, smuggling
from tests.robustness.disturbances import clock, sound


def test_a_clock_that_is_set_again_and_again_loses_no_count(tmp_path: Path) -> None:
    figures = clock(tmp_path, 20, seed=5)

    assert sound(figures)
    assert figures["requests"] > 0
    assert sum(figures["steps"].values()) == 20


def test_daemons_that_are_killed_lose_no_count(tmp_path: Path) -> None:
    outcome = kills.run(f"sqlite:///{tmp_path}/d.db", tmp_path, 4, seed=5)

    assert outcome.counted["requests"]
    assert outcome.stored == outcome.counted


def test_damaged_pages_are_refused_or_read_and_break_nothing() -> None:
    outcome = pages.run(700, seed=3)

    assert outcome.defects == []
    assert {"truncated", "malformed", "duplicate_series", "not_a_number"} <= set(outcome.refused)


def test_no_request_becomes_two() -> None:
    outcome = smuggling.run(1000, seed=3)

    assert outcome.defects == []
    assert outcome.answers["400"] > 500
    assert outcome.arrived > 20
