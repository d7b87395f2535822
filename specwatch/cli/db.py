"""``specwatch db``: operator commands of the database."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path

import click

from specwatch import __version__
from specwatch.cli import commands, options
from specwatch.config.sections import Baselines, Retention
from specwatch.domain.units import format_duration
from specwatch.errors import StoreMalformed, StoreUnavailable
from specwatch.wording.figures import counted
from specwatch.wording.text import LONGEST_SENTENCE, shown


@click.group(name="db", cls=commands.CommandGroup)
def command() -> None:
    """Maintain the database.

    Without --database and --config: that of the configuration in its usual place, or else the one
    that `specwatch run --target` uses.
    """


@command.command()
@options.store_options
def upgrade(file: Path | None, database: str | None, as_json: bool) -> None:
    """Create the tables, or upgrade them to this version.

    The daemon does that at start.
    """
    from specwatch.store import migrate
    from specwatch.store.database import parse_url, where

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
@options.store_options
def current(file: Path | None, database: str | None, as_json: bool) -> None:
    """Show the revision, the size and the number of rows."""
    from specwatch.store import schema
    from specwatch.store.readers import Reader

    with closing(Reader.of(options.database_url(database, file))) as reader:
        info = reader.info()
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
        click.echo(f"  {table:14}{more + counted(rows, 'row'):>20}")


@command.command()
@options.store_options
@click.option("--minutes", metavar="DURATION", help="Keep minutes this long, e.g. 14d.")
@click.option("--hours", metavar="DURATION", help="Keep hours this long, e.g. 400d.")
def prune(
    file: Path | None, database: str | None, as_json: bool, minutes: str | None, hours: str | None
) -> None:
    """Delete windows and baselines that are older than the retention.

    The daemon does that regularly. Minutes are rolled up to hours before they are deleted.
    """
    from specwatch.store.repository import Store

    loaded = options.loaded(file)
    retention = Retention() if loaded is None else loaded.retention
    baselines = Baselines() if loaded is None else loaded.baseline
    chosen = {
        "minutes": format_duration(retention.minutes) if minutes is None else minutes,
        "hours": format_duration(retention.hours) if hours is None else hours,
    }
    keep = options.section("--minutes, --hours", Retention, chosen)
    url = options.database_url(database, file)
    _require_current(url)
    store = Store(url, daemon="specwatch db prune")
    try:
        pruned = store.prune(time.time(), keep.minutes, keep.hours, baselines.max_age)
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


@command.command()
@options.store_options
def check(file: Path | None, database: str | None, as_json: bool) -> None:
    """Look for damage of a SQLite file. Postgres checks its own.

    Changes nothing; a daemon may run. Exit code 1 when the file is damaged: a daemon puts it aside
    and begins a new one.
    """
    from specwatch.store import integrity
    from specwatch.store.database import Database

    url = options.database_url(database, file)
    with suppress(StoreMalformed):
        _require_current(url)
    found = Database(url, migrating=True)
    problems = integrity.problems(found)
    aside = integrity.damaged_files(found)
    if as_json:
        options.print_json({"database": found.where, "problems": problems, "damaged_files": aside})
    else:
        if problems:
            click.echo(f"{found.where}: damaged. A daemon puts the file aside and begins a new one")
        else:
            click.echo(f"{found.where}: nothing is damaged")
        for problem in problems:
            click.echo(f"  {shown(problem, LONGEST_SENTENCE)}")
        for name in aside:
            click.echo(f"put aside before: {shown(name)}")
    if problems:
        raise click.exceptions.Exit(1)


def _require_current(url: str) -> None:
    """Raise StoreUnavailable for a database that a daemon would have to set up first."""
    from specwatch.store import schema
    from specwatch.store.database import parse_url, where

    revision, place = options.revision(url), where(parse_url(url))
    schema.require_known(revision, place)
    if revision != schema.CURRENT:
        state = f"has schema revision {revision}" if revision else "is empty"
        raise StoreUnavailable(f"{place} {state}: run `specwatch db upgrade` first")
