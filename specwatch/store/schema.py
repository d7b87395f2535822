"""Tables of the store, the same on SQLite and Postgres.

Changing them needs a migration in ``migrations/versions`` and its revision in :data:`REVISIONS`.
Times are integer Unix seconds unless a column says otherwise.
"""

from __future__ import annotations

import sqlalchemy as sa

from specwatch.errors import SchemaMismatch, StoreMalformed

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""Every schema revision that this code knows, oldest first."""

CURRENT = REVISIONS[-1]

MEND = "`specwatch db repair` keeps it under another name and saves what can be read"
"""What to do about a damaged SQLite file."""

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
    "minutes": "autovacuum_vacuum_insert_scale_factor = 0.02,"
    " autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02,"
    " autovacuum_analyze_scale_factor = 0.02",
    "hours": "autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05",
    "cursors": f"fillfactor = 50, {_FEW_ROWS} = 1000",
    "series": f"fillfactor = 70, {_FEW_ROWS} = 5000",
    "members": f"fillfactor = 50, {_FEW_ROWS} = 1000",
    "watched_targets": f"fillfactor = 50, {_FEW_ROWS} = 1000",
}
"""Insert-only tables are frozen and mapped often, in small steps. Small tables that are updated
often have room on each page for new versions. Of ``minutes`` it is that of each partition."""

Int64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

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
    # The member of a fleet that it is; null for a daemon that shares no targets.
    sa.Column("member", sa.Text),
)

series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("daemon", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("model_name", sa.Text, nullable=False),
    sa.Column("temperature", sa.Text, nullable=False),
    sa.Column("first_start", Int64, nullable=False),
    sa.Column("last_start", Int64, nullable=False),
    # Minutes before this are all contained in hours; a late minute sets it back.
    sa.Column("rolled_until", Int64, nullable=False, server_default="0"),
    # Minutes before this were deleted: their hours can be added to, but not rebuilt.
    sa.Column("pruned_until", Int64, nullable=False, server_default="0"),
    sa.UniqueConstraint("daemon", "target", "model_name", "temperature"),
)

contexts = sa.Table(
    "contexts",
    metadata,
    sa.Column("id", Int64, primary_key=True, autoincrement=False),
    sa.Column("content", sa.Text, nullable=False),
)


def _row_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("mode", sa.SmallInteger, nullable=False, autoincrement=False),
        sa.Column("source", sa.SmallInteger, nullable=False),
        sa.Column("drafts", Int64),
        sa.Column("draft_tokens", Int64),
        sa.Column("accepted_tokens", Int64),
        sa.Column("generation_tokens", Int64),
        sa.Column("scrapes_ok", Int64, nullable=False),
        sa.Column("scrapes_failed", Int64, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    ]


# The key begins with the time, so that a flush appends to a few pages however many series there
# are; one series is still found quickly, because its minutes lie on a known grid.
# Its partitions on Postgres are made in specwatch.store.partitions.
minutes = sa.Table(
    "minutes",
    metadata,
    sa.Column("start", Int64, primary_key=True, autoincrement=False),
    sa.Column("series_id", sa.ForeignKey(series.c.id), primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("context_id", sa.ForeignKey(contexts.c.id), nullable=False),
    *_row_columns(),
    sqlite_with_rowid=False,
    postgresql_partition_by="RANGE (start)",
)

# One row per hour, context, mode and load bin (-1 while idle): break-even is computed within them.
hours = sa.Table(
    "hours",
    metadata,
    sa.Column("start", Int64, nullable=False, autoincrement=False),
    sa.Column("series_id", sa.ForeignKey(series.c.id), nullable=False, autoincrement=False),
    sa.Column("context_id", sa.ForeignKey(contexts.c.id), nullable=False, autoincrement=False),
    sa.Column("load_bin", sa.SmallInteger, nullable=False, autoincrement=False),
    *_row_columns(),
    sa.PrimaryKeyConstraint("start", "series_id", "context_id", "mode", "load_bin"),
    sqlite_with_rowid=False,
)

cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("layout_id", sa.ForeignKey(contexts.c.id), nullable=False),
    sa.Column("counters", sa.LargeBinary, nullable=False),
    # Fractional Unix seconds: compared with what the engine says, digit for digit.
    sa.Column("process_start", sa.Double),
    sa.Column("wall", sa.Double, nullable=False),
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
    sa.Column("data", sa.LargeBinary, nullable=False),
)

# A row for each change of a confirmed verdict, found by its time.
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("at", Int64, primary_key=True, autoincrement=False),
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("model_name", sa.Text, primary_key=True),
    sa.Column("temperature", sa.Text, primary_key=True),
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("inputs", sa.Text, nullable=False),
)

# The guard of each target. The holder of the lease (until a time of the database's clock, Unix
# seconds) takes its steps; the version grows with every step, so that none is taken twice.
guards = sa.Table(
    "guards",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("version", Int64, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
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
    sa.Column("inputs", sa.Text, nullable=False),
)

# A row for each probe, bench, comparison and calibration, as JSON.
experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("model_name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("ended_at", Int64, nullable=False, index=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

# The daemons that divide the targets of one daemon name among them. Times are fractional Unix
# seconds of the database's clock; the token is of one process.
members = sa.Table(
    "members",
    metadata,
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("member", sa.Text, primary_key=True),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("known", sa.Integer, nullable=False),
    sa.Column("watched", sa.Integer, nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
)

# Which member watches a target; empty for none. Only that member writes the target's counts.
watched_targets = sa.Table(
    "watched_targets",
    metadata,
    sa.Column("daemon", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("member", sa.Text, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
)

# Rows of the other tables that could not be decoded, moved here unchanged: the columns by name as
# one msgpack map. ``at`` is the time in the row, or when it was found; an unknown target is empty.
damaged_rows = sa.Table(
    "damaged_rows",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("found_at", Int64, nullable=False),
    sa.Column("at", Int64, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("row_key", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)


def found_revision(connection: sa.Connection) -> str | None:
    """The revision of a database; None for one without our tables."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return stored_revision(connection)


def stored_revision(connection: sa.Connection) -> str | None:
    """As :func:`found_revision`, for a database known to have been set up."""
    rows = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    return ", ".join(sorted(map(str, rows))) or None


def is_damaged(revision: str | None) -> bool:
    """Whether a revision is damaged: ours have four digits, those of other programs are longer."""
    length = len(CURRENT)
    return revision is not None and any(
        len(number) < length or (len(number) == length and not number.isdigit())
        for number in revision.split(", ")
    )


def require_known(revision: str | None, where: str) -> None:
    """Raise SchemaMismatch for a revision that this code does not know, StoreMalformed for a
    damaged one."""
    if is_damaged(revision):
        raise StoreMalformed(f"{where} has schema revision {revision!a}, which is damaged; {MEND}")
    if revision is not None and revision not in REVISIONS:
        raise SchemaMismatch(
            f"{where} has schema revision {revision}, and this specwatch knows {CURRENT}: a newer"
            " specwatch, or another program, migrated it. Upgrade this specwatch, or give it"
            " another database; nothing was written"
        )
