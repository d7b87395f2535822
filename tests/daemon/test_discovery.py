"""Targets that join and leave a running daemon, and pods that replace one another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.discovery import DiscoverySource
from specwatch.config.target import Target
from specwatch.daemon.daemon import Daemon
from specwatch.daemon.discovery_service import WatchedSource
from specwatch.runtime.scheduler import current_moment
from specwatch.simulator.server import SimulatedServer
from specwatch.status import SourceStatus, TargetStatus
from tests.daemon.running import (
    FAST,
    Running,
    config_of,
    scraped,
    stored,
    total,
    until_logged,
    work,
)
from tests.discovery.sources import source_of
from tests.fixtures import CERTIFICATE, Log, Serve, events, target_of
from tests.hostile import Visit, page, wait_for
from tests.scrape.pages import vllm

QUICK = 0.05


def quick(written: str, interval: float = QUICK) -> DiscoverySource:
    """A source that is read all the time, with the interval of its targets."""
    source = source_of(written)
    kind = next(name for name in ("file_sd", "http_sd") if getattr(source, name) is not None)
    changes = {
        kind: source.settings.model_copy(update={"refresh_interval": QUICK}),
        "target": source.target.model_copy(update={"interval": interval, "timeout": 20.0}),
    }
    return source.model_copy(update=changes)


class Fleet:
    """A daemon whose targets are in files, and in a list that an HTTP server has."""

    def __init__(
        self, folder: Path, serve: Serve, *configured: Target, interval: float = QUICK
    ) -> None:
        self.folder = folder
        self.database = folder / "d.db"
        self.listed: list[dict[str, Any]] = []
        self.status = "200 OK"
        self.server = serve(self._answer)
        self.sources = (
            quick(f"file_sd: {{files: ['{folder}/*.json']}}", interval),
            quick(f"http_sd: {{url: '{self.server.url}'}}"),
        )
        config = config_of(self.database, configured)
        self.config = config.model_copy(update={"discovery": self.sources})
        self.daemon = Daemon(self.config, environ={}, reload=lambda: self.config, seed=1)

    def _answer(self, visit: Visit) -> None:
        body = json.dumps(self.listed).encode()
        visit.answer(body, self.status, "Content-Type: application/json\r\n")

    def write(self, name: str, *groups: dict[str, Any]) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps(groups))
        new.replace(self.folder / f"{name}.json")

    @property
    def names(self) -> list[str]:
        return [target.name for target in self.daemon.status().targets]

    def has(self, *names: str) -> None:
        wait_for(lambda: sorted(self.names) == sorted(names))

    def target(self, name: str) -> TargetStatus:
        return next(one for one in self.daemon.status().targets if one.name == name)

    def source(self, kind: str) -> SourceStatus:
        return next(one for one in self.daemon.status().discovery if one.source.startswith(kind))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._LOOK_SECONDS", 0.01)


@pytest.fixture
def fleet(tmp_path: Path, serve: Serve) -> Iterator[Callable[..., Fleet]]:
    running: list[Running] = []

    def started(*configured: Target, **options: float) -> Fleet:
        made = Fleet(tmp_path, serve, *configured, **options)
        running.append(Running(made.daemon))
        running[-1].__enter__()
        return made

    yield started
    for daemon in running:
        daemon.__exit__()


Start = Callable[..., Fleet]


@pytest.fixture
def address(serve: Serve) -> str:
    return serve(page(vllm())).url.removeprefix("http://")


def at(address: str, name: str, **labels: str) -> dict[str, Any]:
    """A group of one target; its path makes its URL another than those of others."""
    path = f"/{name}/metrics"
    return {
        "targets": [address],
        "labels": {"instance": name, "__metrics_path__": path, **labels},
    }


def test_targets_join_and_leave_and_what_stays_is_not_disturbed(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet(target_of(f"http://{address}", "configured", interval=QUICK))
    made.has("configured")
    made.write("one", at(address, "a", zone="x"), at(address, "b"))
    made.listed = [at(address, "c", group="chat")]
    made.has("configured", "a", "b", "c")
    scraped(made.daemon, 2)
    kept, gone = (made.daemon.targets.by_name[name] for name in "ab")
    assert made.target("a").labels == {"zone": "x"}
    assert [made.target(name).group for name in "ac"] == ["m", "chat"]
    made.write("one", at(address, "a", zone="x"), at(address, "d"))
    made.has("configured", "a", "c", "d")
    assert made.daemon.targets.by_name["a"] is kept
    count = gone.status().scrapes
    scraped(made.daemon, 3)
    assert gone.status().scrapes == count
    assert events(log, "targets_changed")[-1].items() >= {"joined": ["d"], "left": ["b"]}.items()
    assert not events(log, "scrape_failed")


def test_what_a_target_counted_before_it_left_is_written(fleet: Start, tmp_path: Path) -> None:
    made = fleet()
    with SimulatedServer(FAST) as server:
        name = server.url.removeprefix("http://")
        made.write("one", {"targets": [name]})
        made.has(name)
        scraped(made.daemon, 2)
        work(server)
        scraped(made.daemon, 2)
        made.write("one")
        made.has()
    made.daemon.stop()
    windows = [window for window in stored(made.database) if window.series.target == name]
    assert sum(total(windows).requests.values()) == 20


def test_a_source_that_fails_keeps_its_targets_and_says_so_once(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.write("two", at(address, "b"))
    made.listed = [at(address, "c")]
    made.has("a", "b", "c")
    assert made.daemon.status().ready or made.source("file_sd").failure is None
    (made.folder / "one.json").write_text("[{")
    made.status = "500 Broken"
    wait_for(lambda: made.source("http_sd").failures.get("http_status", 0) > 3)
    wait_for(lambda: made.source("file_sd").failures.get("malformed", 0) > 3)
    made.write("two", at(address, "b2"))
    made.has("a", "b2", "c")
    failed = {entry["source"].split()[0]: entry for entry in events(log, "discovery_failed")}
    assert len(events(log, "discovery_failed")) == 2
    assert failed["http_sd"].items() >= {"reason": "http_status", "targets_kept": 1}.items()
    assert made.source("http_sd").failure.detail.endswith("answered 500; see the server's log")
    made.status = "200 OK"
    made.write("one")
    made.has("b2", "c")
    wait_for(until_logged(log, "discovery_recovered"))
    wait_for(lambda: made.source("http_sd").failure is None)


def test_the_configured_target_and_the_first_source_win(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet(target_of(f"http://{address}", "a", interval=QUICK))
    made.write("one", at(address, "a", zone="no"), at(address, "b", zone="first"))
    made.listed = [at(address, "b", zone="second")]
    made.has("a", "b")
    scraped(made.daemon, 3)
    wait_for(lambda: len(events(log, "target_left_out")) == 2)
    assert made.target("a").labels == {}
    assert made.target("b").labels == {"zone": "first"}
    made.write("one")  # its place is free
    wait_for(lambda: made.target("b").labels == {"zone": "second"})


def test_one_that_cannot_be_a_target_leaves_the_others(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", {"targets": ["a/b", address]})
    made.has(address)
    assert made.source("file_sd").refused == ("'a/b' is not an address; write host:port",)
    assert len(events(log, "target_refused")) == 1


def test_scrapes_go_on_while_targets_join_and_leave_all_the_time(
    fleet: Start, address: str
) -> None:
    made = fleet(interval=0.4)
    names = [f"t{number}" for number in range(30)]
    made.write("one", *(at(address, name) for name in names))
    made.has(*names)
    before = {name: made.target(name).scrapes for name in names}
    for turn in range(40):
        made.write("two", at(address, f"x{turn}"))
        wait_for(lambda turn=turn: f"x{turn}" in made.names)
    assert all(made.target(name).scrapes > before[name] + 2 for name in names)
    assert len(made.daemon.targets._slots) <= 21


def test_a_reload_changes_the_sources(fleet: Start, address: str) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.listed = [at(address, "b")]
    made.has("a", "b")
    made.config = made.config.model_copy(update={"discovery": made.sources[:1]})
    made.daemon.ask_to_reload()
    made.has("a")
    wait_for(
        lambda: [one.source.split()[0] for one in made.daemon.status().discovery] == ["file_sd"]
    )
    made.config = made.config.model_copy(update={"discovery": made.sources})
    made.daemon.ask_to_reload()
    made.has("a", "b")


def test_targets_of_a_source_that_a_reload_changed_are_watched_until_it_is_read(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.listed = [at(address, "b")]
    made.has("a", "b")
    scraped(made.daemon, 2)
    made.status, refused = "500 Broken", made.source("http_sd").failures
    changed = made.sources[1].target.model_copy(update={"labels": {"zone": "x"}})
    other = made.sources[1].model_copy(update={"target": changed})
    made.config = made.config.model_copy(update={"discovery": (made.sources[0], other)})
    made.daemon.ask_to_reload()
    wait_for(until_logged(log, "reloaded"))
    assert made.target("b").labels == {"zone": "x"}
    assert made.target("b").scrapes >= 2, "its counters go on"
    wait_for(lambda: made.source("http_sd").failures != refused)
    assert sorted(made.names) == ["a", "b"]
    assert not [entry for entry in events(log, "targets_changed") if entry["left"]]


def test_a_target_that_cannot_be_watched_is_tried_again(
    tmp_path: Path, serve: Serve, address: str, log: Log
) -> None:
    """It refuses all that was found, so once its reason is gone everything has to come."""
    authority = tmp_path / "ca.pem"
    authority.write_text("none")
    files = f"file_sd: {{files: ['{tmp_path}/*.json']}}"
    source = quick(f"{files}, scheme: https, target: {{ca_file: '{authority}'}}")
    config = config_of(tmp_path / "d.db", []).model_copy(update={"discovery": (source,)})
    with Running(Daemon(config, environ={}, seed=1)) as daemon:
        (tmp_path / "one.json").write_text(json.dumps([at(address, "a")]))
        wait_for(until_logged(log, "discovery_refused"))
        before = daemon.status().discovery[0].last_success
        wait_for(lambda: daemon.status().discovery[0].last_success > before + 5 * QUICK)
        assert not list(daemon.targets)
        authority.write_bytes(CERTIFICATE.read_bytes())
        wait_for(lambda: [scraper.target.name for scraper in daemon.targets] == ["a"])
    assert len(events(log, "discovery_refused")) == 1


def test_a_source_is_read_once_at_a_time(serve: Serve) -> None:
    asked, answers = [], threading.Event()

    def slow(visit: Visit) -> None:
        asked.append(visit)
        answers.wait(20)
        visit.answer(b"[]", headers="Content-Type: application/json\r\n")

    source = quick(f"http_sd: {{url: '{serve(slow).url}'}}")
    watched = WatchedSource(source, current_moment, lambda _: None)
    first = threading.Thread(target=watched.refresh)
    first.start()
    wait_for(lambda: bool(asked))
    watched.refresh()  # returns at once
    answers.set()
    first.join(20)
    assert len(asked) == 1
    assert watched.tried
    watched.refresh()
    assert len(asked) == 2


def test_a_target_that_joins_does_not_make_a_daemon_unready(
    fleet: Start, address: str, serve: Serve
) -> None:
    answers = threading.Event()

    def slow(visit: Visit) -> None:
        answers.wait(20)
        visit.answer(b"")

    made = fleet()
    made.write("one", at(address, "a"))
    made.has("a")
    scraped(made.daemon)
    wait_for(lambda: made.daemon.status().ready)
    made.write("two", at(serve(slow).url.removeprefix("http://"), "slow"))
    made.has("a", "slow")
    assert not made.daemon.targets.by_name["slow"].turned
    assert made.daemon.status().ready
    answers.set()


def test_a_daemon_is_ready_when_each_source_was_read(tmp_path: Path, serve: Serve) -> None:
    answers = threading.Event()

    def slow(visit: Visit) -> None:
        answers.wait(20)
        visit.answer(b"[]", headers="Content-Type: application/json\r\n")

    source = quick(f"http_sd: {{url: '{serve(slow).url}'}}")
    config = config_of(tmp_path / "d.db", []).model_copy(update={"discovery": (source,)})
    with Running(Daemon(config, environ={}, seed=1)) as daemon:
        wait_for(lambda: daemon._recorder.ready)
        assert not daemon.status().ready
        answers.set()
        wait_for(lambda: daemon.status().ready)
