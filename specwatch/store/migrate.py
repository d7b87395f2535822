"""Migrations of a database to the schema of this code. Importing this imports alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from specwatch.store import schema
from specwatch.store.database import Database, changing_tables


def upgrade(url: str) -> None:
    """Upgrade to the newest revision, or create the tables, while no other process changes them.

    Raises SchemaMismatch for the database of a newer specwatch, StoreUnavailable if it cannot be
    reached or another upgrade takes long.
    """
    with changing_tables(url) as (connection, database):
        schema.require_known(schema.found_revision(connection), database.where)
        command.upgrade(config(connection), "head")


def current(url: str) -> str | None:
    """The revision of a database; None for an empty one. Raises StoreUnavailable."""
    database = Database(url)
    try:
        with database.reading() as connection:
            return schema.found_revision(connection)
    finally:
        database.dispose()


def config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration, with an open connection if one is given."""
    settings = Config()
    settings.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def script_location() -> Path:
    """The folder of the migrations: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
