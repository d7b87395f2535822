"""What waits for the database is written in order, once, and within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from specwatch.domain.model import Batch, Cursor, Series
from specwatch.errors import SchemaMismatch, StoreError, StoreUnavailable
from specwatch.store.packing import PackedBatch, pack_batch
from specwatch.store.repository import Store
from specwatch.store.write_queue import DrainResult, WriteQueue
from tests.store.examples import T0, batch, cursor, minute, read, starts


class Paper:
    """A writer that remembers, and fails as often as it is told to."""

    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.written: list[list[int]] = []

    def write(self, batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
        if self.failures:
            raise self.failures.pop(0)
        self.written.append([window.start for batch in batches for window in batch])
        return frozenset()


GONE = StoreUnavailable("gone")


def filled(count: int, **options: int) -> WriteQueue:
    queue = WriteQueue(**options)
    for n in range(count):
        queue.put(batch(minute(n * 60)))
    return queue


def test_all_that_waits_is_written_in_order_in_bounded_transactions() -> None:
    queue, paper = filled(5, per_transaction=2), Paper()
    assert queue.drain(paper, now=0) == DrainResult(written=5)
    assert paper.written == [[0, 60], [120, 180], [240]]
    assert (queue.depth, queue.last_success) == (0, 0)


def test_a_batch_larger_than_a_transaction_is_not_torn_apart() -> None:
    queue, paper = WriteQueue(per_transaction=2), Paper()
    queue.put(batch(*(minute(n * 60) for n in range(5))))
    queue.put(batch(minute(900)))
    queue.drain(paper, now=0)
    assert paper.written == [[0, 60, 120, 180, 240], [900]]


@pytest.mark.parametrize("error", [GONE, SchemaMismatch("newer")], ids=repr)
def test_a_failed_write_is_kept_and_tried_again(error: StoreError) -> None:
    queue, paper = filled(3), Paper(error)
    assert queue.drain(paper, now=100) == DrainResult(error=error)
    assert (queue.depth, queue.failures, queue.last_error, queue.behind_since) == (3, 1, error, 100)
    assert queue.drain(paper, now=101) == DrainResult(written=3)
    assert (queue.depth, queue.failures, queue.last_error, queue.behind_since) == (0, 1, None, None)
    assert queue.last_success == 101


def test_tries_get_rarer_up_to_a_minute_and_start_over_after_success() -> None:
    queue, paper = filled(1), Paper(*[GONE] * 10)
    tried = [now for now in range(400) if not queue.drain(paper, now).waiting and queue.depth]
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    queue.put(batch(minute(0)))
    paper.failures = [GONE]
    queue.drain(paper, now=1000)
    assert queue.drain(paper, now=1001) == DrainResult(written=1)


def test_the_last_try_before_leaving_does_not_wait() -> None:
    queue, paper = filled(1), Paper(GONE)
    queue.drain(paper, now=0)
    assert queue.drain(paper, now=0.1).waiting
    assert queue.drain(paper, now=0.1, force=True).written == 1


def test_a_clock_that_was_set_back_does_not_delay_the_next_try() -> None:
    queue, paper = filled(1), Paper(GONE)
    queue.drain(paper, now=1e9)
    assert queue.drain(paper, now=5).written == 1


def test_a_failure_in_the_middle_keeps_the_rest_only() -> None:
    queue, paper = filled(4, per_transaction=2), Paper()
    write = paper.write

    def fail_second(batches: Sequence[PackedBatch], now: float) -> None:
        if len(paper.written) == 1:
            paper.failures = [GONE]
        return write(batches, now)

    paper.write = fail_second  # type: ignore[method-assign]
    assert queue.drain(paper, now=0) == DrainResult(written=2, error=GONE)
    assert queue.depth == 2
    paper.write = write  # type: ignore[method-assign]
    queue.drain(paper, now=10)
    assert paper.written == [[0, 60], [120, 180]]


def test_beyond_the_limit_the_oldest_are_dropped_and_counted() -> None:
    queue, paper = WriteQueue(limit=4), Paper()
    dropped = [queue.put(batch(minute(n * 60), minute(n * 60 + 1))) for n in range(4)]
    assert (dropped, queue.dropped, queue.depth) == ([0, 0, 2, 2], 4, 4)
    queue.drain(paper, now=0)
    assert paper.written == [[120, 121, 180, 181]]


def test_cursors_without_windows_are_bounded_too() -> None:
    queue = WriteQueue(limit=3)
    for n in range(10):
        queue.put(batch(cursor=cursor(value=n)))
    assert len(queue._batches) == 3


def test_large_windows_are_bounded_by_their_size() -> None:
    queue = WriteQueue(limit=100)
    large = {Series("requests", "", "m", "0", f"{n}{'x' * 600}"): 1.0 for n in range(200)}
    sizes = []
    for n in range(50):
        with_cursor = Cursor("chat", large, None, float(n))
        queue.put(pack_batch(Batch((minute(n * 60),), with_cursor)))
        sizes.append(queue.depth)
    assert sizes[0] == 1
    assert 1 < sizes[-1] < 5
    assert queue.dropped == 50 - sizes[-1]
    queue.drain(Paper(), now=0)
    for n in range(50):
        queue.put(batch(minute(n * 60)))
    assert queue.depth == 50


def test_what_arrives_while_it_is_being_written_is_neither_lost_nor_counted_twice() -> None:
    """The queue overflows during a write: what was written then is not a loss."""
    queue, paper = filled(3, limit=3), Paper()
    write = paper.write

    def meanwhile(batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
        if not paper.written:
            queue.put(batch(minute(6000)))
        return write(batches, now)

    paper.write = meanwhile  # type: ignore[method-assign]
    assert queue.drain(paper, now=0).written == 4
    assert (paper.written, queue.dropped, queue.depth) == ([[0, 60, 120], [6000]], 0, 0)


def test_the_count_of_dropped_windows_never_falls() -> None:
    """It is exported as a counter; what is being written is not dropped meanwhile."""
    queue, paper = filled(3, limit=3), Paper()
    write, seen = paper.write, []

    def meanwhile(batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
        if not paper.written:
            for n in range(5):
                queue.put(batch(minute(6000 + 60 * n)))
                seen.append(queue.dropped)
        return write(batches, now)

    paper.write = meanwhile  # type: ignore[method-assign]
    queue.drain(paper, now=0)
    assert seen == sorted(seen)
    assert queue.dropped == seen[-1] == 4
    assert paper.written == [[0, 60, 120], [6240]]


def test_a_commit_whose_answer_was_lost_doubles_nothing(store: Store) -> None:
    class Unlucky:
        tries = 0

        def write(self, batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
            self.tries += 1
            superseded = store.write(batches, now)
            if self.tries == 1:
                raise StoreUnavailable("the connection broke after the commit")
            return superseded

    queue, unlucky = WriteQueue(), Unlucky()
    queue.put(batch(minute(T0), cursor=cursor(value=1)))
    queue.put(batch(minute(T0 + 60), cursor=cursor(value=2)))
    queue.drain(unlucky, now=0)
    queue.drain(unlucky, now=5)
    assert (unlucky.tries, starts(read(store))) == (2, [T0, T0 + 60])
    assert store.cursors() == {"chat": cursor(value=2)}
