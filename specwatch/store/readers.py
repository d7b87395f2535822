"""Reads the store, over all daemons, in small transactions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Required, TypedDict, Unpack

import sqlalchemy as sa

from specwatch.domain.baseline import Measurement
from specwatch.domain.experiments import Experiment
from specwatch.domain.model import HOUR, MINUTE, Mode, SeriesId, Window
from specwatch.domain.switchback import Switchback
from specwatch.errors import StoreUnavailable
from specwatch.rules.decisions import Decision
from specwatch.store import experiment_rows, measurement_rows, schema, verdict_rows
from specwatch.store.counts import Context
from specwatch.store.database import Database
from specwatch.store.statements import read_series, series_of
from specwatch.store.verdict_rows import VerdictSelection

if TYPE_CHECKING:
    from specwatch.store.frame import Frame

TABLES = {MINUTE: schema.minutes, HOUR: schema.hours}
_ROWS_AT_ONCE = 4000
_MOST_COUNTED = 1_000_000
_WATCHED = attrgetter("target", "model_name", "daemon")
_PLACE = attrgetter("start", "series.target", "series.model_name", "series.segment")


class Selection(TypedDict, total=False):
    """Which windows to read; what is None or left out is not restricted."""

    since: Required[float]
    until: Required[float]
    length: int
    target: str | None
    model_name: str | None
    dimension: str | None
    value: str | None
    daemon: str | None
    mode: Mode | None
    limit: int | None


class WatchedModel(NamedTuple):
    """One model of one target that one daemon watched; starts are in Unix seconds."""

    daemon: str
    target: str
    model_name: str
    first_start: int
    last_start: int


@dataclass(frozen=True, slots=True)
class Info:
    """The size of a database in bytes, and its rows by table.

    Rows are counted up to a million; the names of larger tables are not in ``exact``.
    """

    where: str
    revision: str | None
    size: int
    rows: Mapping[str, int]
    exact: frozenset[str]


class Reader:
    """Reads the database of a daemon; it creates and registers nothing.

    Every method raises StoreUnavailable if the database cannot be read or is not set up, and
    SchemaMismatch if a newer specwatch has migrated it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    def of(url: str) -> Reader:
        """A reader of the database at a URL."""
        return Reader(Database(url))

    def close(self) -> None:
        """Disconnect; a later read connects again."""
        self._database.dispose()

    def windows(self, **selection: Unpack[Selection]) -> Iterator[Window]:
        """Yield windows that start in ``since <= start < until`` (Unix seconds), by start.

        ``length`` is 60 (the default) or 3600; ``limit`` is the largest number of windows. There
        is one minute per series and start: two runs of a daemon are added up, and of two daemons
        on one target the one with more good scrapes counts. An hour has a window for each mode,
        load bin and environment. With a ``mode`` the rows of other modes do not count.
        """
        length = selection.get("length", MINUTE)
        if length not in TABLES:
            raise ValueError(f"windows are {MINUTE} or {HOUR} s long, not {length}")
        return itertools.islice(self._windows(length, selection), selection.get("limit"))

    def targets(self) -> list[WatchedModel]:
        """The models that were watched, by target, model and daemon."""
        column = schema.series.c
        key = column.daemon, column.target, column.model_name
        span = sa.func.min(column.first_start), sa.func.max(column.last_start)
        with self.connected() as connection:
            rows = connection.execute(sa.select(*key, *span).group_by(*key))
            return sorted((WatchedModel(*row) for row in rows), key=_WATCHED)

    def measurements(self, target: str | None = None) -> list[Measurement]:
        """The baselines of a target, or of all, by key, load bin and origin, of all daemons."""
        with self.connected() as connection:
            return measurement_rows.read(connection, target)

    def measurements_version(self) -> tuple[float, ...]:
        """See :func:`specwatch.store.measurement_rows.version`."""
        with self.connected() as connection:
            return measurement_rows.version(connection)

    def experiment(self, number: int) -> Experiment | None:
        """A stored probe, bench or comparison.

        Raises ConfigError for the format of another version.
        """
        with self.connected() as connection:
            return experiment_rows.fetch(connection, number)

    def experiments(
        self, since: float, until: float, target: str | None = None
    ) -> list[experiment_rows.Stored]:
        """Experiments that ended in ``since <= at < until`` (Unix seconds), oldest first."""
        with self.connected() as connection:
            return experiment_rows.between(connection, since, until, target)

    def switchbacks(self, target: str | None = None) -> list[Switchback]:
        """The experiments on live traffic, of all targets or one."""
        with self.connected() as connection:
            return experiment_rows.switchbacks(connection, target)

    def experiment_spans(self, since: float, target: str) -> list[experiment_rows.LoadSpan]:
        """When experiments on a target ran since ``since`` (Unix seconds): its windows of these
        times are not of its users' traffic."""
        with self.connected() as connection:
            return experiment_rows.spans(connection, since, target)

    def verdicts(self, **selection: Unpack[VerdictSelection]) -> list[Decision]:
        """Changes of verdicts in ``since <= at < until`` (Unix seconds), newest first."""
        with self.connected() as connection:
            return verdict_rows.read(connection, **selection)

    def info(self) -> Info:
        """Schema revision, size and rows."""
        with self.connected() as connection:
            rows = {}
            for name, table in schema.metadata.tables.items():
                some = sa.select(sa.literal(1)).select_from(table).limit(_MOST_COUNTED).subquery()
                counted = sa.select(sa.func.count()).select_from(some)
                rows[name] = int(connection.execute(counted).scalar_one())
            return Info(
                self._database.where,
                schema.stored_revision(connection),
                self._size(connection),
                rows,
                frozenset(name for name, count in rows.items() if count < _MOST_COUNTED),
            )

    def _size(self, connection: sa.Connection) -> int:
        if self._database.is_sqlite:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())
        names = [sa.func.pg_total_relation_size(name) for name in schema.metadata.tables]
        of_tables = sum(int(size) for size in connection.execute(sa.select(*names)).one())
        of_partitions = connection.exec_driver_sql(
            "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits"
            " WHERE inhparent = 'minute_counts'::regclass"
        )
        return of_tables + int(of_partitions.scalar_one())

    def is_set_up(self) -> bool:
        """Whether the database has tables, of this version or another.

        Raises StoreUnavailable if the database does not exist.
        """
        self._require_file()
        with self._database.reading() as connection:
            return schema.found_revision(connection) is not None

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """A connection to a database whose schema was checked."""
        self._require_file()
        with self._database.reading() as connection:
            revision = schema.found_revision(connection)
            schema.require_known(revision, self._database.where)
            if revision != schema.CURRENT:
                raise StoreUnavailable(
                    f"{self._database.where} has schema revision {revision}, needed is"
                    f" {schema.CURRENT}: run `specwatch db upgrade`, or start the daemon"
                )
            yield connection

    def _require_file(self) -> None:
        if not self._database.exists():
            raise StoreUnavailable(
                f"{self._database.where} does not exist (yet): no daemon wrote it"
            )

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """A connection to a database that :meth:`connected` has checked before."""
        return self._database.reading()

    def _windows(self, length: int, asked: Selection) -> Iterator[Window]:
        with self.connected() as connection:
            selection = _select_series(connection, asked)
        if selection.series:
            for frame in self._frames(length, asked, selection):
                yield from _windows_of(frame, length, selection.series)

    def _frames(self, length: int, asked: Selection, selection: _Selection) -> Iterator[Frame]:
        """Rows of whole spans of time."""
        # numpy takes 80 ms to load, which commands that read no windows do without.
        from specwatch.store.frame import Frame

        table = TABLES[length]
        contexts: dict[int, Context] = {}
        position: float = _next_multiple(max(asked["since"], selection.first), length)
        end = min(asked["until"], selection.last + 1)
        span = length * max(1, _ROWS_AT_ONCE // len(selection.series))
        while position < end:
            stop = min(position + span, end)
            where = _where(position, stop, length, selection)
            with self._database.reading() as connection:
                frame = Frame.read(connection, table, where, selection.series, contexts)
                if not frame:
                    # No rows here: continue at the next row of the table.
                    following = sa.select(table.c.start).where(
                        table.c.start >= stop, table.c.start < end
                    )
                    start = connection.execute(following.order_by(table.c.start).limit(1)).scalar()
                    if start is None:
                        return
                    stop = max(stop, start)
            if frame:
                yield frame
            position = stop if stop >= end else _next_multiple(stop, length)


class _Selection(NamedTuple):
    series: dict[int, SeriesId]
    """By id, in the reading order."""
    everything: bool
    few: bool
    mode: Mode | None
    first: int
    last: int


def _select_series(connection: sa.Connection, asked: Selection) -> _Selection:
    table = schema.series
    chosen = {
        name: str(value)
        for name in ("target", "model_name", "dimension", "value", "daemon")
        if (value := asked.get(name)) is not None
    }
    rows = read_series(connection, *(table.c[name] == value for name, value in chosen.items()))
    total = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    series = {row.id: series_of(row) for row in rows}
    rows = sorted(rows, key=lambda r: (r.target, r.model_name, r.dimension, r.value, r.daemon))
    return _Selection(
        {row.id: series[row.id] for row in rows},
        len(rows) == total,
        4 * len(rows) <= total,
        asked.get("mode"),
        # An hour begins before the first minute in it.
        min((row.first_start - row.first_start % HOUR for row in rows), default=0),
        max((row.last_start for row in rows), default=0),
    )


def _where(since: float, stop: float, length: int, selection: _Selection) -> str:
    """The chosen rows that start in a span."""
    if selection.few:
        # Seeks to each row of the grid instead of reading past those of other series.
        grid = range(_next_multiple(since, length), _next_multiple(stop, length), length)
        where = f"start IN ({', '.join(map(str, grid))})"
    else:
        where = f"start >= {since} AND start < {stop}"
    if not selection.everything:
        where += f" AND series_id IN ({', '.join(map(str, selection.series))})"
    if selection.mode is not None:
        where += f" AND context_id IN (SELECT id FROM contexts WHERE mode = '{selection.mode}')"  # noqa: S608
    return where


def _windows_of(frame: Frame, length: int, series: Mapping[int, SeriesId]) -> Iterator[Window]:
    """The windows of a frame: of one start and series those of the daemon with the most good
    scrapes; minutes of several runs of it are added up."""
    from specwatch.store.frame import replaced
    from specwatch.store.frame_sum import Group, numbered, sum_rows

    ids = list(series)
    ranks = replaced(frame.series, {id_: rank for rank, id_ in enumerate(ids)})
    keys = [frame.starts, ranks]
    if length == HOUR:
        keys += [frame.context_ids, frame.load_bins]
    first, group = numbered(keys)
    places = zip(ranks[first].tolist(), frame.starts[first].tolist(), strict=True)
    groups = [Group(series[ids[rank]], start, length) for rank, start in places]
    yield from best_watched(sum_rows(frame, group, groups))


def best_watched(windows: Iterable[Window]) -> Iterator[Window]:
    """Of windows of one start and series, in order, those of the daemon with the most good
    scrapes."""
    for _, alike in itertools.groupby(windows, key=_PLACE):
        of_daemons = list(alike)
        scrapes: dict[str, int] = {}
        for window in of_daemons:
            daemon = window.series.daemon
            scrapes[daemon] = scrapes.get(daemon, 0) + window.scrapes_ok
        best = min(scrapes, key=lambda name: (-scrapes[name], name))
        yield from (window for window in of_daemons if window.series.daemon == best)


def _next_multiple(value: float, length: int) -> int:
    return -int(-value // length) * length
