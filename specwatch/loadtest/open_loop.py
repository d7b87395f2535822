"""Requests that are sent when they are due, however long those before them take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specwatch.errors import NoAnswer
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.load_generator import LoadGenerator
from specwatch.loadtest.requests import Ask

MOST_IN_FLIGHT = 10_000
"""Requests in flight, above which no more are sent."""


def poisson(rate: float, seconds: float, seed: str | int) -> tuple[float, ...]:
    """Arrivals of a Poisson process with a mean of ``rate`` a second, in seconds from its start.

    The same for the same seed; a longer one begins with the arrivals of a shorter one.
    """
    generator, times, time = random.Random(seed), [], 0.0
    while (time := time + generator.expovariate(rate)) < seconds:
        times.append(time)
    return tuple(times)


class OpenLoop(LoadGenerator):
    """Puts a load of given arrivals on one server, and reads its page meanwhile.

    The time at which each request is due is fixed before the first is sent, and its latencies count
    from then, so that neither a server that stalls nor a client that is late makes them look
    shorter (coordinated omission: G. Tene, *How not to measure latency*, 2013). The client has the
    same clock.
    """

    began = 0.0
    """When the load began that runs, or ran last: a time of the clock."""

    async def run(
        self,
        asks: Iterator[Ask],
        *,
        arrivals: Sequence[float],
        ramp: float,
        slices: int,
        seconds: float,
        most: int = MOST_IN_FLIGHT,
        slice_ended: Callable[[], None] = lambda: None,
    ) -> Block:
        """Send requests at ``arrivals``, in seconds from now, and wait until all have ended.

        After ``ramp`` seconds there are ``slices`` stretches of ``seconds``. Raises ScrapeError
        when the page cannot be read, NoAnswer when most requests fail, or when ``most`` are in
        flight and another is due; cancelling aborts them.
        """
        self.clear()
        await self.look()
        self.began = began = self.clock()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._measure(began, ramp, slices, seconds, slice_ended))
                for arrival in arrivals:
                    due = began + arrival
                    if (early := due - self.clock()) > 0:
                        await asyncio.sleep(early)
                    if len(self._open) >= most:
                        raise NoAnswer(
                            f"the server did not keep up: {most} requests of this client were in"
                            f" flight after {arrival:.1f} s, which is the limit; give a lower"
                            " --rate"
                        )
                    self.expect(due)
                    group.create_task(self._ask(next(asks), due))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await self.look()
        return self.block

    async def _measure(
        self,
        began: float,
        ramp: float,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None],
    ) -> None:
        await asyncio.sleep(began + ramp - self.clock())
        await self.look()
        for number in range(1, slices + 1):
            # A late look does not delay the next one, as it does not delay arrivals.
            await asyncio.sleep(max(began + ramp + number * seconds - self.clock(), 0.0))
            await self.look()
            slice_ended()

    async def _ask(self, ask: Ask, due: float) -> None:
        self.add(replace(await self.send(ask), due=due), due)
