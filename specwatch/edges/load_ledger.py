"""What is known of a load while it runs: looks at the page, answers, and how many run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from specwatch.core.calibration import Block, Look
from specwatch.core.load import Answer
from specwatch.errors import NoAnswer
from specwatch.model import Series

_MOST_ERRORS = 10
"""Errors after which a load ends, where they are more than half of the answers."""


class LoadLedger:
    """Kept by what puts a load on one server, and complete at any moment.

    ``read_page`` gets the samples of the server's page; ``wall`` is Unix time, ``clock`` never
    steps, both in seconds.
    """

    def __init__(
        self,
        read_page: Callable[[], Awaitable[Mapping[Series, float]]],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read_page = read_page
        self._wall = wall
        self.clock = clock
        self.clear()

    def clear(self) -> None:
        """Begin anew, with nothing in flight."""
        self._looks: list[Look] = []
        self._answers: list[Answer] = []
        self._failed = 0
        self._running = 0
        self._in_flight, self._changed = 0.0, self.clock()

    @property
    def block(self) -> Block:
        """All up to now."""
        return Block(tuple(self._looks), tuple(self._answers))

    def count(self, change: int) -> None:
        """Note that requests were sent, or have ended."""
        now = self.clock()
        self._in_flight += self._running * (now - self._changed)
        self._running += change
        self._changed = now

    def add(self, answer: Answer) -> None:
        """Note an answer. Raises NoAnswer when most requests fail."""
        self._answers.append(answer)
        if answer.ok:
            return
        self._failed += 1
        if self._failed >= _MOST_ERRORS and 2 * self._failed > len(self._answers):
            raise NoAnswer(
                f"{self._failed} of {len(self._answers)} requests failed, the last one:"
                f" {answer.error}, {answer.detail}; nothing can be measured like that"
            )

    async def look(self) -> None:
        """Read the page. Raises ScrapeError."""
        samples = await self._read_page()
        self.count(0)
        self._looks.append(Look(samples, self._wall(), self._changed, self._in_flight))
