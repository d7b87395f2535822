"""Pages that do not say when their process started: restarts, load balancers, left-over totals."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from specwatch.domain.model import Mode, Moment, Window
from specwatch.scrape.window_builder import WindowBuilder
from tests.pages import read
from tests.scrape import pages

INTERVAL = 5.0


def watched(served: Iterable[bytes]) -> tuple[WindowBuilder, list[Window]]:
    """A server whose pages are read every 5 s, and its windows."""
    watch = WindowBuilder("d", "t", max_gap=15.0)
    windows: list[Window] = []
    for number, page in enumerate(served):
        now = Moment(6000.0 + INTERVAL * number, INTERVAL * number)
        batch = watch.observe(read(page), now).batch
        windows += batch.windows if batch else ()
    batch = watch.close().batch
    return watch, windows + list(batch.windows if batch else ())


def page(server: int, number: int) -> bytes:
    """Of servers that count 10 drafts a second, for as long as days."""
    drafts = 10_000_000 // (server + 1) + 50 * number
    return pages.vllm(3 * drafts, drafts=drafts, start=None)


def drafts(windows: Iterable[Window]) -> int:
    return sum(window.tally.drafts or 0 for window in windows)


@pytest.mark.parametrize("servers", [2, 5])
@pytest.mark.parametrize("order", ["in turn", "at random"])
def test_servers_that_answer_in_turn_are_recognised_and_not_added_up(
    servers: int, order: str
) -> None:
    """What is counted are pages of one server that follow each other."""
    chance = random.Random(servers)
    answering = [
        number % servers if order == "in turn" else chance.randrange(servers)
        for number in range(120)
    ]
    served = [page(server, number) for number, server in enumerate(answering)]
    watch, windows = watched(served)
    assert watch.processes.alternated_at is not None
    same = sum(a == b for a, b in itertools.pairwise(answering))
    assert drafts(windows) <= 50 * same
    assert max(window.tally.drafts or 0 for window in windows) <= 600


@pytest.mark.parametrize("burst", [40, 4000])
def test_what_one_server_counts_beside_another_is_no_jump(burst: int) -> None:
    """Idle servers that have counted 300 and 80 drafts, until the first one gets a burst."""
    counts = [300, 80]
    served = []
    for number in range(60):
        counts[0] += burst if number == 40 else 0
        shown = counts[number % 2]
        served.append(pages.vllm(3 * shown, drafts=shown, start=None))
    watch, windows = watched(served)
    assert watch.processes.alternated_at is not None
    assert drafts(windows) == 0


@pytest.mark.parametrize("before", [30, 1_000_000])
@pytest.mark.parametrize("pages_after", [1, 3, 40])
def test_a_restart_is_counted_to_the_last_token(before: int, pages_after: int) -> None:
    """Also where the new process counts beyond the old one soon, or the watch ends at once."""
    old = [pages.vllm(3 * before + 15 * n, drafts=before + 5 * n, start=None) for n in range(20)]
    new = [pages.vllm(60 * n, drafts=20 * n, start=None) for n in range(1, pages_after + 1)]
    watch, windows = watched([*old, *new])
    assert watch.processes.alternated_at is None
    assert drafts(windows) == 19 * 5 + 20 * pages_after
    assert sum(window.restarts for window in windows) == 1


def test_a_server_that_restarts_again_and_again_is_no_load_balancer() -> None:
    served = [
        pages.vllm(15 * n + 3 * life, drafts=5 * n + life, start=None)
        for life in range(12)
        for n in range(1, 8)
    ]
    watch, windows = watched(served)
    assert watch.processes.alternated_at is None
    assert drafts(windows) == sum(35 + life for life in range(12)) - 5


def with_requests(tokens: int, requests: int, drafts: int) -> bytes:
    of = '{engine="0",model_name="m",finished_reason="stop"}'
    line = f"vllm:request_success_total{of} {requests}\n"
    return pages.vllm(tokens, drafts=drafts, start=None) + line.encode()


def test_totals_that_an_earlier_process_has_left_are_no_speculation() -> None:
    """``PROMETHEUS_MULTIPROC_DIR`` keeps them over a restart without speculation."""
    watch = WindowBuilder("d", "t", max_gap=15.0)
    modes = []
    for number in range(60):
        drafted = 5000 + 50 * min(number, 20)
        text = with_requests(20_000 + 300 * number, 100 + 3 * number, drafted)
        now = Moment(6000.0 + INTERVAL * number, INTERVAL * number)
        watch.observe(read(text), now)
        modes.append(watch.models["m"])
    assert set(modes[:24]) == {Mode.ON}
    assert set(modes[-30:]) == {Mode.OFF}
    watch.observe(read(with_requests(38_300, 283, 6001)), Moment(6300.0, 300.0))
    assert watch.models["m"] is Mode.ON, "it drafts after all"


def test_a_page_that_says_when_its_process_started_is_believed() -> None:
    watch = WindowBuilder("d", "t", max_gap=15.0)
    start = b"process_start_time_seconds 1.7e9\n"
    for number in range(60):
        text = with_requests(20_000 + 300 * number, 100 + 3 * number, 5000)
        now = Moment(6000.0 + INTERVAL * number, INTERVAL * number)
        watch.observe(read(start + text), now)
    assert watch.models["m"] is Mode.ON
