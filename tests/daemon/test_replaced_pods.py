"""A pod that replaces another under its name or address does not continue its counters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specwatch.config.target import Target
from specwatch.daemon.scraper import Scraper
from specwatch.daemon.watched_targets import WatchedTargets
from specwatch.domain.model import Batch, Cursor, Moment, PodInstance
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
        self.targets = WatchedTargets(self._make)

    def _make(
        self, target: Target, cursor: Cursor | None, closed: int | None, since: float | None
    ) -> Scraper:
        return Scraper(
            target, daemon="d", clock=lambda: self.now, put=self.batches.append, cursor=cursor,
            closed_start=closed, watched_since=since,
        )  # fmt: skip

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
