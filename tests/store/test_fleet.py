"""Members of a fleet claim targets: each has one at a time, and only that one writes its counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from specwatch.domain.fleet import owner_of
from specwatch.errors import ConfigError
from specwatch.store import fleet_rows, schema
from specwatch.store.fleet_rows import FleetBook, Standing
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.postgres import PostgresServer
from tests.store.examples import T0, batch, cursor, minute, read, starts

TARGETS = [f"engine-{number}" for number in range(20)]
Join = Callable[..., "Joined"]


def alone(targets: Sequence[str]) -> dict[str, str]:
    """Targets that may be watched anywhere."""
    return {target: target for target in targets}


class Joined:
    """A member, as it stood when it last renewed its lease."""

    def __init__(self, store: Store, name: str, heartbeat: float = 5.0) -> None:
        self.name = name
        self.store = store
        self.book = FleetBook(store, name, token=f"token of {name}", heartbeat=heartbeat)
        self.watched: frozenset[str] = frozenset()

    def renew(
        self, targets: Sequence[str] = TARGETS, places: Mapping[str, str] | None = None
    ) -> Standing:
        """Renew, and watch what is its share and claimed."""
        standing = self.book.renew(
            places or alone(targets), len(self.watched), 0.0,
            address=f"http://{self.name}", version="1", started=0.0,
        )  # fmt: skip
        self.watched = standing.held & standing.share
        return standing


@pytest.fixture
def join(url: str, open_store: OpenStore) -> Join:
    """Makes a member of the daemon ``left``."""

    def joined(name: str, **options: Any) -> Joined:
        return Joined(open_store(url, member=name), name, **options)

    return joined


def die(member: Joined, ago: float = 1.0) -> None:
    """Its lease has ended so many seconds ago."""
    with member.store.writing(0.0) as connection:
        rows = schema.members
        ended = rows.update().where(rows.c.member == member.name)
        connection.execute(ended.values(lease_until=rows.c.seen - ago))


def settle(members: Sequence[Joined], targets: Sequence[str]) -> None:
    """Each claims what is its share, and gives the rest back."""
    for _ in range(2):
        for member in members:
            standing = member.renew(targets)
            member.book.release(standing.held - standing.share, 0.0)


def test_a_lone_member_has_all(join: Join) -> None:
    standing = join("one").renew()
    assert standing.held == standing.share == set(TARGETS)
    assert (standing.fleet.targets, standing.fleet.unwatched) == (20, ())


@each_database
def test_a_member_that_joins_gets_only_what_is_given_back(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    assert two.renew().held == set()
    standing = one.renew()
    surplus = standing.held - standing.share
    assert 0 < len(surplus) < len(TARGETS)
    one.book.release(surplus, 0.0)
    assert two.renew().held == surplus == two.watched
    assert one.renew().fleet.unwatched == ()


def test_pods_follow_their_workload(join: Join) -> None:
    """They stay where it is acted on, and move once it has moved."""
    one, two = join("one"), join("two")
    workload = next(name for name in TARGETS if owner_of(name, ["one", "two"]) == "two")
    places = {workload: workload, "pod": workload}
    assert one.renew(places=places).held == set(places)
    assert two.renew(places=places).share == {workload}
    assert one.renew(places=places).share == {"pod"}
    one.book.release([workload], 0.0)
    assert two.renew(places=places).held == {workload}
    assert two.renew(places=places).share == set(places)


@each_database
def test_the_targets_of_a_dead_member_are_taken_over(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    two.renew()
    die(one)
    assert two.renew().held == set(TARGETS)
    assert one.renew().held == set(), "it has lost them all, and gets its share later"


def test_a_target_moves_with_its_cursor(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew(["chat"])
    stored = replace(cursor("chat", value=7.0, wall=T0 + 60.0), after=T0 + 0.5)
    assert one.store.write([batch(minute(T0), cursor=stored)], 0.0) == set()
    die(one)
    assert two.renew(["chat"]).held == {"chat"}
    assert two.store.cursors(["chat"]) == {"chat": replace(stored, after=None)}


@each_database
def test_what_another_member_watches_is_not_written(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew(["chat"])
    first = cursor("chat", wall=T0 + 1.0)
    one.store.write([batch(cursor=replace(first, after=T0 + 1.0))], 0.0)
    die(one)
    two.renew(["chat"])
    # A server that is down: no cursor tells who has seen it.
    mine = batch(minute(T0, drafts=1), cursor=replace(first, after=T0 + 1.0))
    assert one.store.write([mine], 0.0) == {"chat"}
    assert two.store.write([mine], 0.0) == set()
    assert starts(read(two.store)) == [T0]
    assert one.store.write([mine], 0.0) == {"chat"}, "however often"


def test_what_follows_on_counts_that_were_not_written_is_not_written(
    url: str, open_store: OpenStore
) -> None:
    """A process counts on until it hears that another one has counted the same."""
    one, two = open_store(url), open_store(url)
    two.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    late = replace(cursor(wall=T0 + 62.0), after=T0 + 1.0)
    assert one.write([batch(minute(T0), cursor=late)], 0.0) == {"chat"}
    next_one = replace(cursor(wall=T0 + 122.0), after=T0 + 62.0)
    assert one.write([batch(minute(T0 + 60), cursor=next_one)], 0.0) == {"chat"}
    again = replace(cursor(wall=T0 + 182.0), after=T0 + 60.0)
    assert one.write([batch(minute(T0 + 120), cursor=again)], 0.0) == set()
    assert starts(read(one)) == [T0, T0 + 120]
    one.prune(T0 + 62.0, minutes_kept=0.0, hours_kept=3600.0)
    assert one.write([batch(minute(T0), cursor=late)], 0.0) == {"chat"}
    assert one._discarded == {"chat": T0 + 62.0}
    one.prune(T0 + 63.0, minutes_kept=0.0, hours_kept=3600.0)
    assert one._discarded == {}


def test_what_waits_from_an_earlier_time_does_not_take_the_rest_with_it(
    url: str, open_store: OpenStore
) -> None:
    """The target was another member's meanwhile, and has come back."""
    one, two = open_store(url), open_store(url)
    two.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    old = replace(cursor(wall=T0 + 30.0), after=T0 + 1.0)
    new = replace(cursor(wall=T0 + 119.0), after=T0 + 60.0)
    batches = [batch(minute(T0), cursor=old), batch(minute(T0 + 60), cursor=new)]
    for _ in range(2):
        assert one.write(batches, 0.0) == set()
        assert starts(read(one)) == [T0, T0 + 60]
        assert [window.tally.drafts for window in read(one)] == [100, 100]


