"""Requests that are sent when they are due, and timed from then."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pvariance

import pytest

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError, ScrapeReason
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.open_loop import OpenLoop, poisson
from specwatch.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import PageClient
from specwatch.simulator.server import SimulatedServer
from tests import simulated_load
from tests.hostile import wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with simulated_load.server() as running:
        yield running


def asks() -> Iterator[Ask]:
    for number in itertools.count():
        yield Ask(f"prompt {number}", 20)


class Fake(LoadClient):
    """Answers without a server: after ``latency`` seconds, or with an error."""

    def __init__(self, latency: float = 0.0, error: ErrorKind | None = None) -> None:
        self.latency, self.error = latency, error
        self.asked: list[str] = []

    async def send(self, ask: Ask, first: object = None) -> Answer:
        sent = asyncio.get_running_loop().time()
        self.asked.append(ask.prompt)
        await asyncio.sleep(self.latency)
        return Answer(ask, sent, asyncio.get_running_loop().time(), tokens=20, error=self.error)


def run(
    client: LoadClient,
    arrivals: Sequence[float],
    *,
    fails_from: int = 99,
    most: int = 1000,
) -> Block:
    """After a ramp of 50 ms three slices of as much; the page fails from one look on."""
    looks = itertools.count()

    async def read() -> Mapping[Series, float]:
        if next(looks) >= fails_from:
            raise ScrapeError(ScrapeReason.TIMEOUT, "no page")
        return {}

    async def load() -> Block:
        clock = asyncio.get_running_loop().time
        loop = OpenLoop(client, read, clock=clock)
        try:
            return await loop.run(
                asks(), arrivals=arrivals, ramp=0.05, slices=3, seconds=0.05, most=most
            )
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"

    return asyncio.run(load())


def test_all_requests_are_sent_however_long_others_take_and_are_waited_for() -> None:
    arrivals = [0.01 * at for at in range(20)]
    client = Fake(latency=1.0)
    block = run(client, arrivals)
    assert client.asked == [f"prompt {at}" for at in range(20)]
    assert len(block.answers) == 20
    assert len(block.looks) == 6, "before, between which three slices lie, after"
    assert max(answer.ended for answer in block.answers) <= block.looks[-1].clock
    assert block.looks[-2].clock < min(answer.ended for answer in block.answers)
    # From the ramp on, more and more of them ran at once.
    running = [
        (after.in_flight - before.in_flight) / (after.clock - before.clock)
        for before, after in itertools.pairwise(block.looks[1:-1])
    ]
    assert running == sorted(running)


def test_latencies_count_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    """A client that is held up sends late, and what users would have waited is not forgotten."""

    class Stalling(Fake):
        async def send(self, ask: Ask, first: object = None) -> Answer:
            if ask.prompt == "prompt 2":
                stop = asyncio.get_running_loop().time() + 0.2
                while asyncio.get_running_loop().time() < stop:
                    pass  # Nothing else runs meanwhile.
            return await super().send(ask)

    block = run(Stalling(), [0.0, 0.01, 0.02, 0.03, 0.04, 0.3])
    by_due = sorted(block.answers, key=lambda each: each.began)
    dues = [each.due for each in by_due]
    assert all(due is not None for due in dues)
    gaps = [other - one for one, other in itertools.pairwise(dues)]  # type: ignore[operator]
    assert gaps == pytest.approx([0.01, 0.01, 0.01, 0.01, 0.26]), "as they were planned"
    for held_up in by_due[3:5]:
        assert held_up.sent - held_up.began > 0.15
        assert held_up.latency == held_up.ended - held_up.began
        assert held_up.latency > 0.15


def test_a_page_that_fails_ends_the_load_and_its_requests() -> None:
    with pytest.raises(ScrapeError, match="no page"):
        run(Fake(latency=60.0), [0.0, 0.01], fails_from=1)


def test_a_server_that_refuses_everything_ends_the_load() -> None:
    with pytest.raises(NoAnswer, match="10 of 10 requests failed, the last one: refused"):
        run(Fake(error=ErrorKind.REFUSED), [0.001 * at for at in range(100)])


def test_a_server_that_does_not_keep_up_is_sent_no_more() -> None:
    """Requests would pile up until this client has no files left, or no memory."""
    client = Fake(latency=60.0)
    with pytest.raises(NoAnswer, match="the server did not keep up: 20 requests of this client"):
        run(client, [0.001 * at for at in range(100)], most=20)
    assert len(client.asked) <= 20


def test_a_real_client_aborts_its_requests_when_it_is_cancelled(server: SimulatedServer) -> None:
    """What was known until then is kept."""
    page = PageClient(server.url, timeout=5, max_size=1 << 20)

    async def read() -> Mapping[Series, float]:
        return PageReader().read(await asyncio.to_thread(page.fetch, "/metrics"))

    async def cancelled() -> Block:
        async with LoadClient(server.url, model="tiny") as client:
            loop = OpenLoop(client, read)
            endless = (Ask("hello", 4 if at == 0 else 4000) for at in itertools.count())
            task = asyncio.create_task(
                loop.run(endless, arrivals=[0.0, 0.01, 0.02], ramp=0.0, slices=9, seconds=9.0)
            )
            while not loop.block.answers:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return loop.block

    try:
        block = asyncio.run(cancelled())
    finally:
        page.close()
    assert len(block.answers) == 1
    assert block.answers[0].ok
    assert block.unanswered > (block.answers[0].due or 0.0)
    wait_for(lambda: server.engine.running + server.engine.waiting == 0)


def test_poisson_arrivals_know_nothing_of_each_other() -> None:
    """Gaps with a mean of 1/rate and a deviation as large; as many in each second as fit that."""
    found = poisson(20.0, 500.0, 1)
    gaps = [other - one for one, other in itertools.pairwise((0.0, *found))]
    assert fmean(gaps) == pytest.approx(0.05, rel=0.05)
    assert pvariance(gaps) ** 0.5 == pytest.approx(0.05, rel=0.05)
    counts = [sum(second <= at < second + 1 for at in found) for second in range(500)]
    assert pvariance(counts) == pytest.approx(20.0, rel=0.2)
    assert found == tuple(sorted(found))
    assert found[-1] < 500.0


def test_the_same_seed_gives_the_same_arrivals_and_more_time_only_adds_some() -> None:
    short, long = poisson(5.0, 10.0, "a"), poisson(5.0, 20.0, "a")
    assert long[: len(short)] == short
    assert poisson(5.0, 10.0, "b") != short
