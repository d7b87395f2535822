"""The store: what a daemon has measured, written in batches and read over all daemons."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
import structlog

from specwatch import __version__
from specwatch.domain.baseline import MAX_AGE, Measurement
from specwatch.domain.experiments import Calibration, Experiment
from specwatch.domain.model import HOUR, MINUTE, Cursor, SeriesId
from specwatch.domain.switchback import Switchback
from specwatch.errors import StoreError, StoreMalformed, StoreUnavailable
from specwatch.rules.decisions import Decision
from specwatch.store import (
    cursor_rows,
    experiment_rows,
    integrity,
    measurement_rows,
    partitions,
    rollups_and_retention,
    schema,
    verdict_rows,
    window_rows,
)
from specwatch.store.batches import PackedBatch
from specwatch.store.counts import Context, PackedWindow
from specwatch.store.cursor_rows import PackedCursor
from specwatch.store.database import Database, create
from specwatch.store.readers import Reader
from specwatch.store.rollups_and_retention import Pruned
from specwatch.store.statements import add_contexts, add_layouts

_log = structlog.get_logger("specwatch.store")
Pick = Callable[[sa.Connection, Sequence[PackedWindow]], Sequence[PackedWindow]]
"""Selects, inside the transaction, which windows to write."""
MOST_LAYOUT_BYTES = 4 << 20
"""Bytes of cursors' layouts that a target may add in an hour. Each set of counters has its layout,
and they are never deleted: a server that makes up names would fill the disk."""
CLOSE_SECONDS = 1.0
"""How long :meth:`Store.close` waits for a write in another thread."""


class Store(Reader):
    """One daemon's view of the database; safe to use from several threads.

    The constructor does not connect; it raises ConfigError for a URL that cannot be used. Every
    method raises StoreUnavailable if the database cannot be used now (the store reconnects
    automatically, so that a later call may work) and SchemaMismatch if another version of specwatch
    has migrated it. ``now`` is Unix time in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        daemon: str,
        version: str = __version__,
        host: str | None = None,
        pid: int | None = None,
    ) -> None:
        self.url = url
        self.daemon = daemon
        self.before_write: Callable[[sa.Connection], None] = lambda _: None
        """Called in every transaction that writes; it may raise StoreError."""
        self._identity = {
            "daemon": daemon,
            "version": version,
            "host": socket.gethostname() if host is None else host,
            "pid": os.getpid() if pid is None else pid,
        }
        super().__init__(Database(url))
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._opened = False
        self._run: window_rows.Run | None = None
        self._series: dict[SeriesId, int] = {}
        self._contexts: dict[Context, int] = {}
        self._layouts: set[int] = set()
        self._layout_bytes: Counter[str] = Counter()
        """Bytes of new layouts by target in the hour ``_layout_hour``."""
        self._layout_hour = 0

    @property
    def _run_id(self) -> int:
        return 0 if self._run is None else self._run.id

    @property
    def where(self) -> str:
        """The name of the database in messages, without a password."""
        return self._database.where

    def open(self, now: float) -> None:
        """Connect, create or upgrade the tables, register this run. Can be repeated."""
        with self._lock:
            if self._database.was_replaced():
                # Its file was deleted or replaced: what is written to the old one would be lost.
                self._database.dispose()
                self._forget()
            if self._opened:
                return
            self._stopping.clear()
            self._database.prepare()
            with self._database.reading() as connection:
                revision = schema.found_revision(connection)
            schema.require_known(revision, self.where)
            if revision != schema.CURRENT and not (revision is None and create(self.url)):
                from specwatch.store import migrate

                migrate.upgrade(self.url)
            partitions.make(self._database, now)
            with self._database.writing() as connection:
                self._run = window_rows.register_run(
                    connection, self._run or window_rows.Run(int(now), self._identity)
                )
            self._database.remember_file()
            self._opened = True

    def write(self, batches: Sequence[PackedBatch], now: float) -> frozenset[str]:
        """Write minutes and cursors in one transaction; repeating it changes nothing.

        Returns the targets whose counts another process with this daemon's name has written as
        well: nothing is written for them, and counting continues from :meth:`cursors`.

        Of several cursors of one target the last is kept. A cursor whose layout exceeds what the
        target may add (:data:`MOST_LAYOUT_BYTES`) is deleted instead, so that the next start counts
        from its first page. Raises ValueError for windows that are not whole minutes.
        """
        own = [batch.cursor for batch in batches if batch.cursor]
        with self._lock:
            with self.writing(now) as connection:
                left_out, repeated = cursor_rows.superseded(
                    connection, self.daemon, own, self._run_id
                )
                gone = set(map(id, left_out + repeated))
                cursors = {cursor.target: cursor for cursor in own if id(cursor) not in gone}
                windows = [
                    window
                    for batch in batches
                    if batch.cursor is None or id(batch.cursor) not in gone
                    for window in batch
                ]
                added = self._write(connection, windows, cursors, now)
            self._remember(*added)
        gone = set(map(id, left_out))
        last = {cursor.target: cursor for cursor in own}
        return frozenset(target for target, cursor in last.items() if id(cursor) in gone)

    def add_missing(self, windows: Sequence[PackedWindow], now: float, missing: Pick) -> int:
        """Write the minutes that ``missing`` picks inside the transaction; returns how many.

        Cursors stay unchanged. Raises ValueError as :meth:`write` does.
        """
        with self._lock:
            with self.writing(now) as connection:
                chosen = missing(connection, windows)
                added = self._write(connection, chosen, {}, now)
            self._remember(*added)
        return len(chosen)

    def write_measurements(self, measurements: Sequence[Measurement], now: float) -> None:
        """Write baselines in one transaction; repeating it changes nothing.

        Measurements of the target's own traffic are added to the stored one of the same key, load
        bin and origin. Any other measurement replaces it.
        """
        with self.writing(now) as connection:
            measurement_rows.put(connection, measurements)

    def add_experiment(self, experiment: Experiment | Calibration, now: float) -> int:
        """Store a probe, bench, comparison or calibration; returns its number."""
        with self.writing(now) as connection:
            return experiment_rows.add(connection, experiment)

    def change_switchback(
        self, target: str, change: Callable[[Switchback | None], Switchback | None], now: float
    ) -> Switchback | None:
        """Store what ``change`` makes of the experiment of a target, None for no change; returns
        what is stored then."""
        with self.writing(now) as connection:
            stored = next(iter(experiment_rows.switchbacks(connection, target)), None)
            changed = change(stored)
            if changed is not None:
                experiment_rows.put_switchback(connection, changed, now)
            return changed or stored

    def write_verdicts(self, decisions: Sequence[Decision], now: float) -> None:
        """Write changes of verdicts in one transaction; repeating it changes nothing."""
        with self.writing(now) as connection:
            verdict_rows.add(connection, decisions)

    def cursors(self, targets: Collection[str] | None = None) -> dict[str, Cursor]:
        """Where this daemon stopped reading, by target: of these targets, by default of all."""
        with self.connected() as connection:
            return cursor_rows.read(connection, self.daemon, targets)

    def roll_up(self, now: float, *, everybody: bool = False) -> int:
        """Bring the hours of this daemon, or of all, up to date; returns how many series-hours
        were built.

        An hour is built 5 minutes after its end, and again when late minutes were written.
        """
        self.open(now)
        return rollups_and_retention.roll_up(
            self._database,
            rollups_and_retention.closed_until(now),
            self._stopping,
            daemon=None if everybody else self.daemon,
        )

    def prune(
        self,
        now: float,
        minutes_kept: float,
        hours_kept: float,
        baselines_kept: float = MAX_AGE,
    ) -> Pruned:
        """Delete rows of all daemons older than that many seconds, in many small transactions.

        Minutes that are not in an hour yet are rolled up first. A baseline is kept until it has
        expired, and at least as long as hours.
        """
        self.open(now)
        partitions.make(self._database, now)
        return rollups_and_retention.prune(
            self._database,
            now - minutes_kept,
            now - hours_kept,
            now - max(hours_kept, baselines_kept),
            self._stopping,
        )

    def check(
        self, now: float, malformed: StoreMalformed | None = None
    ) -> tuple[list[str], Path | None]:
        """Look for damage of a SQLite file; a damaged one is put aside, and a new one begun.

        ``malformed`` is what SQLite said already. Returns the problems, and the new name of the
        file. Raises StoreUnavailable.
        """
        found = integrity.problems(self._database) or ([str(malformed)] if malformed else [])
        if not found:
            return [], None
        with self._lock:
            kept = integrity.put_aside(self._database, now)
            self._database.dispose()
            self._forget()
            self.open(now)
            # The new file has no lease yet: we take it before a process that stands by looks. If
            # that fails, the next write says so.
            with suppress(StoreError), self.writing(now):
                pass
        return found, kept

    @property
    def damaged_files(self) -> tuple[str, ...]:
        """Damaged SQLite files that were put aside and are still there."""
        return integrity.damaged_files(self._database)

    def open_breaches(self, target: str | None = None) -> list[Decision]:
        """This daemon's breaches that have not ended, of one target or of all."""
        with self.connected() as connection:
            return verdict_rows.open_breaches(connection, self.daemon, target)

    def close(self, now: float | None = None) -> None:
        """Note the end of this run, if ``now`` is given, and disconnect.

        Work in other threads stops soon. Raises StoreUnavailable while another thread writes.
        """
        self._stopping.set()
        if not self._lock.acquire(timeout=CLOSE_SECONDS):
            raise StoreUnavailable(
                f"{self.where}: a write still waits for it; the run is not marked as ended"
            )
        try:
            if now is not None and self._opened and self._run is not None:
                with self._database.writing() as connection:
                    window_rows.end_run(connection, self._run, now)
        finally:
            self._forget()
            self._database.dispose()
            self._lock.release()

    def _forget(self) -> None:
        """Forget what is cached of the database; the next use reads it again."""
        with self._lock:
            self._opened = False
            self._series = {}
            self._contexts = {}
            self._layouts = set()

    @contextmanager
    def writing(self, now: float, *, leased: bool = True) -> Iterator[sa.Connection]:
        """A transaction in a database with the current schema; ``leased``: one that needs the
        lease, so that :attr:`before_write` is called."""
        with self._lock:
            self.open(now)
            try:
                with self._database.writing() as connection:
                    self._require_current(connection)
                    if leased:
                        self.before_write(connection)
                    yield connection
            except StoreError:
                self._forget()
                raise

    def _write(
        self,
        connection: sa.Connection,
        windows: Sequence[PackedWindow],
        cursors: Mapping[str, PackedCursor],
        now: float,
    ) -> tuple[set[int], dict[Context, int], dict[SeriesId, int]]:
        """Write windows and cursors; returns layouts, contexts and series to remember after the
        commit."""
        if any(window.length != MINUTE or window.start % MINUTE for window in windows):
            raise ValueError("only whole minutes are written; hours are rolled up from them")
        contexts = {window.context for window in windows}
        kept = {target: c for target, c in cursors.items() if self._affordable(c, now)}
        new_layouts = add_layouts(
            connection, (cursor.layout for cursor in kept.values()), self._layouts
        )
        new_contexts = add_contexts(connection, contexts, self._contexts)
        new_series = window_rows.add_series(connection, windows, self._series)
        window_rows.add(
            connection,
            windows,
            self._series | new_series,
            self._contexts | new_contexts,
            self._run_id,
        )
        cursor_rows.put(connection, self.daemon, kept.values(), self._run_id)
        dropped = [target for target in cursors if target not in kept]
        if dropped:
            cursor_rows.delete(connection, self.daemon, dropped)
        return new_layouts, new_contexts, new_series

    def _remember(
        self, layouts: set[int], contexts: Mapping[Context, int], series: Mapping[SeriesId, int]
    ) -> None:
        self._layouts |= layouts
        self._contexts |= contexts
        self._series |= series

    def _affordable(self, cursor: PackedCursor, now: float) -> bool:
        """Whether a target may still add the layout of its cursor in this hour."""
        if cursor.layout.id in self._layouts:
            return True
        if self._layout_hour != now // HOUR:
            self._layout_hour, self._layout_bytes = int(now // HOUR), Counter()
        before, size = self._layout_bytes[cursor.target], len(cursor.layout.content)
        self._layout_bytes[cursor.target] += size
        if before <= MOST_LAYOUT_BYTES < before + size:
            _log.warning(
                "cursor_not_stored",
                target=cursor.target,
                detail=f"the names of its counters change, and took {before + size} bytes within an"
                f" hour: expected at most {MOST_LAYOUT_BYTES}; if specwatch restarts within this"
                " hour, what the target counts meanwhile is lost",
            )
        return before + size <= MOST_LAYOUT_BYTES

    def _require_current(self, connection: sa.Connection) -> None:
        revision = schema.stored_revision(connection)
        schema.require_known(revision, self.where)
        if revision != schema.CURRENT:
            raise StoreUnavailable(
                f"{self.where} went back to schema revision {revision}; the next try upgrades it"
            )
