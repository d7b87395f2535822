"""Options that several commands share, and the configuration that they select."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource
from pydantic import BaseModel, ValidationError

from specwatch.config import loading
from specwatch.config.sections import SERVICE_FOLDER, nearest
from specwatch.domain.units import parse_duration, parse_listen, parse_moment, parse_name, quoted
from specwatch.errors import ConfigError
from specwatch.wording.text import clean_json

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Value = TypeVar("_Value")
_LONGEST_REASON = 500
_FARTHEST = 1e10
"""Seconds from 1970: the year 2286; a time of today in milliseconds is later."""
DEFAULT_FILE = SERVICE_FOLDER / "specwatch.yml"
_Section = TypeVar("_Section", bound=BaseModel)


# --- kinds of options


def parsed(parse: Callable[[Any], _Value]) -> Callable[..., _Value | None]:
    """Callback of an option that a function parses; its ValueError becomes a usage error.

    The value of an option that is not given is None.
    """

    def callback(_: click.Context, __: click.Parameter, value: Any) -> _Value | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


@parsed
def duration(text: str) -> float:
    """Seconds, more than 0, from a duration as in the configuration, such as ``5s``."""
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"{text}: expected more than 0 seconds")
    return seconds


@parsed
def moment(text: str) -> float:
    """Unix seconds from what :data:`WHEN` describes."""
    seconds = parse_moment(text, time.time(), zone=None)
    if abs(seconds) > _FARTHEST:
        remedy = "write it like 2026-11-19T14:30, or 7d for 7 days ago"
        raise ValueError(f"{quoted(text)} is too early or too late; {remedy}")
    return seconds


def numbers(kind: Callable[[str], float], least: float, example: str) -> Callable[..., Any]:
    """Callback of options such as ``1,2,4``: ascending numbers without duplicates."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            values = {kind(part) for part in text.split(",")}
        except ValueError:
            raise ValueError(f"{text!r}: write numbers like {example}") from None
        if not all(least <= value < 100_000 for value in values):
            raise ValueError(f"{text!r}: expected numbers from {least:g} to 99999")
        return tuple(sorted(values))

    return parsed(parse)


def time_option(
    name: str, default: str | None, text: str, *more: str, **settings: Any
) -> Callable[[_Command], _Command]:
    """An option that takes a duration, with its help; ``more`` are further names."""
    return click.option(
        name,
        *more,
        default=default,
        show_default=default is not None,
        callback=duration,
        metavar="DURATION",
        help=text,
        **settings,
    )


