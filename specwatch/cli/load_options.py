"""Options of the commands that send requests: what to send, and who may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from specwatch.cli import options
from specwatch.cli.load_sources import numbers
from specwatch.loadtest.prompts import LEAST_TOKENS, OUTPUT_TOKENS

_Command = TypeVar("_Command", bound=Callable[..., Any])

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
    for each in reversed(options_):
        command = each(command)
    return command
