"""The configuration of a daemon that runs vLLM itself: ``specwatch run -- vllm serve …``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import structlog

from specwatch.cli import options
from specwatch.config.loading import Config, Target
from specwatch.config.service import SupervisedService
from specwatch.domain.model import Mode
from specwatch.domain.units import is_loopback, local_url, server_address
from specwatch.errors import CannotStrip, ConfigError, StoreError
from specwatch.runtime.text_file import read_text
from specwatch.vllm_cli import read_command
from specwatch.wording.text import shown

_log = structlog.get_logger("specwatch.run")

_FLAGS = ("--host", "--port", "--uds", "--ssl-keyfile")
"""Where vLLM serves."""
_DEFAULT_PORT = "8000"
_ELSEWHERE = frozenset({"docker", "nerdctl", "kubectl", "systemctl", "systemd-run"})
"""Programs that have another process start vLLM: it would not be ours to end."""
DATABASE_SECONDS = 30.0
"""How long the database is waited for before vLLM is started as its owner wrote it."""
_AGAIN_SECONDS = 1.0


def configured(
    file: Path | None,
    targets: Sequence[str],
    command: Sequence[str],
    *,
    database: str | None,
    listen: str | None,
) -> Config:
    """The configuration of ``run``; with a ``command`` just one target of it is supervised.

    The target is the file's, that of ``--target``, or the one that the command serves. Raises
    ConfigError.
    """
    if not command:
        config = options.load(file, targets, database=database, listen=listen)
        _refuse_without_command(config)
        return config
    _refuse_what_is_not_run(command)
    if targets:
        if len(targets) > 1:
            raise ConfigError("COMMAND is one server: give --target once, with its address")
        target: dict[str, Any] = {"url": targets[0]}
    elif file is None and not options.has_default_file():
        target = _served_by(command)
    else:
        config = options.load(file, database=database, listen=listen)
        _refuse_another_server(_only_supervised(config, file or options.DEFAULT_FILE), command)
        return config
    target["service"] = {"kind": "supervised"}
    return options.load(file, [target], database=database, listen=listen)


def stored_mode(config: Config) -> Mode:
    """How COMMAND is to be started: without speculation where the guard had switched it off.

    A database that starts with this machine is waited for a while.
    """
    from specwatch.store.database import create
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    name = next(
        target.name for target in config.targets if isinstance(target.service, SupervisedService)
    )
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
                _log.warning("guard_not_known", detail=str(error), started_with=str(Mode.ON))
                return Mode.ON
            _log.info("waiting_for_database", detail=str(error))
            time.sleep(_AGAIN_SECONDS)


def _refuse_without_command(config: Config) -> None:
    for target in _supervised(config):
        raise ConfigError(
            f"target {target.name}: its service is supervised, which needs the command that starts"
            " it: specwatch run --config FILE -- vllm serve ..."
        )


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


def _supervised(config: Config) -> list[Target]:
    return [target for target in config.targets if isinstance(target.service, SupervisedService)]


def _only_supervised(config: Config, file: Path) -> Target:
    supervised = _supervised(config)
    if not supervised:
        raise ConfigError(
            f"{file}: no target is run by COMMAND; add service: {{kind: supervised}} to the one"
            " that it serves"
        )
    return supervised[0]


def _refuse_another_server(target: Target, command: Sequence[str]) -> None:
    """A port that is not the command's would have another server judged than is restarted."""
    host, port = server_address(target.url)
    try:
        served = _served_by(command)
    except ConfigError:
        return  # what cannot be read is as the file says
    if is_loopback(host) and port != server_address(served["url"])[1]:
        raise ConfigError(
            f"target {target.name}: its url is {target.url}, but COMMAND serves {served['url']};"
            " make the ports agree"
        )


def _served_by(command: Sequence[str]) -> dict[str, Any]:
    """Where a command serves, as keys of a target. Raises ConfigError."""
    try:
        given = read_command(command)
        if given.location.elsewhere is not None:
            raise CannotStrip(f"{given.location.elsewhere} runs vLLM somewhere else")
        arguments = given.with_file(read_text)
    except CannotStrip as error:
        raise ConfigError(
            f"COMMAND: {error}; where it serves is not known: add --target URL before the --"
        ) from None
    flags = {flag: arguments.value(flag) or "" for flag in _FLAGS if arguments.given(flag)}
    if "--uds" in flags:
        raise ConfigError(
            f"COMMAND: it serves on a socket file, --uds {shown(flags['--uds'])}, which specwatch"
            " does not read; give it --host and --port instead"
        )
    port = flags.get("--port", _DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"COMMAND: --port {shown(port)} is no port; choose one from 1 to 65535")
    host = flags.get("--host", "").removeprefix("[").removesuffix("]")
    url = local_url(host, int(port))
    if "--ssl-keyfile" not in flags:
        return {"url": url}
    # The certificate names the server's public name. Nothing is between us and our own child.
    return {"url": url.replace("http://", "https://", 1), "insecure_skip_verify": True}
