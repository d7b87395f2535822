"""The parts of one scrape, in CPU time of this process, beside the way that lies nearest.

That way is a session of requests and prometheus-client's parser.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import requests
from prometheus_client.parser import text_string_to_metric_families

from specwatch.domain.model import Batch, Moment
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import PageClient
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.batches import pack_batch
from tests.benchmarks.figure import Figure
from tests.benchmarks.page_server import PageServer, pages

_T = TypeVar("_T")
_PAGES = 60
_REPEATS = 300
_NAIVE_REPEATS = 40
_INTERVAL = 5.0
_T0 = 1_700_000_040.0


def run() -> list[Figure]:
    """Measure fetching, reading, counting and packing apart."""
    looks = pages(_PAGES)
    with PageServer(1) as server:
        url = f"http://127.0.0.1:{server.ports[0]}"
        fetch, session = asyncio.run(_fetching(url)), requests.Session()
        naive_fetch = _median(lambda: session.get(f"{url}/metrics", timeout=5).text, _REPEATS)
        session.close()
    reader = PageReader()
    texts = [look.decode() for look in looks]
    read = _median(_over(looks, reader.read), _REPEATS)
    reader.learn(looks[0])
    glance = _median(_over(looks, reader.glance), _REPEATS)
    naive_read = _median(_over(texts, _parse), _NAIVE_REPEATS)
    observe, pack = _counting(looks)
    return [
        Figure("scrape: fetch; peer: requests", fetch, "µs", naive_fetch),
        Figure("scrape: read; peer: prometheus-client's parser", read, "µs", naive_read),
        Figure("scrape: a glance, inside a minute", glance, "µs"),
        Figure("scrape: deltas and windows", observe, "µs"),
        Figure("closing and packing a window, once a minute", pack, "µs"),
    ]


async def _fetching(url: str) -> float:
    """Median of a fetch, as it is in the daemon's event loop."""
    client, times = PageClient(url, timeout=5, max_size=2**24), []
    for _ in range(_REPEATS):
        began = time.thread_time_ns()
        await client.fetch("/metrics")
        times.append((time.thread_time_ns() - began) / 1e3)
    client.close()
    return statistics.median(times)


def _parse(text: str) -> int:
    return sum(len(family.samples) for family in text_string_to_metric_families(text))


def _counting(looks: Iterable[bytes]) -> tuple[float, float]:
    """Medians of a scrape inside a minute, and of one that closes a window, which is packed."""
    watch = WindowBuilder("bench", "bench", max_gap=3 * _INTERVAL)
    reader = PageReader()
    inside, closing = [], []
    for turn, look in enumerate(looks):
        samples, now = reader.read(look), Moment(_T0 + turn * _INTERVAL, turn * _INTERVAL)
        batches: list[Batch | None] = []
        took = _microseconds(lambda: batches.append(watch.observe(samples, now).batch))  # noqa: B023
        batch = batches[0]
        if batch is None:
            inside.append(took)
        else:
            closing.append(took + _microseconds(lambda: pack_batch(batch)))  # noqa: B023
    usual = statistics.median(inside)
    return usual, statistics.median(closing) - usual


def _over(values: Iterable[_T], work: Callable[[_T], object]) -> Callable[[], object]:
    turns = itertools.cycle(values)
    return lambda: work(next(turns))


def _median(work: Callable[[], object], repeats: int) -> float:
    work()
    return statistics.median(_microseconds(work) for _ in range(repeats))


def _microseconds(work: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / 1e3
