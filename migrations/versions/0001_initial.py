"""All tables; the views are made after each migration.

Revises: nothing
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COUNTS = sa.ARRAY(sa.BigInteger()).with_variant(sa.Text(), "sqlite")

# Insert-only tables: freeze and map them often, in small steps. Small tables updated every
# minute: leave room on each page, so that an update stays on it.
_POSTGRES_STORAGE = {
    "minute_counts_default": "autovacuum_vacuum_insert_scale_factor = 0.02,"
    " autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02,"
    " autovacuum_analyze_scale_factor = 0.02",
    "hour_counts": "autovacuum_vacuum_insert_scale_factor = 0.05,"
    " autovacuum_vacuum_scale_factor = 0.05",
    "cursors": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 1000",
    "series": "fillfactor = 70, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 5000",
    "leases": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 1000",
}
# In the order of the tables; an array of counts ends with "[]", a text with "$".
_COLUMNS = """
    drafts draft_tokens accepted_tokens accepted_per_position[] prompt_tokens generation_tokens
    preemptions prefix_cache_queries prefix_cache_hits finish_reasons$
    ttft[] ttft_sum_us tpot[] tpot_sum_us inter_token[] inter_token_sum_us e2e[] e2e_sum_us
    output_length[] output_length_sum request_acceptance[] request_acceptance_sum_ppm
    records$ uncovered$ endings$
    sampled_us busy_us running_us waiting_us running_max waiting_max kv_cache_usage_max_ppm
    gpu_memory_used_max server_drafts source_drafts observed_us scrapes_ok scrapes_failed restarts
    down_us
    requests acceptance_p10_ppm acceptance_p50_ppm acceptance_p90_ppm
    ttft_p50_us ttft_p95_us ttft_p99_us tpot_p50_us tpot_p95_us tpot_p99_us
"""
_TABLES = (
    "leases",
    "experiments",
    "guard_steps",
    "guards",
    "verdicts",
    "baselines",
    "cursors",
    "layouts",
    "hour_counts",
    "minute_counts",
    "contexts",
    "series",
    "runs",
)


def upgrade() -> None:
    """Create all tables."""
    _create_shared()
    _create_windows()
    _create_judged()
    _create_leases()
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE TABLE minute_counts_default PARTITION OF minute_counts DEFAULT")
        for table, storage in _POSTGRES_STORAGE.items():
            op.execute(f"ALTER TABLE {table} SET ({storage})")


def _text(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, _INT64, nullable=nullable)


def _create_shared() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        _text("daemon"),
        _number("started_at"),
        _number("ended_at", nullable=True),
        _text("version"),
        _text("host"),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), nullable=False),
        *map(_text, ("daemon", "target", "model_name", "dimension", "value")),
        _number("first_start"),
        _number("last_start"),
        sa.Column("rolled_until", _INT64, server_default="0", nullable=False),
        sa.Column("pruned_until", _INT64, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
        sa.UniqueConstraint(
            "daemon", "target", "model_name", "dimension", "value", name=op.f("uq_series_daemon")
        ),
    )
    op.create_table(
        "contexts",
        sa.Column("id", sa.Integer(), nullable=False),
        _number("digest"),
        _text("mode"),
        _text("source"),
        _text("engine_version", nullable=True),
        _text("fingerprint", nullable=True),
        _number("gpu_memory_total", nullable=True),
        _text("bounds"),
        _text("coarsened"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contexts")),
        sa.UniqueConstraint("digest", name=op.f("uq_contexts_digest")),
    )
    op.create_table(
        "layouts",
        _number("id"),
        _text("content"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_layouts")),
    )


def _counts() -> list[sa.Column]:
    columns = []
    for word in _COLUMNS.split():
        name = word.rstrip("[]$")
        kind = _COUNTS if word.endswith("[]") else sa.Text() if word.endswith("$") else _INT64
        columns.append(sa.Column(name, kind, nullable=True))
    return columns


def _create_windows() -> None:
    op.create_table(
        "minute_counts",
        _number("start"),
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        *_counts(),
        sa.ForeignKeyConstraint(
            ["series_id"], ["series.id"], name=op.f("fk_minute_counts_series_id")
        ),
        sa.ForeignKeyConstraint(
            ["context_id"], ["contexts.id"], name=op.f("fk_minute_counts_context_id")
        ),
        sa.PrimaryKeyConstraint("start", "series_id", "run_id", name=op.f("pk_minute_counts")),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (start)",
    )
    op.create_table(
        "hour_counts",
        _number("start"),
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        sa.Column("load_bin", sa.SmallInteger(), nullable=False),
        *_counts(),
        sa.ForeignKeyConstraint(
            ["series_id"], ["series.id"], name=op.f("fk_hour_counts_series_id")
        ),
        sa.ForeignKeyConstraint(
            ["context_id"], ["contexts.id"], name=op.f("fk_hour_counts_context_id")
        ),
        sa.PrimaryKeyConstraint(
            "start", "series_id", "context_id", "load_bin", name=op.f("pk_hour_counts")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cursors",
        _text("daemon"),
        _text("target"),
        _number("layout_id"),
        _text("counters"),
        sa.Column("process_start", sa.Double()),
        sa.Column("wall", sa.Double(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["layout_id"], ["layouts.id"], name=op.f("fk_cursors_layout_id")),
        sa.PrimaryKeyConstraint("daemon", "target", name=op.f("pk_cursors")),
        sqlite_with_rowid=False,
    )


def _create_judged() -> None:
    key = ("target", "model_name", "engine_version", "configuration")
    op.create_table(
        "baselines",
        *map(_text, key),
        sa.Column("load_bin", sa.SmallInteger(), nullable=False),
        _text("origin"),
        _number("measured_at"),
        _text("data"),
        sa.PrimaryKeyConstraint(*key, "load_bin", "origin", name=op.f("pk_baselines")),
    )
    key = ("at", "daemon", "target", "model_name", "dimension", "value", "rule")
    op.create_table(
        "verdicts",
        _number("at"),
        *map(_text, (*key[1:], "verdict", "severity", "action")),
        sa.Column("speedup", sa.Double()),
        sa.Column("speedup_low", sa.Double()),
        sa.Column("speedup_high", sa.Double()),
        _text("inputs"),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_verdicts")),
    )
    op.create_table(
        "guards",
        _text("target"),
        _number("version"),
        _text("holder"),
        sa.Column("lease_until", sa.Double(), nullable=False),
        _text("state"),
        sa.PrimaryKeyConstraint("target", name=op.f("pk_guards")),
    )
    op.create_table(
        "guard_steps",
        _text("target"),
        _number("version"),
        sa.Column("at", sa.Double(), nullable=False),
        *map(_text, ("daemon", "incident", "phase_before", "phase", "reason", "inputs")),
        sa.PrimaryKeyConstraint("target", "version", name=op.f("pk_guard_steps")),
    )
    op.create_index(op.f("ix_guard_steps_at"), "guard_steps", ["at"])
    op.create_index(op.f("ix_guard_steps_incident"), "guard_steps", ["incident"])
    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer(), nullable=False),
        *map(_text, ("target", "model_name", "kind")),
        _number("ended_at"),
        _text("data"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
    )
    op.create_index(op.f("ix_experiments_ended_at"), "experiments", ["ended_at"])


def _create_leases() -> None:
    op.create_table(
        "leases",
        *map(_text, ("daemon", "shard", "process", "address")),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("daemon", "shard", name=op.f("pk_leases")),
    )


def downgrade() -> None:
    """Drop all tables."""
    for table in _TABLES:
        op.drop_table(table)
