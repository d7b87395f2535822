"""A constant load on one server: how many requests, until when, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping

import pytest
from prometheus_client import CollectorRegistry

from specwatch.core.calibration import Block
from specwatch.core.exposition import PageReader
from specwatch.core.load import Ask
from specwatch.edges.closed_loop import ClosedLoop
from specwatch.edges.load_client import LoadClient
from specwatch.edges.page_client import PageClient
from specwatch.errors import NoAnswer, ScrapeError, ScrapeReason
from specwatch.model import Series
from specwatch.simulated.costs import SimulatedCosts
from specwatch.simulated.server import SimulatedServer
from specwatch.simulated.settings import SimulatedSettings
from tests.hostile import wait_for


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    costs = SimulatedCosts().scaled(0.2)
    settings = SimulatedSettings(model="tiny", port=0, costs=costs, keep_log=True)
    with SimulatedServer(settings, CollectorRegistry()) as running:
        yield running


def asks() -> Iterator[Ask]:
    for number in itertools.count():
        yield Ask(f"prompt {number}", 20)


def load(
    server: SimulatedServer,
    *,
    concurrency: int = 4,
    model: str = "tiny",
    fail_at: int | None = None,
) -> Block:
    """Three slices of a tenth of a second; the page fails at one look."""
    page = PageClient(server.url, timeout=5, max_size=1 << 20)
    reads = itertools.count()
    ended: list[int] = []

    async def read() -> Mapping[Series, float]:
        if next(reads) == fail_at:
            raise ScrapeError(ScrapeReason.TIMEOUT, "no page")
        return PageReader().read(await asyncio.to_thread(page.fetch, "/metrics"))

    async def run() -> Block:
        async with LoadClient(server.url, model=model) as client:
            loop = ClosedLoop(client, read)
            try:
                return await loop.run(
                    asks(),
                    concurrency=concurrency,
                    slices=3,
                    seconds=0.1,
                    slice_ended=lambda: ended.append(len(ended) + 1),
                )
            finally:
                assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"

    try:
        block = asyncio.run(run())
    finally:
        page.close()
    assert ended == [1, 2, 3], "each slice is told of as it ends"
    return block


def test_every_client_is_busy_in_every_slice_and_all_requests_end(server: SimulatedServer) -> None:
    block = load(server)
    assert len(block.looks) == 6, "before, between which three slices lie, after"
    before, *inner, after = block.looks
    for one, next_one in itertools.pairwise(inner):
        in_flight = (next_one.in_flight - one.in_flight) / (next_one.clock - one.clock)
        assert 3.5 < in_flight <= 4.0 + 1e-9
    assert before.in_flight == 0
    assert after.in_flight > inner[-1].in_flight
    assert len(block.answers) >= 4
    assert all(answer.ok for answer in block.answers)
    with server.synced() as engine:
        assert len(engine.log) == len(block.answers), "the server has ended them too"
        assert {request.finished_reason for request in engine.log} == {"length"}


def test_the_first_requests_are_of_unlike_lengths(server: SimulatedServer) -> None:
    """So that clients do not stay in step, as they would with answers of one length."""
    block = load(server)
    first = sorted(block.answers, key=lambda answer: answer.sent)[:4]
    assert sorted(answer.ask.max_tokens for answer in first) == [5, 10, 15, 20]
    assert {answer.ask.max_tokens for answer in block.answers} == {5, 10, 15, 20}


def test_a_page_that_fails_ends_the_load_and_aborts_its_requests(server: SimulatedServer) -> None:
    with pytest.raises(ScrapeError, match="no page"):
        load(server, fail_at=2)
    # The server notices a little later that its clients have gone.
    wait_for(lambda: server.engine.running + server.engine.waiting == 0)


def test_a_server_that_refuses_everything_ends_the_load(server: SimulatedServer) -> None:
    """It is not asked for ever: no request is tried again."""
    with pytest.raises(NoAnswer, match=r"requests failed, the last one: refused, 404"):
        load(server, model="another")
