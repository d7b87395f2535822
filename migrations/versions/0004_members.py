"""Members of fleets: who is alive, who watches which target, and the runs that are members'.

Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# A few rows that are updated every few seconds: leave room on each page for new versions.
_POSTGRES_STORAGE = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000"
)


def upgrade() -> None:
    """Create the tables and the column."""
    op.create_table(
        "members",
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("known", sa.Integer(), nullable=False),
        sa.Column("watched", sa.Integer(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("daemon", "member", name="pk_members"),
    )
    op.create_table(
        "watched_targets",
        sa.Column("daemon", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("daemon", "target", name="pk_watched_targets"),
    )
    op.add_column("runs", sa.Column("member", sa.Text()))
    if op.get_bind().dialect.name == "postgresql":
        for table in ("members", "watched_targets"):
            op.execute(f"ALTER TABLE {table} SET ({_POSTGRES_STORAGE})")


def downgrade() -> None:
    """Drop them: every daemon of a fleet then watches all targets."""
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("member")
    op.drop_table("watched_targets")
    op.drop_table("members")
