"""Damaged metrics pages harm nothing but their own scrape."""

import pytest

from specwatch.daemon.target_guard import TargetGuard
from specwatch.rules.judge import Judge
from tests.robustness.pages import MUTATIONS, DamagedPages, run
from tests.worlds.world import START


def test_damaged_pages_are_refused_or_read_and_break_nothing() -> None:
    outcome = run(40, seed=7)

    assert outcome.defects == []
    assert {"truncated", "malformed", "duplicate_series", "not_a_number"} <= set(outcome.refused)


def test_the_campaign_damages_pages_in_all_ways() -> None:
    world = DamagedPages(seed=4)

    for look in range(400):
        world.page(START + look * world.interval)

    assert set(world.done) == set(MUTATIONS)


@pytest.mark.parametrize("where", [(Judge, "observe"), (TargetGuard, "turn")])
def test_a_defect_is_found_with_its_traceback(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(*where, failing)
    assert "in failing\n" in run(2, seed=3).defects[0]
