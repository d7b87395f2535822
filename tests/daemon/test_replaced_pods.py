"""A pod that replaces another under its name or address does not continue its counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from specwatch.config.target import Target
from specwatch.daemon.scraper import Scraper
from specwatch.daemon.watched_targets import WatchedTargets
from specwatch.domain.model import Batch, Cursor, Moment, PodInstance
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.daemon.scraping import turn
from tests.fixtures import CERTIFICATE, Serve, target_of
from tests.hostile import HostileServer, page
from tests.scrape.pages import vllm

MINUTE = 1_790_000_040.0
NAME = "serving/vllm-0"
FIRST, SECOND = PodInstance("uid-1", MINUTE - 500), PodInstance("uid-2", MINUTE + 20)


class Watch:
    """Targets that are scraped when a test says so, and the tokens that they count."""

    def __init__(self) -> None:
        self.now = Moment(MINUTE, 1000.0)
        self.batches: list[Batch] = []
        self.kept: list[Batch] = []
        """Minutes that were not over."""
        self.targets = WatchedTargets(self._make)

    def _make(
        self, target: Target, cursor: Cursor | None, closed: int | None, since: float | None
    ) -> Scraper:
        return Scraper(
            target,
            daemon="d",
            clock=lambda: self.now,
            put=self.batches.append,
            cursor=cursor,
            closed_start=closed,
            watched_since=since,
            keep=self.kept.append,
        )

    def configure(
        self,
        *targets: Target,
        cursors: Mapping[str, Cursor] | None = None,
        reload: bool = False,
        since: float | None = None,
    ) -> None:
        known = {} if since is None else {NAME: since}
        self.targets.configure(targets, cursors or {}, reload=reload, watched_since=known)

    def scrape(self, server: HostileServer, tokens: float, start: float | None = None) -> None:
        server.behaviour = page(vllm(tokens, start=start))
        self.now = Moment(self.now.wall + 5, self.now.monotonic + 5)
        turn(self.targets.by_name[NAME])

    def tokens(self) -> int:
        for scraper in self.targets:
            scraper.finish()
        return sum(
            window.tally.generation_tokens or 0 for batch in self.batches for window in batch
        )


@pytest.fixture
def server(serve: Serve) -> HostileServer:
    return serve(page(vllm()))


def pod(server: HostileServer, instance: PodInstance) -> Target:
    return target_of(server.url, NAME).in_pod(instance)


def test_the_counters_of_a_pod_that_stays_are_continued(server: HostileServer) -> None:
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 1000)
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 1100)
    assert watch.tokens() == 100


@pytest.mark.parametrize(
    "successor", [SECOND, PodInstance(FIRST.uid, SECOND.started)], ids=["pod", "container"]
)
def test_a_successor_at_the_same_address_begins_with_its_first_page(
    server: HostileServer, successor: PodInstance
) -> None:
    """Its counters are higher, and its page has no process_start_time_seconds."""
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 1000)
    watch.scrape(server, 1100)
    watch.configure(pod(server, successor))
    watch.scrape(server, 5000)
    watch.scrape(server, 5010)
    assert watch.tokens() == 100 + 10


def test_a_successor_that_comes_after_the_pod_has_left(server: HostileServer) -> None:
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 1000)
    watch.scrape(server, 1100)
    watch.configure()
    watch.configure(pod(server, SECOND))
    watch.scrape(server, 5000)
    watch.scrape(server, 5010)
    assert watch.tokens() == 100 + 10


@pytest.mark.parametrize("begun", [True, False], ids=["begun since", "begun before"])
def test_a_pod_that_joins_is_counted_from_its_start_where_it_began_under_our_eyes(
    server: HostileServer, begun: bool
) -> None:
    """Or else its first page would be its zero, and what it had done by then be lost."""
    watch = Watch()
    watch.configure(pod(server, FIRST), since=MINUTE - (600 if begun else 100))
    watch.scrape(server, 2844, start=MINUTE - 400)
    watch.scrape(server, 2850, start=MINUTE - 400)
    assert watch.tokens() == (2850 if begun else 6)


def test_a_successor_that_says_when_it_began_is_counted_from_then(server: HostileServer) -> None:
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 1000, start=MINUTE - 400)
    watch.scrape(server, 1100, start=MINUTE - 400)
    watch.configure(pod(server, SECOND))
    watch.scrape(server, 50, start=SECOND.started)
    watch.scrape(server, 60, start=SECOND.started)
    assert watch.tokens() == 100 + 60


def test_after_a_restart_of_the_daemon_a_new_pod_of_that_name_is_counted_from_its_start(
    server: HostileServer,
) -> None:
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 900, start=MINUTE - 400)
    watch.tokens()
    cursor = watch.batches[-1].cursor
    later = Watch()
    later.now = Moment(MINUTE + 100, 1.0)
    assert cursor is not None
    later.configure(pod(server, SECOND), cursors={NAME: cursor})
    later.scrape(server, 70, start=SECOND.started)
    assert later.tokens() == 70


def test_all_that_leave_at_once_go_on_when_they_come_back(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.watched_targets._MOST_LEFT", 1)
    watch = Watch()
    targets = [pod(server, FIRST), *(target_of(server.url, f"t{n}") for n in range(3))]
    watch.configure(*targets)
    watch.scrape(server, 1000)
    watch.configure()
    watch.configure(*targets)
    watch.scrape(server, 1100)
    assert watch.tokens() == 100


@pytest.mark.parametrize(("instance", "expected"), [(FIRST, 4100), (SECOND, 0)])
def test_after_a_restart_of_the_daemon_only_the_same_pod_is_continued(
    server: HostileServer, instance: PodInstance, expected: int
) -> None:
    watch = Watch()
    watch.configure(pod(server, FIRST))
    watch.scrape(server, 900)
    watch.tokens()
    cursor = watch.batches[-1].cursor
    assert cursor is not None
    later = Watch()
    later.now = Moment(MINUTE + 100, 1.0)
    later.configure(pod(server, instance), cursors={NAME: cursor})
    later.scrape(server, 5000)
    assert later.tokens() == expected


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/specwatch.db"
    new: str = request.getfixturevalue("postgres").new_url()
    return new


def test_what_a_pod_counted_is_stored_within_fifteen_seconds_and_the_minute_once(
    server: HostileServer, database_url: str
) -> None:
    """A daemon that is killed together with the pod loses no more than that."""
    watch = Watch()
    watch.configure(pod(server, FIRST))
    for n in range(11):
        watch.scrape(server, 100.0 * n, start=FIRST.started)
    kept = [sum(w.tally.generation_tokens or 0 for w in batch.windows) for batch in watch.kept]
    assert kept == [0, 200, 400, 600, 800, 1000], "every ten seconds"
    store = Store(database_url, daemon="d")
    store.open(MINUTE)
    try:
        for batch in [*watch.batches, *watch.kept]:
            assert store.write([pack_batch(batch)], MINUTE + 55) == frozenset()
        assert stored_tokens(store) == 1000
        assert store.cursors()[NAME].wall == MINUTE + 55
        watch.batches.clear()
        assert watch.tokens() == 1000
        assert store.write(list(map(pack_batch, watch.batches)), MINUTE + 60) == frozenset()
        assert stored_tokens(store) == 1000
    finally:
        store.close(MINUTE + 60)


def stored_tokens(store: Store) -> int:
    windows = store.windows(since=MINUTE - 3600, until=MINUTE + 3600, length=60)
    return sum(window.tally.generation_tokens or 0 for window in windows)


def test_another_target_that_comes_does_not_disturb_one_with_an_authority(
    server: HostileServer,
) -> None:
    """Its file is read again at a reload only."""
    watch = Watch()
    target = target_of("https://127.0.0.1:1", ca_file=CERTIFICATE)
    watch.configure(target)
    first = watch.targets.by_name[target.name]
    watch.configure(target, pod(server, FIRST))
    assert watch.targets.by_name[target.name] is first
    watch.configure(target, pod(server, FIRST), reload=True)
    assert watch.targets.by_name[target.name] is not first
