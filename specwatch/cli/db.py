"""``specwatch db``: the store, for a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specwatch import __version__
from specwatch.cli import commands, options
from specwatch.errors import StoreUnavailable
from specwatch.scalars import format_duration
from specwatch.sections import Baselines, Retention
from specwatch.wording.figures import counted


def _database_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return options.file_option(options.database_option(options.json_option(command)))


@click.group(name="db", cls=commands.Group)
def command() -> None:
    """Look after the database.

    Without --database and --config it is that of the configuration in its usual place, or else
    the one that `specwatch run --target` uses.
    """


@command.command()
@_database_options
def upgrade(file: Path | None, database: str | None, as_json: bool) -> None:
    """Create the tables, or bring them to this version.

    The daemon does it by itself at start.
    """
    from specwatch.edges import migrate
    from specwatch.edges.database import parse_url, where

    url = options.database_url(database, file)
    place = where(parse_url(url))
    before = options.revision(url)
    migrate.upgrade(url)
    after = options.revision(url)
    if as_json:
        options.print_json({"database": place, "before": before, "after": after})
    elif before == after:
        click.echo(f"{place} is at revision {after} already")
    else:
        click.echo(f"{place}: {before or 'empty'} -> {after}")


@command.command()
@_database_options
def current(file: Path | None, database: str | None, as_json: bool) -> None:
    """Show the revision, the size and the number of rows."""
    from specwatch.edges import schema
    from specwatch.edges.readers import Reader

    reader = Reader.of(options.database_url(database, file))
    try:
        info = reader.info()
    finally:
        reader.close()
    if as_json:
        options.print_json(
            {
                "database": info.where,
                "revision": info.revision,
                "known_revision": schema.CURRENT,
                "size_bytes": info.size,
                "rows": info.rows,
                "rows_exact": {table: table in info.exact for table in info.rows},
                "version": __version__,
            }
        )
        return
    click.echo(f"{info.where}: revision {info.revision} (current), {info.size / 1e6:,.1f} MB")
    for table, rows in info.rows.items():
        more = "" if table in info.exact else "at least "
        click.echo(f"  {table:10}{more + counted(rows, 'row'):>24}")


@command.command()
@_database_options
@click.option("--minutes", metavar="DURATION", help="Keep minutes this long, e.g. 14d.")
@click.option("--hours", metavar="DURATION", help="Keep hours this long, e.g. 400d.")
def prune(
    file: Path | None, database: str | None, as_json: bool, minutes: str | None, hours: str | None
) -> None:
    """Delete what is older than the retention.

    The daemon does it by itself. Minutes become hours before they are deleted.
    """
    from specwatch.edges.store import Store

    keep = _retention(file, minutes, hours)
    url = options.database_url(database, file)
    _require_current(url)
    store = Store(url, daemon="specwatch db prune")
    try:
        pruned = store.prune(time.time(), keep.minutes, keep.hours, _baselines_kept(file))
    finally:
        store.close(time.time())
    if as_json:
        options.print_json(pruned._asdict())
        return
    kinds = pruned._asdict().items()
    deleted = ", ".join(
        counted(count, table.removesuffix("s").replace("_", " ")) for table, count in kinds
    )
    click.echo(f"deleted {deleted} from {store.where}")


def _retention(file: Path | None, minutes: str | None, hours: str | None) -> Retention:
    loaded = options.loaded(file)
    keep = Retention() if loaded is None else loaded.retention
    chosen = {
        "minutes": format_duration(keep.minutes) if minutes is None else minutes,
        "hours": format_duration(keep.hours) if hours is None else hours,
    }
    return options.section("--minutes, --hours", Retention, chosen)


def _baselines_kept(file: Path | None) -> float:
    loaded = options.loaded(file)
    return (Baselines() if loaded is None else loaded.baseline).max_age


def _require_current(url: str) -> None:
    """Raise StoreUnavailable for a database that a daemon would have to set up first."""
    from specwatch.edges import schema
    from specwatch.edges.database import parse_url, where

    found, place = options.revision(url), where(parse_url(url))
    schema.require_known(found, place)
    if found != schema.CURRENT:
        state = f"has schema revision {found}" if found else "is empty"
        raise StoreUnavailable(f"{place} {state}: run `specwatch db upgrade` first")
