"""A constant load on one server: how many requests, until when, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Container, Iterator, Mapping

import pytest

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError, ScrapeReason
from specwatch.loadtest.calibration import Block
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.closed_loop import ClosedLoop
from specwatch.loadtest.load_generator import LoadGenerator
from specwatch.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import PageClient
from specwatch.simulator.server import SimulatedServer
from tests import simulated_load
from tests.hostile import wait_for


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with simulated_load.server() as running:
        yield running


def asks() -> Iterator[Ask]:
    for number in itertools.count():
        yield Ask(f"prompt {number}", 20)


def load(
    server: SimulatedServer,
    *,
    concurrency: int = 4,
    model: str = "tiny",
    fails: Container[int] = (),
    level_to_the_end: bool = False,
) -> Block:
    """Three slices of a tenth of a second; the page fails when it is read for these times."""
    page = PageClient(server.url, timeout=5, max_size=1 << 20)
    reads = itertools.count()
    ended: list[int] = []

    async def read() -> Mapping[Series, float]:
        if next(reads) in fails:
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
                    level_to_the_end=level_to_the_end,
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
        load(server, fails=range(2, 99))
    # The server notices a little later that its clients have gone.
    wait_for(lambda: server.engine.running + server.engine.waiting == 0)


def test_a_page_that_fails_once_is_asked_again(server: SimulatedServer) -> None:
    """A server under load may be late; that is no reason to throw all away."""
    block = load(server, fails=(1, 3))
    assert len(block.looks) == 6
    assert block.unanswered is None


def test_the_load_stays_until_all_have_ended_that_were_sent(server: SimulatedServer) -> None:
    """Else those that were sent last would run with fewer beside them, and faster."""
    block = load(server, level_to_the_end=True)
    end = block.looks[-2].clock
    last = max(answer.ended for answer in block.answers if answer.sent < end)
    after = [answer.sent for answer in block.answers if answer.sent > end]
    assert after, "clients that were answered have asked again"
    assert min(after) < last
    assert all(answer.ok for answer in block.answers)


def test_a_client_without_files_left_blames_itself() -> None:
    generator = LoadGenerator(LoadClient("http://h:1", model="tiny"), page, clock=lambda: 0.0)
    failed = Answer(
        Ask("hello", 8), 0.0, 1.0, error=ErrorKind.CONNECT,
        detail=f"Cannot connect to host h:1 [{os.strerror(errno.EMFILE)}]",
    )  # fmt: skip
    with pytest.raises(NoAnswer, match="this client, not the server, reached its limit"):
        generator.add(failed)


async def page() -> Mapping[Series, float]:
    return {}


def test_what_has_no_answer_yet_is_known_by_when_it_began() -> None:
    generator = LoadGenerator(LoadClient("http://h:1", model="tiny"), page, clock=lambda: 0.0)
    for at in (1.0, 2.0, 3.0):
        generator.expect(at)
    generator.add(Answer(Ask("hello", 8), 1.0, 4.0), 1.0)
    assert generator.block.unanswered == 2.0


def test_a_server_that_refuses_everything_ends_the_load(server: SimulatedServer) -> None:
    """It is not asked for ever: no request is tried again."""
    with pytest.raises(NoAnswer, match=r"requests failed, the last one: refused, 404"):
        load(server, model="another")