def test_members_are_no_rivals_and_strangers_are(url: str, open_store: OpenStore) -> None:
    one, two = open_store(url, member="one", pid=1), open_store(url, member="two", pid=2)
    stranger = open_store(url, host="elsewhere", pid=3)
    two.write([batch(minute(T0))], T0)
    assert one.rivals(T0 + 90) == []
    stranger.write([batch(minute(T0 + 60))], T0)
    assert one.rivals(T0 + 90) == ["elsewhere, pid 3"]
    assert len(stranger.rivals(T0 + 90)) == 1


def test_a_name_in_use_is_refused_until_its_owner_is_dead(join: Join) -> None:
    one = join("one")
    one.renew()
    twin = FleetBook(join("one").store, "one", token="another", heartbeat=5.0)
    address = {"address": "http://x", "version": "1", "started": 0.0}
    with pytest.raises(ConfigError, match=r"fleet\.member: one is the name of a live member"):
        twin.renew(alone(TARGETS), 0, 0.0, **address)
    die(one)
    assert twin.renew(alone(TARGETS), 0, 0.0, **address).held == set(TARGETS)
    with pytest.raises(ConfigError, match="live member"):
        one.renew()


def test_a_target_that_only_some_members_know_is_watched_by_one_of_those(join: Join) -> None:
    """A new configuration is rolled out member by member."""
    members = [join(f"member-{number}") for number in range(4)]
    settle(members, TARGETS)
    new = [f"new-{number}" for number in range(20)]
    assert members[0].renew([*TARGETS, *new]).held >= set(new)
    for member in members[1:]:
        standing = member.renew()
        assert not standing.held.intersection(new)
        assert [one.member for one in standing.fleet.unlike] == ["member-0"]
    settle(members, [*TARGETS, *new])
    held = [member.renew([*TARGETS, *new]).held for member in members]
    assert sorted(target for each in held for target in each) == sorted([*TARGETS, *new])
    assert all(share.intersection(new) for share in held)


