"""Requests that are sent when they are due, however long those before them take."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.ledger import LoadLedger
from specwatch.loadtest.requests import Ask

MOST_IN_FLIGHT = 10_000
"""Requests at once, after which a server that does not keep up is sent no more."""


def poisson(rate: float, seconds: float, seed: str | int) -> tuple[float, ...]:
    """Arrivals of a Poisson process with a mean of ``rate`` a second, in seconds from its start.

    The same for the same seed; a longer one begins with all of a shorter one.
    """
    generator, times, time = random.Random(seed), [], 0.0
    while (time := time + generator.expovariate(rate)) < seconds:
        times.append(time)
    return tuple(times)


class OpenLoop:
    """Puts a load of given arrivals on one server, and reads its page meanwhile.

    When each request is due is known before the first is sent, and its latencies count from then:
    neither a server that stalls nor a client that is late makes them look shorter (G. Tene, *How
    not to measure latency*, 2013, calls that coordinated omission). More than ``most`` are never in
    flight. ``read_page``, ``wall`` and ``clock`` are as in
    :class:`specwatch.loadtest.closed_loop.ClosedLoop`; the client has the same clock.
    """

    def __init__(
        self,
        client: LoadClient,
        read_page: Callable[[], Awaitable[Mapping[Series, float]]],
        *,
        most: int = MOST_IN_FLIGHT,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._most = most
        self._clock = clock
        self.began = 0.0
        """When the load began that runs, or ran last: a time of the clock."""
        self._ledger = LoadLedger(read_page, wall=wall, clock=clock)

    @property
    def block(self) -> Block:
        """What is known of the load that runs, or that was broken off."""
        return self._ledger.block

    async def run(
        self,
        asks: Iterator[Ask],
        *,
        arrivals: Sequence[float],
        ramp: float,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None] = lambda: None,
    ) -> Block:
        """Send requests at ``arrivals``, in seconds from now, and wait until all have ended.

        After ``ramp`` seconds there are ``slices`` stretches of ``seconds``. Raises ScrapeError
        when the page cannot be read, NoAnswer when most requests fail, or when the server does not
        keep up at all; cancelling aborts them.
        """
        self._ledger.clear()
        await self._ledger.look()
        self.began = began = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._measure(began, ramp, slices, seconds, slice_ended))
                for arrival in arrivals:
                    due = began + arrival
                    if (early := due - self._clock()) > 0:
                        await asyncio.sleep(early)
                    self._require_room(arrival)
                    self._ledger.wait_for(due)
                    group.create_task(self._ask(next(asks), due))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await self._ledger.look()
        return self._ledger.block

    async def _measure(
        self,
        began: float,
        ramp: float,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None],
    ) -> None:
        await asyncio.sleep(began + ramp - self._clock())
        await self._ledger.look()
        for number in range(1, slices + 1):
            # Arrivals do not wait for a look that came late, and neither does the next one.
            await asyncio.sleep(max(began + ramp + number * seconds - self._clock(), 0.0))
            await self._ledger.look()
            slice_ended()

    def _require_room(self, after: float) -> None:
        if self._ledger.unanswered_count >= self._most:
            raise NoAnswer(
                f"the server did not keep up: {self._most} requests of ours were in flight after"
                f" {after:.1f} s, the most that are sent; give a lower --rate"
            )

    async def _ask(self, ask: Ask, due: float) -> None:
        self._ledger.count(+1)
        try:
            answer = await self._client.send(ask)
        finally:
            self._ledger.count(-1)
        self._ledger.add(replace(answer, due=due), due)
