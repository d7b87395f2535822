"""The state machine on long random walks."""

from __future__ import annotations

import random

import pytest

from specwatch.guard.state import Phase
from tests.guard.wandering import Wandering


def test_walks_reach_every_phase() -> None:
    reached: set[Phase] = set()
    for seed in range(40):
        walk = Wandering(random.Random(seed))
        for _ in range(250):
            walk.turn()
        reached |= walk.phases
    assert reached == set(Phase)


@pytest.mark.parametrize("seed", range(8))
def test_no_long_walk_leads_to_what_is_forbidden(seed: int) -> None:
    walk = Wandering(random.Random(seed))
    for _ in range(4_000):
        walk.turn()
