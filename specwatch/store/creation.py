"""Setting up an empty database, without alembic: a daemon's first start needs 10 MB less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from specwatch.store import schema
from specwatch.store.database import Database

_LOCK = 0x73706563  # "spec": one change of tables at a time on one Postgres


def create(url: str) -> bool:
    """Make the tables of the newest schema in a database that has none; whether it had none.

    Raises SchemaMismatch and StoreUnavailable as an upgrade does.
    """
    with alone(url) as (connection, _):
        if schema.found_revision(connection) is not None:
            return False
        schema.metadata.create_all(connection)
        version = sa.Table(
            "alembic_version",
            sa.MetaData(),
            sa.Column("version_num", sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
        )
        version.create(connection, checkfirst=True)  # a downgrade to nothing leaves it
        connection.execute(version.insert().values(version_num=schema.CURRENT))
        return True


@contextmanager
def alone(url: str) -> Iterator[tuple[sa.Connection, Database]]:
    """A transaction in which nobody else changes the tables of the database."""
    database = Database(url, migrating=True)
    try:
        database.prepare()
        with database.writing() as connection:
            if not database.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            yield connection, database
    finally:
        database.dispose()
