"""The guards in the database, as the commands for a person reach them."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.rules.condition import nearest
from specwatch.domain.units import parse_name, quoted
from specwatch.errors import SpecwatchError

if TYPE_CHECKING:
    from specwatch.store.guard_records import Entry, GuardBook

DAEMON = "specwatch guard"
"""What a step of ours says instead of a daemon."""
_LONGEST_REASON = 500
_Command = TypeVar("_Command", bound=Callable[..., Any])


def book_options(command: _Command) -> _Command:
    """``--config``, ``--database`` and ``--json``."""
    return options.file_option(options.database_option(options.json_option(command)))


def target_argument(command: _Command) -> _Command:
    """``[TARGET]``, which may be left out where there is but one."""
    return click.argument("target", required=False, metavar="[TARGET]")(command)


def person_options(command: _Command) -> _Command:
    """``--reason`` and ``--by``."""
    reason = click.option(
        "--reason", default="", callback=_reason, metavar="TEXT", help="Why, for whoever looks."
    )
    return reason(by_option(command))


def by_option(command: _Command) -> _Command:
    """``--by``: the person."""
    return click.option(
        "--by", callback=_person, metavar="NAME", help="Who says so; the user, where not given."
    )(command)


@contextmanager
def opened(database: str | None, file: Path | None) -> Iterator[GuardBook]:
    """The guards in the database that the options name; reading them leaves no trace there."""
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    store = Store(options.database_url(database, file), daemon=DAEMON)
    try:
        yield GuardBook(store)
    finally:
        store.close(time.time())


def configured(database: str | None, file: Path | None) -> Config | None:
    """The configuration; None where there is none, or a database was named in place of it."""
    return None if database is not None and file is None else options.loaded(file)


def guards(book: GuardBook, loaded: Config | None) -> dict[str, Entry]:
    """Every guard by target: of what is configured first, and in its order."""
    found = {entry.state.target: entry for entry in book.look().values()}
    order = [target.name for target in loaded.targets] if loaded else []
    known = [name for name in order if name in found]
    return {name: found[name] for name in [*known, *sorted(set(found) - set(known))]}


def chosen(book: GuardBook, target: str | None, loaded: Config | None = None) -> Entry:
    """The guard of a target, or the only one; a usage error where that is not one."""
    found = guards(book, loaded)
    if target is None and len(found) == 1:
        return next(iter(found.values()))
    if not found or (target not in found and _is_configured(target, loaded)):
        raise unguarded(target)
    if target is None:
        raise click.UsageError(f"which target? give one of {', '.join(found)}")
    if target not in found:
        raise click.BadParameter(
            f"no target {quoted(target)} was ever guarded; {nearest(target, found)}",
            param_hint="TARGET",
        )
    return found[target]


def unguarded(target: str | None) -> SpecwatchError:
    """The error about a target that no daemon has guarded yet."""
    return SpecwatchError(
        f"no daemon has guarded {target or 'any target'} yet: none runs with this database, or it"
        " runs with guard.mode off"
    )


def _is_configured(target: str | None, loaded: Config | None) -> bool:
    return loaded is not None and any(target == each.name for each in loaded.targets)


def _person(_: click.Context, __: click.Parameter, text: str | None) -> str:
    if text is None:
        text = os.environ.get("SUDO_USER") or _user()
    try:
        return parse_name(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; give --by NAME") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return f"uid {os.getuid()}"


def _reason(_: click.Context, __: click.Parameter, text: str) -> str:
    if len(text) > _LONGEST_REASON or not text.isprintable():
        raise click.BadParameter(
            f"{quoted(text)}: expected one line of at most {_LONGEST_REASON} characters"
        )
    return text.strip()
