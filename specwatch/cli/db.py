"""``specwatch db``: operator commands of the database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import click

from specwatch import __version__
from specwatch.cli import commands, options
from specwatch.config.sections import Baselines, Retention
from specwatch.domain.units import format_duration
from specwatch.errors import DamagedRow, StoreMalformed, StoreUnavailable
from specwatch.wording.figures import counted
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown

_MOST_SHOWN = 50
"""Rows that are listed; --json lists all."""


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
    """Look for damage: errors of the SQLite file, and rows that cannot be decoded.

    Changes nothing; a daemon may run. Exit code 1 when something is damaged.
    """
    from specwatch.store import repair as repairing

    url, place = _existing(database, file)
    checked = repairing.check(url)
    if as_json:
        options.print_json(
            {
                "database": place,
                "problems": checked.problems,
                "damaged": _rows(checked.damaged),
                "set_aside": [row._asdict() for row in checked.aside],
            }
        )
    else:
        if checked.problems:
            click.echo(f"{place}: the file is malformed")
            for problem in checked.problems:
                _echo(f"  {problem}")
            click.echo(
                "`specwatch db repair` copies the readable rows into a new file, and keeps this one"
            )
        _echo_rows(place, checked.damaged, "damaged: `specwatch db repair` sets them aside")
        if checked.sound:
            click.echo(f"{place}: nothing is damaged")
        if checked.aside:
            click.echo(f"set aside before, in the table damaged_rows: {len(checked.aside)}")
        for row in checked.aside[:_MOST_SHOWN]:
            _echo(f"  {row.key}: {row.reason}")
    if not checked.sound:
        raise click.exceptions.Exit(1)


@command.command()
@options.store_options
def repair(file: Path | None, database: str | None, as_json: bool) -> None:
    """Move rows that cannot be decoded into the table damaged_rows; nothing is deleted.

    If SQLite calls the file malformed, the readable rows are copied into a new file with its name;
    the old one is kept beside it. A daemon may run. Exit code 1 when damage is left.
    """
    from specwatch.store import repair as repairing

    url, place = _existing(database, file)
    done = repairing.repair(url, time.time())
    if as_json:
        rebuilt = done.rebuilt and {**done.rebuilt._asdict(), "kept": str(done.rebuilt.kept)}
        options.print_json(
            {
                "database": place,
                "rebuilt": rebuilt,
                "set_aside": _rows(done.moved),
                "left": _rows(done.left),
            }
        )
    else:
        if done.rebuilt is not None:
            click.echo(f"{place}: rebuilt; the damaged file is {done.rebuilt.kept}")
            for table, count in done.rebuilt.rows.items():
                note = "  (not all could be read)" if table in done.rebuilt.incomplete else ""
                click.echo(f"  {table:14}{counted(count, 'row'):>16}{note}")
        _echo_rows(place, done.moved, "set aside, in the table damaged_rows")
        _echo_rows(place, done.left, "still damaged: the database does not release them")
        if done.rebuilt is None and not done.moved and not done.left:
            click.echo(f"{place}: nothing is damaged")
    if done.left:
        raise click.exceptions.Exit(1)


def _existing(database: str | None, file: Path | None) -> tuple[str, str]:
    """The URL and the name of a database of this version, which may be malformed."""
    from specwatch.store.database import parse_url, where

    url = options.database_url(database, file)
    with suppress(StoreMalformed):
        _require_current(url)
    return url, where(parse_url(url))


def _rows(rows: Sequence[DamagedRow]) -> list[dict[str, object]]:
    return [{"table": row.table, "row": row.where, "reason": clean(row.reason)} for row in rows]


def _echo(text: str) -> None:
    click.echo(shown(text, 2 * LONGEST_SENTENCE))


def _echo_rows(place: str, rows: Sequence[DamagedRow], what: str) -> None:
    if not rows:
        return
    click.echo(f"{place}: {counted(len(rows), 'row')} {what}")
    for row in rows[:_MOST_SHOWN]:
        _echo(f"  {row.where}: {row.reason}")
    if len(rows) > _MOST_SHOWN:
        click.echo(f"  and {len(rows) - _MOST_SHOWN} more: --json lists all")


def _require_current(url: str) -> None:
    """Raise StoreUnavailable for a database that a daemon would have to set up first."""
    from specwatch.store import schema
    from specwatch.store.database import parse_url, where

    revision, place = options.revision(url), where(parse_url(url))
    schema.require_known(revision, place)
    if revision != schema.CURRENT:
        state = f"has schema revision {revision}" if revision else "is empty"
        raise StoreUnavailable(f"{place} {state}: run `specwatch db upgrade` first")
