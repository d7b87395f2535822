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
from specwatch.daemon.discovery_service import DiscoveryService, WatchedSource
from specwatch.discovery.target_groups import Group
from specwatch.domain.model import Cursor, PodInstance
from specwatch.runtime.scheduler import current_moment
from specwatch.status import SourceStatus
from tests.daemon.running import config_of, stored, total
from tests.daemon.stepped import Stepped, StoppedClock, scrapes
from tests.discovery.sources import source_of
from tests.fixtures import CERTIFICATE, Log, Serve, events, target_of
from tests.hostile import Visit, hanging, page, wait_for
from tests.scrape.pages import vllm

pytestmark = pytest.mark.usefixtures("log")


def read_often(written: str) -> DiscoverySource:
    """A source that is read before each scrape."""
    source = source_of(written)
    kind = next(name for name in ("file_sd", "http_sd") if getattr(source, name) is not None)
    changes = {
        kind: source.settings.model_copy(update={"refresh_interval": 5.0}),
        "target": source.target.model_copy(update={"interval": 5.0, "timeout": 20.0}),
    }
    return source.model_copy(update=changes)


class Fleet(Stepped):
    """A daemon whose targets are in files, and in a list that an HTTP server has."""

    def __init__(self, database: Path, serve: Serve, *configured: Target) -> None:
        self.folder = database.parent
        self.database = database
        self.listed: list[dict[str, Any]] = []
        self.answer = "200 OK"
        self.server = serve(self._answer)
        self.sources = (
            read_often(f"file_sd: {{files: ['{self.folder}/*.json']}}"),
            read_often(f"http_sd: {{url: '{self.server.url}'}}"),
        )
        config = config_of(self.database, configured)
        self.config = config.model_copy(update={"discovery": self.sources})
        super().__init__(self.config, reload=lambda: self.config)

    def _answer(self, visit: Visit) -> None:
        body = json.dumps(self.listed).encode()
        visit.answer(body, self.answer, "Content-Type: application/json\r\n")

    def write(self, name: str, *groups: dict[str, Any]) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps(groups))
        new.replace(self.folder / f"{name}.json")

    def find(self, *names: str) -> None:
        """Read the sources, and find these targets."""
        self.scrape()
        assert self.names == sorted(names)

    def source(self, kind: str) -> SourceStatus:
        return next(one for one in self.daemon.status().discovery if one.source.startswith(kind))


@pytest.fixture
def fleet(database: Path, serve: Serve) -> Iterator[Callable[..., Fleet]]:
    running: list[Fleet] = []

    def started(*configured: Target) -> Fleet:
        running.append(Fleet(database, serve, *configured))
        running[-1].daemon.start()
        return running[-1]

    yield started
    for daemon in running:
        daemon.stop()


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


