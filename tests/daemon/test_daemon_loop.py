"""A daemon that has lost its lease is followed by one that stands by, until the process ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specwatch.daemon.daemon_loop import DaemonLoop


class World:
    """Daemons of which so many lose their lease, and what happens at a point of that."""

    def __init__(self, losses: int, **happens: Callable[[], None]) -> None:
        self.losses = losses
        self.happens = happens
        self.begun: list[str] = []
        self.loop = DaemonLoop(self._new, "c0")  # type: ignore[arg-type]

    def _new(self, config: str) -> Any:
        if self.begun:
            self._pass("before the next one is there")
        self.begun.append(config)
        asked: list[bool] = []

        def run() -> bool:
            lost = len(self.begun) <= self.losses
            assert lost or asked, "it runs until it is asked to stop"
            if lost:
                self._pass("while it ends")
            return lost

        return SimpleNamespace(
            run=run,
            configured=f"c{len(self.begun)}",
            ask_to_stop=lambda: asked.append(True),
            status=lambda: config,
        )

    def _pass(self, point: str) -> None:
        self.happens.get(point, lambda: None)()


def test_the_next_one_stands_by_with_the_configuration_that_was_read_last() -> None:
    world = World(2)
    with pytest.raises(AssertionError, match="until it is asked"):
        world.loop.run()
    assert world.begun == ["c0", "c1", "c2"]
    assert world.loop.status() == "c2"


@pytest.mark.parametrize(
    ("point", "begun"), [("while it ends", 1), ("before the next one is there", 2)]
)
def test_a_signal_to_stop_between_two_daemons_is_not_lost(point: str, begun: int) -> None:
    world = World(1, **{point: lambda: world.loop.ask_to_stop()})
    world.loop.run()
    assert len(world.begun) == begun
