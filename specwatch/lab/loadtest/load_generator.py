"""Load on one server, and its record: reads of the metrics page, answers, requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError
from specwatch.lab.loadtest.calibration import Block, Look
from specwatch.lab.loadtest.client import LoadClient
from specwatch.lab.loadtest.requests import Answer, Ask

MOST_IN_FLIGHT = 10_000
"""Requests in flight, above which an open loop sends no more."""
_MOST_ERRORS = 10
"""Errors after which a load ends, where they are more than half of the answers."""
_FAILURES = 5
"""Failures in a row of given requests, besides one of each client, after which the server counts as
gone."""
_PAUSE = 0.1
"""Seconds that a client waits after an error."""
_LOOKS, _LOOK_PAUSE = 3, 0.2
"""Reads of the page that may fail in a row, and the seconds between them."""
_SETTLES = 2.0
"""Seconds that a server may take to count what it has answered."""
_POLL, _SETTLE_POLL = 0.01, 0.05
_OWN_LIMIT = os.strerror(errno.EMFILE)
"""In the message of an error when this process can open no more connections."""

Samples = Mapping[Series, float]


def poisson(rate: float, seconds: float, seed: str | int) -> tuple[float, ...]:
    """Arrivals of a Poisson process with a mean of ``rate`` a second, in seconds from its start.

    The same for the same seed; a longer one begins with the arrivals of a shorter one.
    """
    generator, times, time = random.Random(seed), [], 0.0
    while (time := time + generator.expovariate(rate)) < seconds:
        times.append(time)
    return tuple(times)


class LoadGenerator:
    """Puts one load at a time on a server, and records it; the record is complete at any moment.

    ``read_page`` gets the samples of the server's metrics page; ``wall`` is Unix time, ``clock`` is
    monotonic, both in seconds. Every load reads the page before its first request and after its
    last one. Loads raise ScrapeError when the page cannot be read, NoAnswer when most requests fail
    or this process has no file descriptors left; cancelling aborts their requests.
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
        self._wall = wall
        self._clock = clock
        self._clear()

    def _clear(self) -> None:
        self._looks: list[Look] = []
        self._answers: list[Answer] = []
        self._open: Counter[float] = Counter()
        """How many requests that have no answer began at each time."""
        self._failed = self._running = 0
        self._in_flight, self._changed = 0.0, self._clock()

    @property
    def block(self) -> Block:
        """The load that runs, or that was interrupted, up to now."""
        return Block(tuple(self._looks), tuple(self._answers), min(self._open, default=None))

    async def closed(
        self,
        asks: Iterator[Ask],
        *,
        concurrency: int,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None] = lambda: None,
        level_to_the_end: bool = False,
    ) -> Block:
        """A number of clients that each send their next request when the last one has ended: for
        ``slices`` stretches of ``seconds``, and until all requests have ended.

        With ``level_to_the_end`` the load stays constant until all requests have ended that were
        sent in these stretches, so that the last ones are not faster than the others. The first
        stretch begins when every client has received a token. The first requests of the clients
        have different lengths, so that the clients do not stay in step.
        """
        starting, all_started, ending = set(range(concurrency)), asyncio.Event(), False

        def note_first(number: int) -> None:
            starting.discard(number)
            if not starting:
                all_started.set()

        async def send_on(number: int) -> None:
            share = (number + 1) / concurrency
            while not ending:
                ask = next(asks)
                if share < 1.0:
                    ask, share = replace(ask, max_tokens=max(2, round(ask.max_tokens * share))), 1.0
                answer = await self._send(ask, partial(note_first, number))
                note_first(number)
                if not answer.ok:
                    await asyncio.sleep(_PAUSE)

        self._clear()
        await self._look()
        async with _first_failure() as group:
            for number in range(concurrency):
                group.create_task(send_on(number))
            await all_started.wait()
            await self._measure(slices, seconds, slice_ended)
            end = self._clock()
            while level_to_the_end and min(self._open, default=end) < end:
                await asyncio.sleep(_POLL)
            ending = True
        await self._look()
        return self.block

    async def open(
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
        """Requests that are sent at ``arrivals``, in seconds from the first look, however long
        those before them take. After ``ramp`` seconds there are ``slices`` stretches of
        ``seconds``.

        The time at which each request is due is fixed before the first is sent, and its latencies
        count from then, so that neither a server that stalls nor a client that is late makes them
        look shorter (coordinated omission: G. Tene, *How not to measure latency*, 2013). The client
        has the same clock. Raises NoAnswer also when ``most`` are in flight and another is due.
        """
        self._clear()
        await self._look()
        began = self._looks[0].clock

        async def measure() -> None:
            await asyncio.sleep(began + ramp - self._clock())
            await self._measure(slices, seconds, slice_ended, began=began + ramp)

        async with _first_failure() as group:
            group.create_task(measure())
            for arrival in arrivals:
                due = began + arrival
                if (early := due - self._clock()) > 0:
                    await asyncio.sleep(early)
                if len(self._open) >= most:
                    raise NoAnswer(
                        f"the server did not keep up: {most} requests of this client were in flight"
                        f" after {arrival:.1f} s, which is the limit; give a lower --rate"
                    )
                self._open[due] += 1
                group.create_task(self._send(next(asks), due=due))
        await self._look()
        return self.block

    async def fixed(
        self,
        asks: Sequence[Ask],
        *,
        concurrency: int,
        settled: Callable[[Block, Samples], bool],
        looks: int = 0,
        ended: Callable[[Answer], None] = lambda _: None,
    ) -> Block:
        """Given requests, each sent once and in order, a number of them at a time; ``ended`` is
        called with each answer.

        The page is read before, ``looks`` times meanwhile, and after, when it is ``settled`` or two
        seconds have passed. Raises NoAnswer also when the server is gone.
        """
        places = {round(number * len(asks) / (looks + 1)) for number in range(1, looks + 1)}
        waiting, in_a_row = iter(asks), 0

        async def send_on() -> None:
            nonlocal in_a_row
            for ask in waiting:
                answer = await self._send(ask)
                ended(answer)
                if answer.ok:
                    in_a_row = 0
                    if len(self._answers) in places:
                        with contextlib.suppress(ScrapeError):  # without it two slices become one
                            await self._look()
                    continue
                in_a_row += 1
                if in_a_row >= _FAILURES + concurrency:
                    raise NoAnswer(
                        f"the last {in_a_row} requests failed, the last one: {answer.error},"
                        f" {answer.detail}"
                    )
                await asyncio.sleep(_PAUSE)

        self._clear()
        await self._look()
        async with _first_failure() as group:
            for _ in range(min(concurrency, len(asks))):
                group.create_task(send_on())
        await self.settle(settled)
        return self.block

    async def settle(self, settled: Callable[[Block, Samples], bool]) -> None:
        """Read the page until it is ``settled``, for two seconds, and record the last look.

        Raises ScrapeError.
        """
        until = self._clock() + _SETTLES
        while self._clock() < until and not settled(self.block, await self._read_page()):
            await asyncio.sleep(_SETTLE_POLL)
        await self._look()

    async def _measure(
        self,
        slices: int,
        seconds: float,
        slice_ended: Callable[[], None],
        began: float | None = None,
    ) -> None:
        """Look before and after each slice: at fixed times after ``began``, as arrivals are fixed;
        without it each slice begins with the last look, so that a late look shortens none."""
        await self._look()
        for number in range(1, slices + 1):
            due = self._clock() if began is None else began + (number - 1) * seconds
            await asyncio.sleep(max(due + seconds - self._clock(), 0.0))
            await self._look()
            slice_ended()

    async def _send(
        self, ask: Ask, first: Callable[[], None] = lambda: None, *, due: float | None = None
    ) -> Answer:
        """Send a request and record its answer; one that is ``due`` is in ``_open`` already."""
        began = self._clock() if due is None else due
        if due is None:
            self._open[began] += 1
        self._count(+1)
        try:
            answer = replace(await self._client.send(ask, first), due=due)
        finally:
            self._count(-1)
        self._open[began] -= 1
        if not self._open[began]:
            del self._open[began]
        self._answers.append(answer)
        if answer.ok:
            return answer
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
        return answer

    def _count(self, change: int) -> None:
        now = self._clock()
        self._in_flight += self._running * (now - self._changed)
        self._running += change
        self._changed = now

    async def _look(self) -> None:
        """Record the page; read it again if that fails, unless requests fail too."""
        for attempt in range(1, _LOOKS + 1):
            try:
                samples = await self._read_page()
                break
            except ScrapeError:
                if attempt == _LOOKS or (self._answers and not self._answers[-1].ok):
                    raise
            await asyncio.sleep(_LOOK_PAUSE)
        self._count(0)
        self._looks.append(Look(samples, self._wall(), self._changed, self._in_flight))


@contextlib.asynccontextmanager
async def _first_failure() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks; the first failure ends it, and is raised without a group around it."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