def test_a_list_beyond_the_limit_is_refused_and_what_was_known_stays(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", at(address, "a"), at(address, "b"))
    made.find("a", "b")
    made.write("one", *(at(address, f"t{n}") for n in range(2001)))
    made.find("a", "b")
    failure = made.source("file_sd").failure
    assert failure is not None
    assert failure.reason == "target_limit"
    assert "lists 2001 targets: expected at most 2000" in failure.detail
    made.write("one", at(address, "c"))
    made.find("c")
    assert [entry["reason"] for entry in events(log, "discovery_failed")] == ["target_limit"]


def test_what_a_source_lists_is_as_old_as_its_last_read_without_a_failure(
    fleet: Start, address: str
) -> None:
    made = fleet()
    made.find()
    service = made.daemon._discovery
    before = service.listed
    made.answer = "500 Internal Server Error"
    made.find()
    assert service.listed == before > 0
    made.answer = "200 OK"
    made.find()
    assert service.listed > before
    assert made.daemon._workloads.listed == service.listed


def test_targets_join_and_leave_and_what_stays_is_not_disturbed(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet(target_of(f"http://{address}", "configured"))
    made.find("configured")
    made.write("one", at(address, "a", zone="x"), at(address, "b"))
    made.listed = [at(address, "c", group="chat")]
    made.find("configured", "a", "b", "c")
    made.scrape(2)
    kept, gone = (made.daemon.targets.by_name[name] for name in "ab")
    assert made.target("a").labels == {"zone": "x"}
    assert [made.target(name).group for name in "ac"] == ["m", "chat"]
    made.write("one", at(address, "a", zone="x"), at(address, "d"))
    made.find("configured", "a", "c", "d")
    assert made.daemon.targets.by_name["a"] is kept
    count = gone.status().scrapes
    made.scrape()
    assert gone.status().scrapes == count
    assert events(log, "targets_changed")[-1].items() >= {"joined": ["d"], "left": ["b"]}.items()
    assert not events(log, "scrape_failed")


def test_what_a_target_counted_before_it_left_is_written(fleet: Start, serve: Serve) -> None:
    def counting(visit: Visit) -> bool:
        visit.answer(vllm(10 * server.paths.count("/metrics")))
        return True

    server = serve(counting)
    made = fleet()
    name = server.url.removeprefix("http://")
    made.write("one", {"targets": [name]})
    made.find(name)
    made.scrape(2)
    made.write("one")
    made.find()
    made.stop()
    windows = [window for window in stored(made.database) if window.series.target == name]
    pages = server.paths.count("/metrics")
    assert total(windows).generation_tokens == 10 * (pages - 1) > 0


@pytest.mark.parametrize("joins", [True, False], ids=["joins", "was there at first"])
def test_a_process_that_begins_after_its_source_was_read_is_counted_from_its_start(
    fleet: Start, serve: Serve, joins: bool
) -> None:
    made = fleet()
    if joins:
        made.scrape()
    server = serve(page(vllm(2844, start=made.clock().wall)))
    name = server.url.removeprefix("http://")
    made.write("one", {"targets": [name]})
    made.find(name)
    made.scrape(2)
    made.stop()
    windows = [window for window in stored(made.database) if window.series.target == name]
    assert total(windows).generation_tokens == (2844 if joins else 0)


def test_a_source_that_fails_keeps_its_targets_and_says_so_once(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.write("two", at(address, "b"))
    made.listed = [at(address, "c")]
    made.find("a", "b", "c")
    assert made.source("file_sd").failure is None
    (made.folder / "one.json").write_text("[{")
    made.answer = "500 Broken"
    made.scrape(3)
    assert made.source("http_sd").failures == {"http_status": 3}
    assert made.source("file_sd").failures == {"malformed": 3}
    made.write("two", at(address, "b2"))
    made.find("a", "b2", "c")
    failed = {entry["source"].split()[0]: entry for entry in events(log, "discovery_failed")}
    assert len(events(log, "discovery_failed")) == 2
    assert failed["http_sd"].items() >= {"reason": "http_status", "targets_kept": 1}.items()
    assert made.source("http_sd").failure.detail.endswith("answered 500; see the server's log")
    made.answer = "200 OK"
    made.write("one")
    made.find("b2", "c")
    assert len(events(log, "discovery_recovered")) == 2
    assert made.source("http_sd").failure is None


def test_the_configured_target_and_the_first_source_win(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet(target_of(f"http://{address}", "a"))
    made.write("one", at(address, "a", zone="no"), at(address, "b", zone="first"))
    made.listed = [at(address, "b", zone="second")]
    made.find("a", "b")
    made.scrape(3)
    assert len(events(log, "target_left_out")) == 2
    assert made.target("a").labels == {}
    assert made.target("b").labels == {"zone": "first"}
    made.write("one")  # its place is free
    made.scrape()
    assert made.target("b").labels == {"zone": "second"}


def test_one_that_cannot_be_a_target_leaves_the_others(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", {"targets": ["a/b", address]})
    made.find(address)
    assert made.source("file_sd").refused == ("'a/b' is not an address; write host:port",)
    assert len(events(log, "target_refused")) == 1


def test_scrapes_go_on_while_targets_join_and_leave_all_the_time(
    fleet: Start, address: str
) -> None:
    made = fleet()
    names = [f"t{number}" for number in range(22)]
    made.write("one", *(at(address, name) for name in names))
    made.find(*names)
    made.scrape()
    before = scrapes(made, names)
    for turn in range(3):
        made.write("two", at(address, f"x{turn}"))
        made.find(*names, f"x{turn}")
    assert scrapes(made, names) == [count + 3 for count in before]
    assert len(made.daemon.targets._slots) <= 21


def test_a_reload_changes_the_sources(fleet: Start, address: str) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.listed = [at(address, "b")]
    made.find("a", "b")
    made.config = made.config.model_copy(update={"discovery": made.sources[:1]})
    made.read_again()
    assert made.names == ["a"]
    assert [one.source.split()[0] for one in made.daemon.status().discovery] == ["file_sd"]
    made.config = made.config.model_copy(update={"discovery": made.sources})
    made.read_again()
    made.find("a", "b")


def test_targets_of_a_source_that_a_reload_changed_are_watched_until_it_is_read(
    fleet: Start, address: str, log: Log
) -> None:
    made = fleet()
    made.write("one", at(address, "a"))
    made.listed = [at(address, "b")]
    made.find("a", "b")
    made.scrape(2)
    made.answer, refused = "500 Broken", made.source("http_sd").failures
    changed = made.sources[1].target.model_copy(update={"labels": {"zone": "x"}})
    other = made.sources[1].model_copy(update={"target": changed})
    made.config = made.config.model_copy(update={"discovery": (made.sources[0], other)})
    made.read_again()
    assert made.target("b").labels == {"zone": "x"}
    assert made.target("b").scrapes >= 2, "its counters go on"
    made.find("a", "b")
    assert made.source("http_sd").failures != refused
    assert not [entry for entry in events(log, "targets_changed") if entry["left"]]


def test_a_target_that_cannot_be_watched_is_tried_again(
    database: Path, tmp_path: Path, address: str, log: Log
) -> None:
    """It refuses all that was found, so once its reason is gone everything has to come."""
    authority = tmp_path / "ca.pem"
    authority.write_text("none")
    files = f"file_sd: {{files: ['{tmp_path}/*.json']}}"
    source = read_often(f"{files}, scheme: https, target: {{ca_file: '{authority}'}}")
    config = config_of(database, []).model_copy(update={"discovery": (source,)})
    with Stepped(config) as daemon:
        (tmp_path / "one.json").write_text(json.dumps([at(address, "a")]))
        daemon.scrape(3)
        assert daemon.daemon.status().discovery[0].last_success == daemon.clock.wall
        assert daemon.names == []
        authority.write_bytes(CERTIFICATE.read_bytes())
        daemon.scrape()
        assert daemon.names == ["a"]
    assert len(events(log, "discovery_refused")) == 1


def test_pods_of_the_first_list_are_watched_since_an_earlier_daemon_saw_their_namespace() -> None:
    """Other pods since the first list: those that were not ready then had served nobody."""
    clock, pods = StoppedClock(), ["serving/a"]
    source = WatchedSource(
        source_of("kubernetes: {namespaces: [serving], port: http}"), clock, lambda _: None
    )
    source._read = lambda: {
        "serving": tuple(
            Group(("h:1",), {"instance": name, "namespace": "serving"}, PodInstance(name, 1.0))
            for name in pods
        )
    }
    source.refresh()
    listed = clock().wall
    pods.append("serving/b")
    clock.forward(60)
    source.refresh()
    config = config_of(Path("d.db"), ())
    service = DiscoveryService(config, clock)
    assert service.watched_since([source]) == {"serving/b": listed}
    service.resume({n: Cursor(n, {}, None, w) for n, w in (("serving/x", 7.0), ("serving/y", 9.0))})
    assert service.watched_since([source]) == {"serving/a": 9.0, "serving/b": listed}


def test_a_source_is_read_once_at_a_time(serve: Serve) -> None:
    asked, answers = [], threading.Event()

    def slow(visit: Visit) -> None:
        asked.append(visit)
        answers.wait(20)
        visit.answer(b"[]", headers="Content-Type: application/json\r\n")

    source = read_often(f"http_sd: {{url: '{serve(slow).url}'}}")
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
    made = fleet()
    made.write("one", at(address, "a"))
    made.find("a")
    made.scrape()
    assert made.daemon.status().ready
    made.write("two", at(serve(hanging).url.removeprefix("http://"), "slow"))
    made.find("a", "slow")
    assert not made.daemon.targets.by_name["slow"].turned
    assert made.daemon.status().ready


def test_a_daemon_is_ready_when_each_source_was_read(fleet: Start) -> None:
    made = fleet()
    assert made.daemon._recorder.ready
    made.write("one")
    for source in made.daemon._discovery:
        assert not made.daemon.status().ready
        source.refresh()
    assert made.daemon.status().ready
