"""A bounded queue of windows that wait for the database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwatch.errors import StoreError
from specwatch.store.batches import PackedBatch

if TYPE_CHECKING:
    from specwatch.store.repository import Store

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
_WINDOW_BYTES = 4000
"""Average bytes of a window with its cursor; if they are larger, fewer are kept."""


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of one drain.

    ``written`` counts windows; ``error`` is the failure that ended it; ``waiting`` is whether
    nothing was tried because the last failure was too recent; ``superseded`` are the targets that
    another process has written, as :meth:`specwatch.store.repository.Store.write` says.
    """

    written: int = 0
    error: StoreError | None = None
    waiting: bool = False
    superseded: frozenset[str] = frozenset()


class WriteQueue:
    """Batches in the order of their arrival; safe to use from several threads.

    ``limit`` is the largest number of windows (about 600 bytes each); their largest size is 4000
    bytes times ``limit``. Beyond it whole batches are dropped, oldest first, and counted.
    ``per_transaction`` is the largest number of windows of one write. Times are Unix seconds.
    """

    def __init__(self, limit: int = 50_000, per_transaction: int = 2_000) -> None:
        self._limit = limit
        self._per_transaction = per_transaction
        self._batches: deque[PackedBatch] = deque()
        self.depth = 0
        """Windows that wait."""
        self._size = 0
        self._writing = 0
        """Batches at the head that are being written, and must not be dropped."""
        self.dropped = 0
        """Windows that were dropped for lack of room, ever."""
        self.failures = 0
        """Failed writes, ever."""
        self.last_error: StoreError | None = None
        """Why the last write failed; None once one succeeded."""
        self.last_success: float | None = None
        """When something was last written."""
        self.behind_since: float | None = None
        """When writing began to fail; None while it works."""
        self._delay = 0.0
        self._failed_at: float | None = None
        self._lock = threading.Lock()
        self._draining = threading.Lock()

    def put(self, batch: PackedBatch) -> int:
        """Add a batch; returns how many windows were dropped for it."""
        with self._lock:
            self._batches.append(batch)
            self.depth += len(batch)
            self._size += batch.size
            before = self.dropped
            # A batch may be only a cursor, so the number of batches is bounded as well.
            while (
                max(self.depth, len(self._batches), self._size // _WINDOW_BYTES) > self._limit
                and len(self._batches) > self._writing + 1
            ):
                oldest = self._batches[self._writing]
                del self._batches[self._writing]
                self.depth -= len(oldest)
                self._size -= oldest.size
                self.dropped += len(oldest)
            return self.dropped - before

    def drain(self, writer: Store, now: float, *, force: bool = False) -> DrainResult:
        """Write what waits, oldest first, until done or a write fails.

        After a failure nothing is tried for 1 s, doubling up to 60 s, unless ``force``.
        """
        with self._draining:
            if not force and self._is_too_soon(now):
                return DrainResult(waiting=True)
            written = 0
            superseded: frozenset[str] = frozenset()
            while pending := self._next():
                try:
                    left_out = writer.write(pending, now)
                except StoreError as error:
                    self._failed(error, now)
                    return DrainResult(written, error, superseded=superseded)
                superseded |= left_out
                written += sum(
                    len(batch)
                    for batch in pending
                    if batch.cursor is None or batch.cursor.target not in left_out
                )
                self._written(pending, now)
            return DrainResult(written, superseded=superseded)

    def _is_too_soon(self, now: float) -> bool:
        # A clock that was set back must not make the wait longer.
        failed = self._failed_at
        return failed is not None and failed <= now < failed + self._delay

    def _next(self) -> list[PackedBatch]:
        with self._lock:
            chosen: list[PackedBatch] = []
            windows = 0
            for batch in self._batches:
                if chosen and windows + len(batch) > self._per_transaction:
                    break
                chosen.append(batch)
                windows += len(batch)
            self._writing = len(chosen)
            return chosen

    def _written(self, batches: Sequence[PackedBatch], now: float) -> None:
        with self._lock:
            for batch in batches:
                self._batches.popleft()
                self.depth -= len(batch)
                self._size -= batch.size
            self._writing = 0
            self.last_success = now
            self.last_error = self.behind_since = self._failed_at = None
            self._delay = 0.0

    def _failed(self, error: StoreError, now: float) -> None:
        with self._lock:
            self.failures += 1
            self._writing = 0
            self.last_error = error
            if self.behind_since is None:
                self.behind_since = now
            self._delay = min(max(FIRST_DELAY, 2 * self._delay), LONGEST_DELAY)
            self._failed_at = now