def test_targets_that_have_left_every_configuration_are_forgotten(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    two.renew()
    assert one.renew(["engine-1"]).fleet.targets == 20
    one.book.release(set(TARGETS) - {"engine-1"}, 0.0)
    two.renew(["engine-1"])
    assert one.renew(["engine-1"]).fleet.targets == 1


@each_database
def test_a_member_that_leaves_gives_everything_back(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    two.renew()
    one.book.leave(0.0)
    standing = two.renew()
    assert standing.held == set(TARGETS)
    assert [member.member for member in standing.fleet.members] == ["two"]
    two.book.leave(0.0)
    with two.store.connected() as connection:
        assert fleet_rows.fleets(connection) == {}


def test_a_reader_sees_who_watches_what(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    two.renew()
    one.book.release(["engine-3"], 0.0)
    with two.store.connected() as connection:
        ((daemon, (fleet, watches)),) = fleet_rows.fleets(connection).items()
    assert daemon == "left"
    assert [(member.member, member.live, member.address) for member in fleet.members] == [
        ("one", True, "http://one"), ("two", True, "http://two"),
    ]  # fmt: skip
    assert fleet.unwatched == ("engine-3",)
    holders = {watch.target: watch.member for watch in watches}
    assert holders == dict.fromkeys(TARGETS, "one") | {"engine-3": ""}
    die(one)
    with two.store.connected() as connection:
        assert fleet_rows.fleets(connection)["left"][0].unwatched == tuple(sorted(TARGETS))


def test_after_an_outage_of_the_database_nobody_counts_as_dead(join: Join) -> None:
    """The first to come back would take over everything."""
    members = [join(name) for name in ("one", "two")]
    settle(members, TARGETS)
    one, two = members
    share = one.renew().held
    rows = schema.members
    with one.store.writing(0.0) as connection:
        earlier = {"seen": rows.c.seen - 60, "lease_until": rows.c.lease_until - 60}
        connection.execute(rows.update().values(earlier))
    for member in members:
        assert member.book._seen is not None
        member.book._seen -= 60
    assert one.renew().held == share
    assert two.renew().held == set(TARGETS) - share
    assert one.renew().fleet.unwatched == ()
    die(two, ago=100.0)
    assert one.renew().held == set(TARGETS), "its lease has ended after the outage"


def test_a_member_that_is_dead_for_an_hour_is_forgotten(join: Join) -> None:
    one, two = join("one"), join("two")
    one.renew()
    die(one, 3590.0)
    assert [member.member for member in two.renew().fleet.members] == ["one", "two"]
    die(one, 3610.0)
    assert [member.member for member in two.renew().fleet.members] == ["two"]


def test_two_members_never_claim_the_same_target(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    """However much at the same time they begin."""
    url = postgres.new_url()
    targets = [f"engine-{number}" for number in range(50)]
    members = [Joined(open_store(url, member=f"m{n}"), f"m{n}") for n in range(4)]
    together = threading.Barrier(len(members))
    held: dict[str, frozenset[str]] = {}

    def begin(member: Joined) -> None:
        together.wait(30)
        for _ in range(3):
            standing = member.renew(targets)
            member.book.release(standing.held - standing.share, 0.0)
        together.wait(30)
        held[member.name] = member.renew(targets).held

    threads = [threading.Thread(target=begin, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(target for each in held.values() for target in each) == sorted(targets)


def test_a_target_that_another_has_claimed_meanwhile_is_not_claimed(
    postgres: PostgresServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.lent_url() as url:
        one, two = (Joined(open_store(url, member=name), name) for name in ("one", "two"))
        one.renew(["code", "chat"])
        one.book.release(["chat"], 0.0)
        claim = two.book._claim

        def late(*given: Any) -> set[str]:
            assert one.renew(["code", "chat"]).held == {"code", "chat"}
            return claim(*given)

        monkeypatch.setattr(two.book, "_claim", late)
        assert two.renew(["code", "chat"]).held == set()


def test_a_member_stopped_in_the_middle_of_a_write_delays_no_claim(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    url = postgres.new_url()
    one, two = (Joined(open_store(url, member=name), name) for name in ("one", "two"))
    one.renew(["chat", "code"])
    die(one)
    table = schema.watched_targets
    with one.store.writing(0.0) as connection:
        chosen = sa.select(table.c.target).where(table.c.target == "chat")
        connection.execute(chosen.with_for_update(read=True)).all()
        assert two.renew(["chat", "code"]).held == {"code"}
    assert two.renew(["chat", "code"]).held == {"chat", "code"}
