"""``specwatch run``: the daemon in the foreground, and vLLM with it where it is told to run it."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.errors import ActuatorError, ConfigError

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor
    from specwatch.daemon.daemon import Daemon
    from specwatch.domain.model import Mode


# What follows the first word is the command's, even where we have an option of that name.
@click.command(name="run", context_settings={"allow_interspersed_args": False})
@options.file_option
@options.target_option
@click.option("--database", metavar="URL", help="Where history is kept, in place of the file's.")
@click.option("--listen", metavar="HOST:PORT", help="Where to serve, in place of the file's.")
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "console"]), default=None,
    help="How to log, in place of the file's; auto is console on a terminal, else JSON.",
)  # fmt: skip
@click.option(
    "--stop-timeout", metavar="60s", default="60s", callback=options.duration,
    help="How long COMMAND may take to end, before it is killed.",
)  # fmt: skip
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    file: Path | None,
    targets: tuple[str, ...],
    database: str | None,
    listen: str | None,
    log_format: Literal["auto", "json", "console"] | None,
    stop_timeout: float,
    words: tuple[str, ...],
) -> None:
    """Watch vLLM until told to stop.

    With COMMAND, such as `vllm serve MODEL`, vLLM is run as well: started again when it ends, and
    ended with specwatch, however that ends. What it writes passes through.

    SIGHUP reads the configuration again; SIGTERM and SIGINT end it, COMMAND first, and a second
    one kills COMMAND. Exit code 2 when the configuration is refused, the address to listen on
    cannot be had, or COMMAND cannot be started.
    """
    environ = dict(os.environ)
    # Our matrices are small: threads for them would take time from the server that we watch.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from specwatch.actuators.supervisor import Supervisor
    from specwatch.cli import supervision
    from specwatch.daemon.daemon import Daemon
    from specwatch.runtime import logs

    def configured() -> Config:
        return supervision.configured(file, targets, words, database=database, listen=listen)

    def log(config: Config) -> None:
        logs.configure(
            config.log.level, log_format or config.log.format, no_color=options.no_color()
        )

    config = configured()
    log(config)
    supervisor = Supervisor(words, environ=environ, stop_timeout=stop_timeout) if words else None
    from_file = not targets and (file is not None or options.has_default_file())
    daemon = Daemon(
        config,
        environ=os.environ,
        reload=configured if from_file else None,
        taken_over=log,
        supervisor=supervisor,
    )
    _catch_signals(daemon, supervisor)
    if supervisor is None:
        daemon.run()
    else:
        _run_both(daemon, supervisor, supervision.stored_mode(config))
    logging.shutdown()
    # Everything is written. A thread that hangs in a database or a socket must not hold us.
    os._exit(0)


def _catch_signals(daemon: Daemon, supervisor: Supervisor | None) -> None:
    def end(*_: object) -> None:
        if supervisor is None:
            daemon.ask_to_stop()
        else:
            supervisor.ask_to_stop(then=daemon.ask_to_stop)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, lambda *_: daemon.ask_to_reload())


def _run_both(daemon: Daemon, supervisor: Supervisor, mode: Mode) -> None:
    """vLLM is there before it is watched, and watched until it has ended."""
    try:
        try:
            supervisor.start(mode)
        except ActuatorError as error:
            raise ConfigError(f"COMMAND: {error}") from None
        daemon.run()
    finally:
        supervisor.stop()
