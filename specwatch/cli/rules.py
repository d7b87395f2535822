"""``specwatch rules``: which rules there are, and what they would have done."""

from __future__ import annotations

import click

from specwatch.cli import commands

_COMMANDS = {
    "list": "the rules that apply, in words",
    "test": "replay the stored history: when would each rule have fired?",
}


@click.group(
    name="rules", cls=commands.LazyGroup, summaries=_COMMANDS, modules="specwatch.cli.rules_"
)
def command() -> None:
    """The rules by which speculation is judged."""
