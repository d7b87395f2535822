"""``specwatch run``: the daemon in the foreground, and with COMMAND also its vLLM."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

import click

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.domain.model import Mode
from specwatch.domain.units import is_loopback, local_url, server_address
from specwatch.errors import ActuatorError, CannotStrip, ConfigError, StoreError
from specwatch.runtime.text_file import read_text
from specwatch.vllm_cli import llama, read_command
from specwatch.wording.text import shown

_FLAGS = ("--host", "--port", "--uds", "--ssl-keyfile")
"""Flags of vLLM for the address on which it serves."""
_LLAMA_FLAGS = {"--host": "--host", "--port": "--port", "--ssl-key-file": "--ssl-keyfile"}
"""Those of llama-server, and what they are called here."""
_DEFAULT_PORT, _LLAMA_PORT = "8000", "8080"
_ELSEWHERE = frozenset({"docker", "nerdctl", "kubectl", "systemctl", "systemd-run"})
"""Programs that have another process start vLLM, which specwatch could not end."""
DATABASE_SECONDS = 30.0
"""How long to wait for the database before vLLM is started with speculation."""
_AGAIN_SECONDS = 1.0


# Options after the first word belong to COMMAND, even if run has one of the same name.
@click.command(name="run", context_settings={"allow_interspersed_args": False})
@options.file_option
@options.target_option
@click.option(
    "--daemon", "name", metavar="NAME", help="Name of this daemon, in place of the file's."
)
@click.option("--database", metavar="URL", help="Database, in place of the file's.")
@click.option("--listen", metavar="HOST:PORT", help="Address to serve on, in place of the file's.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    default=None,
    help="Log format, in place of the file's; auto is console on a terminal, else JSON.",
)
@options.time_option(
    "--stop-timeout", "60s", "Time that COMMAND may take to end before it is killed."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    file: Path | None,
    targets: tuple[str, ...],
    name: str | None,
    database: str | None,
    listen: str | None,
    log_format: Literal["auto", "json", "console"] | None,
    stop_timeout: float,
    words: tuple[str, ...],
) -> None:
    """Watch vLLM until SIGTERM or SIGINT.

    With COMMAND, such as `vllm serve MODEL` or `llama-server -m MODEL`, specwatch also runs the
    server: it starts it again when it ends, and ends it when specwatch itself ends. The output of
    COMMAND passes through.

    SIGHUP reads the configuration again. SIGTERM and SIGINT end COMMAND first, then specwatch; a
    second one kills COMMAND. Exit code 2 when the configuration is refused, the address to listen
    on is not available, or COMMAND cannot be started.
    """
    environ = dict(os.environ)
    # The matrices are small: threads for them would only take time from the watched server.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Modules stay: looking for garbage among them takes a tenth of the start.
    gc.disable()
    from specwatch.actuators.supervisor import Supervisor
    from specwatch.daemon.daemon import Daemon
    from specwatch.daemon.daemon_loop import DaemonLoop
    from specwatch.runtime import logs
    from specwatch.web.otlp import OtlpExport

    gc.freeze()
    gc.enable()

    def reload() -> Config:
        return configured(file, targets, words, database=database, listen=listen, daemon=name)

    def log(config: Config) -> None:
        logs.configure(
            config.log.level, log_format or config.log.format, no_color=options.no_color()
        )

    def on_reload(config: Config) -> None:
        log(config)
        otlp.configure(config.otlp)

    config = reload()
    log(config)
    supervisor = Supervisor(words, environ=environ, stop_timeout=stop_timeout) if words else None
    from_file = not targets and (file is not None or options.has_default_file())
    new_daemon = partial(
        Daemon,
        environ=os.environ,
        reload=reload if from_file else None,
        on_reload=on_reload,
        supervisor=supervisor,
    )
    daemon = DaemonLoop(new_daemon, config)
    otlp = OtlpExport(daemon.status)
    otlp.configure(config.otlp)

    def end(*_: object) -> None:
        if supervisor is None:
            daemon.ask_to_stop()
        else:
            supervisor.ask_to_stop(then=daemon.ask_to_stop)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, lambda *_: daemon.ask_to_reload())
    if supervisor is None:
        daemon.run()
    else:
        mode = stored_mode(config)
        # vLLM starts before the daemon, and stops after it.
        try:
            try:
                supervisor.start(mode)
            except ActuatorError as error:
                raise ConfigError(f"COMMAND: {error}") from None
            daemon.run()
        finally:
            supervisor.stop()
    logging.shutdown()
    # Everything is written; a thread that hangs in a database or a socket must not delay the end.
    os._exit(0)


# --- the configuration


def configured(
    file: Path | None,
    targets: Sequence[str],
    command: Sequence[str],
    *,
    database: str | None,
    listen: str | None,
    daemon: str | None = None,
) -> Config:
    """The configuration of ``run``; with a ``command`` exactly one target of it is supervised.

    The target is the file's, that of ``--target``, or the one that the command serves. Raises
    ConfigError.
    """
    if command:
        _refuse_what_is_not_run(command)
    if len(targets) > 1 and command:
        raise ConfigError("COMMAND is one server: give --target once, with its address")
    if command and (targets or (file is None and not options.has_default_file())):
        target: dict[str, Any] = {"url": targets[0]} if targets else _served_by(command)
        target["service"] = {"kind": "supervised"}
        return options.load(file, [target], database=database, listen=listen, daemon=daemon)
    config = options.load(file, targets, database=database, listen=listen, daemon=daemon)
    supervised = next((t for t in config.targets if isinstance(t.service, SupervisedService)), None)
    if command and supervised is None:
        raise ConfigError(
            f"{file or options.DEFAULT_FILE}: no target is run by COMMAND; add service:"
            " {kind: supervised} to the one that it serves"
        )
    if supervised is not None:
        if not command:
            raise ConfigError(
                f"target {supervised.name}: its service is supervised, which needs the command that"
                " starts it: specwatch run --config FILE -- vllm serve ..."
            )
        _refuse_another_server(supervised, command)
    return config


def stored_mode(config: Config) -> Mode:
    """How to start COMMAND: without speculation if the guard had switched it off.

    Waits for a database that starts at the same time as specwatch.
    """
    import structlog

    from specwatch.store.database import create
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    name = next(
        target.name for target in config.targets if isinstance(target.service, SupervisedService)
    )
    log = structlog.get_logger("specwatch.run")
    url = config.database.connect_url()
    store = Store(url, daemon=config.daemon)
    until = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            create(url)
            entry = GuardBook(store).look(name).get(name)
            return Mode.ON if entry is None else entry.state.serving
        except StoreError as error:
            if not error.retry or time.monotonic() >= until:
                log.warning("guard_not_known", detail=str(error), started_with=str(Mode.ON))
                return Mode.ON
            log.info("waiting_for_database", detail=str(error))
            time.sleep(_AGAIN_SECONDS)


def _refuse_what_is_not_run(command: Sequence[str]) -> None:
    name, assigned, _ = command[0].partition("=")
    if assigned and name.isidentifier():
        raise ConfigError(
            f"COMMAND begins with an assignment to {shown(name)}, which only a shell understands;"
            " put env before it"
        )
    for word in takewhile(lambda word: not word.startswith("-"), command):
        if word.rpartition("/")[2] in _ELSEWHERE:
            raise ConfigError(
                f"COMMAND: {shown(word)} has another process start vLLM, which would outlive"
                " specwatch; give the command that runs inside, or a service of kind systemd or"
                " command in the configuration"
            )


def _refuse_another_server(target: Target, command: Sequence[str]) -> None:
    """Raise ConfigError if the daemon would watch another server than the one that it restarts."""
    host, port = server_address(target.url)
    try:
        served = _served_by(command)
    except ConfigError:
        return  # the command does not show where it serves
    if is_loopback(host) and port != server_address(served["url"])[1]:
        raise ConfigError(
            f"target {target.name}: its url is {target.url}, but COMMAND serves {served['url']};"
            " make the ports agree"
        )


def _served_by(command: Sequence[str]) -> dict[str, Any]:
    """The address on which a command serves, as keys of a target. Raises ConfigError."""
    first = llama.first_word(command)
    if first is not None:
        words = command[first:]
        flags = {_LLAMA_FLAGS[f]: value for f, value in pairwise(words) if f in _LLAMA_FLAGS}
        if flags.get("--host", "").endswith(".sock"):
            flags["--uds"] = flags.pop("--host")
    else:
        try:
            given = read_command(command)
            if given.location.elsewhere is not None:
                raise CannotStrip(f"{given.location.elsewhere} runs vLLM somewhere else")
            arguments = given.with_file(read_text)
        except CannotStrip as error:
            raise ConfigError(
                f"COMMAND: {error}; the address on which it serves is unknown: add --target URL"
                " before the --"
            ) from None
        flags = {flag: arguments.value(flag) or "" for flag in _FLAGS if arguments.given(flag)}
    if "--uds" in flags:
        raise ConfigError(
            f"COMMAND: it serves on the socket file {shown(flags['--uds'])}, which specwatch does"
            " not read; give it the --host and --port of an address instead"
        )
    port = flags.get("--port", _DEFAULT_PORT if first is None else _LLAMA_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"COMMAND: --port {shown(port)}: expected 1 to 65535")
    host = flags.get("--host", "").removeprefix("[").removesuffix("]")
    url = local_url(host, int(port))
    if "--ssl-keyfile" not in flags:
        return {"url": url}
    # The certificate has the server's public name, and the connection stays on this machine.
    return {"url": url.replace("http://", "https://", 1), "insecure_skip_verify": True}
