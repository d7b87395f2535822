"""Options that several commands share, and the configuration that they select."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from pydantic import BaseModel, ValidationError

from specwatch.config import loading
from specwatch.config.sections import SERVICE_FOLDER
from specwatch.domain.units import parse_duration, parse_listen, parse_moment, quoted
from specwatch.errors import ConfigError
from specwatch.wording.text import clean_json

_FARTHEST = 1e10
"""Seconds from 1970: the year 2286, and before milliseconds of today."""
DEFAULT_FILE = SERVICE_FOLDER / "specwatch.yml"
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Section = TypeVar("_Section", bound=BaseModel)


def duration(_: click.Context, __: click.Parameter, text: str) -> float:
    """Callback of options such as ``5s``, written as in the configuration: seconds, not 0."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not seconds:
        raise click.BadParameter(f"{text} is no time at all")
    return seconds


WHEN = (
    "A duration before now, such as 7d, an ISO 8601 date or time (local without an offset), or a"
    " Unix time."
)
"""What ``--since`` and ``--until`` take, for their help."""


def moment(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Callback of options that take what :data:`WHEN` says: Unix seconds."""
    if text is None:
        return None
    try:
        seconds = parse_moment(text, time.time(), zone=None)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if abs(seconds) > _FARTHEST:
        remedy = "write it like 2026-11-19T14:30, or 7d for 7 days ago"
        raise click.BadParameter(f"{quoted(text)} is too early or too late; {remedy}")
    return seconds


def file_option(command: _Command) -> _Command:
    """``--config FILE``."""
    return click.option(
        "--config",
        "-c",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Configuration file; {DEFAULT_FILE} where it exists.",
    )(command)


def target_option(command: _Command) -> _Command:
    """``--target URL``, repeatable."""
    return click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="URL",
        help="A server to watch, e.g. http://127.0.0.1:8000; alone it is enough. Repeatable.",
    )(command)


def json_option(command: _Command) -> _Command:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def database_option(command: _Command) -> _Command:
    """``--database URL``."""
    return click.option(
        "--database", metavar="URL", help="The database, in place of the configuration's."
    )(command)


def store_options(command: _Command) -> _Command:
    """``--config``, ``--database`` and ``--json``."""
    return file_option(database_option(json_option(command)))


def loaded(file: Path | None) -> loading.Config | None:
    """The configuration in a file, or that in its usual place; None where there is neither.

    Raises ConfigError.
    """
    return load(file) if file is not None or has_default_file() else None


def configured(database: str | None, file: Path | None) -> loading.Config | None:
    """The same; None also where a database was named in place of a configuration."""
    return None if database is not None and file is None else loaded(file)


def has_default_file() -> bool:
    """Whether there is a configuration in the usual place, or may be: what this user may not look
    for is not gone, and cannot be read when it is."""
    try:
        os.stat(DEFAULT_FILE)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def load(
    file: Path | None,
    targets: Sequence[str | Mapping[str, object]] = (),
    *,
    database: str | None = None,
    listen: str | None = None,
) -> loading.Config:
    """The configuration that the options select. Raises ConfigError.

    A target is a URL, or has keys valued as in a file.
    """
    environ, hostname = os.environ, socket.gethostname()
    if targets:
        if file is not None:
            raise ConfigError("give either --config or --target, not both")
        written = [target if isinstance(target, Mapping) else {"url": target} for target in targets]
        settings: dict[str, Any] = {"targets": written}
        if database is not None:
            settings["database"] = database
        if listen is not None:
            settings["listen"] = listen
        return loading.from_targets((), environ=environ, hostname=hostname, settings=settings)
    if file is None:
        if not has_default_file():
            raise ConfigError(
                f"nothing to watch: give --target URL, or --config FILE ({DEFAULT_FILE} does not"
                " exist)"
            )
        file = DEFAULT_FILE
    loaded = loading.load(file, environ=environ, hostname=hostname)
    changes: dict[str, Any] = {}
    if database is not None:
        changes["database"] = database_of(database)
    if listen is not None:
        changes["listen"] = _listen(listen)
    return loaded.model_copy(update=changes)


def database_of(url: str) -> loading.Database:
    """The database that ``--database`` names. Raises ConfigError."""
    return section("--database", loading.Database, url)


def database_url(given: str | None, file: Path | None) -> str:
    """The database that ``--database`` names, else the configuration's, else our own default.

    Raises ConfigError.
    """
    if given is not None:
        return database_of(given).connect_url()
    config = loaded(file)
    return loading.default_database(os.environ) if config is None else config.database.connect_url()


def section(where: str, kind: type[_Section], value: object) -> _Section:
    """A section of the configuration from what an option says. Raises ConfigError."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problems = [details.get("ctx", {}).get("error") for details in error.errors()]
        raise ConfigError(f"{where}: {'; '.join(map(str, problems))}") from None


def revision(url: str) -> str | None:
    """The schema revision of the database at a URL; None for an empty or missing one.

    Creates nothing. Raises StoreUnavailable.
    """
    from specwatch.store import migrate
    from specwatch.store.database import Database

    return migrate.current(url) if Database(url).exists() else None


def _listen(text: str) -> loading.ListenAddress:
    try:
        return parse_listen(text)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from None


def no_color() -> bool:
    """Whether the user wants no colours (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def print_json(value: Any) -> None:
    """Print a value as indented JSON: UTF-8 whatever the terminal's encoding, and clean."""
    click.echo(clean_json(msgspec.json.format(msgspec.json.encode(value), indent=2)))
