"""The daemon in this process: what it stores adds up, and nothing that fails stops the rest."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from specwatch.actuators.supervisor import Supervisor
from specwatch.config.service import SupervisedService
from specwatch.daemon.daemon import Daemon
from specwatch.daemon.scraper import Scraper
from specwatch.domain.draft_lengths import DraftLengths, shown_by
from specwatch.domain.merge import merge_tallies
from specwatch.errors import ConfigError, StoreUnavailable
from specwatch.lab.simulator.server import SimulatedServer
from tests.daemon.running import FAST, config_of, counts, stored, total, work
from tests.daemon.stepped import ALL, Stepped, StoppedClock, scrapes
from tests.fixtures import Log, Serve, events, target_of
from tests.hostile import Visit, deaf_port, hanging, page, wait_for
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(FAST) as running:
        yield running


def daemon_of(database: Path | str, *targets: Any, **options: Any) -> Stepped:
    return Stepped(config_of(database, targets), **options)


def require_all_stored(database: Path, server: SimulatedServer) -> None:
    """The minutes of a database add up to what the engine has counted."""
    with server.synced() as engine:
        assert counts(total(stored(database))) == counts(engine.tally())


def test_windows_add_up_to_what_the_engine_counted(server: SimulatedServer, database: Path) -> None:
    """Over minutes, a restart of the daemon with traffic meanwhile, and one of the engine."""
    target, clock = target_of(server.url), StoppedClock()
    with daemon_of(database, target, clock=clock, lanes=ALL) as daemon:
        daemon.scrape()
        work(server)
        daemon.scrape(2)
        daemon.scrape(seconds=60)
        work(server)
        daemon.scrape(2)
        assert daemon.daemon.status().store.written > 0
    work(server)  # nobody looks
    with daemon_of(database, target, clock=clock) as daemon:
        daemon.scrape()
        work(server)
        daemon.scrape()
        with server.synced() as engine:
            first = engine.tally()
        server.restart()
        work(server)
        daemon.scrape()
        daemon.scrape(seconds=60)
        work(server)
        daemon.scrape()
        with server.synced() as engine:
            second = engine.tally()
    windows = stored(database)
    assert counts(total(windows)) == counts(merge_tallies(first, second))
    assert sum(window.restarts for window in windows) == 1
    assert {window.environment.engine_version for window in windows} == {"0.32.0"}
    assert {window.series.target for window in windows} == {"t"}


@pytest.mark.parametrize("after", [1, 13])
def test_killed_it_loses_nothing_once_it_is_back(
    server: SimulatedServer, database: Path, after: int
) -> None:
    """In a minute, and after the end of one."""
    target, clock = target_of(server.url), StoppedClock()
    with daemon_of(database, target, clock=clock) as daemon:
        daemon.scrape()
    work(server)
    with daemon_of(database, target, clock=clock) as killed:
        killed.scrape(after)
        work(server)
        killed.kill()
    work(server)
    with daemon_of(database, target, clock=clock) as daemon:
        daemon.scrape()
    require_all_stored(database, server)


def test_a_child_whose_drafts_vary_by_its_command_line_is_known_without_a_tap(
    serve: Serve, database: Path
) -> None:
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}'
    child = Supervisor(("vllm", "serve", "m", "--speculative-config", schedule), environ={})
    service = SupervisedService(kind="supervised")
    url = serve(page(vllm(drafts=3))).url
    targets = [target_of(url, "child", service=service), target_of(url, "other")]
    with daemon_of(database, *targets, supervisor=child) as daemon:
        daemon.scrape(2)
    causes = {one.series.target: shown_by(one.environment) for one in stored(database)}
    assert causes == {"child": DraftLengths.SCHEDULE, "other": None}


def test_its_server_shows_what_it_knows_to_whom_it_may(
    serve: Serve, database: Path, tmp_path: Path
) -> None:
    """Under names of its own, and to who has the token; a rotated one takes no reload."""
    token = tmp_path / "token"
    token.write_text("first\n")
    target = target_of(serve(page(vllm())).url)
    config = config_of(database, [target], listen_token_file=token, allowed_hosts=["*.example.com"])

    def ask(path: str, token: str = "first", **headers: str) -> requests.Response:
        headers["Authorization"] = f"Bearer {token}"
        return requests.get(f"{daemon.daemon.http.url}{path}", headers=headers, timeout=10)

    with Stepped(config, http=True) as daemon:
        daemon.scrape()
        assert ask("/healthz").status_code == 200
        assert ask("/readyz").json()["ready"] is True
        text = ask("/metrics").text
        assert 'specwatch_target_up{target="t"} 1.0' in text
        assert "\nprocess_resident_memory_bytes " in text
        names = ("gpu-7.example.com", socket.gethostname(), "gpu-7.example.org")
        assert [ask("/metrics", Host=name).status_code for name in names] == [200, 200, 421]
        assert ask("/metrics", "second").status_code == 401
        token.write_text("second\n")
        assert [ask("/metrics", word).status_code for word in ("first", "second")] == [401, 200]
        url = daemon.daemon.http.url
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/healthz", timeout=10)


def test_targets_that_hang_delay_no_other_and_have_no_more_than_one_turn_each(
    serve: Serve, database: Path
) -> None:
    """Fifty of two hundred: see the nightly tests."""
    fine, hung = serve(page(vllm(drafts=3))), serve(hanging)
    targets = [target_of(hung.url, f"hung{n}", timeout=60.0) for n in range(3)]
    targets += [target_of(fine.url, f"ok{n}", timeout=60.0) for n in range(3)]
    with daemon_of(database, *targets) as daemon:
        daemon.scrape(hung=3)
        wait_for(lambda: len(hung.visits) == 3)
        daemon.scrape(3, hung=3)
        assert min(scrapes(daemon, [target.name for target in targets[3:]])) >= 4
        assert scrapes(daemon, [target.name for target in targets[:3]]) == [0, 0, 0]
        assert all(target.skipped >= 3 for target in daemon.daemon.status().targets[:3])
        assert len(hung.visits) == 3, "all of them still hang"
        assert not any(target.failure for target in daemon.daemon.status().targets)
        assert fine.connections == 3


def test_a_defect_in_one_turn_stops_no_other_and_shows(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(page(vllm())).url
    turn = Scraper._turn

    async def defective(cycle: Scraper) -> None:
        if cycle.target.name == "bad":
            raise ZeroDivisionError
        await turn(cycle)

    monkeypatch.setattr(Scraper, "_turn", defective)
    with daemon_of(database, target_of(url, "bad"), target_of(url, "good")) as daemon:
        daemon.scrape(4)
        assert daemon.target("good").scrapes >= 4
        assert daemon.daemon.status().stuck == ("bad",)
    failed = events(log, "turn_failed")
    assert {entry["target"] for entry in failed} == {"bad"}
    assert failed[0]["exc_info"]
    assert any("bad" in entry["targets"] for entry in events(log, "targets_stuck"))


def test_a_hostile_page_that_cannot_be_stored_is_told_and_stops_nothing(
    serve: Serve, database: Path, log: Log
) -> None:
    def swinging(visit: Visit) -> bool:
        visit.answer(vllm(4e18 if server.paths.count("/metrics") % 2 else 0))
        return True

    server = serve(swinging)
    with daemon_of(database, target_of(server.url)) as daemon:
        daemon.scrape(13)
        assert events(log, "windows_unstorable")
        assert daemon.target().scrapes >= 13
    assert not events(log, "turn_failed")


def test_stop_waits_for_no_target_that_hangs_nor_a_locked_database(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.store.database.SQLITE_BUSY_SECONDS", 0.02)
    fine, silent = serve(page(vllm())), serve(hanging)
    with deaf_port() as port:
        targets = [
            target_of(fine.url, "fine"),
            target_of(silent.url, "silent", interval=60.0, timeout=60.0),
            target_of(f"http://127.0.0.1:{port}", "deaf", interval=59.0, timeout=59.0),
        ]
        daemon = daemon_of(database, *targets)
        daemon.daemon.start()
        daemon.scrape(2, hung=2)
        with sqlite3.connect(database, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            daemon.stop()
            other.execute("ROLLBACK")
        other.close()
    assert events(log, "stopped")[0]["unwritten"] == 1
    assert events(log, "store_write_failed")


def test_stop_writes_the_open_minute_and_judges_it_no_more(
    serve: Serve, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging many targets takes longer than a service manager may wait for."""
    judged: list[str] = []
    with daemon_of(database, target_of(serve(page(vllm())).url)) as daemon:
        daemon.scrape(2)
        service = daemon.daemon._rule_service
        monkeypatch.setattr(service, "observe", lambda target, _: judged.append(target))
    assert (bool(stored(database)), judged) == (True, [])


