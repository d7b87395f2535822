"""Given requests, each sent once, so many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.ledger import LoadLedger
from specwatch.loadtest.requests import Answer, Ask

_PAUSE = 0.1
"""Seconds that a client waits after an error."""
_FAILURES = 5
"""Failures one after another, beside one of each client, after which the server counts as gone."""
_SETTLES = 2.0
"""Seconds that a server may take to count what it has answered."""
_POLL = 0.05

Samples = Mapping[Series, float]


class FixedLoad:
    """Sends requests to one server, and reads its page before, meanwhile and after.

    ``read_page``, ``wall`` and ``clock`` are as in
    :class:`specwatch.loadtest.closed_loop.ClosedLoop`.
    """

    def __init__(
        self,
        client: LoadClient,
        read_page: Callable[[], Awaitable[Samples]],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._read_page = read_page
        self._ledger = LoadLedger(read_page, wall=wall, clock=clock)
        self._in_a_row = 0

    @property
    def block(self) -> Block:
        """What is known of the load that runs, or that was broken off."""
        return self._ledger.block

    async def run(
        self,
        asks: Sequence[Ask],
        *,
        concurrency: int,
        settled: Callable[[Block, Samples], bool],
        looks: int = 0,
        ended: Callable[[Answer], None] = lambda _: None,
    ) -> Block:
        """Send all of them in order, and wait for the answers; ``ended`` is told of each.

        The page is read before, ``looks`` times meanwhile, and after: once it is ``settled``, or
        does not come to be. Raises ScrapeError when it cannot be read before, NoAnswer when the
        server is gone; cancelling aborts the requests.
        """
        self._ledger.clear()
        self._in_a_row = 0
        await self._ledger.look()
        places = {round(number * len(asks) / (looks + 1)) for number in range(1, looks + 1)}
        waiting = iter(asks)
        clients = [
            asyncio.create_task(self._ask_on(waiting, concurrency, places, ended))
            for _ in range(min(concurrency, len(asks)))
        ]
        try:
            await asyncio.gather(*clients)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        await self.settle(settled)
        return self._ledger.block

    async def settle(self, settled: Callable[[Block, Samples], bool]) -> None:
        """Read the page until it is ``settled``, for two seconds, and keep the last look.

        Raises ScrapeError.
        """
        until = self._ledger.clock() + _SETTLES
        while self._ledger.clock() < until and not settled(self.block, await self._read_page()):
            await asyncio.sleep(_POLL)
        await self._ledger.look()

    async def _ask_on(
        self,
        asks: Iterator[Ask],
        concurrency: int,
        places: set[int],
        ended: Callable[[Answer], None],
    ) -> None:
        for ask in asks:
            self._ledger.count(+1)
            try:
                answer = await self._client.send(ask)
            finally:
                self._ledger.count(-1)
            self._ledger.add(answer)
            ended(answer)
            if not answer.ok:
                self._give_up(answer, concurrency)
                await asyncio.sleep(_PAUSE)
                continue
            self._in_a_row = 0
            if len(self.block.answers) in places:
                await self._try_look()

    def _give_up(self, answer: Answer, concurrency: int) -> None:
        self._in_a_row += 1
        if self._in_a_row >= _FAILURES + concurrency:
            raise NoAnswer(
                f"the last {self._in_a_row} requests failed, the last one: {answer.error},"
                f" {answer.detail}"
            )

    async def _try_look(self) -> None:
        """A look that is missing makes one slice of two."""
        try:
            await self._ledger.look()
        except ScrapeError:
            return
