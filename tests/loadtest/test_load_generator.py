"""Loads on one server, in virtual time: what is sent when, what is recorded, and how they end."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from statistics import fmean, pvariance
from typing import Any

import pytest

from specwatch.domain.model import Series
from specwatch.errors import NoAnswer, ScrapeError, ScrapeReason
from specwatch.lab.loadtest.calibration import Block
from specwatch.lab.loadtest.client import LoadClient
from specwatch.lab.loadtest.load_generator import LoadGenerator, poisson
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from tests.simulated_load import VirtualTime

TOKENS = 20
Load = Callable[[LoadGenerator], Awaitable[Block]]


def asks() -> Iterator[Ask]:
    return (Ask(f"prompt {number}", TOKENS) for number in itertools.count())


def closed(generator: LoadGenerator, **more: Any) -> Awaitable[Block]:
    return generator.closed(asks(), concurrency=4, slices=3, seconds=1.0, **more)


def opened(
    arrivals: Sequence[float] = tuple(at / 100 for at in range(100)), most: int = 1000
) -> Load:
    return lambda generator: generator.open(
        asks(), arrivals=arrivals, ramp=0.5, slices=3, seconds=0.5, most=most
    )


def fixed(generator: LoadGenerator, **more: Any) -> Awaitable[Block]:
    given = list(itertools.islice(asks(), 100))
    return generator.fixed(given, concurrency=4, settled=lambda *_: True, **more)


class FakeClient(LoadClient):
    """Answers without a server: a whole answer after ``latency`` seconds, or with an error, which
    only the requests ``failing`` get, or all."""

    def __init__(
        self,
        latency: float = 0.0,
        error: ErrorKind | None = None,
        detail: str = "",
        failing: Container[int] = range(10**6),
    ) -> None:
        self.latency, self.error, self.detail, self.failing = latency, error, detail, failing
        self.sent: list[Ask] = []
        self.running = 0

    async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
        clock = asyncio.get_running_loop().time
        sent, error = clock(), self.error if len(self.sent) in self.failing else None
        self.sent.append(ask)
        self.running += 1
        try:
            await asyncio.sleep(self.latency * ask.max_tokens / TOKENS)
        finally:
            self.running -= 1
        first()
        return Answer(ask, sent, clock(), tokens=ask.max_tokens, error=error, detail=self.detail)


def run(
    client: LoadClient,
    load: Load,
    *,
    failing_reads: Container[int] = (),
    virtual: VirtualTime | None = None,
    read_seconds: float = 0.0,
) -> Block:
    """``failing_reads`` are the numbers of the page reads that fail."""
    virtual, reads = virtual or VirtualTime(), itertools.count()

    async def read() -> Mapping[Series, float]:
        await asyncio.sleep(read_seconds)
        if next(reads) in failing_reads:
            raise ScrapeError(ScrapeReason.TIMEOUT, "no page")
        return {}

    async def whole() -> Block:
        try:
            return await load(LoadGenerator(client, read, wall=virtual.wall, clock=virtual.clock))
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"

    block = virtual.run(whole())
    assert isinstance(block, Block)
    return block


def running(block: Block) -> list[float]:
    """The mean number of requests in flight in each slice."""
    return [
        (after.in_flight - before.in_flight) / (after.clock - before.clock)
        for before, after in itertools.pairwise(block.looks[1:-1])
    ]


def test_in_a_closed_loop_every_client_is_busy_in_every_slice_and_all_requests_end() -> None:
    ended: list[int] = []
    client = FakeClient(latency=0.3)
    block = run(client, lambda each: closed(each, slice_ended=lambda: ended.append(1)))
    assert len(block.looks) == 6, "before, around three slices, after"
    assert running(block) == pytest.approx([4.0] * 3)
    assert block.looks[0].in_flight == 0
    assert len(ended) == 3
    assert len(block.answers) == len(client.sent) > 40
    assert block.unanswered is None


def test_the_first_requests_of_a_closed_loop_have_different_lengths() -> None:
    """Otherwise clients with answers of one length would stay in step."""
    block = run(FakeClient(latency=0.3), closed)
    first = sorted(block.answers, key=lambda answer: answer.sent)[:4]
    assert sorted(answer.ask.max_tokens for answer in first) == [5, 10, 15, 20]
    assert {answer.ask.max_tokens for answer in block.answers} == {5, 10, 15, 20}


def test_a_level_load_stays_until_all_requests_of_the_slices_have_ended() -> None:
    """Otherwise the last ones would run with fewer beside them, and faster."""
    block = run(FakeClient(latency=0.7), lambda each: closed(each, level_to_the_end=True))
    end = block.looks[-2].clock
    last = max(answer.ended for answer in block.answers if answer.sent < end)
    after = [answer.sent for answer in block.answers if answer.sent > end]
    assert after
    assert min(after) < last


def test_an_open_loop_sends_requests_however_long_others_take_and_waits_for_all() -> None:
    client = FakeClient(latency=3.0)
    block = run(client, opened([0.1 * number for number in range(20)]))
    assert [ask.prompt for ask in client.sent] == [f"prompt {number}" for number in range(20)]
    assert len(block.answers) == 20
    assert [look.clock for look in block.looks] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 4.9])
    assert running(block) == pytest.approx([8.0, 13.0, 18.0], abs=0.5)


def test_in_an_open_loop_latencies_count_from_when_a_request_was_due() -> None:
    """The waiting time behind a client that stalls is not forgotten."""
    virtual = VirtualTime()

    class Stalling(FakeClient):
        async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
            if ask.prompt == "prompt 2":
                virtual.now += 0.2
            return await super().send(ask)

    arrivals = [0.0, 0.01, 0.02, 0.03, 0.04, 0.3]
    block = run(Stalling(), opened(arrivals), virtual=virtual)
    by_due = sorted(block.answers, key=lambda answer: answer.began)
    assert [answer.due for answer in by_due] == pytest.approx(arrivals)
    for late in by_due[3:5]:
        assert late.sent - late.began > 0.15
        assert late.latency == late.ended - late.began > 0.15


def test_an_open_loop_ends_when_too_many_requests_are_in_flight() -> None:
    """They would pile up until this client has no file descriptors left, or no memory."""
    client = FakeClient(latency=60.0)
    with pytest.raises(NoAnswer, match="the server did not keep up: 20 requests of this client"):
        run(client, opened(most=20))
    assert len(client.sent) <= 20
    assert client.running == 0


def test_given_requests_are_sent_in_order_with_reads_of_the_page_between() -> None:
    client, ended = FakeClient(latency=0.1), []
    block = run(client, lambda each: fixed(each, looks=3, ended=ended.append))
    assert [ask.prompt for ask in client.sent] == [f"prompt {number}" for number in range(100)]
    assert ended == list(block.answers)
    assert len(block.looks) == 5


def test_the_last_look_waits_until_the_page_has_settled() -> None:
    settles = iter([False, False, True])
    block = run(
        FakeClient(),
        lambda each: each.fixed([Ask("a", 8)], concurrency=1, settled=lambda *_: next(settles)),
    )
    assert block.looks[-1].clock - block.looks[0].clock == pytest.approx(0.1)
    given_up = run(
        FakeClient(),
        lambda each: each.fixed([Ask("a", 8)], concurrency=1, settled=lambda *_: False),
    )
    assert given_up.looks[-1].clock == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("load", [closed, opened()], ids=["closed loop", "open loop"])
def test_a_page_that_cannot_be_read_ends_the_load_and_aborts_its_requests(load: Load) -> None:
    client = FakeClient(latency=60.0)
    with pytest.raises(ScrapeError, match="no page"):
        run(client, load, failing_reads=range(1, 99))
    assert client.running == 0


def test_a_failed_read_of_the_page_is_repeated() -> None:
    block = run(FakeClient(latency=0.3), closed, failing_reads=(1, 3))
    assert len(block.looks) == 6


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (closed, "10 of 10 requests failed, the last one: refused, 404 gone; nothing can"),
        (opened(), "10 of 10 requests failed, the last one: refused, 404 gone; nothing can"),
        (fixed, "the last 9 requests failed, the last one: refused, 404 gone"),
    ],
    ids=["closed loop", "open loop", "given requests"],
)
def test_a_server_that_refuses_everything_ends_the_load(load: Load, message: str) -> None:
    with pytest.raises(NoAnswer, match=message):
        run(FakeClient(error=ErrorKind.REFUSED, detail="404 gone"), load)


def test_failures_with_answers_between_do_not_end_given_requests() -> None:
    failing = {*range(8), *range(30, 38)}
    block = run(FakeClient(error=ErrorKind.FAILED, failing=failing), fixed)
    assert sum(not answer.ok for answer in block.answers) == 16


def test_a_slow_page_delays_slices_of_a_closed_loop_only() -> None:
    """Arrivals of an open loop are fixed; in a closed loop no slice gets shorter."""
    times = [look.clock for look in run(FakeClient(0.1), closed, read_seconds=0.2).looks[1:5]]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([1.2] * 3)
    times = [look.clock for look in run(FakeClient(0.1), opened(), read_seconds=0.2).looks[1:5]]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([0.5] * 3)


def test_a_client_without_file_descriptors_says_so() -> None:
    detail = f"Cannot connect to host h:1 [{os.strerror(errno.EMFILE)}]"
    with pytest.raises(NoAnswer, match="this client, not the server, reached its limit"):
        run(FakeClient(error=ErrorKind.CONNECT, detail=detail), closed)


def test_a_cancelled_load_keeps_its_record() -> None:
    async def cancelled(generator: LoadGenerator) -> Block:
        task = asyncio.ensure_future(opened([0.0, 0.2, 0.4])(generator))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return generator.block

    client = FakeClient(latency=0.25)
    block = run(client, cancelled)
    assert [answer.due for answer in block.answers] == [0.0, 0.2]
    assert block.unanswered == 0.4
    assert client.running == 0


def test_poisson_arrivals_are_independent() -> None:
    """Gaps have a mean of 1/rate and a deviation as large; counts of a second fit that."""
    times = poisson(20.0, 500.0, 1)
    gaps = [after - before for before, after in itertools.pairwise((0.0, *times))]
    assert fmean(gaps) == pytest.approx(0.05, rel=0.05)
    assert pvariance(gaps) ** 0.5 == pytest.approx(0.05, rel=0.05)
    counts = [0] * 500
    for time in times:
        counts[int(time)] += 1
    assert pvariance(counts) == pytest.approx(20.0, rel=0.2)
    assert times == tuple(sorted(times))


def test_the_same_seed_gives_the_same_arrivals_and_more_time_only_adds_some() -> None:
    short, long = poisson(5.0, 10.0, "a"), poisson(5.0, 20.0, "a")
    assert long[: len(short)] == short
    assert poisson(5.0, 10.0, "b") != short
