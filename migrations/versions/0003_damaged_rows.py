"""Damaged rows: what could not be decoded, set aside as it was found.

Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "damaged_rows",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("found_at", _INT64, nullable=False),
        sa.Column("at", _INT64, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("row_key", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_damaged_rows"),
    )


def downgrade() -> None:
    """Drop the table, and with it what was set aside."""
    op.drop_table("damaged_rows")
