"""The daemon in this process: what it stores adds up, and nothing that fails stops the rest."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from structlog.testing import capture_logs

from specwatch.actuators.supervisor import Supervisor
from specwatch.config.service import SupervisedService
from specwatch.daemon.daemon import Daemon
from specwatch.daemon.scraper import Scraper
from specwatch.domain.draft_lengths import DraftLengths, shown_by
from specwatch.domain.merge import merge_tallies
from specwatch.errors import ConfigError, StoreUnavailable
from specwatch.simulator.server import SimulatedServer
from tests.daemon.running import (
    FAST,
    MovableClock,
    Running,
    config_of,
    counts,
    scraped,
    stored,
    total,
    until_logged,
    work,
)
from tests.fixtures import CERTIFICATE, Log, Serve, events, target_of
from tests.hostile import Visit, deaf_port, hanging, page, wait_for
from tests.scrape.pages import vllm

QUICK = 0.05
IN_TIME = 30.0
"""Seconds within which it stops on any machine; to wait for what hangs would take twice as long."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every few seconds happens often."""
    monkeypatch.setattr("specwatch.daemon.daemon._FLUSH_SECONDS", 0.1)
    monkeypatch.setattr("specwatch.daemon.daemon._HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr("specwatch.daemon.daemon._LOOK_SECONDS", 0.02)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state" / "d.db"


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(FAST) as running:
        yield running


def daemon_of(database: Path | str, *targets: Any, **options: Any) -> Daemon:
    return Daemon(
        config_of(database, targets), **{"environ": {}, "now": MovableClock(), "seed": 1} | options
    )


def test_windows_add_up_to_what_the_engine_counted(server: SimulatedServer, database: Path) -> None:
    """Over minutes, a restart of the daemon with traffic meanwhile, and one of the engine."""
    target = target_of(server.url, interval=QUICK)
    clock = MovableClock()
    with Running(daemon_of(database, target, now=clock)) as daemon:
        scraped(daemon)
        work(server)
        scraped(daemon, 2)
        clock.forward(60)
        work(server)
        scraped(daemon, 2)
        wait_for(lambda: daemon.status().store.written > 0)
    work(server)  # nobody looks
    with Running(daemon_of(database, target, now=clock)) as daemon:
        scraped(daemon, 2)
        work(server)
        scraped(daemon, 2)
        with server.synced() as engine:
            first = engine.tally()
        server.restart()
        work(server)
        scraped(daemon, 2)
        clock.forward(60)
        work(server)
        scraped(daemon, 2)
        with server.synced() as engine:
            second = engine.tally()
    windows = stored(database)
    assert counts(total(windows)) == counts(merge_tallies(first, second))
    assert sum(window.restarts for window in windows) == 1
    assert {window.environment.engine_version for window in windows} == {"0.32.0"}
    assert {window.series.target for window in windows} == {"t"}


def test_a_child_whose_drafts_vary_by_its_command_line_is_known_without_a_tap(
    server: SimulatedServer, database: Path
) -> None:
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}'
    child = Supervisor(("vllm", "serve", "m", "--speculative-config", schedule), environ={})
    service = SupervisedService(kind="supervised")
    targets = [
        target_of(server.url, "child", interval=QUICK, service=service),
        target_of(server.url, "other", interval=QUICK),
    ]
    with Running(daemon_of(database, *targets, supervisor=child)) as daemon:
        scraped(daemon)
        work(server)
        scraped(daemon, 2)
    causes = {one.series.target: shown_by(one.environment) for one in stored(database)}
    assert causes == {"child": DraftLengths.SCHEDULE, "other": None}


def test_two_daemons_of_one_name_count_everything_once(
    server: SimulatedServer, database: Path
) -> None:
    """Whichever of them writes a minute first; when one ends, the other goes on."""
    target = target_of(server.url, interval=QUICK)
    clock = MovableClock()

    def minutes(*daemons: Daemon) -> None:
        for _ in range(2):
            work(server)
            for daemon in daemons:
                scraped(daemon, 2)
            clock.forward(60)

    with Running(daemon_of(database, target, now=clock)) as second:
        scraped(second)
        with Running(daemon_of(database, target, now=clock)) as first, capture_logs() as log:
            scraped(first)
            minutes(first, second)
            wait_for(lambda: any(entry["event"] == "identity_shared" for entry in log))
        minutes(second)
    with Running(daemon_of(database, target, now=clock)) as last:
        scraped(last, 2)
    with server.synced() as engine:
        assert counts(total(stored(database))) == counts(engine.tally())


