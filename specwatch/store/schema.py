"""Tables of the store, the same on SQLite and Postgres.

Changing them needs a migration in ``migrations/versions`` and its revision in :data:`REVISIONS`.
Times are integer Unix seconds unless a column says otherwise; the suffixes ``_us`` and ``_ppm`` are
microseconds and millionths. People read the views of :mod:`specwatch.store.views`.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from specwatch.domain.facts import Fact, Kind
from specwatch.domain.model import FACTS
from specwatch.errors import SchemaMismatch
from specwatch.store import views

REVISIONS = ("0001",)
"""Every schema revision that this code knows, oldest first."""

CURRENT = REVISIONS[-1]

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

_FEW_ROWS = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold"
POSTGRES_STORAGE = {
    "minute_counts": "autovacuum_vacuum_insert_scale_factor = 0.02,"
    " autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02,"
    " autovacuum_analyze_scale_factor = 0.02",
    "hour_counts": "autovacuum_vacuum_insert_scale_factor = 0.05,"
    " autovacuum_vacuum_scale_factor = 0.05",
    "cursors": f"fillfactor = 50, {_FEW_ROWS} = 1000",
    "series": f"fillfactor = 70, {_FEW_ROWS} = 5000",
    "leases": f"fillfactor = 50, {_FEW_ROWS} = 1000",
}
"""Insert-only tables are frozen and mapped often, in small steps. Small tables that are updated
often have room on each page for new versions. Of ``minute_counts`` it is that of each partition."""

Int64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Counts = sa.ARRAY(sa.BigInteger()).with_variant(sa.Text(), "sqlite")
"""Whole numbers; JSON text in SQLite."""

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("daemon", sa.Text, nullable=False),
    sa.Column("started_at", Int64, nullable=False),
    sa.Column("ended_at", Int64),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
)

series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("daemon", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("model_name", sa.Text, nullable=False),
    # What requests are grouped by, such as "temperature", and the value; "all" twice for all.
    sa.Column("dimension", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("first_start", Int64, nullable=False),
    sa.Column("last_start", Int64, nullable=False),
    # Minutes before this are all contained in hours; a late minute sets it back.
    sa.Column("rolled_until", Int64, nullable=False, server_default="0"),
    # Minutes before this were deleted: their hours can be added to, but not rebuilt.
    sa.Column("pruned_until", Int64, nullable=False, server_default="0"),
    sa.UniqueConstraint("daemon", "target", "model_name", "dimension", "value"),
)

# What many windows share. The digest is of all other columns.
contexts = sa.Table(
    "contexts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", Int64, nullable=False, unique=True),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("engine_version", sa.Text),
    sa.Column("fingerprint", sa.Text),
    sa.Column("gpu_memory_total", Int64),
    # The finite upper bounds of the buckets of each histogram, by its name, as JSON.
    sa.Column("bounds", sa.Text, nullable=False),
    # Names of the histograms that have only the bounds that merged ones shared, as a JSON array.
    sa.Column("coarsened", sa.Text, nullable=False),
)


def stored_columns(fact: Fact) -> Iterator[sa.Column[object]]:
    """The columns of a fact. A histogram has its counts, from the first bucket in use up to the
    last, behind the number of that first one (from 0); and its sum."""
    match fact.kind:
        case Kind.POSITIONS:
            yield sa.Column(fact.column, Counts)
        case Kind.KEYS:
            yield sa.Column(fact.column, sa.Text)
        case Kind.HISTOGRAM:
            yield sa.Column(fact.column, Counts)
            yield sa.Column(f"{fact.column}_sum{fact.suffix}", Int64)
        case Kind.COUNT | Kind.INTEGRAL | Kind.LARGEST:
            yield sa.Column(fact.column, Int64)


def derived_columns() -> Iterator[sa.Column[object]]:
    """Columns that only people read: they follow from the others of the row."""
    yield sa.Column("requests", Int64)
    for quantiles in views.QUANTILES.values():
        for quantile in quantiles:
            yield sa.Column(quantile.column, Int64)


def _count_columns() -> list[sa.Column[object]]:
    return [*(column for fact in FACTS for column in stored_columns(fact)), *derived_columns()]


# The key begins with the time, so that a flush appends to a few pages however many series there
# are; one series is still found quickly, because its minutes lie on a known grid.
# Its partitions on Postgres are made in specwatch.store.partitions.
minutes = sa.Table(
    "minute_counts",
    metadata,
    sa.Column("start", Int64, primary_key=True, autoincrement=False),
    sa.Column("series_id", sa.ForeignKey(series.c.id), primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("context_id", sa.ForeignKey(contexts.c.id), nullable=False),
    *_count_columns(),
    sqlite_with_rowid=False,
    postgresql_partition_by="RANGE (start)",
)

# One row per hour, context and load bin (-1 while idle): break-even is computed within them.
hours = sa.Table(
    "hour_counts",
    metadata,
    sa.Column("start", Int64, primary_key=True, autoincrement=False),
    sa.Column("series_id", sa.ForeignKey(series.c.id), primary_key=True, autoincrement=False),
    sa.Column("context_id", sa.ForeignKey(contexts.c.id), primary_key=True, autoincrement=False),
    sa.Column("load_bin", sa.SmallInteger, primary_key=True, autoincrement=False),
    *_count_columns(),
    sqlite_with_rowid=False,
)

# The counters of a page that a cursor is of, as JSON; its id is a digest of the content.
layouts = sa.Table(
    "layouts",
    metadata,
    sa.Column("id", Int64, primary_key=True, autoincrement=False),
    sa.Column("content", sa.Text, nullable=False),
)

cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("layout_id", sa.ForeignKey(layouts.c.id), nullable=False),
    # The values of the counters, in the order of the layout, as JSON.
    sa.Column("counters", sa.Text, nullable=False),
    # Fractional Unix seconds: compared with what the engine says, digit for digit.
    sa.Column("process_start", sa.Double),
    sa.Column("wall", sa.Double, nullable=False),
    # The run that wrote it.
    sa.Column("run_id", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)

# The cost of serving a target without speculation, over all daemons. Unknown versions and
# configurations are empty, as a key has no NULL.
baselines = sa.Table(
    "baselines",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("model_name", sa.Text, primary_key=True),
    sa.Column("engine_version", sa.Text, primary_key=True),
    sa.Column("configuration", sa.Text, primary_key=True),
    sa.Column("load_bin", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("origin", sa.Text, primary_key=True),
    # When its newest point ended.
    sa.Column("measured_at", Int64, nullable=False),
    # Its points and histograms, as JSON.
    sa.Column("data", sa.Text, nullable=False),
)

# A row for each change of a confirmed verdict, found by its time.
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("at", Int64, primary_key=True, autoincrement=False),
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("model_name", sa.Text, primary_key=True),
    sa.Column("dimension", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    # The measured speedup and its 95 % interval, where there was one.
    sa.Column("speedup", sa.Double),
    sa.Column("speedup_low", sa.Double),
    sa.Column("speedup_high", sa.Double),
    # Everything that the verdict rests on, as JSON.
    sa.Column("inputs", sa.Text, nullable=False),
)

# The guard of each target. The holder of the lease (until a time of the database's clock, Unix
# seconds) takes its steps; the version grows with every step, so that none is taken twice. It is at
# least the time of the step (Unix seconds): so orders of another guard of the same server, after
# the target got another name or the database was made anew, are later than those before.
guards = sa.Table(
    "guards",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("version", Int64, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    # As JSON.
    sa.Column("state", sa.Text, nullable=False),
)

# A row for each step of a guard, in their order.
guard_steps = sa.Table(
    "guard_steps",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("version", Int64, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("daemon", sa.Text, nullable=False),
    sa.Column("incident", sa.Text, nullable=False, index=True),
    sa.Column("phase_before", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    # Everything that the step rests on, as JSON.
    sa.Column("inputs", sa.Text, nullable=False),
)

# A row for each probe, bench, comparison, calibration and experiment on live traffic.
experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("model_name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("ended_at", Int64, nullable=False, index=True),
    # The result, as JSON.
    sa.Column("data", sa.Text, nullable=False),
)

# Which process watches as the daemon of a name, and of a shard such as 0/3 or an empty one for all
# targets. Times are fractional Unix seconds of the database's clock.
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("shard", sa.Text, primary_key=True),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
)


def create_all(connection: sa.Connection) -> None:
    """Create all tables, the default partition, and the views."""
    metadata.create_all(connection)
    if connection.dialect.name == "postgresql":
        default = f"{minutes.name}_default"
        connection.exec_driver_sql(f"CREATE TABLE {default} PARTITION OF {minutes.name} DEFAULT")
        for table, storage in POSTGRES_STORAGE.items():
            name = default if table == minutes.name else table
            connection.exec_driver_sql(f"ALTER TABLE {name} SET ({storage})")
    views.make(connection)


def found_revision(connection: sa.Connection) -> str | None:
    """The revision of a database; None for one without our tables."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return stored_revision(connection)


def stored_revision(connection: sa.Connection) -> str | None:
    """As :func:`found_revision`, for a database known to have been set up."""
    rows = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    return ", ".join(sorted(map(str, rows))) or None


def require_known(revision: str | None, where: str) -> None:
    """Raise SchemaMismatch for a revision that this code does not know."""
    if revision is not None and revision not in REVISIONS:
        raise SchemaMismatch(
            f"{where} has schema revision {revision}, and this specwatch knows {CURRENT}: a newer"
            " specwatch, or another program, migrated it. Upgrade this specwatch, or give it"
            " another database; nothing was written"
        )
