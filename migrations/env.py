"""Alembic's entry: on the connection that specwatch hands over, or on ``-x url=…``."""

import sqlalchemy as sa
from alembic import context

from specwatch.store import schema, views
from specwatch.store.database import Database


def run(connection: sa.Connection) -> None:
    """Run migrations in the transaction that the connection is in."""
    context.configure(
        connection=connection,
        target_metadata=schema.metadata,
        compare_type=True,
        include_name=lambda name, kind, _: (
            kind != "table" or not str(name).startswith("minute_counts_")
        ),
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    views.drop(connection)
    with context.begin_transaction():
        context.run_migrations()
    if schema.found_revision(connection) == schema.CURRENT:
        views.make(connection)


def main() -> None:
    """Find the database and run on it."""
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise SystemExit("say which database: alembic -x url=sqlite:////path/file.db …")
    database = Database(url, migrating=True)
    database.prepare()
    with database.writing() as connection:
        run(connection)
    database.dispose()


if context.is_offline_mode():
    raise SystemExit("these migrations look at the database; run them online")
main()
