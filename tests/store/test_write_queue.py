"""Windows that wait for the database are written in order, once, and within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specwatch.domain.model import Batch, Cursor, Series
from specwatch.errors import SchemaMismatch, StoreError, StoreUnavailable
from specwatch.store.batches import PackedBatch, pack_batch
from specwatch.store.repository import Store
from specwatch.store.write_queue import DrainResult, WriteQueue
from tests.store.examples import T0, batch, cursor, minute, read, starts

GONE = StoreUnavailable("gone")


class FakeStore:
    """Remembers the starts of windows, fails as often as told, and calls ``before`` each write."""

    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.written: list[list[int]] = []
        self.before: Callable[[], object] = lambda: None

    def write(self, batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
        self.before()
        if self.failures:
            raise self.failures.pop(0)
        self.written.append([window.start for batch in batches for window in batch])
        return frozenset()


def filled(count: int, **options: int) -> WriteQueue:
    queue = WriteQueue(**options)
    for n in range(count):
        queue.put(batch(minute(n * 60)))
    return queue


def drain(queue: WriteQueue, store: object, now: float = 0.0, **options: bool) -> DrainResult:
    writer: Any = store
    return queue.drain(writer, now, **options)


def test_batches_are_written_whole_in_order_and_in_bounded_transactions() -> None:
    queue, store = filled(5, per_transaction=2), FakeStore()
    queue.put(batch(*(minute(900 + n * 60) for n in range(3))))
    assert drain(queue, store) == DrainResult(written=8)
    assert store.written == [[0, 60], [120, 180], [240], [900, 960, 1020]]
    assert (queue.depth, queue.last_success) == (0, 0)


@pytest.mark.parametrize("error", [GONE, SchemaMismatch("newer")], ids=repr)
def test_a_failed_write_is_kept_and_tried_again(error: StoreError) -> None:
    queue, store = filled(3), FakeStore(error)
    assert drain(queue, store, 100) == DrainResult(error=error)
    assert (queue.depth, queue.failures, queue.last_error, queue.behind_since) == (3, 1, error, 100)
    assert drain(queue, store, 101) == DrainResult(written=3)
    assert (queue.depth, queue.failures, queue.last_error, queue.behind_since) == (0, 1, None, None)
    assert queue.last_success == 101


def test_delays_between_tries_double_up_to_a_minute_and_start_over_after_success() -> None:
    queue, store = filled(1), FakeStore(*[GONE] * 10)
    tried = [now for now in range(400) if not drain(queue, store, now).waiting and queue.depth]
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    queue.put(batch(minute(0)))
    store.failures = [GONE]
    drain(queue, store, 1000)
    assert drain(queue, store, 1001) == DrainResult(written=1)


@pytest.mark.parametrize(
    ("now", "force", "written"),
    [(100.1, False, 0), (100.1, True, 1), (5.0, False, 1)],
    ids=["too soon", "the last try before the end", "a clock that was set back"],
)
def test_after_a_failure_a_write_waits_unless(now: float, force: bool, written: int) -> None:
    queue, store = filled(1), FakeStore(GONE)
    drain(queue, store, 100.0)
    result = drain(queue, store, now, force=force)
    assert (result.written, result.waiting) == (written, not written)


def test_a_failure_in_the_middle_keeps_only_the_rest() -> None:
    queue, store = filled(4, per_transaction=2), FakeStore()
    store.before = lambda: store.failures.extend([GONE] * (len(store.written) == 1))
    assert drain(queue, store) == DrainResult(written=2, error=GONE)
    assert queue.depth == 2
    store.before = lambda: None
    drain(queue, store, 10)
    assert store.written == [[0, 60], [120, 180]]


def test_beyond_the_limit_the_oldest_batches_are_dropped_and_counted() -> None:
    queue, store = WriteQueue(limit=4), FakeStore()
    dropped = [queue.put(batch(minute(n * 60), minute(n * 60 + 1))) for n in range(4)]
    assert (dropped, queue.dropped, queue.depth) == ([0, 0, 2, 2], 4, 4)
    drain(queue, store)
    assert store.written == [[120, 121, 180, 181]]


def test_batches_are_bounded_by_number_and_size_too() -> None:
    queue = WriteQueue(limit=3)
    for n in range(10):
        queue.put(batch(cursor=cursor(value=n)))
    assert len(queue._batches) == 3
    queue = WriteQueue(limit=100)
    large = {Series("requests", "", "m", "0", f"{n}{'x' * 600}"): 1.0 for n in range(200)}
    for n in range(50):
        queue.put(pack_batch(Batch((minute(n * 60),), Cursor("chat", large, None, float(n)))))
    assert 1 < queue.depth < 5
    assert queue.dropped == 50 - queue.depth
    drain(queue, FakeStore())
    for n in range(50):
        queue.put(batch(minute(n * 60)))
    assert queue.depth == 50


@pytest.mark.parametrize(("arriving", "dropped"), [(1, 0), (5, 4)])
def test_windows_that_are_being_written_are_not_dropped(arriving: int, dropped: int) -> None:
    """The queue overflows meanwhile; the number of dropped windows is a counter."""
    queue, store = filled(3, limit=3), FakeStore()
    counts: list[int] = []

    def arrive() -> None:
        for n in range(0 if store.written else arriving):
            queue.put(batch(minute(6000 + 60 * n)))
            counts.append(queue.dropped)

    store.before = arrive
    assert drain(queue, store).written == 4
    assert store.written == [[0, 60, 120], [6000 + 60 * dropped]]
    assert (counts, queue.dropped, queue.depth) == (sorted(counts), dropped, 0)


def test_a_commit_whose_answer_was_lost_doubles_nothing(store: Store) -> None:
    queue, answers = WriteQueue(), iter([True])

    class Unlucky:
        def write(self, batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
            superseded = store.write(batches, now)
            if next(answers, False):
                store.close(now)
                raise StoreUnavailable("the connection broke after the commit")
            return superseded

    queue.put(batch(minute(T0), cursor=cursor(value=1)))
    queue.put(batch(minute(T0 + 60), cursor=cursor(value=2)))
    assert drain(queue, Unlucky()).error
    assert drain(queue, Unlucky(), 5).written == 2
    assert starts(read(store)) == [T0, T0 + 60]
    assert store.cursors() == {"chat": cursor(value=2)}
    assert store.info().rows["runs"] == 1
