"""Groups of five whose daemons die and whose database fails, on both databases."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fixtures import OpenStore, each_database
from tests.guard.daemons import World
from tests.guard.test_groups import (
    QUICK,
    check_one_after_the_other,
    check_room,
    failing,
    pool,
)

__all__ = ["failing"]
MEMBERS = "abcde"


@each_database
def test_a_group_of_five_is_switched_off_one_after_the_other(
    url: str, open_store: OpenStore
) -> None:
    world = World(*MEMBERS)
    check_one_after_the_other(world, pool(url, open_store, world, QUICK, "xyz"))


@pytest.mark.parametrize("seed", range(20))
def test_never_too_many_restart_whoever_dies(
    sqlite_file: Path, open_store: OpenStore, failing: random.Random, seed: int
) -> None:
    failing.seed(seed)
    check_room(f"sqlite:///{sqlite_file}", open_store, failing, MEMBERS, "xyz", 200)
