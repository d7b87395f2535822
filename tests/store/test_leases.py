"""Of several processes of one name one has the lease, and without it nothing is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from specwatch.errors import LeaseLost, StoreUnavailable
from specwatch.store import database
from specwatch.store.leases import Lease
from specwatch.store.repository import Store
from specwatch.store.schema import leases
from tests.daemon.stepped import StoppedClock
from tests.fixtures import OpenStore, each_database
from tests.postgres import PostgresServer
from tests.store.examples import T0, batch, cursor, minute, read, starts

Join = Callable[..., Lease]


@pytest.fixture
def clock() -> StoppedClock:
    """That of each process."""
    return StoppedClock()


@pytest.fixture
def join(url: str, open_store: OpenStore, clock: StoppedClock) -> Join:
    """Makes the lease of a process of the daemon ``left``."""

    def joined(process: str, **options: Any) -> Lease:
        store = open_store(url)
        address = f"http://{process}"
        lease = Lease(store, process, address=lambda: address, **{"clock": clock, **options})
        store.before_write = lease.check
        return lease

    return joined


def set_end(store: Store, seconds: float) -> None:
    """The lease ends so many seconds later than it would."""
    with store.writing(0.0, leased=False) as connection:
        connection.execute(leases.update().values(until=leases.c.until + seconds))


def let_end(lease: Lease) -> None:
    """Its holder does not renew it in time."""
    set_end(lease._store, -lease.seconds)


def holder(lease: Lease) -> str:
    """The address of the process in the row."""
    with lease._store.connected() as connection:
        address: str = connection.execute(sa.select(leases.c.address)).scalar_one()
    return address


@each_database
def test_one_process_has_it_until_it_has_not_renewed_it_in_time(join: Join) -> None:
    one, two = join("one"), join("two")
    assert one.take(0.0)
    assert not two.take(0.0)
    assert holder(two) == "http://one"
    set_end(one._store, 0.5 - one.seconds)
    assert not two.take(0.0)
    assert one.take(0.0), "renewed"
    set_end(one._store, 0.5 - one.seconds)
    assert not two.take(0.0)
    let_end(one)
    assert two.take(0.0)
    assert holder(one) == "http://two"


@each_database
def test_who_has_lost_it_writes_nothing_and_never_has_it_again(join: Join) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    assert not two.take(0.0)
    one._store.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
    let_end(one)
    assert two.take(0.0)
    with pytest.raises(LeaseLost, match="another process watches as left now"):
        one._store.write([batch(minute(T0 + 60))], 0.0)
    with pytest.raises(LeaseLost):
        one._store.write_verdicts([], 0.0)
    two.release(0.0)
    assert not one.take(0.0)
    with pytest.raises(LeaseLost):
        one._store.write([batch(minute(T0 + 60))], 0.0)
    assert starts(read(one._store)) == [T0]


def test_who_wakes_up_late_goes_on_if_nobody_has_taken_over(join: Join) -> None:
    one = join("one")
    one.take(0.0)
    set_end(one._store, -3600)
    one._store.write([batch(minute(T0))], 0.0)
    assert one.take(0.0)


def test_it_is_given_back_for_another_to_take_at_once(join: Join) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    one.release(0.0)
    assert two.take(0.0)
    one.release(0.0)
    assert holder(two) == "http://two", "another's cannot be given back"
    two.release(0.0)
    with pytest.raises(LeaseLost):
        two._store.write([batch(minute(T0))], 0.0)


def test_the_lease_of_a_process_that_has_ended_is_free(join: Join) -> None:
    one = join("one")
    one.take(0.0)
    assert not join("two").take(0.0)
    assert join("three", is_gone=lambda process: process == "one").take(0.0)


def test_each_shard_has_its_own(join: Join) -> None:
    assert join("one", shard="0/2").take(0.0)
    assert join("two", shard="1/2").take(0.0)
    assert not join("three", shard="1/2").take(0.0)


def test_a_database_whose_clock_was_set_back_keeps_nobody_out(
    join: Join, clock: StoppedClock
) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    assert two.take(0.0) is False
    set_end(one._store, 3600)
    assert two.take(0.0) is None
    clock.forward(two.seconds)
    assert two.take(0.0)
    assert not one.take(0.0)


@each_database
@pytest.mark.parametrize("renewed", [True, False])
def test_a_process_that_has_just_begun_waits_for_one_that_may_live(
    join: Join, clock: StoppedClock, renewed: bool
) -> None:
    """The lease of a holder that lives has ended, too, if the database was away."""
    one, two = join("one"), join("two")
    one.take(0.0)
    let_end(one)
    assert two.take(0.0) is None
    clock.forward(two.seconds - 0.1)
    assert two.take(0.0) is None
    if renewed:
        assert one.take(0.0)
    clock.forward(0.1)
    assert two.take(0.0) is not renewed
    assert one.take(0.0) is renewed


@pytest.mark.parametrize("gap", [5.0, 15.1, 100.0])
@pytest.mark.parametrize("suspended", [True, False])
def test_who_has_not_looked_for_a_while_waits_for_the_holder(
    join: Join, clock: StoppedClock, gap: float, suspended: bool
) -> None:
    """It was kept from that, as the holder may have been from renewing it: by a database that hung,
    or as their machine was suspended, for which the monotonic clock stops."""
    one, two = join("one"), join("two")
    one.take(0.0)
    assert two.take(0.0) is False
    let_end(one)
    clock.wall += gap
    clock.monotonic += 0.0 if suspended else gap
    assert two.take(0.0) is (True if gap == 5.0 else None)


@each_database
def test_after_a_failure_of_the_database_the_holder_comes_first(
    join: Join, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    assert two.take(0.0) is False
    let_end(one)
    with monkeypatch.context() as outage:
        outage.setattr(two._store, "open", raise_unavailable)
        with pytest.raises(StoreUnavailable):
            two.take(0.0)
    assert two.take(0.0) is None
    clock.forward(two.seconds / 2)
    with monkeypatch.context() as outage:
        outage.setattr(two._store, "open", raise_unavailable)
        with pytest.raises(StoreUnavailable):
            two.take(0.0)
    clock.forward(two.seconds / 2)
    assert two.take(0.0) is None, "it failed meanwhile"
    clock.forward(two.seconds)
    assert two.take(0.0)


def raise_unavailable(_: float) -> None:
    raise StoreUnavailable("away")


@pytest.mark.parametrize("cause", ["locked", "read-only"])
def test_a_holder_has_its_time_once_the_database_can_be_written(
    join: Join, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """It can be read all the time."""
    monkeypatch.setattr(database, "SQLITE_BUSY_SECONDS", 0.01)
    one, two = join("one"), join("two")
    one.take(0.0)
    let_end(one)
    with ExitStack() as outage:
        if cause == "locked":
            outage.enter_context(one._store.writing(0.0))
        else:
            set_query_only(two, "ON")
            outage.callback(set_query_only, two, "OFF")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"locked|readonly"):
                two.take(0.0)
            assert starts(read(two._store)) == []
            clock.forward(two.seconds)
    assert two.take(0.0) is None
    assert one.take(0.0)


def set_query_only(lease: Lease, value: str) -> None:
    with lease._store.connected() as connection:
        connection.exec_driver_sql(f"PRAGMA query_only={value}")


@each_database
def test_a_process_that_began_without_its_database_writes_once_no_other_can_watch(
    join: Join, clock: StoppedClock
) -> None:
    """What it has counted waits until then."""
    one, two, three = join("one"), join("two"), join("three")
    one.take(0.0)
    let_end(one)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="may go on within"):
            two._store.write([batch(minute(T0))], 0.0)
        assert two.take(0.0) is None
        clock.forward(two.seconds / 2)
    two._store.write([batch(minute(T0))], 0.0)
    assert holder(two) == "http://two"
    with pytest.raises(LeaseLost):
        three._store.write([batch(minute(T0))], 0.0)
    two._store.write([batch(minute(T0 + 60))], 0.0)
    assert starts(read(two._store)) == [T0, T0 + 60]
    assert not one.take(0.0)


@each_database
def test_a_process_that_began_without_its_database_gives_way_to_its_holder(join: Join) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    let_end(one)
    with pytest.raises(StoreUnavailable, match="may go on within"):
        two._store.write([batch(minute(T0))], 0.0)
    one._store.write([batch(minute(T0))], 0.0)
    assert one.take(0.0)
    with pytest.raises(LeaseLost):
        two._store.write([batch(minute(T0))], 0.0)


def test_a_file_that_somebody_deleted_costs_nobody_the_lease(
    join: Join, url: str, clock: StoppedClock
) -> None:
    one, two = join("one"), join("two")
    one.take(0.0)
    assert two.take(0.0) is False
    Path(url.removeprefix("sqlite:///")).unlink()
    assert two.take(0.0) is None
    one._store.write([batch(minute(T0))], 0.0)
    assert two.take(0.0) is False
    Path(url.removeprefix("sqlite:///")).unlink()
    assert two.take(0.0) is None
    clock.forward(two.seconds)
    assert two.take(0.0), "its holder has ended, too"


def test_in_a_new_file_it_is_not_lost(join: Join) -> None:
    """A damaged file was put aside."""
    one, two = join("one"), join("two")
    one.take(0.0)
    with one._store.writing(0.0, leased=False) as connection:
        connection.execute(leases.delete())
    one._store.write([batch(minute(T0))], 0.0)
    assert not two.take(0.0)
    assert one.take(0.0)


def test_the_watcher_has_it_in_the_file_that_it_begins_for_a_damaged_one(
    join: Join, url: str
) -> None:
    """Before a process that stands by looks, which would cost what waits to be written."""
    one, two = join("one"), join("two")
    one.take(0.0)
    assert not two.take(0.0)
    one._store.write([batch(*(minute(T0 + 60 * n) for n in range(500)))], now=0)
    for store in (one._store, two._store):
        store.close()
    with open(url.removeprefix("sqlite:///"), "r+b") as file:
        file.seek(4096)
        file.write(bytes(range(256)) * 1000)
    _, kept = one._store.check(0.0)
    assert kept is not None
    assert not two.take(0.0)
    one._store.write([batch(minute(T0))], 0.0)


@each_database
def test_of_two_that_take_it_at_once_one_has_it(join: Join) -> None:
    join("one").take(0.0)
    for number in range(5):
        racing = [join(f"{name}{number}") for name in ("a", "b", "c")]
        assert not any(lease.take(0.0) for lease in racing)
        let_end(racing[0])
        ready, taken = threading.Barrier(3), []

        def race(lease: Lease, ready: threading.Barrier = ready, taken: list[bool] = taken) -> None:
            ready.wait(20)
            taken.append(lease.take(0.0))

        threads = [threading.Thread(target=race, args=(lease,)) for lease in racing]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(taken) == [False, False, True]


def test_a_process_stopped_in_the_middle_of_a_write_keeps_nobody_from_taking_over(
    postgres: PostgresServer, open_store: OpenStore
) -> None:
    """What it wrote meanwhile is there once: the cursors say who was first."""
    url = postgres.new_url()
    one, two = open_store(url), open_store(url)
    leases_of = [Lease(store, name) for name, store in (("one", one), ("two", two))]
    for store, lease in zip((one, two), leases_of, strict=True):
        store.before_write = lease.check
    leases_of[0].take(0.0)
    with one.writing(0.0) as connection:
        assert leases_of[1].take(0.0) is False
        let_end(leases_of[1])
        assert leases_of[1].take(0.0)
        two.write([batch(minute(T0), cursor=cursor(wall=T0 + 60.0))], 0.0)
        connection.execute(leases.select())
    assert starts(read(two)) == [T0]
