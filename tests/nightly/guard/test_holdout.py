"""Daemons agree on one holdout of a group of five, on both databases."""

from __future__ import annotations

from tests.fixtures import OpenStore, each_database
from tests.guard.test_holdout import QUICK, check_one_holdout, good, pool


@each_database
def test_daemons_agree_on_one_holdout_until_it_stays_down(url: str, open_store: OpenStore) -> None:
    world = good("a", "b", "c", "d", "e")
    check_one_holdout(world, pool(url, open_store, world, QUICK))