def test_stop_waits_for_no_database_that_hangs(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._WRITE_SECONDS", 0.02)
    leave = threading.Event()
    others = set(threading.enumerate())
    with daemon_of(database, target_of(serve(page(vllm())).url)) as daemon:
        daemon.scrape(2)
        store = daemon.daemon._recorder.store
        monkeypatch.setattr(store, "write", lambda *_: leave.wait(600) and frozenset())
    assert events(log, "store_not_closed")
    assert events(log, "stopped")[0]["unwritten"] == 1
    leave.set()
    for thread in set(threading.enumerate()) - others:
        if thread.name == "last-write":
            thread.join(60)


Lock = Callable[[], Callable[[], None]]


@pytest.fixture
def lock(database: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """Locks the database as another program may, and returns what unlocks it."""
    monkeypatch.setattr("specwatch.store.database.SQLITE_BUSY_SECONDS", 0.02)

    def locked() -> Callable[[], None]:
        connection = sqlite3.connect(database, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        return connection.close

    return locked


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_is_away_at_the_start_is_written_to_later(
    server: SimulatedServer, database: Path, log: Log, kind: str, lock: Lock
) -> None:
    """Locked, or nothing listens there: the daemon watches, and says so."""
    url: Path | str = database
    unlock = lock()
    if kind == "postgres":
        url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with daemon_of(url, target_of(server.url)) as daemon:
        daemon.scrape(2)
        assert daemon.target().scrapes >= 2
        assert events(log, "store_unavailable")[0]["retry"] is True
        daemon.scrape(seconds=60)
        work(server)
        daemon.scrape()
        status = daemon.daemon.status()
        assert (status.ready, status.store.queued > 0) == (False, True)
        assert status.store.error is not None
        unlock()
        daemon.scrape(seconds=60)
        daemon.scrape(2)  # the lease is renewed
        status = daemon.daemon.status()
        assert status.ready is (kind == "sqlite")
    if kind == "sqlite":
        assert events(log, "store_recovered")
        require_all_stored(database, server)


def test_a_daemon_that_started_without_its_database_goes_on_where_the_last_one_stopped(
    server: SimulatedServer, database: Path, log: Log, lock: Lock
) -> None:
    """What was counted while no daemon ran is told by a cursor that can be read only later."""
    target, clock = target_of(server.url), StoppedClock()
    with daemon_of(database, target, clock=clock) as first:
        first.scrape()
        work(server, 5)
        first.scrape()
    work(server, 7)
    unlock = lock()
    with daemon_of(database, target, clock=clock) as second:
        second.scrape()
        assert events(log, "store_unavailable")
        work(server, 3)
        second.scrape()
        unlock()
        second.scrape()
        assert events(log, "resumed_late")
    require_all_stored(database, server)


def test_one_that_is_killed_as_soon_as_its_database_is_back_has_lost_nothing(
    server: SimulatedServer, database: Path, lock: Lock
) -> None:
    """The cursors of minutes that waited are later than what happened before its first page."""
    target, clock = target_of(server.url), StoppedClock()
    with daemon_of(database, target, clock=clock) as first:
        first.scrape()
    work(server, 7)
    unlock = lock()
    with daemon_of(database, target, clock=clock) as second:
        second.scrape()
        second.scrape(seconds=60)
        unlock()
        second.scrape()
        second.kill()
    work(server, 3)
    with daemon_of(database, target, clock=clock) as third:
        third.scrape(2)
    require_all_stored(database, server)


def test_a_database_that_goes_and_comes_back_gets_every_window(
    server: SimulatedServer, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_of(database, target_of(server.url)) as daemon:
        daemon.scrape()
        store = daemon.daemon._recorder.store
        with monkeypatch.context() as outage:

            def refuse(*_: Any) -> None:
                raise StoreUnavailable("it is gone; bring it back")

            outage.setattr(store, "write", refuse)
            for _ in range(4):
                work(server, 5)
                daemon.scrape(seconds=60)
            status = daemon.daemon.status().store
            assert status.failures >= 3
            assert status.queued == 4
            assert "4 windows wait for the database: it is gone" in daemon.daemon._sentence()
        daemon.scrape(seconds=60)
        assert daemon.daemon.status().store.queued == 0
    assert len(events(log, "store_write_failed")) == 1
    assert len(events(log, "store_recovered")) == 1
    require_all_stored(database, server)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_told_and_stops_nothing(
    server: SimulatedServer, database: Path, log: Log, step: float
) -> None:
    """Windows neither overlap nor run backwards, their counts still add up, and no job is due in
    an hour from then."""
    with daemon_of(database, target_of(server.url)) as daemon:
        daemon.scrape()
        work(server)
        daemon.scrape()
        jobs = len(daemon.jobs.jobs)
        daemon.clock.wall += step
        daemon.daemon.look()
        assert len(daemon.jobs.jobs) == jobs
        assert all(job.at - daemon.clock.wall <= 600 for job in daemon.jobs.jobs)
        work(server)
        daemon.scrape(3)
    (entry,) = events(log, "clock_stepped")
    assert entry["seconds"] == step
    windows = stored(database)
    assert max(Counter(window.start for window in windows).values()) == 1
    assert len(windows) == (2 if step > 0 else 1)
    require_all_stored(database, server)


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
    target = target_of("https://127.0.0.1:1", ca_file=authority)
    daemon = Daemon(config_of(database, [target]), environ={})
    with pytest.raises(ConfigError, match="ca_file"):
        daemon.run()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{daemon.http.url}/healthz", timeout=10)


def test_a_defect_in_the_loop_that_looks_for_signals_still_writes_everything(
    serve: Serve, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = daemon_of(database, target_of(serve(page(vllm())).url))
    monkeypatch.setattr(stepped.daemon, "_read_config", lambda: 1 / 0)
    monkeypatch.setattr(stepped.daemon, "_main_loop", lambda: (stepped.scrape(2), ask()))

    def ask() -> None:
        stepped.daemon.ask_to_reload()
        stepped.daemon.look()

    with pytest.raises(ZeroDivisionError):
        stepped.daemon.run()
    assert stored(database)
