"""Given requests, each sent once, a number of them at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.load_generator import LoadGenerator
from specwatch.loadtest.requests import Answer, Ask

_PAUSE = 0.1
"""Seconds that a client waits after an error."""
_FAILURES = 5
"""Failures in a row, besides one of each client, after which the server counts as gone."""
_SETTLES = 2.0
"""Seconds that a server may take to count what it has answered."""
_POLL = 0.05

Samples = Mapping[Series, float]


class FixedLoad(LoadGenerator):
    """Sends requests to one server, and reads its page before, meanwhile and after."""

    async def run(
        self,
        asks: Sequence[Ask],
        *,
        concurrency: int,
        settled: Callable[[Block, Samples], bool],
        looks: int = 0,
        ended: Callable[[Answer], None] = lambda _: None,
    ) -> Block:
        """Send all of them in order, and wait for the answers; ``ended`` is called with each.

        The page is read before, ``looks`` times meanwhile, and after, when it is ``settled`` or two
        seconds have passed. Raises ScrapeError when it cannot be read before, NoAnswer when the
        server is gone; cancelling aborts the requests.
        """
        self.clear()
        self._in_a_row = 0
        await self.look()
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
        return self.block

    async def settle(self, settled: Callable[[Block, Samples], bool]) -> None:
        """Read the page until it is ``settled``, for two seconds, and keep the last look.

        Raises ScrapeError.
        """
        until = self.clock() + _SETTLES
        while self.clock() < until and not settled(self.block, await self._read_page()):
            await asyncio.sleep(_POLL)
        await self.look()

    async def _ask_on(
        self,
        asks: Iterator[Ask],
        concurrency: int,
        places: set[int],
        ended: Callable[[Answer], None],
    ) -> None:
        for ask in asks:
            answer = await self.send(ask)
            self.add(answer)
            ended(answer)
            if not answer.ok:
                self._in_a_row += 1
                if self._in_a_row >= _FAILURES + concurrency:
                    raise NoAnswer(
                        f"the last {self._in_a_row} requests failed, the last one: {answer.error},"
                        f" {answer.detail}"
                    )
                await asyncio.sleep(_PAUSE)
                continue
            self._in_a_row = 0
            if len(self.block.answers) in places:
                with contextlib.suppress(ScrapeError):  # without it two slices become one
                    await self.look()