def test_the_surface_shows_what_the_loop_knows(server: SimulatedServer, database: Path) -> None:
    with Running(daemon_of(database, target_of(server.url, interval=QUICK))) as daemon:
        scraped(daemon, 2)
        assert requests.get(f"{daemon.http.url}/healthz", timeout=10).status_code == 200
        assert requests.get(f"{daemon.http.url}/readyz", timeout=10).json()["ready"] is True
        text = requests.get(f"{daemon.http.url}/metrics", timeout=10).text
        assert 'specwatch_target_up{target="t"} 1.0' in text
        assert "\nprocess_resident_memory_bytes " in text
        url = daemon.http.url
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/healthz", timeout=10)


@pytest.mark.parametrize(("allowed", "status"), [([], 421), (["*.example.com"], 200)])
def test_a_daemon_is_asked_under_names_that_are_its_own(
    serve: Serve, tmp_path: Path, allowed: list[str], status: int
) -> None:
    target = target_of(serve(page(vllm())).url)
    config = config_of(tmp_path / "d.db", [target], allowed_hosts=allowed)
    with Running(Daemon(config, environ={})) as daemon:
        for name, expected in (("gpu-7.example.com", status), (socket.gethostname(), 200)):
            headers = {"Host": name}
            answer = requests.get(f"{daemon.http.url}/metrics", headers=headers, timeout=10)
            assert answer.status_code == expected