def path(*names: str, text: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option that names a file, with its help."""
    kind = click.Path(path_type=Path)
    return click.option(*names, type=kind, metavar="FILE", help=text, **settings)


# --- options of several commands

WHEN = (
    "A duration before now, such as 7d, an ISO 8601 date or time (local without an offset), or a"
    " Unix time."
)
"""Values of ``--since`` and ``--until``, for their help."""
since_option = click.option(
    "--since", default="7d", show_default=True, callback=moment, metavar="WHEN", help=WHEN
)
until_option = click.option(
    "--until", callback=moment, metavar="WHEN", help="End, written like --since.  [default: now]"
)
file_option = path(
    "--config", "-c", "file", text=f"Configuration file.  [default: {DEFAULT_FILE}, if it exists]"
)
target_option = click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="URL",
    help="A server to watch, e.g. http://127.0.0.1:8000, in place of a configuration file."
    " Repeatable.",
)


def _operator(_: click.Context, __: click.Parameter, text: str | None) -> str:
    if text is None:
        text = os.environ.get("SUDO_USER")
    try:
        return parse_name(text if text is not None else getpass.getuser())
    except (KeyError, OSError):  # a user without a name, as in containers
        return f"uid {os.getuid()}"
    except ValueError as error:
        raise click.BadParameter(f"{error}; give --by NAME") from None


by_option = click.option(
    "--by", callback=_operator, metavar="NAME", help="Your name.  [default: the user]"
)


@parsed
def _reason(text: str) -> str:
    if len(text) > _LONGEST_REASON or not text.isprintable():
        expected = f"expected one line of at most {_LONGEST_REASON} characters"
        raise ValueError(f"{quoted(text)}: {expected}")
    return text.strip()


reason_option = click.option(
    "--reason",
    default="",
    callback=_reason,
    metavar="TEXT",
    help="Reason, shown in status and history.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
database_option = click.option(
    "--database", metavar="URL", help="The database, in place of the configuration's."
)


def all_of(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Several options as one decorator, in the order of their help."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


store_options = all_of(file_option, database_option, json_option)


def given_options(context: click.Context) -> dict[str, str]:
    """The options on the command line: how each is spelt, by the name of its parameter."""
    return {
        option.name: option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }


def choose(name: str | None, known: Collection[str], missing: str, parameter: str) -> str:
    """The one of the known names that a parameter selects: the only one if it is not given.

    ``missing`` begins the usage error for a name that is not known.
    """
    if name is None:
        if len(known) == 1:
            return next(iter(known))
        raise click.UsageError(f"which target? give one of {', '.join(known)}")
    if name not in known:
        raise click.BadParameter(
            f"{missing} {quoted(name)}; {nearest(name, known)}", param_hint=parameter
        )
    return name


# --- the configuration


def loaded(file: Path | None) -> loading.Config | None:
    """The configuration in a file, else that in the usual place; None if there is neither.

    Raises ConfigError.
    """
    return load(file) if file is not None or has_default_file() else None


def configured(database: str | None, file: Path | None) -> loading.Config | None:
    """As :func:`loaded`; None also if a database is given in place of a configuration."""
    return None if database is not None and file is None else loaded(file)


def has_default_file() -> bool:
    """Whether there is a configuration in the usual place, or a folder that this user may not
    search: reading it then says so."""
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
    daemon: str | None = None,
) -> loading.Config:
    """The configuration that the options select. Raises ConfigError.

    A target is a URL, or has keys valued as in a file.
    """
    environ, hostname = os.environ, socket.gethostname()
    settings: dict[str, Any] = {}
    if targets:
        if file is not None:
            raise ConfigError("give either --config or --target, not both")
        settings = {
            "daemon": daemon,
            "database": database,
            "listen": listen,
            "targets": [
                {"url": target} if isinstance(target, str) else target for target in targets
            ],
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        return loading.from_targets((), environ=environ, hostname=hostname, settings=settings)
    if file is None:
        if not has_default_file():
            raise ConfigError(
                f"nothing to watch: give --target URL, or --config FILE ({DEFAULT_FILE} does not"
                " exist)"
            )
        file = DEFAULT_FILE
    config = loading.load(file, environ=environ, hostname=hostname)
    if daemon is not None:
        try:
            settings["daemon"] = parse_name(daemon)
        except ValueError as error:
            raise ConfigError(f"--daemon: {error}") from None
    if database is not None:
        settings["database"] = section("--database", loading.Database, database)
    if listen is not None:
        try:
            settings["listen"] = parse_listen(listen)
        except ValueError as error:
            raise ConfigError(f"--listen: {error}") from None
    return config.model_copy(update=settings)


def database_url(given: str | None, file: Path | None) -> str:
    """The database that ``--database`` names, else the configuration's, else the default one.

    Raises ConfigError.
    """
    if given is not None:
        return section("--database", loading.Database, given).connect_url()
    config = loaded(file)
    return loading.default_database(os.environ) if config is None else config.database.connect_url()


def section(where: str, kind: type[_Section], value: object) -> _Section:
    """A section of the configuration from the value of an option. Raises ConfigError."""
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


def no_color() -> bool:
    """Whether the user wants no colours (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def print_json(value: Any) -> None:
    """Print a value as indented JSON: UTF-8 with any terminal, without control characters."""
    click.echo(clean_json(msgspec.json.format(msgspec.json.encode(value), indent=2)))
