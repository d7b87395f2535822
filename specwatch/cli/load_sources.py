"""Options of commands that send requests, and what they select: server, prompts, database."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specwatch.cli import options
from specwatch.config.loading import Config, from_targets
from specwatch.config.sections import cannot_read
from specwatch.config.target import Target
from specwatch.domain.temperature import DEFAULT_EDGES
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, SpecwatchError, StoreError
from specwatch.loadtest.prompts import LEAST_TOKENS, OUTPUT_TOKENS, PROMPTS

if TYPE_CHECKING:
    from specwatch.store.repository import Store

_MOST = 100_000
_LARGEST_FILE = 1 << 28
_LARGEST_DATA = 1 << 30
_Command = TypeVar("_Command", bound=Callable[..., Any])


class TooLittle(SpecwatchError):
    """It ran, and did not measure all that it should have."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A server to ask, under the name that results are kept by, and where they go."""

    server: Target
    database: str
    edges: Sequence[float] = DEFAULT_EDGES

    @property
    def name(self) -> str:
        """The target's."""
        return self.server.name


def asked(given: Mapping[str, Any], where: str = "--target") -> Asked:
    """The server that ``target`` of the options names or is the URL of. Raises ConfigError.

    A URL that a target of the configuration has means that target.
    """
    loaded = options.loaded(given["file"])
    token: Path | None = given["bearer_token_file"]
    wanted: str = given["target"]
    if "://" in wanted:
        found = server_at(wanted, where, token)
        known = known_target(loaded, None, [found.url])
    else:
        known = known_target(loaded, wanted, [])
        if known is None:
            raise ConfigError(
                f"{where}: {quoted(wanted)} is no URL, and there is no configuration that has a"
                " target of this name; give a URL such as http://127.0.0.1:8000"
            )
        found = known
    if known is not None:
        found = known if token is None else known.model_copy(update=_keyed(known, token, where))
    return Asked(
        found,
        options.database_url(given["database"], given["file"]),
        loaded.temperature_buckets if loaded is not None else DEFAULT_EDGES,
    )


def _keyed(known: Target, token: Path, where: str) -> dict[str, Any]:
    """The settings of a target that a key of its own replaces."""
    given = server_at(known.url, where, token)
    return {"bearer_token_file": given.bearer_token_file}