def test_a_daemon_with_a_token_takes_a_rotated_one_without_a_reload(
    serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    target = target_of(serve(page(vllm())).url)
    config = config_of(tmp_path / "d.db", [target], listen_token_file=file)

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return requests.get(f"{daemon.http.url}/metrics", headers=headers, timeout=10).status_code

    with Running(Daemon(config, environ={})) as daemon:
        assert (status("first"), status("second")) == (200, 401)
        file.write_text("second\n")
        assert (status("first"), status("second")) == (401, 200)


def test_targets_that_hang_delay_no_other(serve: Serve, database: Path) -> None:
    """200 targets, 50 of which never answer: the others are scraped again and again meanwhile."""
    healthy, hung = serve(page(vllm(drafts=3))), serve(hanging)
    targets = [
        target_of(server.url, f"{name}{n}", interval=0.8, timeout=60.0)
        for name, server, count in (("hung", hung, 50), ("ok", healthy, 150))
        for n in range(count)
    ]
    with Running(daemon_of(database, *targets)) as daemon:
        wait_for(lambda: len(hung.visits) == 50)
        scraped(daemon, 2, [target.name for target in targets[50:]])
        status = daemon.status()
        assert len(hung.visits) == 50, "all of them still hang"
    assert not any(target.failures or target.failure for target in status.targets)
    assert healthy.connections == 150


def test_targets_that_hang_have_no_more_than_one_turn_each(serve: Serve, database: Path) -> None:
    server = serve(hanging)
    targets = [target_of(server.url, f"t{n}", interval=QUICK, timeout=1.0) for n in range(20)]
    with Running(daemon_of(database, *targets)) as daemon:
        wait_for(lambda: sum(t.skipped for t in daemon.status().targets) > 100)
        assert sum(not turn.done() for turn in list(daemon.targets._turns)) <= 20


def test_a_defect_in_one_turn_stops_no_other_and_shows(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(page(vllm()))
    bad, good = (target_of(server.url, name, interval=0.2) for name in ("bad", "good"))
    turn = Scraper._turn

    async def defective(cycle: Scraper) -> None:
        if cycle.target.name == "bad":
            raise ZeroDivisionError
        await turn(cycle)

    monkeypatch.setattr(Scraper, "_turn", defective)
    with Running(daemon_of(database, bad, good)) as daemon:
        scraped(daemon, 4, ["good"])

        def told() -> bool:
            answer = requests.get(f"{daemon.http.url}/healthz", timeout=10)
            return (answer.status_code, answer.json()["stuck"]) == (503, ["bad"])

        wait_for(told)  # for a moment the good one may be late, too
    failed = events(log, "turn_failed")
    assert {entry["target"] for entry in failed} == {"bad"}
    assert failed[0]["exc_info"]
    assert any("bad" in entry["targets"] for entry in events(log, "loop_stuck"))


def test_a_hostile_page_that_cannot_be_stored_is_told_and_stops_nothing(
    serve: Serve, database: Path, log: Log
) -> None:
    def swinging(visit: Visit) -> bool:
        visit.answer(vllm(4e18 if len(server.visits) % 2 else 0))
        return True

    server = serve(swinging)
    clock = MovableClock()
    with Running(daemon_of(database, target_of(server.url, interval=QUICK), now=clock)) as daemon:
        for _ in range(2):  # the end of a minute may come amid the first of them
            scraped(daemon, 12)
            clock.forward(60)
        wait_for(until_logged(log, "windows_unstorable"))
        scraped(daemon)
    assert not events(log, "turn_failed")


def test_stop_takes_few_seconds_with_a_hung_target_and_a_locked_database(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.store.database.SQLITE_BUSY_SECONDS", 0.5)
    fine, silent = serve(page(vllm())), serve(hanging)
    with deaf_port() as port:
        targets = [
            target_of(fine.url, "fine", interval=QUICK),
            target_of(silent.url, "silent", interval=60.0, timeout=60.0),
            target_of(f"http://127.0.0.1:{port}", "deaf", interval=59.0, timeout=59.0),
        ]
        daemon = daemon_of(database, *targets)
        daemon.start()
        scraped(daemon, 2, ["fine"])
        wait_for(lambda: silent.visits)
        with sqlite3.connect(database, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            stopping = threading.Thread(target=daemon.stop)
            stopping.start()
            wait_for(lambda: not stopping.is_alive(), IN_TIME)
            other.execute("ROLLBACK")
        other.close()
    # A minute may have ended meanwhile.
    assert events(log, "stopped")[0]["unwritten"] in (1, 2)
    assert events(log, "store_write_failed")


def test_stop_writes_the_open_minute_and_judges_it_no_more(
    server: SimulatedServer, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging many targets takes longer than a service manager may wait for."""
    daemon = daemon_of(database, target_of(server.url, interval=QUICK))
    daemon.start()
    scraped(daemon, 2)
    judged: list[str] = []
    monkeypatch.setattr(daemon._rule_service, "observe", lambda target, _: judged.append(target))
    daemon.stop()
    assert (bool(stored(database)), judged) == (True, [])


def test_stop_waits_for_no_database_that_hangs(
    server: SimulatedServer, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._WRITE_SECONDS", 0.2)
    leave = threading.Event()
    daemon = daemon_of(database, target_of(server.url, interval=QUICK))
    daemon.start()
    scraped(daemon, 2)
    monkeypatch.setattr(daemon._recorder.store, "write", lambda *_: leave.wait(600) and frozenset())
    stopping = threading.Thread(target=daemon.stop)
    stopping.start()
    wait_for(lambda: not stopping.is_alive(), IN_TIME)
    assert events(log, "store_not_closed")
    # A minute may have ended meanwhile.
    assert events(log, "stopped")[0]["unwritten"] in (1, 2)
    leave.set()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_is_away_at_the_start_is_written_to_later(
    server: SimulatedServer, database: Path, log: Log, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked, or nothing listens there: the daemon watches, and says so."""
    monkeypatch.setattr("specwatch.store.write_queue.LONGEST_DELAY", 0.1)
    monkeypatch.setattr("specwatch.store.write_queue.FIRST_DELAY", 0.1)
    monkeypatch.setattr("specwatch.store.database.SQLITE_BUSY_SECONDS", 0.2)
    clock = MovableClock()
    url: Path | str = database
    lock = None
    if kind == "sqlite":
        database.parent.mkdir()
        lock = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        lock.execute("BEGIN EXCLUSIVE")
    else:
        url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    daemon = daemon_of(url, target_of(server.url, interval=QUICK), now=clock)
    with Running(daemon):
        wait_for(lambda: daemon.status().targets and daemon.status().targets[0].scrapes > 1)
        assert events(log, "store_unavailable")[0]["retry"] is True
        assert not daemon.status().ready
        clock.forward(60)
        work(server)
        wait_for(lambda: daemon.status().store.queued > 0)
        wait_for(lambda: daemon.status().store.error is not None)
        answer = requests.get(f"{daemon.http.url}/readyz", timeout=10)
        assert answer.status_code == 503
        assert requests.get(f"{daemon.http.url}/healthz", timeout=10).status_code == 200
        if lock is not None:
            lock.execute("ROLLBACK")
            lock.close()
            clock.forward(60)
            wait_for(lambda: daemon.status().store.written > 0)
            assert events(log, "store_recovered")
            wait_for(lambda: daemon.status().ready)
    if lock is not None:
        with server.synced() as engine:
            assert counts(total(stored(database))) == counts(engine.tally())


def test_a_daemon_that_started_without_its_database_goes_on_where_the_last_one_stopped(
    server: SimulatedServer, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted while no daemon ran is told by a cursor that can be read only later."""
    monkeypatch.setattr("specwatch.store.database.SQLITE_BUSY_SECONDS", 0.2)
    clock = MovableClock()
    with Running(daemon_of(database, target_of(server.url, interval=QUICK), now=clock)) as first:
        scraped(first)
        work(server, 5)
        scraped(first, 2)
    work(server, 7)
    lock = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    with Running(daemon_of(database, target_of(server.url, interval=QUICK), now=clock)) as second:
        scraped(second, 2)
        assert events(log, "store_unavailable")
        work(server, 3)
        scraped(second, 2)
        lock.execute("ROLLBACK")
        lock.close()
        wait_for(lambda: events(log, "resumed_late"))
    with server.synced() as engine:
        assert counts(total(stored(database))) == counts(engine.tally())


def test_a_database_that_goes_and_comes_back_gets_every_window(
    server: SimulatedServer, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.store.write_queue.LONGEST_DELAY", 0.1)
    monkeypatch.setattr("specwatch.store.write_queue.FIRST_DELAY", 0.1)
    clock = MovableClock()
    daemon = daemon_of(database, target_of(server.url, interval=QUICK), now=clock)
    with Running(daemon):
        scraped(daemon)
        write = daemon._recorder.store.write
        away = StoreUnavailable("it is gone; bring it back")

        def refuse(*_: Any) -> None:
            raise away

        monkeypatch.setattr(daemon._recorder.store, "write", refuse)
        for _ in range(4):
            work(server, 5)
            scraped(daemon, 2)
            clock.forward(60)
        scraped(daemon, 2)
        wait_for(lambda: daemon.status().store.failures >= 3)
        assert daemon.status().store.queued == 4
        assert "4 windows wait for the database: it is gone" in daemon._sentence()
        monkeypatch.setattr(daemon._recorder.store, "write", write)
        wait_for(lambda: daemon.status().store.queued == 0)
    assert len(events(log, "store_write_failed")) == 1
    assert len(events(log, "store_recovered")) == 1
    with server.synced() as engine:
        assert counts(total(stored(database))) == counts(engine.tally())


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_told_and_stops_nothing(
    server: SimulatedServer, database: Path, log: Log, step: float
) -> None:
    """Windows neither overlap nor run backwards, and their counts still add up."""
    clock = MovableClock()
    with Running(daemon_of(database, target_of(server.url, interval=QUICK), now=clock)) as daemon:
        scraped(daemon)
        work(server)
        scraped(daemon, 2)
        clock.wall += step
        wait_for(until_logged(log, "clock_stepped"))
        work(server)
        scraped(daemon, 3)
    (entry,) = events(log, "clock_stepped")
    assert entry["seconds"] == pytest.approx(step, abs=1)
    windows = stored(database)
    assert max(Counter(window.start for window in windows).values()) == 1
    assert len(windows) == (2 if step > 0 else 1)
    with server.synced() as engine:
        assert counts(total(windows)) == counts(engine.tally())


def test_a_step_of_the_clock_sets_every_job_anew(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are due by the wall clock: after a step back by an hour they would be due in one."""
    server = serve(page(vllm()))
    clock = MovableClock()
    with Running(daemon_of(database, target_of(server.url, interval=QUICK), now=clock)) as daemon:
        scraped(daemon)
        for job in daemon._schedule._scheduler.get_jobs():
            job.reschedule("interval", seconds=3600)
        clock.wall -= 3600
        wait_for(until_logged(log, "clock_stepped"))
        scraped(daemon, 3)
        assert len(daemon._schedule._scheduler.get_jobs()) == 7


def test_a_port_that_is_taken_ends_the_start_and_leaves_nothing_behind(
    serve: Serve, database: Path
) -> None:
    server = serve(page(vllm()))
    config = config_of(database, [target_of(server.url)])
    listen = replace(config.listen, port=server.port)
    daemon = Daemon(config.model_copy(update={"listen": listen}), environ={})
    with pytest.raises(ConfigError, match="in use"):
        daemon.run()
    assert not server.visits


def test_a_ca_file_that_is_none_ends_the_start(database: Path, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("nothing")
    daemon = daemon_of(database, target_of("https://127.0.0.1:1", ca_file=authority))
    with pytest.raises(ConfigError, match="ca_file"):
        daemon.run()
    assert CERTIFICATE.exists()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{daemon.http.url}/healthz", timeout=10)


def test_a_defect_in_the_loop_that_looks_for_signals_still_writes_everything(
    serve: Serve, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(page(vllm()))
    daemon = daemon_of(database, target_of(server.url, interval=QUICK))
    monkeypatch.setattr(daemon, "_read_config", lambda: 1 / 0)

    def ask() -> None:
        wait_for(lambda: bool(server.visits))
        daemon.ask_to_reload()

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(ZeroDivisionError):
        daemon.run()
    asking.join()
    assert not daemon._schedule._scheduler.running
