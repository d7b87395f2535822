"""Shared by the commands that send requests: options, the selected server, prompts, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.sections import cannot_read
from specwatch.config.target import Target
from specwatch.discovery.sources import known_targets
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, StoreError, TooLittle
from specwatch.lab.loadtest.prompts import LEAST_TOKENS, OUTPUT_TOKENS, PROMPTS

if TYPE_CHECKING:
    from specwatch.cli.progress import ProgressBar
    from specwatch.lab.loadtest.server import Server
    from specwatch.store.repository import Store

_LARGEST_FILE = 1 << 28
_LARGEST_DATA = 1 << 30
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAFE_SIGNALS = 2
"""Signals that keep what was measured: the next one ends this process at once."""
_Result = TypeVar("_Result")


# --- options

max_tokens_option = click.option(
    "--max-tokens",
    type=click.IntRange(min=LEAST_TOKENS),
    default=OUTPUT_TOKENS,
    show_default=True,
    metavar="N",
    help="Length of each answer in tokens.",
)
sending = options.all_of(
    click.option("--model", metavar="NAME", help="Model name, if the server has more than one."),
    options.path(
        "--prompts", text="File of prompts, one a line; JSON strings may contain line feeds."
    ),
    click.option(
        "--endpoint",
        type=click.Choice(["chat", "completions"]),
        default="chat",
        show_default=True,
        help="API to use; completions for a model without a chat template.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Random seed."),
    options.path("--bearer-token-file", text="File with the API key of the server."),
    click.option("--dry-run", is_flag=True, help="Measure and print; store nothing."),
    options.database_option,
    options.file_option,
    options.json_option,
)
"""The options of all commands that send requests."""
loads = options.all_of(
    options.time_option("--duration", "60s", "Time to measure each load on each server."),
    options.time_option("--warm-up", "5s", "Time to warm up before each load."),
    click.option(
        "--temperature",
        "temperatures",
        metavar="T,T,...",
        default="0,0.7",
        show_default=True,
        callback=options.numbers(float, 0, "0,0.7,1"),
        help="Sampling temperatures, each for an equal share of requests.",
    ),
    click.option("--shared", is_flag=True, help="Measure although others use the server."),
)
"""The options of sweeps over loads."""


# --- the server


def measured_target(given: Mapping[str, Any], where: str = "--target") -> Target:
    """The server that the option ``target`` selects by name or URL. Raises ConfigError.

    The URL of a target of the configuration selects that target.
    """
    config = options.loaded(given["file"])
    wanted: str = given["target"]
    token: Path | None = given["bearer_token_file"]
    if "://" in wanted:
        server = server_at(wanted, where, token)
        target = known_target(config, None, [server.url]) or server
    else:
        configured = known_target(config, wanted, [])
        if configured is None:
            raise ConfigError(
                f"{where}: {quoted(wanted)} is not a URL, and no configuration has a target of"
                " this name; give a URL such as http://127.0.0.1:8000"
            )
        target = configured
        pods = [] if config is None else pods_of(target, config)
        if pods:
            raise ConfigError(
                f"{where}: {quoted(wanted)} is a workload, which has no address; give one of its"
                f" pods: {', '.join(pods)}"
            )
    if token is None:
        return target
    key_file = server_at(target.url, where, token).bearer_token_file
    return target.model_copy(update={"bearer_token_file": key_file})


def second_target(target: Target, where: str, url: str, given: Mapping[str, Any]) -> Target:
    """The server to compare with: from the configuration, else with the target's credentials.

    Raises ConfigError, naming the option ``where``.
    """
    url = server_at(url, where, given["bearer_token_file"]).url
    if known_target(options.loaded(given["file"]), None, [url]) is not None:
        return measured_target({**given, "target": url}, where)
    return target.model_copy(update={"url": url, "proxy": None})


def server_at(url: str, where: str, token: Path | None) -> Target:
    """The server at a URL that an option names. Raises ConfigError, naming the option."""
    more = {} if token is None else {"bearer_token_file": str(token)}
    try:
        return options.load(None, [{"url": url, **more}]).targets[0]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def known_target(config: Config | None, name: str | None, urls: Sequence[str]) -> Target | None:
    """The target of the configuration, or of its discovery, that a name or URL selects.

    A workload of pods has a name, and no server at its URL. Raises ConfigError for a wrong name.
    """
    if config is None:
        return None
    own = [target for target in config.targets if target.name == name or target.url in urls]
    targets, problems = (config.targets, []) if own else known_targets(config)
    if name is not None:
        by_name = {target.name: target for target in reversed(targets)}
        if name not in by_name:
            names = "; ".join([f"it has {', '.join(reversed(by_name)) or 'none'}", *problems])
            raise ConfigError(f"--target: the configuration has no {quoted(name)}; {names}")
        return by_name[name]
    by_url = {target.url: target for target in reversed(targets)}
    return next((by_url[url] for url in urls if url in by_url), None)


def pods_of(target: Target, config: Config) -> list[str]:
    """The names of the pods of a workload that is guarded; none of any other target."""
    if target in config.targets:
        return []
    pods, _ = known_targets(config)
    return [
        pod.name for pod in pods if pod.workload is not None and pod.workload.name == target.name
    ]


def free_server(target: Target, given: Mapping[str, Any], where: str) -> Server:
    """A server whose engine was queried. Raises ConfigError if others use it, without
    ``--shared``."""
    from specwatch.lab.loadtest import server

    measured = server.Server(target, model=given["model"], endpoint=given["endpoint"], where=where)
    if measured.engine.busy and not given["shared"]:
        raise ConfigError(
            f"{where}: {measured.url} is serving {measured.engine.busy:g} requests of others; take"
            " its traffic away, or give --shared"
        )
    return measured


# --- prompts


def prompts(file: Path | None) -> tuple[str, ...]:
    """The prompts of a file, one a line, or the built-in ones. Raises ConfigError."""
    if file is None:
        return PROMPTS
    texts = []
    # Not splitlines(): it also splits at U+2028 and others, which JSON strings may contain.
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
    """The text of a file, and the Unix time of its last change. Raises ConfigError."""
    data, written = _read(file, _LARGEST_FILE)
    try:
        return data.decode("utf-8-sig"), written
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None


def data_of(file: Path) -> bytes:
    """The bytes of a data set. Raises ConfigError."""
    return _read(file, _LARGEST_DATA)[0]


def _read(file: Path, largest: int) -> tuple[bytes, float]:
    try:
        with file.open("rb") as opened:
            data = opened.read(largest + 1)
            written = os.fstat(opened.fileno()).st_mtime
    except OSError as error:
        raise ConfigError(cannot_read(file, error)) from None
    if len(data) > largest:
        raise ConfigError(f"{file} is larger than {largest >> 20} MiB; is it the right file?")
    return data, written


# --- measuring


@contextlib.contextmanager
def opened_store(given: Mapping[str, Any], command: str) -> Iterator[Store | None]:
    """The database, which is writable; None with ``--dry-run``. Raises ConfigError."""
    if given["dry_run"]:
        yield None
        return
    from specwatch.store.repository import Store

    url = options.database_url(given["database"], given["file"])
    store = Store(url, daemon=f"specwatch {command}")
    try:
        try:
            store.open(time.time())
        except StoreError as error:
            raise ConfigError(f"{error}; with --dry-run nothing is stored") from error
        yield store
    finally:
        store.close(time.time())


class StopSignals:
    """Handles Ctrl-C and SIGTERM while results are measured and stored; a context manager.

    The first two signals cancel the work, which keeps its results; without work they wait, and
    work that begins later is cancelled at once. The third raises KeyboardInterrupt.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        """``keeps``: results until then are stored."""
        self._keeps = keeps
        self._count = 0
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Shells ignore Ctrl-C for their background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, work: Coroutine[Any, Any, _Result], progress: ProgressBar, steps: int) -> _Result:
        """``asyncio.run`` with as many connections as possible, and a progress bar of ``steps``.

        Raises TooLittle for work that ends when it is cancelled, and at the third signal.
        """
        raise_file_limit()
        try:
            with progress.over(steps):
                return asyncio.run(self._stoppable(work))
        except KeyboardInterrupt:
            raise TooLittle("interrupted: nothing was stored") from None

    async def _stoppable(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        # A signal alone does not wake the loop up.
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
                text += "; Ctrl-C again ends at once" + (", without it" * self._keeps)
            # Not print(), which this signal may have interrupted.
            with contextlib.suppress(OSError):
                os.write(2, f"\nending: {text}\n".encode())


def raise_file_limit() -> None:
    """Raise the limit of open files, and so of connections, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # The hard limit of macOS is "unlimited", which it refuses as a soft limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
