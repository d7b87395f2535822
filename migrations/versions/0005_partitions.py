"""Minutes on Postgres in partitions of a day, so that old ones are dropped and not deleted.

The table as it is becomes the partition of all days up to tomorrow: nothing is copied, and its rows
are read once, to check that they are of these days.

Revises: 0004
"""

import time

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_DAY = 86400
_CONSTRAINTS = (
    "ADD CONSTRAINT pk_minutes PRIMARY KEY (start, series_id, run_id),"
    " ADD CONSTRAINT fk_minutes_series_id FOREIGN KEY (series_id) REFERENCES series (id),"
    " ADD CONSTRAINT fk_minutes_context_id FOREIGN KEY (context_id) REFERENCES contexts (id)"
)
_STORAGE = (
    "autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 50000,"
    " autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02"
)


def upgrade() -> None:
    """Attach the table to one that has partitions; databases of SQLite stay as they are."""
    if op.get_bind().dialect.name != "postgresql":
        return
    end = (int(time.time()) // _DAY + 2) * _DAY
    for statement in (
        "ALTER TABLE minutes RENAME TO minutes_before",
        "ALTER TABLE minutes_before RENAME CONSTRAINT pk_minutes TO pk_minutes_before",
        "CREATE TABLE minutes (LIKE minutes_before) PARTITION BY RANGE (start)",
        f"ALTER TABLE minutes {_CONSTRAINTS}",
        f"CREATE TABLE minutes_default PARTITION OF minutes DEFAULT WITH ({_STORAGE})",
        # Rows of a damaged time would not fit.
        f"INSERT INTO minutes SELECT * FROM minutes_before WHERE start >= {end}",  # noqa: S608
        f"DELETE FROM minutes_before WHERE start >= {end}",  # noqa: S608
        "ALTER TABLE minutes ATTACH PARTITION minutes_before"
        f" FOR VALUES FROM (MINVALUE) TO ({end})",
    ):
        op.execute(statement)


def downgrade() -> None:
    """Copy all partitions into one table."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for statement in (
        f"CREATE TABLE minutes_together (LIKE minutes) WITH ({_STORAGE})",
        "INSERT INTO minutes_together SELECT * FROM minutes",
        "DROP TABLE minutes",
        "ALTER TABLE minutes_together RENAME TO minutes",
        f"ALTER TABLE minutes {_CONSTRAINTS}",
    ):
        op.execute(statement)
