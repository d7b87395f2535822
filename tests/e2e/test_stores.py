"""Databases fail under load and come back: nothing is lost, nothing is there twice.

All tests judge one series of events, which is in :mod:`tests.e2e.outages`. Meanwhile a real
Prometheus scrapes a daemon.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import unavailable
from tests.e2e.monitoring import RunningPrometheus
from tests.e2e.outages import TARGETS, Outages, Watched
from tests.e2e.processes import SimulatedVllm
from tests.e2e.waiting import eventually
from tests.e2e.witness import stored
from tests.postgres import PostgresServer

MEGABYTE = 1 << 20
DRAFTING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')
DISK_SIZE = "1m"


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        unavailable("mounting a small tmpfs needs root")
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "specwatch", disk], check=True
    )
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@dataclass
class Story:
    """What happened, and a Prometheus that scraped the daemon meanwhile."""

    outages: Outages
    prometheus: RunningPrometheus
    at: float
    """Unix time after the outages, when the daemon still ran."""

    def value(self, expression: str) -> float:
        """The one value of an expression at that time."""
        (series,) = self.prometheus.query(expression, self.at)
        return series.last


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, small_disk: Path
) -> Iterator[Story]:
    """The outages, with Prometheus watching."""
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as stack:
        server = stack.enter_context(SimulatedVllm(folder / "simulated.log", *DRAFTING))
        server.wait_ready()
        outages = Outages(folder, server, postgres, small_disk)
        outages.begin(stack)
        jobs = {"specwatch": [outages.daemons["postgres"].url]}
        prometheus = stack.enter_context(RunningPrometheus(folder / "prometheus", jobs))
        queued = f"specwatch_store_windows_queued >= {len(TARGETS)}"
        outages.happen(
            lambda: eventually(
                lambda: prometheus.query(queued), what="Prometheus sees what waits", within=120
            )
        )
        at = time.time()
        outages.end()
        yield Story(outages, prometheus, at)


@pytest.fixture(params=["postgres", "full"])
def watched(request: pytest.FixtureRequest, story: Story) -> Watched:
    """What one of the daemons saw."""
    return story.outages.watched[request.param]


def test_no_count_is_lost_or_stored_twice(story: Story, watched: Watched) -> None:
    """Each target is the one server, so each must add up to all that it counted."""
    assert story.outages.counts["accepted_tokens"] > 0
    for target in TARGETS:
        windows = [window for window in watched.windows if window.series.target == target]
        assert len({window.start for window in windows}) == len(windows) >= 2
        assert stored(windows) == story.outages.counts


def test_the_daemon_says_what_is_wrong_and_goes_on_watching(watched: Watched) -> None:
    assert len(watched.outages) == 2
    for outage in watched.outages:
        store = outage.status["store"]
        assert store["queued"] >= len(TARGETS)
        assert re.match(r"\w+ database \S+", store["error"])
        assert (outage.healthy, outage.ready) == (200, 503)
        assert [target["failure"] for target in outage.status["targets"]] == [None] * len(TARGETS)
    store = watched.last_status["store"]
    assert (store["error"], store["dropped"], store["queued"]) == (None, 0, 0)
    assert store["failures"] >= 2


def test_each_outage_is_logged_with_its_end(watched: Watched) -> None:
    store_events = [event for event in watched.events if event.startswith("store_")]
    assert store_events.count("store_recovered") == 2
    assert store_events[-1] == "store_recovered"
    assert "turn_failed" not in watched.events


def test_memory_stays_bounded_while_windows_wait(watched: Watched) -> None:
    """A few windows take a few kilobytes: what is allowed for is the noise of the allocator."""
    for outage in watched.outages:
        assert outage.resident < watched.resident_before + 20 * MEGABYTE
        assert outage.resident < 150 * MEGABYTE


def test_prometheus_scrapes_the_daemon_all_the_while(story: Story) -> None:
    """Half a minute and more; in each outage of the daemon's database it saw what waits for it.

    A scrape may take a second: on a machine that stops for a while, one or two are late.
    """
    assert story.value("up") == 1
    assert story.value("count_over_time(up[2m])") >= 30
    assert story.value("avg_over_time(up[2m])") > 0.8
    log = story.prometheus.log_text()
    assert not re.search(r"level=(warn|error).*(scrape|append|ingest)", log)


def test_prometheus_has_the_daemons_figures(story: Story) -> None:
    assert story.value("sum(specwatch_speculation_enabled)") == len(TARGETS)
    queued = story.value("max_over_time(specwatch_store_windows_queued[2m])")
    assert queued >= len(TARGETS)
