"""The real guard decides right in lives of an hour and more."""

from __future__ import annotations

import pytest

from tests.worlds.daemon import Specwatch
from tests.worlds.life import live
from tests.worlds.scenarios import WORLDS
from tests.worlds.world import START


def test_a_loss_from_the_beginning_is_switched_off_and_stays_off() -> None:
    world = WORLDS["hurts"](1)
    score = live(world, Specwatch(world), hours=1.6, seed=1)
    assert (score.final_state, score.restarts, score.undone_disables) == ("disabled", 1, 0)


def test_a_gain_is_explored_once_and_put_back_within_the_time_of_verifying() -> None:
    world = WORLDS["helps"](1)
    policy = Specwatch(world, explore={"budget": "1%"})
    score = live(world, policy, hours=1.5, seed=1)
    assert (score.final_state, score.restarts) == ("observing", 2)
    assert (score.false_disables, score.short_false_disables) == (0, 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_loss_by_day_at_loads_that_only_the_night_was_calibrated_for_costs_little(
    seed: int,
) -> None:
    """What cannot be judged is explored, whatever the night has spent of the budget."""
    world = WORLDS["hot_days"](seed)
    policy = Specwatch(world, max_actions_per_day=24, explore={"budget": "1%"})
    score = live(world, policy, hours=48, seed=seed)
    assert score.regret_percent < 5
    assert score.false_disables == 0
    assert "unjudged" not in policy.breached, "it explored before that was worth an alert"


def test_loops_are_reported_within_the_hour_and_nothing_before() -> None:
    """They make speculation faster still, so no other rule sees them."""
    world = WORLDS["loops"](1)
    policy = Specwatch(world)
    live(world, policy, hours=1.7, seed=1)
    assert policy.breached.keys() == {"suspicious-output"}
    assert 1.0 < (policy.breached["suspicious-output"] - START) / 3600 < 2.0
