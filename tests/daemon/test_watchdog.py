"""What systemd hears of the daemon: a sign of life only while every loop turns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.daemon.daemon import Daemon
from specwatch.daemon.scraper import Scraper
from tests.daemon.running import Running, config_of, scraped
from tests.fixtures import Log, Serve, events, target_of
from tests.hostile import page, wait_for
from tests.runtime.notify import NotifySocket
from tests.scrape.pages import vllm


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "n")) as listening:
        yield listening


@pytest.fixture
def running(serve: Serve, tmp_path: Path, notify: NotifySocket) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon on two targets with a watchdog of 0.3 s."""
    started: list[Running] = []

    def start(*urls: str, **environ: str) -> Daemon:
        targets = [target_of(url, f"t{n}", interval=0.1) for n, url in enumerate(urls)]
        given = {"NOTIFY_SOCKET": notify.address, "WATCHDOG_USEC": "300000", **environ}
        started.append(Running(Daemon(config_of(tmp_path / "d.db", targets), environ=given)))
        return started[-1].__enter__()

    yield start
    for daemon in started:
        daemon.__exit__()


def falls_silent(notify: NotifySocket) -> None:
    """What was under way may still arrive."""
    wait_for(lambda: silent(notify))


def silent(notify: NotifySocket, seconds: float = 0.65) -> bool:
    """Whether no sign of life comes for more than two watchdog intervals."""
    notify.forget()
    time.sleep(seconds)
    while True:
        try:
            message = notify.next(0.0)
        except Exception:
            return True
        if "WATCHDOG" in message:
            return False


def test_a_target_that_fails_is_no_loop_that_hangs(
    running: Callable[..., Daemon], serve: Serve, notify: NotifySocket
) -> None:
    daemon = running(serve(page(vllm())).url, serve(page(b"<html>")).url)
    scraped(daemon, 5)
    notify.forget()
    notify.until(lambda message: "WATCHDOG" in message)
    notify.until(lambda m: m.get("STATUS") == "Watching 2 targets, 1 failing (t1)")


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the turns of the target at a URL hang: a defect, as no deadline ends them."""
    hung: set[str] = set()
    turn = Scraper._turn

    async def defective(cycle: Scraper) -> None:
        if cycle.target.url in hung:
            await asyncio.Event().wait()
        await turn(cycle)

    monkeypatch.setattr(Scraper, "_turn", defective)
    return hung.add


def test_a_target_that_hangs_is_told_and_the_others_are_watched_on(
    running: Callable[..., Daemon],
    serve: Serve,
    notify: NotifySocket,
    log: Log,
    hang: Callable[[str], None],
) -> None:
    fine, hung = serve(page(vllm())), serve(page(vllm()))
    hang(hung.url)
    daemon = running(fine.url, hung.url)
    wait_for(lambda: daemon.status().stuck == ("t1",))
    wait_for(lambda: ("t1",) in [entry["targets"] for entry in events(log, "loop_stuck")])
    notify.forget()
    notify.until(lambda message: "WATCHDOG" in message)
    scraped(daemon, 2, ["t0"])


def test_signs_of_life_end_when_every_target_hangs(
    running: Callable[..., Daemon], serve: Serve, notify: NotifySocket, hang: Callable[[str], None]
) -> None:
    first, second = serve(page(vllm())), serve(page(vllm()))
    hang(first.url)
    hang(second.url)
    daemon = running(first.url, second.url)
    wait_for(lambda: daemon.status().stuck == ("t0", "t1"))
    falls_silent(notify)


def test_a_scheduler_that_died_gives_no_sign_of_life(
    running: Callable[..., Daemon], serve: Serve, notify: NotifySocket
) -> None:
    daemon = running(serve(page(vllm())).url)
    notify.until(lambda message: "WATCHDOG" in message)
    daemon._schedule._scheduler.shutdown(wait=False)
    falls_silent(notify)


def test_a_loop_of_scrapes_that_hangs_gives_no_sign_of_life(
    running: Callable[..., Daemon], serve: Serve, notify: NotifySocket
) -> None:
    daemon = running(serve(page(vllm())).url)
    notify.until(lambda message: "WATCHDOG" in message)
    assert daemon.targets._loop is not None
    leave = threading.Event()
    daemon.targets._loop.call_soon_threadsafe(leave.wait, 60)
    try:
        wait_for(lambda: daemon.status().stuck == ("t0",))
        falls_silent(notify)
    finally:
        leave.set()


def test_a_loop_that_no_longer_looks_for_signals_gives_no_sign_of_life(
    running: Callable[..., Daemon],
    serve: Serve,
    notify: NotifySocket,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._HUNG_SECONDS", 0.3)
    daemon = running(serve(page(vllm())).url)
    leave = threading.Event()
    monkeypatch.setattr(daemon, "_read_config", lambda: leave.wait(60))
    daemon.ask_to_reload()
    try:
        wait_for(lambda: events(log, "loop_hung"))
        falls_silent(notify)
    finally:
        leave.set()


def test_a_service_manager_that_goes_does_not_take_the_daemon_along(
    serve: Serve, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._HEARTBEAT_SECONDS", 0.05)
    target = target_of(serve(page(vllm())).url, interval=0.05)
    environ: dict[str, Any] = {"NOTIFY_SOCKET": str(tmp_path / "gone")}
    with Running(Daemon(config_of(tmp_path / "d.db", [target]), environ=environ)) as daemon:
        scraped(daemon, 5)
        daemon.ask_to_reload()
        scraped(daemon, 5)
    assert len(events(log, "notify_failed")) == 1
    assert not events(log, "job_failed")
