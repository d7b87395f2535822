"""A number of clients that each send their next request when the last one has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace

from specwatch.domain.model import Series
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.ledger import LoadLedger
from specwatch.loadtest.requests import Ask

_POLL = 0.01
_PAUSE = 0.1
"""Seconds that a client waits after an error: a server that refuses at once is not hammered."""


class ClosedLoop:
    """Puts a constant load on one server, and reads its page meanwhile.

    ``read_page`` gets the samples of the server's page; ``wall`` is Unix time, ``clock`` never
    steps, both in seconds.
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
        self._ledger = LoadLedger(read_page, wall=wall, clock=clock)
        self._started = 0
        self._all_started = asyncio.Event()
        self._stopping = False

    @property
    def block(self) -> Block:
        """What is known of the load that runs, or that was broken off."""
        return self._ledger.block

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

        With ``level_to_the_end`` the load stays as it is until all requests have ended that were
        sent in these stretches, so that none of them is faster for being among the last.

        The first stretch begins when all clients have had a token; their first requests are of
        unlike lengths, so that they do not stay in step. Raises ScrapeError when the page cannot be
        read, NoAnswer when most requests fail; cancelling aborts the requests.
        """
        self._started, self._stopping = 0, False
        self._all_started.clear()
        self._ledger.clear()
        await self._ledger.look()
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
        await self._ledger.look()
        return self._ledger.block

    async def _first_failure(
        self, clients: list[asyncio.Task[None]], measuring: asyncio.Task[None]
    ) -> None:
        """Return when the measuring has ended; raise what a client raised before."""
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
        await self._ledger.look()
        for _ in range(slices):
            # From the last look on, so that one that came late takes no time from the next.
            await asyncio.sleep(seconds)
            await self._ledger.look()
            slice_ended()
        end = self._ledger.clock()
        while level_to_the_end and (self._ledger.unanswered or end) < end:
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
            began = self._ledger.clock()
            self._ledger.count(+1)
            self._ledger.wait_for(began)
            try:
                answer = await self._client.send(ask, note_first)
            finally:
                self._ledger.count(-1)
            note_first()
            self._ledger.add(answer, began)
            if not answer.ok:
                await asyncio.sleep(_PAUSE)
