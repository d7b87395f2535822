"""Runs, series, contexts, minutes, hours, cursors, baselines, verdicts.

Revises: nothing
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Insert-only tables: freeze and map them often, in small steps. Small tables updated every
# minute: leave room on each page, so that an update stays on it.
_POSTGRES_STORAGE = {
    "minutes": "autovacuum_vacuum_insert_scale_factor = 0.02,"
    " autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02,"
    " autovacuum_analyze_scale_factor = 0.02",
    "hours": "autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05",
    "cursors": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 1000",
    "series": "fillfactor = 70, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 5000",
}


def upgrade() -> None:
    """Create all tables."""
    _create_shared()
    _create_windows()
    op.create_table(
        "cursors",
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("layout_id", _INT64, nullable=False),
        sa.Column("counters", sa.LargeBinary(), nullable=False),
        sa.Column("process_start", sa.Double()),
        sa.Column("wall", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("daemon", "target", name="pk_cursors"),
        sa.ForeignKeyConstraint(["layout_id"], ["contexts.id"], name="fk_cursors_layout_id"),
        sqlite_with_rowid=False,
    )
    _create_decisions()
    _create_guard()
    if op.get_bind().dialect.name == "postgresql":
        for table, storage in _POSTGRES_STORAGE.items():
            op.execute(f"ALTER TABLE {table} SET ({storage})")


def _create_shared() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("started_at", _INT64, nullable=False),
        sa.Column("ended_at", _INT64),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("temperature", sa.Text(), nullable=False),
        sa.Column("first_start", _INT64, nullable=False),
        sa.Column("last_start", _INT64, nullable=False),
        sa.Column("rolled_until", _INT64, nullable=False, server_default="0"),
        sa.Column("pruned_until", _INT64, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint(
            "daemon", "target", "model_name", "temperature", name="uq_series_daemon"
        ),
    )
    op.create_table(
        "contexts",
        sa.Column("id", _INT64, autoincrement=False, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_contexts"),
    )


def _create_windows() -> None:
    _create_table_of_windows(
        "minutes",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        key=("start", "series_id", "run_id"),
    )
    _create_table_of_windows(
        "hours",
        sa.Column("load_bin", sa.SmallInteger(), autoincrement=False, nullable=False),
        key=("start", "series_id", "context_id", "mode", "load_bin"),
    )


def _create_table_of_windows(name: str, extra: sa.Column[int], key: tuple[str, ...]) -> None:
    op.create_table(
        name,
        sa.Column("start", _INT64, autoincrement=False, nullable=False),
        sa.Column("series_id", sa.Integer(), autoincrement=False, nullable=False),
        extra,
        sa.Column("context_id", _INT64, autoincrement=False, nullable=False),
        sa.Column("mode", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), nullable=False),
        sa.Column("drafts", _INT64),
        sa.Column("draft_tokens", _INT64),
        sa.Column("accepted_tokens", _INT64),
        sa.Column("generation_tokens", _INT64),
        sa.Column("scrapes_ok", _INT64, nullable=False),
        sa.Column("scrapes_failed", _INT64, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=f"fk_{name}_series_id"),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name=f"fk_{name}_context_id"),
        sqlite_with_rowid=False,
    )


def _create_decisions() -> None:
    op.create_table(
        "baselines",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("engine_version", sa.Text(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("load_bin", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("measured_at", _INT64, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "target", "model_name", "engine_version", "configuration", "load_bin", "origin",
            name="pk_baselines",
        ),
    )  # fmt: skip
    op.create_table(
        "verdicts",
        sa.Column("at", _INT64, autoincrement=False, nullable=False),
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("temperature", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "at", "daemon", "target", "model_name", "temperature", "rule", name="pk_verdicts"
        ),
    )


def _create_guard() -> None:
    op.create_table(
        "guards",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("version", _INT64, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("target", name="pk_guards"),
    )
    op.create_table(
        "guard_steps",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("version", _INT64, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("phase_before", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("target", "version", name="pk_guard_steps"),
    )
    op.create_index("ix_guard_steps_at", "guard_steps", ["at"])
    op.create_index("ix_guard_steps_incident", "guard_steps", ["incident"])


def downgrade() -> None:
    """Drop all tables."""
    windows = ("cursors", "hours", "minutes", "contexts", "series", "runs")
    for table in ("guard_steps", "guards", "verdicts", "baselines", *windows):
        op.drop_table(table)
