"""Experiments in a database, whose daemon is killed at every moment that is like no earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.store.repository import Store
from tests.daemon.experiment_world import (
    START,
    World,
    require_return_to_launch,
    require_stored_schedule,
    taught,
)

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else

POINTS = {"put", "stored", "ordered 2", "ordered None"}


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    stores: list[Store] = []

    def opened() -> Store:
        stores.append(Store(f"sqlite:///{tmp_path}/{len(stores)}.db", daemon="d"))
        stores[-1].open(START)
        return stores[-1]

    yield opened
    for store in stores:
        store.close(START)


def test_an_experiment_returns_to_the_launch_and_goes_on(new_store: Callable[[], Store]) -> None:
    whole = World(store=new_store())
    whole.live(400, lambda: whole.counted()[0] >= 2)
    assert {*whole.points} >= POINTS | {"order 0", "ordered 0"}
    for point, number in whole.situations.items():
        require_return_to_launch(World(number, new_store()), point)


def test_a_tuned_schedule_is_never_in_force_without_being_stored(
    new_store: Callable[[], Store],
) -> None:
    whole = taught(store=new_store())
    whole.live(500, lambda: whole.counted()[0] > 20)
    assert {*whole.points} >= POINTS | {"order tuned", "ordered tuned"}
    for point, number in whole.situations.items():
        require_stored_schedule(taught(number, new_store()), point)
