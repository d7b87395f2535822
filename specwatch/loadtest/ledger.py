"""What is known of a load while it runs: looks at the page, answers, and how many run."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Mapping

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError
from specwatch.loadtest.calibration import Block, Look
from specwatch.loadtest.requests import Answer

_MOST_ERRORS = 10
"""Errors after which a load ends, where they are more than half of the answers."""
_LOOKS = 3
"""Attempts at a look, one after another, after which the page counts as gone."""
_PAUSE = 0.2
"""Seconds between them."""
_OWN_LIMIT = os.strerror(errno.EMFILE)
"""What an error says when it is this process that can open no more connections."""


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
        self._open: set[float] = set()
        self._in_flight, self._changed = 0.0, self.clock()

    @property
    def block(self) -> Block:
        """All up to now."""
        return Block(tuple(self._looks), tuple(self._answers), self.unanswered)

    @property
    def unanswered_count(self) -> int:
        """How many requests were given to :meth:`wait_for` and have no answer."""
        return len(self._open)

    @property
    def unanswered(self) -> float | None:
        """When the first request began that was given to :meth:`wait_for` and has no answer."""
        return min(self._open, default=None)

    def wait_for(self, began: float) -> None:
        """Note when a request began that an answer will be given of, unless it is aborted."""
        self._open.add(began)

    def count(self, change: int) -> None:
        """Note that requests were sent, or have ended."""
        now = self.clock()
        self._in_flight += self._running * (now - self._changed)
        self._running += change
        self._changed = now

    def add(self, answer: Answer, began: float | None = None) -> None:
        """Note an answer, of the request that ``began`` then. Raises NoAnswer when most requests
        fail, and when it is this client that can send no more."""
        self._answers.append(answer)
        if began is not None:
            self._open.discard(began)
        if answer.ok:
            return
        if _OWN_LIMIT in answer.detail:
            raise NoAnswer(
                f"this client, not the server, reached its limit of open files with"
                f" {self._running + 1} requests in flight ({_OWN_LIMIT}); raise it (ulimit -n), or"
                " send less at once"
            )
        self._failed += 1
        if self._failed >= _MOST_ERRORS and 2 * self._failed > len(self._answers):
            raise NoAnswer(
                f"{self._failed} of {len(self._answers)} requests failed, the last one:"
                f" {answer.error}, {answer.detail}; nothing can be measured like that"
            )

    async def look(self) -> None:
        """Read the page; one that fails once is asked again. Raises ScrapeError when several looks
        fail in a row, or requests fail too."""
        samples = await self._samples()
        self.count(0)
        self._looks.append(Look(samples, self._wall(), self._changed, self._in_flight))

    async def _samples(self) -> Mapping[Series, float]:
        for _ in range(_LOOKS - 1):
            try:
                return await self._read_page()
            except ScrapeError:
                if self._answers and not self._answers[-1].ok:
                    raise
            await asyncio.sleep(_PAUSE)
        return await self._read_page()
