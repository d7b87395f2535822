"""What commands that send requests share: options, the server that is meant, and the way to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from specwatch.cli import options
from specwatch.config.loading import Config, from_targets
from specwatch.config.sections import cannot_read
from specwatch.config.target import Target
from specwatch.domain.temperature import DEFAULT_EDGES
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, StoreError, TooLittle
from specwatch.loadtest.prompts import LEAST_TOKENS, OUTPUT_TOKENS, PROMPTS

if TYPE_CHECKING:
    from specwatch.cli.progress import Progress
    from specwatch.loadtest.server import Server
    from specwatch.store.repository import Store

_MOST = 100_000
_LARGEST_FILE = 1 << 28
_LARGEST_DATA = 1 << 30
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAFE_SIGNALS = 2
"""Signals that lose nothing of what was measured: the next ends this process at once."""
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")


# --- options


def numbers(kind: Callable[[str], Any], least: float, example: str) -> Callable[..., Any]:
    """Callback of options such as ``1,2,4``: ascending, each once; None where none is given."""

    def parse(_: click.Context, __: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
        if text is None:
            return None
        try:
            values = {kind(part) for part in text.split(",")}
        except ValueError:
            raise click.BadParameter(f"{text!r}: write numbers like {example}") from None
        if not all(least <= value < _MOST for value in values):
            raise click.BadParameter(f"{text!r}: expected numbers from {least:g} to {_MOST - 1}")
        return tuple(sorted(values))

    return parse


def file(*names: str, text: str) -> Callable[[_Command], _Command]:
    """An option that names a file, with its help."""
    return click.option(*names, type=click.Path(path_type=Path), metavar="FILE", help=text)


model_option = click.option("--model", metavar="NAME", help="Which model, where there are several.")
max_tokens_option = click.option(
    "--max-tokens", type=click.IntRange(min=LEAST_TOKENS), default=OUTPUT_TOKENS,
    show_default=True, metavar="N", help="Tokens of each answer.",
)  # fmt: skip
_SENDING = (
    file("--prompts", text="Prompts of your own, one a line; JSON strings may hold line feeds."),
    click.option(
        "--endpoint", type=click.Choice(["chat", "completions"]), default="chat",
        show_default=True,
        help="Which API to use; completions for a model without a chat template.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Of everything that is drawn."
    ),
    file("--bearer-token-file", text="Holds the API key of the server."),
    click.option("--dry-run", is_flag=True, help="Measure and print; store nothing."),
    options.database_option,
    options.file_option,
    options.json_option,
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


def sending(command: _Command) -> _Command:
    """The options of all commands that send requests."""
    for option in reversed(_SENDING):
        command = option(command)
    return command


def loads(command: _Command) -> _Command:
    """``--warm-up`` and ``--temperature``, of sweeps over loads."""
    for option in reversed(_LOADS):
        command = option(command)
    return command


# --- the server


@dataclass(frozen=True, slots=True)
class Asked:
    """A server to ask, whose target has the name that results are kept by, and where they go."""

    server: Target
    database: str
    edges: Sequence[float] = DEFAULT_EDGES


def asked(given: Mapping[str, Any], where: str = "--target") -> Asked:
    """The server that ``target`` of the options names or is the URL of. Raises ConfigError.

    A URL that a target of the configuration has means that target.
    """
    config = options.loaded(given["file"])
    token: Path | None = given["bearer_token_file"]
    wanted: str = given["target"]
    if "://" in wanted:
        server = server_at(wanted, where, token)
        known = known_target(config, None, [server.url])
    else:
        known = known_target(config, wanted, [])
        if known is None:
            raise ConfigError(
                f"{where}: {quoted(wanted)} is not a URL, and no configuration has a target of"
                " this name; give a URL such as http://127.0.0.1:8000"
            )
        server = known
    if known is not None:
        server = known
        if token is not None:
            own = server_at(known.url, where, token).bearer_token_file
            server = known.model_copy(update={"bearer_token_file": own})
    return Asked(
        server,
        options.database_url(given["database"], given["file"]),
        config.temperature_buckets if config is not None else DEFAULT_EDGES,
    )


def server_at(url: str, where: str, token: Path | None) -> Target:
    """The server at a URL that an option names. Raises ConfigError, naming the option."""
    more = {} if token is None else {"bearer_token_file": str(token)}
    try:
        config = from_targets(
            (),
            environ=os.environ,
            hostname=socket.gethostname(),
            settings={"targets": [{"url": url, **more}]},
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return config.targets[0]


def known_target(config: Config | None, name: str | None, urls: Sequence[str]) -> Target | None:
    """The target of the configuration that is meant; ConfigError for a name that it lacks."""
    targets = config.targets if config is not None else ()
    if name is not None:
        by_name = {target.name: target for target in targets}
        if targets and name not in by_name:
            names = ", ".join(by_name)
            raise ConfigError(f"--target: the configuration has no {quoted(name)}; it has {names}")
        return by_name.get(name)
    by_url = {target.url: target for target in reversed(targets)}
    return next((by_url[url] for url in urls if url in by_url), None)


def free_server(target: Target, given: Mapping[str, Any], where: str) -> Server:
    """A server, asked which engine it is. Raises ConfigError where others use it, unless that is
    meant."""
    from specwatch.loadtest import server

    measured = server.Server(target, model=given["model"], endpoint=given["endpoint"], where=where)
    if measured.engine.busy and not given["shared"]:
        raise ConfigError(
            f"{where}: {measured.engine.busy:g} requests of others are under way at {measured.url};"
            " take its traffic away, or give --shared"
        )
    return measured


# --- prompts


def prompts(file: Path | None) -> tuple[str, ...]:
    """The prompts of a file, one a line, or our own. Raises ConfigError."""
    if file is None:
        return PROMPTS
    texts = []
    # Not splitlines, which takes U+2028 and more for ends of lines: JSON strings may hold them.
    for number, line in enumerate(text_of(file)[0].split("\n"), start=1):
        line = line.rstrip("\r")
        try:
            if line.strip():
                texts.append(str(json.loads(line)) if line.startswith('"') else line)
        except ValueError as error:
            raise ConfigError(
                f"--prompts: {file}:{number}: begins with a quote and is not a JSON string"
                f" ({error}); end the quote, or leave it out"
            ) from None
    if not texts:
        raise ConfigError(f"--prompts: {file} is empty; write one prompt a line")
    return tuple(texts)


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


# --- measuring


@contextlib.contextmanager
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


class Ending:
    """Ctrl-C and SIGTERM, from the work on until its results are stored; a context manager.

    The first two cancel the work, which keeps what it has, and are put off where there is none
    (any more); work that begins after one is cancelled at once. The third raises
    KeyboardInterrupt.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        """``keeps`` is whether what was measured until then is kept."""
        self._keeps = keeps
        self._count = 0
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # A job in the background of a shell is not for Ctrl-C to end.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(
        self, work: Coroutine[Any, Any, _Result], progress: Progress | None = None, steps: int = 0
    ) -> _Result:
        """``asyncio.run`` with as many connections as may be, and a bar of so many steps.

        Raises TooLittle for work that ends at being cancelled, and at the third signal.
        """
        raise_file_limit()
        try:
            with contextlib.nullcontext() if progress is None else progress.over(steps):
                return asyncio.run(self._stoppable(work))
        except KeyboardInterrupt:
            raise TooLittle("interrupted: nothing was stored") from None

    async def _stoppable(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        # Of a signal alone the loop does not wake up.
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._count:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._cancel = None

    def _handle(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._count > _SAFE_SIGNALS:
            raise KeyboardInterrupt
        if self._cancel is not None:
            self._cancel()
        last = self._count == _SAFE_SIGNALS
        if self._cancel is None or last:
            text = "what was measured is kept" if self._keeps else "nothing is stored"
            if last:
                text += "; Ctrl-C once more ends at once" + (", without it" * self._keeps)
            # No print: this may be amid one.
            with contextlib.suppress(OSError):
                os.write(2, f"\nending: {text}\n".encode())


def raise_file_limit() -> None:
    """Let this process have as many open files, and so connections, as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has no limit for a hard one, and refuses it for a soft one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
