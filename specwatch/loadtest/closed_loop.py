"""A number of clients that each send their next request when the last one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from specwatch.loadtest.calibration import Block
from specwatch.loadtest.load_generator import LoadGenerator
from specwatch.loadtest.requests import Ask

_POLL = 0.01
_PAUSE = 0.1
"""Seconds that a client waits after an error."""


class ClosedLoop(LoadGenerator):
    """Puts a constant load on one server, and reads its page meanwhile."""

    async def run(
        self,
        asks: Iterator[Ask],
        *,
        concurrency: int,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None] = lambda: None,
        level_to_the_end: bool = False,
    ) -> Block:
        """Load the server for ``slices`` stretches of ``seconds``, then let all requests end.

        With ``level_to_the_end`` the load stays constant until all requests have ended that were
        sent in these stretches, so that the last ones are not faster than the others.

        The first stretch begins when every client has received a token. The first requests of the
        clients have different lengths, so that the clients do not stay in step. Raises ScrapeError
        when the page cannot be read, NoAnswer when most requests fail; cancelling aborts the
        requests.
        """
        self._started, self._stopping = 0, False
        self._all_started = asyncio.Event()
        self.clear()
        await self.look()
        clients = [
            asyncio.create_task(self._ask_on(asks, share=(number + 1) / concurrency))
            for number in range(concurrency)
        ]
        measuring = asyncio.create_task(
            self._measure(concurrency, slices, seconds, slice_ended, level_to_the_end)
        )
        try:
            await self._first_failure(clients, measuring)
            self._stopping = True
            await asyncio.gather(*clients)
        except BaseException:
            for task in (*clients, measuring):
                task.cancel()
            await asyncio.gather(*clients, measuring, return_exceptions=True)
            raise
        await self.look()
        return self.block

    async def _first_failure(
        self, clients: list[asyncio.Task[None]], measuring: asyncio.Task[None]
    ) -> None:
        """Return when the measurement has ended; raise what a client raised before that."""
        waiting: set[asyncio.Task[None]] = {*clients, measuring}
        while not measuring.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        measuring.result()

    async def _measure(
        self,
        concurrency: int,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None],
        level_to_the_end: bool,
    ) -> None:
        while self._started < concurrency:
            self._all_started.clear()
            await self._all_started.wait()
        await self.look()
        for _ in range(slices):
            # From the last look on, so that a late look does not shorten the next slice.
            await asyncio.sleep(seconds)
            await self.look()
            slice_ended()
        end = self.clock()
        while level_to_the_end and (self.unanswered or end) < end:
            await asyncio.sleep(_POLL)

    async def _ask_on(self, asks: Iterator[Ask], share: float) -> None:
        """One client; ``share`` is that of its first answer's length."""
        begun = False

        def note_first() -> None:
            nonlocal begun
            if not begun:
                begun = True
                self._started += 1
                self._all_started.set()

        while not self._stopping:
            ask = next(asks)
            if share < 1.0:
                ask, share = replace(ask, max_tokens=max(2, round(ask.max_tokens * share))), 1.0
            began = self.clock()
            self.expect(began)
            answer = await self.send(ask, note_first)
            note_first()
            self.add(answer, began)
            if not answer.ok:
                await asyncio.sleep(_PAUSE)