def server_at(url: str, where: str, token: Path | None) -> Target:
    """The server at a URL that an option names. Raises ConfigError, naming the option."""
    more = {} if token is None else {"bearer_token_file": str(token)}
    try:
        found = from_targets(
            (),
            environ=os.environ,
            hostname=socket.gethostname(),
            settings={"targets": [{"url": url, **more}]},
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return found.targets[0]


def known_target(loaded: Config | None, name: str | None, urls: Sequence[str]) -> Target | None:
    """The target of the configuration that is meant; ConfigError for a name that it lacks."""
    targets = loaded.targets if loaded is not None else ()
    if name is not None:
        found = next((each for each in targets if each.name == name), None)
        if found is None and targets:
            names = ", ".join(each.name for each in targets)
            raise ConfigError(f"--target: the configuration has no {quoted(name)}; it has {names}")
        return found
    by_url = {each.url: each for each in reversed(targets)}
    return next((by_url[url] for url in urls if url in by_url), None)


def prompts(file: Path | None) -> tuple[str, ...]:
    """The prompts of a file, one a line, or our own. Raises ConfigError."""
    if file is None:
        return PROMPTS
    text, _ = text_of(file)
    found = []
    # Not splitlines, which takes U+2028 and more for ends of lines: JSON strings may hold them.
    for number, each in enumerate(text.split("\n"), start=1):
        line = each.rstrip("\r")
        if not line.strip():
            continue
        if not line.startswith('"'):
            found.append(line)
            continue
        try:
            found.append(str(json.loads(line)))
        except ValueError as error:
            raise ConfigError(
                f"--prompts: {file}:{number}: begins with a quote and is not JSON string ({error});"
                " end the quote, or leave it out"
            ) from None
    if not found:
        raise ConfigError(f"--prompts: {file} is empty; write one prompt a line")
    return tuple(found)


def text_of(file: Path) -> tuple[str, float]:
    """What stands in a file, and the Unix time of its last change. Raises ConfigError."""
    data, written = _read(file, _LARGEST_FILE)
    try:
        return data.decode("utf-8-sig"), written
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None


def data_of(file: Path) -> bytes:
    """A data set, as it stands in its file. Raises ConfigError."""
    return _read(file, _LARGEST_DATA)[0]


def _read(file: Path, largest: int) -> tuple[bytes, float]:
    try:
        with file.open("rb") as opened:
            data = opened.read(largest + 1)
            written = os.fstat(opened.fileno()).st_mtime
    except OSError as error:
        raise ConfigError(cannot_read(file, error)) from None
    if len(data) > largest:
        raise ConfigError(f"{file} is larger than {largest >> 20} MiB: this is another file")
    return data, written


@contextmanager
def opened_store(database: str, *, daemon: str, dry_run: bool) -> Iterator[Store | None]:
    """The database, seen to be writable; None with ``--dry-run``. Raises ConfigError."""
    if dry_run:
        yield None
        return
    from specwatch.store.repository import Store

    store = Store(database, daemon=daemon)
    try:
        try:
            store.open(time.time())
        except StoreError as error:
            raise ConfigError(f"{error}; with --dry-run nothing is stored") from error
        yield store
    finally:
        store.close(time.time())


def numbers(kind: Callable[[str], Any], least: float, example: str) -> Callable[..., Any]:
    """Callback of options such as ``1,2,4``: ascending, each once; None where none is given."""

    def parse(_: click.Context, __: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
        if text is None:
            return None
        try:
            found = {kind(part) for part in text.split(",")}
        except ValueError:
            raise click.BadParameter(f"{text!r}: write numbers like {example}") from None
        if not all(least <= each < _MOST for each in found):
            raise click.BadParameter(f"{text!r}: expected numbers from {least:g} to {_MOST - 1}")
        return tuple(sorted(found))

    return parse


_LENGTH = (
    click.option(
        "--max-tokens", type=click.IntRange(min=LEAST_TOKENS), default=OUTPUT_TOKENS,
        show_default=True, metavar="N", help="Tokens of each answer.",
    ),
)  # fmt: skip
_SENDING = (
    click.option(
        "--prompts", type=click.Path(path_type=Path), metavar="FILE",
        help="Prompts of your own, one a line; JSON strings may hold line feeds.",
    ),
    click.option(
        "--endpoint", type=click.Choice(["chat", "completions"]), default="chat",
        show_default=True,
        help="Which API to use; completions for a model without a chat template.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Of everything that is drawn."
    ),
    click.option(
        "--bearer-token-file", type=click.Path(path_type=Path), metavar="FILE",
        help="Holds the API key of the server.",
    ),
    click.option("--dry-run", is_flag=True, help="Measure and print; store nothing."),
)  # fmt: skip
_LOADS = (
    click.option(
        "--warm-up", default="5s", show_default=True, callback=options.duration, metavar="TIME",
        help="How long to warm up before each load.",
    ),
    click.option(
        "--temperature", "temperatures", metavar="T,T,...", callback=numbers(float, 0, "0,0.7,1"),
        default="0,0.7", show_default=True, help="Sampling temperatures, equally often.",
    ),
)  # fmt: skip


def workload(command: _Command) -> _Command:
    """The options of :func:`sending`, and ``--max-tokens``."""
    return _applied((*_LENGTH, *_SENDING), command)


def sending(command: _Command) -> _Command:
    """``--prompts``, ``--endpoint``, ``--seed``, ``--bearer-token-file``, and ``--dry-run``."""
    return _applied(_SENDING, command)


def loads(command: _Command) -> _Command:
    """``--warm-up`` and ``--temperature``, of sweeps over loads."""
    return _applied(_LOADS, command)


def _applied(options_: tuple[Callable[[Any], Any], ...], command: _Command) -> _Command:
    for option in reversed(options_):
        command = option(command)
    return command
