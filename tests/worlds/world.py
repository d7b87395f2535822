"""What the harness asks of a simulated server. Plugins rely on this: it stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

START = 1_795_003_200.0
"""Unix time at which every world begins: midnight, UTC."""


class World(Protocol):
    """A server under traffic. ``now`` is a Unix time in seconds; it never runs backwards.

    It begins with speculation on. A world that can switch speculation without a restart has
    ``switch(now, k) -> bool`` beside these.
    """

    name: str
    interval: float
    """Seconds between two scrapes."""

    def page(self, now: float) -> str | None:
        """The metrics page at that time; None while it is down."""

    def restart(self, now: float, speculation: bool) -> None:
        """Restart with or without speculation; the world decides how long it is down."""

    def truth(self, now: float) -> float:
        """The speedup, on over off, that the present traffic really has, end to end."""

    def calibrate(
        self, load: int, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> list[str]:
        """Pages, one an interval, of the server without speculation under ``load`` requests at a
        time with prompts and outputs of so many tokens."""


Worlds = dict[str, Callable[[int], World]]
"""What a plugin's ``WORLDS`` is: worlds by name, each made from a seed."""
