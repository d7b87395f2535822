"""What systemd hears of the daemon: a sign of life only while every loop turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.daemon.scraper import Scraper
from tests.daemon.running import config_of
from tests.daemon.stepped import Manager, Stepped
from tests.fixtures import Log, Serve, events, target_of
from tests.hostile import page
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "n") as made:
        yield made


Start = Callable[..., Stepped]


@pytest.fixture
def start(database: Path, manager: Manager) -> Iterator[Start]:
    """Starts a daemon on some targets with a watchdog of 6 s."""
    started: list[Stepped] = []

    def start(*urls: str) -> Stepped:
        targets = [target_of(url, f"t{n}") for n, url in enumerate(urls)]
        environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "6000000"}
        started.append(Stepped(config_of(database, targets), environ=environ))
        return started[-1].__enter__()

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture
def url(serve: Serve) -> str:
    return serve(page(vllm())).url


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the turns of targets hang: a defect, as no deadline ends them."""
    hung: set[str] = set()
    turn = Scraper._turn

    async def defective(cycle: Scraper) -> None:
        if cycle.target.name in hung:
            await asyncio.Event().wait()
        await turn(cycle)

    monkeypatch.setattr(Scraper, "_turn", defective)
    return hung.update


def test_a_target_that_fails_is_no_loop_that_hangs(
    start: Start, url: str, serve: Serve, manager: Manager
) -> None:
    daemon = start(url, serve(page(b"<html>")).url)
    daemon.scrape(4)
    heard = manager.heard()
    assert [line for line in heard if line in ("READY=1", "WATCHDOG=1")] == [
        "READY=1",
        *4 * ["WATCHDOG=1"],
    ]
    assert heard[-1] == "STATUS=Watching 2 targets, 1 failing (t1)"


def test_a_target_that_hangs_is_told_and_the_others_are_watched_on(
    start: Start, url: str, manager: Manager, log: Log, hang: Callable[..., None]
) -> None:
    hang(["t1"])
    daemon = start(url, url)
    daemon.scrape(4, hung=1)
    assert daemon.daemon.status().stuck == ("t1",)
    assert [entry["targets"] for entry in events(log, "targets_stuck")] == [("t1",)]
    assert manager.heard().count("WATCHDOG=1") == 4
    assert daemon.target("t0").scrapes >= 4


def test_targets_that_all_hang_are_no_reason_to_restart(
    start: Start, url: str, manager: Manager, hang: Callable[..., None]
) -> None:
    hang(["t0", "t1"])
    daemon = start(url, url)
    for _ in range(2):
        daemon.scrape(4, hung=2)
        assert manager.heard().count("WATCHDOG=1") == 4
    assert daemon.daemon.status().stuck == ("t0", "t1")
    assert daemon.daemon.status().alive


def test_a_scheduler_that_died_gives_no_sign_of_life(
    start: Start, url: str, manager: Manager
) -> None:
    daemon = start(url)
    daemon.scrape()
    assert "WATCHDOG=1" in manager.heard()
    daemon.jobs.clear()
    daemon.scrape(4)
    assert manager.heard() == []


def test_a_loop_of_scrapes_that_hangs_gives_no_sign_of_life(
    start: Start, url: str, manager: Manager
) -> None:
    daemon = start(url)
    daemon.scrape()
    assert "WATCHDOG=1" in manager.heard()
    leave = threading.Event()
    daemon.loop.call_soon_threadsafe(leave.wait, 60)
    for seconds, alive in ((16, True), (21, False)):
        daemon.clock.forward(seconds)
        daemon.daemon.look()
        daemon.jobs.run_due()
        assert daemon.daemon.status().stuck == ("t0",)
        assert daemon.daemon.status().alive is alive
        assert ("WATCHDOG=1" in manager.heard()) is alive
    leave.set()


def test_a_loop_that_no_longer_looks_for_signals_gives_no_sign_of_life(
    start: Start, url: str, manager: Manager, log: Log
) -> None:
    daemon = start(url)
    daemon.scrape()
    manager.heard()
    heard = []
    for _ in range(7):
        daemon.clock.forward(5)
        daemon.finish_turns()
        daemon.jobs.run_due()
        heard.append("WATCHDOG=1" in manager.heard())
    assert [entry["seconds"] for entry in events(log, "loop_hung")] == [35]
    assert heard == [True] * 6 + [False]


def test_a_service_manager_that_goes_does_not_take_the_daemon_along(
    start: Start, url: str, manager: Manager, log: Log
) -> None:
    Path(manager.address).unlink()
    daemon = start(url)
    daemon.scrape(2)
    daemon.read_again()
    daemon.scrape(2)
    assert len(events(log, "notify_failed")) == 1
    assert daemon.target("t0").scrapes >= 4
