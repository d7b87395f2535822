"""Load on one server, and its record: reads of the metrics page, answers, requests in flight."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Mapping

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError
from specwatch.loadtest.calibration import Block, Look
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.requests import Answer, Ask

_MOST_ERRORS = 10
"""Errors after which a load ends, where they are more than half of the answers."""
_LOOKS = 3
"""Reads of the page that may fail in a row."""
_PAUSE = 0.2
"""Seconds between them."""
_OWN_LIMIT = os.strerror(errno.EMFILE)
"""In the message of an error when this process can open no more connections."""


class LoadGenerator:
    """Sends requests and records them; the record is complete at any moment.

    ``read_page`` gets the samples of the server's metrics page; ``wall`` is Unix time, ``clock`` is
    monotonic, both in seconds.
    """

    def __init__(
        self,
        client: LoadClient,
        read_page: Callable[[], Awaitable[Mapping[Series, float]]],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._read_page = read_page
        self._wall = wall
        self.clock = clock
        self.clear()

    def clear(self) -> None:
        """Forget everything; nothing is in flight."""
        self._looks: list[Look] = []
        self._answers: list[Answer] = []
        self._failed = 0
        self._running = 0
        self._open: set[float] = set()
        self._in_flight, self._changed = 0.0, self.clock()

    @property
    def block(self) -> Block:
        """The load that runs, or that was interrupted, up to now."""
        return Block(tuple(self._looks), tuple(self._answers), self.unanswered)

    @property
    def unanswered(self) -> float | None:
        """When the first request began that was given to :meth:`expect` and has no answer."""
        return min(self._open, default=None)

    def expect(self, began: float) -> None:
        """Note when a request began for which :meth:`add` will be called, unless it is aborted."""
        self._open.add(began)

    async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
        """Send a request, as :meth:`LoadClient.send`, and count it as in flight meanwhile."""
        self._count(+1)
        try:
            return await self._client.send(ask, first)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        now = self.clock()
        self._in_flight += self._running * (now - self._changed)
        self._running += change
        self._changed = now

    def add(self, answer: Answer, began: float | None = None) -> None:
        """Record the answer to the request that ``began`` then.

        Raises NoAnswer when most requests fail, and when this process has no file descriptors left.
        """
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
        """Read the page, and again if that fails. Raises ScrapeError when several reads fail in a
        row, or requests fail too."""
        samples = await self._samples()
        self._count(0)
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
