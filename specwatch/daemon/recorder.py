"""Writes closed windows to the database, and keeps them while the database is away."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from specwatch.config.sections import Retention
from specwatch.domain.model import Batch, Cursor, Moment
from specwatch.errors import StoreError, StoreMalformed
from specwatch.status import StoreStatus
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from specwatch.store.write_queue import WriteQueue

_log = structlog.get_logger("specwatch.daemon.recorder")

_CHECK_SECONDS = 7 * 86400.0
_MOST_LOGGED = 5
"""Problems of a damaged file, and targets, that are logged."""


class Recorder:
    """Queues windows, writes them, rolls them up and prunes them.

    Nothing raises when the database fails: the failure is logged once, counted, and in ``status``.
    """

    def __init__(
        self,
        store: Store,
        *,
        queue_limit: int,
        now: Callable[[], Moment],
        resume: Callable[[Mapping[str, Cursor]], None],
        supersede: Callable[[Mapping[str, Cursor]], None],
        configuring: threading.Lock,
    ) -> None:
        """``queue_limit`` bounds the windows that wait in memory. While ``configuring`` is held, no
        target comes or leaves.

        Both callbacks get the cursors at which reading each target stopped: ``resume`` before the
        first write, if the database was away at :meth:`open`; ``supersede`` if another process of
        our name has counted the same.
        """
        self.store = store
        self._queue = WriteQueue(limit=queue_limit)
        self._now = now
        self._resume = resume
        self._supersede = supersede
        self._configuring = configuring
        self._written = 0
        self._unstorable = 0
        self.opened = False
        """Whether the database was ever reached."""
        self._failures = 0
        self._error: StoreError | None = None
        """Why something other than a write failed, until it succeeds."""
        self._behind_since: float | None = None
        self._rolling_up = threading.Lock()
        self._check_at = -math.inf
        """When a SQLite file is checked next, on the monotonic clock."""

    @property
    def ready(self) -> bool:
        """Whether the database was reached, and nothing failed since."""
        return self.writing and self._error is None

    @property
    def writing(self) -> bool:
        """Whether the database was reached, and the last write succeeded."""
        return self.opened and self._queue.last_error is None

    def open(self) -> dict[str, Cursor]:
        """Connect; returns where reading each target stopped, nothing if the database is away."""
        cursors = self._connect()
        self.opened = cursors is not None
        return cursors or {}

    def _connect(self) -> dict[str, Cursor] | None:
        try:
            self.store.open(self._now().wall)
            cursors = self.store.cursors()
        except StoreError as error:
            self._failed("store_unavailable", error)
            return None
        self._succeeded()
        return cursors

    def cursors(self, targets: Collection[str] | None = None) -> dict[str, Cursor]:
        """Where reading these targets, by default all, stopped; none if the database is away."""
        try:
            return self.store.cursors(targets) if self.opened else {}
        except StoreError as error:
            self._failed("cursors_unread", error)
            return {}

    def put(self, batch: Batch) -> None:
        """Take closed windows."""
        try:
            packed = pack_batch(batch)
        except ValueError as error:
            self._unstorable += len(batch.windows)
            _log.error("windows_unstorable", windows=len(batch.windows), detail=str(error)[:500])
            return
        dropped = self._queue.put(packed)
        if dropped:
            _log.error("windows_dropped", windows=dropped, queued=self._queue.depth)

    def flush(self, *, force: bool = False) -> None:
        """Write what waits; after a failure only once its delay is over, or with ``force``."""
        if not self.opened:
            cursors = self._connect()
            if cursors is None:
                return
            with self._configuring:  # a target that comes before is resumed, one after begins so
                self.opened = True
                self._resume(cursors)
        before = self._queue.last_error
        outcome = self._queue.drain(self.store, self._now().wall, force=force)
        self._written += outcome.written
        if outcome.superseded:
            cursors = self.cursors()
            self._supersede({name: cursors[name] for name in outcome.superseded & cursors.keys()})
            _log.warning(
                "counted_by_another",
                targets=sorted(outcome.superseded)[:_MOST_LOGGED],
                remedy="another daemon of this name watches them too; each count is stored once. If"
                " this lasts, give all daemons of the name the same number of shards",
            )
        if outcome.error is not None and str(outcome.error) != str(before):
            _log.error(
                "store_write_failed",
                detail=str(outcome.error),
                retry=outcome.error.retry,
                queued=self._queue.depth,
            )
        elif before is not None and outcome.written:
            _log.info("store_recovered", written=outcome.written)
        if self._error is not None and outcome.written:
            if before is not None:
                self._forget_failure()  # its end has just been logged
            # The database is back: what failed meanwhile need not wait for its next turn.
            self.roll_up()
        if isinstance(outcome.error, StoreMalformed):
            self.check(outcome.error)

    def check_if_due(self) -> None:
        """Look whether a SQLite file is damaged: at start, and once a week."""
        if self._now().monotonic >= self._check_at:
            self.check()

    def check(self, malformed: StoreMalformed | None = None) -> None:
        """Look whether a SQLite file is damaged; if so, or if it is ``malformed`` by what SQLite
        said already, it is put aside and a new one begun."""
        try:
            problems, kept = self.store.check(self._now().wall, malformed)
        except StoreError as error:
            self._failed("check_failed", error)
            return
        self._check_at = self._now().monotonic + _CHECK_SECONDS
        if kept is not None:
            _log.error(
                "database_damaged",
                problems=problems[:_MOST_LOGGED],
                kept=str(kept),
                remedy="the damaged file was put aside, and a new one is begun: history, baselines"
                " and the state of guards are lost. Check the disk and the memory of this machine",
            )

    def roll_up(self) -> None:
        """Bring the hours up to date."""
        with self._rolling_up:
            now = self._now().wall
            try:
                built = self.store.roll_up(now)
            except StoreError as error:
                self._failed("roll_up_failed", error)
                return
            self._succeeded()
            if built:
                _log.info("rolled_up", hours=built)

    def prune(self, keep: Retention, baselines_kept: float) -> None:
        """Delete what is older than the retention, and baselines that have expired as well."""
        try:
            pruned = self.store.prune(self._now().wall, keep.minutes, keep.hours, baselines_kept)
        except StoreError as error:
            self._failed("prune_failed", error)
            return
        if any(pruned):
            _log.info("pruned", **pruned._asdict())

    def close(self) -> None:
        """Disconnect."""
        try:
            self.store.close(self._now().wall)
        except StoreError as error:
            _log.warning("store_not_closed", detail=str(error))

    def _failed(self, event: str, error: StoreError) -> None:
        if str(error) != str(self._error):
            _log.error(event, detail=str(error), retry=error.retry)
        self._failures += 1
        self._error = error
        if self._behind_since is None:
            self._behind_since = self._now().wall
        if isinstance(error, StoreMalformed):
            self.check(error)

    def _succeeded(self) -> None:
        # While writes still fail, the end of that failure is the one to log.
        if self._error is not None and self._queue.last_error is None:
            _log.info("store_recovered", queued=self._queue.depth)
        self._forget_failure()

    def _forget_failure(self) -> None:
        self._error = self._behind_since = None

    def status(self) -> StoreStatus:
        """The store now."""
        queue = self._queue
        error = queue.last_error or self._error
        return StoreStatus(
            where=self.store.where,
            written=self._written,
            queued=queue.depth,
            dropped=queue.dropped + self._unstorable,
            failures=queue.failures + self._failures,
            error=str(error) if error else None,
            behind_since=queue.behind_since or self._behind_since,
            last_write=queue.last_success,
            damaged_files=self.store.damaged_files,
        )
