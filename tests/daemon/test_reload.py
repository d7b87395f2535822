"""Reading the configuration again: what did not change goes on, what is wrong changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.loading import Config
from specwatch.config.sections import Retention
from specwatch.config.target import Target
from specwatch.daemon.daemon import _LANES
from specwatch.daemon.scraper import Scraper
from specwatch.daemon.watched_targets import WatchedTargets
from specwatch.domain.model import Batch
from specwatch.errors import ConfigError
from tests.daemon.running import config_of, stored
from tests.daemon.stepped import Manager, Stepped, StoppedClock, StoppedLoop
from tests.fixtures import CERTIFICATE, Log, Serve, events, target_of
from tests.hostile import Visit, hanging, page, wait_for
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")


class Reloadable(Stepped):
    """A daemon whose configuration the test changes."""

    def __init__(self, database: Path, *targets: Target, **options: Any) -> None:
        self.database = database
        self.config = config_of(database, targets)
        self.problem: Exception | None = None
        super().__init__(self.config, reload=self._load, **options)

    def _load(self) -> Config:
        if self.problem is not None:
            raise self.problem
        return self.config

    def watch(self, *targets: Target, **changes: Any) -> None:
        """Change the targets, and whatever else, and have it read."""
        self.config = self.config.model_copy(update={"targets": targets, **changes})
        self.read_again()


@pytest.fixture
def url(serve: Serve) -> str:
    return serve(page(vllm())).url


@pytest.fixture
def reloadable(database: Path) -> Iterator[Callable[..., Reloadable]]:
    running: list[Reloadable] = []

    def started(*targets: Target, **options: Any) -> Reloadable:
        running.append(Reloadable(database, *targets, **options))
        running[-1].daemon.start()
        return running[-1]

    yield started
    for daemon in running:
        daemon.stop()


Start = Callable[..., Reloadable]


def test_targets_come_and_go_and_what_stays_is_not_disturbed(
    reloadable: Start, url: str, log: Log
) -> None:
    one, two, three = (target_of(url, name) for name in ("one", "two", "three"))
    made = reloadable(one, two)
    made.scrape(2)
    kept, gone = made.daemon.targets.by_name["one"], made.daemon.targets.by_name["two"]
    made.watch(one, three)
    assert made.names == ["one", "three"]
    assert made.daemon.targets.by_name["one"] is kept
    count = gone.status().scrapes
    made.scrape(2)
    assert gone.status().scrapes == count
    assert events(log, "reloaded")[0]["targets"] == ["one", "three"]


def test_a_target_that_changed_loses_no_count_and_keeps_one_window_a_minute(
    reloadable: Start, serve: Serve
) -> None:
    """A second window of the same minute would be taken for the first one and dropped."""

    def counting(visit: Visit) -> bool:
        visit.answer(vllm(10 * len(server.visits)))
        return True

    server = serve(counting)
    target = target_of(server.url)
    made = reloadable(target)
    for timeout in (1.9, 1.8, 1.7):
        made.scrape(3)
        made.watch(target.model_copy(update={"timeout": timeout}))
    made.scrape(3)
    status = made.daemon.status().targets[0]
    assert status.failure is None
    assert status.scrapes >= 12
    made.stop()
    windows = stored(made.database)
    assert max(Counter(window.start for window in windows).values()) == 1
    pages = [n for n, path in enumerate(server.paths, start=1) if path == "/metrics"]
    counted = sum(window.tally.generation_tokens or 0 for window in windows)
    assert counted == 10 * (pages[-1] - pages[0])


def test_a_target_that_left_and_came_back_in_the_same_minute_overwrites_nothing(
    reloadable: Start, url: str
) -> None:
    one, two = (target_of(url, name) for name in ("one", "two"))
    made = reloadable(one, two)
    made.scrape(2)
    made.watch(two)
    made.watch(one, two)
    made.scrape(2)
    assert made.daemon.targets.left == {}
    made.stop()
    starts = [window.start for window in stored(made.database) if window.series.target == "one"]
    assert len(starts) == len(set(starts)) == 2


def test_targets_that_left_take_bounded_memory(
    reloadable: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.watched_targets._MOST_LEFT", 3)
    made = reloadable(target_of(url, "first"))
    for number in range(8):
        made.watch(target_of(url, f"t{number}"))
    assert list(made.daemon.targets.left) == ["t4", "t5", "t6"]
    assert len(made.jobs.jobs) == 9


@pytest.mark.parametrize("defect", [False, True], ids=["refused", "defect of ours"])
def test_a_bad_configuration_changes_nothing_and_systemd_is_told_that_it_is_over(
    reloadable: Start, url: str, log: Log, tmp_path: Path, defect: bool
) -> None:
    with Manager(tmp_path / "n") as manager:
        made = reloadable(target_of(url), environ={"NOTIFY_SOCKET": manager.address})
        assert "READY=1" in manager.heard()
        kept = made.daemon.targets.by_name["t"]
        made.problem = RecursionError("deep") if defect else ConfigError("x.yml:3: no such key")
        made.read_again()
        heard = manager.heard()
        assert heard.index("RELOADING=1") < heard.index("READY=1")
        assert made.daemon.targets.by_name["t"] is kept
        made.scrape(2)
        assert made.target().scrapes >= 2
    if defect:
        assert events(log, "reload_failed")[0]["exc_info"]
    else:
        assert events(log, "reload_refused")[0]["detail"] == "x.yml:3: no such key"


def test_a_target_that_cannot_be_watched_refuses_the_whole_configuration(
    reloadable: Start, url: str, log: Log, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("nothing")
    one = target_of(url, "one")
    made = reloadable(one)
    made.watch(
        target_of(url, "two"),
        target_of("https://127.0.0.1:1", "three", ca_file=authority),
        retention=Retention(minutes="2h"),
    )
    assert made.names == ["one"]
    assert made.daemon.config.targets == (one,)
    assert made.daemon.config.retention != made.config.retention
    assert "ca_file" in events(log, "reload_refused")[0]["detail"]
    made.scrape(2)


def test_an_authority_is_read_again(reloadable: Start, serve: Serve, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(CERTIFICATE.read_bytes())
    target = target_of("https://127.0.0.1:1", ca_file=authority)
    made = reloadable(target)
    before = made.daemon.targets.by_name["t"]
    made.watch(target)
    assert made.daemon.targets.by_name["t"] is not before


def test_what_only_a_restart_changes_is_named_and_left_as_it_is(
    reloadable: Start, url: str, log: Log, tmp_path: Path
) -> None:
    target = target_of(url)
    made = reloadable(target)
    other = config_of(tmp_path / "other.db", [target], daemon="other", retention={"minutes": "3h"})
    made.config = other.model_copy(update={"listen": made.config.listen})
    made.read_again()
    assert events(log, "restart_needed")[0]["keys"] == ["daemon", "database"]
    assert made.daemon.config.daemon == "d"
    assert made.daemon.config.retention.minutes == 3 * 3600
    made.config = made.daemon.config
    made.read_again()
    assert len(events(log, "restart_needed")) == 1


def test_a_reload_does_not_wait_for_a_target_that_hangs(reloadable: Start, serve: Serve) -> None:
    server = serve(hanging)
    hung = target_of(server.url, interval=60.0, timeout=60.0)
    made = reloadable(hung)
    wait_for(lambda: server.visits)
    made.watch(hung.model_copy(update={"timeout": 50.0}))
    wait_for(lambda: len(server.visits) == 2)
    assert made.daemon.status().targets[0].failures == {}


@pytest.mark.parametrize(("count", "slots"), [(30, 20), (200, 20), (250, 25)])
def test_no_more_than_ten_scrapes_begin_at_once_in_a_large_fleet(
    monkeypatch: pytest.MonkeyPatch, count: int, slots: int
) -> None:
    async def idle(scraper: Scraper) -> None:
        pass

    monkeypatch.setattr(Scraper, "turn", idle)
    targets = WatchedTargets(
        lambda target, *_: Scraper(target, daemon="d", clock=StoppedClock(), put=[].append)
    )
    targets.configure([target_of("http://h", f"t{n}", interval=60.0) for n in range(count)], {})
    targets.schedule()
    wait_for(lambda: sum(len(slot.scrapers) for slot in targets._slots) == count)
    assert len(targets._slots) == slots
    assert max(len(slot.scrapers) for slot in targets._slots) <= 10
    assert len({slot.at for slot in targets._slots}) == slots
    targets.close()


def test_no_turn_begins_while_the_last_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task would be destroyed with the loop."""
    begun, leave = [], asyncio.Event()
    batches: list[Batch] = []
    clock = StoppedClock()
    loop = StoppedLoop(clock)

    async def slow(scraper: Scraper) -> None:
        begun.append(scraper)
        await leave.wait()

    def make(target: Target, *_: object) -> Scraper:
        return Scraper(target, daemon="d", clock=clock, put=batches.append)

    monkeypatch.setattr(Scraper, "turn", slow)
    targets = WatchedTargets(make, new_loop=lambda: loop)
    targets.configure([target_of("http://h")], {})
    targets.schedule()
    wait_for(lambda: begun)
    targets.close()
    clock.forward(60)
    loop.call_soon_threadsafe(leave.set)
    assert loop.closed.wait(60)
    assert len(begun) == 1


def test_without_a_file_there_is_nothing_to_read_again(url: str, database: Path, log: Log) -> None:
    with Stepped(config_of(database, [target_of(url)])) as daemon:
        daemon.read_again()
        assert events(log, "reload_refused")
        daemon.scrape(2)
        assert daemon.target().scrapes >= 2


def test_every_job_has_a_lane(reloadable: Start, url: str) -> None:
    """A job without one is removed by the scheduler, with a line in the log."""
    made = reloadable(target_of(url, "first"))
    assert {job.lane for job in made.jobs.jobs} <= _LANES.keys()
