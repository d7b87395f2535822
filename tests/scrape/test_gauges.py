"""Running requests by the times that a server counts, against one whose requests are known."""

import math
import random
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from specwatch.domain.model import Gauges, Histogram, Tally
from specwatch.scrape.gauges import counted

SECONDS = 1000.0
LOOKS = 600


class Request(NamedTuple):
    """When a request came, was admitted, had its first token, and ended; in seconds."""

    came: float
    admitted: float
    first: float
    ended: float


def independent(rate: float, reading: float, decoding: float) -> list[Request]:
    rng, arrival, requests = random.Random(5), -200.0, []
    while arrival < SECONDS:
        arrival += rng.expovariate(rate)
        first = arrival + reading * rng.uniform(0.5, 1.5)
        requests.append(Request(arrival, arrival, first, first + decoding * rng.uniform(0.5, 1.5)))
    return requests


def one_after_the_other(users: int, reading: float, decoding: float, most: int) -> list[Request]:
    """Closed loops, ``most`` of them admitted at a time."""
    rng = random.Random(6)
    free = [-200.0] * most
    came = [-200.0] * users
    requests = []
    while min(came) < SECONDS:
        user = came.index(min(came))
        slot = free.index(min(free))
        admitted = max(came[user], free[slot])
        first = admitted + reading * rng.uniform(0.5, 1.5)
        ended = first + decoding * rng.uniform(0.5, 1.5)
        requests.append(Request(came[user], admitted, first, ended))
        came[user] = free[slot] = ended
    return requests


def overlap(begin: float, end: float) -> float:
    return max(0.0, min(end, SECONDS) - max(begin, 0.0))


def at_once(moments: list[float], spans: list[tuple[float, float]]) -> list[int]:
    """How many spans, each with its end excluded, contain each moment."""
    begun, ended = sorted(begin for begin, _ in spans), sorted(end for _, end in spans)
    return [bisect_right(begun, moment) - bisect_right(ended, moment) for moment in moments]


def seen(requests: list[Request]) -> tuple[Gauges, Tally]:
    """What a page shows: gauges of a few moments, without those whose prompt is being read."""
    looks = [SECONDS * (number + 0.5) / LOOKS for number in range(LOOKS)]
    running = at_once(looks, [(request.first, request.ended) for request in requests])
    waiting = at_once(looks, [(request.came, request.admitted) for request in requests])
    gauges = Gauges(
        sampled_seconds=SECONDS,
        busy_seconds=SECONDS * sum(number > 0 for number in running) / LOOKS,
        running_seconds=SECONDS * sum(running) / LOOKS,
        waiting_seconds=SECONDS * sum(waiting) / LOOKS,
        running_max=max(running),
        waiting_max=max(waiting),
    )
    firsts = [request.first - request.came for request in requests if 0 <= request.first < SECONDS]
    between = sum(overlap(request.first, request.ended) for request in requests)
    tally = Tally(
        ttft=Histogram((), (len(firsts),), sum(firsts)), inter_token=Histogram((), (1,), between)
    )
    return gauges, tally


def true_load(requests: list[Request]) -> float:
    """Mean of admitted requests while there was one."""
    moments = [SECONDS * (number + 0.5) / 5_000 for number in range(5_000)]
    admitted = at_once(moments, [(request.admitted, request.ended) for request in requests])
    return sum(admitted) / sum(number > 0 for number in admitted)


@pytest.mark.parametrize(
    ("make", "how", "margin"),
    [
        pytest.param(independent, (0.3, 0.4, 1.0), 0.1, id="sparse"),
        pytest.param(independent, (2.0, 0.5, 1.0), 0.05, id="some"),
        pytest.param(independent, (5.0, 1.0, 1.0), 0.03, id="many, long prompts"),
        pytest.param(one_after_the_other, (1, 0.5, 1.0, 1), 0.02, id="one user"),
        pytest.param(one_after_the_other, (4, 0.5, 1.0, 4), 0.02, id="four users"),
        pytest.param(one_after_the_other, (12, 0.3, 1.0, 8), 0.04, id="a queue"),
    ],
)
def test_requests_in_prefill_count_as_running(
    make: Callable[..., list[Request]], how: tuple[float, ...], margin: float
) -> None:
    requests = make(*how)
    gauges, tally = seen(requests)
    assert counted(gauges, tally, SECONDS).concurrency == pytest.approx(
        true_load(requests), rel=margin
    )


def test_a_drained_queue_adds_no_more_than_the_server_admits() -> None:
    crowd = [Request(-100.0, time, time + 1, time + 10) for time in range(0, 400, 2)]
    gauges, tally = seen(crowd)
    concurrency = counted(gauges, tally, SECONDS).concurrency

    assert concurrency == pytest.approx(true_load(crowd), rel=0.12)


def test_requests_that_no_gauge_sample_saw_count() -> None:
    gauges = Gauges(sampled_seconds=60.0)
    tally = Tally(ttft=Histogram((), (3,), 0.6), inter_token=Histogram((), (40,), 2.4))
    figures = counted(gauges, tally, 60.0)

    assert (figures.concurrency, figures.busy_seconds) == (1.0, 3.0)


def test_an_impossibly_large_gauge_leaves_a_finite_load() -> None:
    gauges = Gauges(sampled_seconds=60.0, running_max=10**308)
    tally = Tally(ttft=Histogram((), (1,), 0.1), inter_token=Histogram((), (1,), 1e-300))
    concurrency = counted(gauges, tally, 60.0).concurrency

    assert concurrency is not None
    assert math.isfinite(concurrency)


TIMES = Tally(ttft=Histogram((), (9,), 30.0), inter_token=Histogram((), (900,), 120.0))


def test_a_window_with_a_short_gap_is_scaled_to_the_sampled_part() -> None:
    gauges = Gauges(sampled_seconds=54.0, busy_seconds=54.0, running_seconds=60.0, running_max=3)
    assert counted(gauges, TIMES, 60.0).concurrency == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("tally", "sampled"),
    [(TIMES, 30.0), (Tally(), 60.0), (replace(TIMES, inter_token=None), 60.0)],
    ids=["a long gap", "no times", "no inter-token time"],
)
def test_gauges_are_unchanged_without_times_for_the_whole_window(
    tally: Tally, sampled: float
) -> None:
    gauges = Gauges(sampled_seconds=sampled, busy_seconds=30.0, running_seconds=60.0, running_max=3)
    assert counted(gauges, tally, 60.0) == gauges


@pytest.mark.parametrize(
    ("waited", "highest", "running"),
    [(0.0, 8, 100.0 + 60.0), (30.0, 8, 100.0 + 30.0), (30.0, 2, 120.0), (90.0, 8, 100.0)],
)
def test_time_in_the_queue_is_not_running_time(waited: float, highest: int, running: float) -> None:
    """60 s to the first token less those that the queue took, and no more than was admitted."""
    gauges = Gauges(60.0, 60.0, 120.0, waited, running_max=highest)
    tally = Tally(ttft=Histogram((), (9,), 60.0), inter_token=Histogram((), (900,), 100.0))
    assert counted(gauges, tally, 60.0).running_seconds == running
