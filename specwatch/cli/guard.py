"""``specwatch guard``: the guard, for a person."""

from __future__ import annotations

import click

from specwatch.cli import commands

_COMMANDS = {
    "status": "where the guard of each target is, and what it waits for",
    "plan": "what switching speculation off would run, write and cost",
    "pause": "have the guard begin nothing, for a while",
    "resume": "end a pause, or a hold",
    "disable": "switch speculation off, by order of a person",
    "enable": "switch speculation on, by order of a person",
    "history": "what the guard did, step by step",
    "explain": "an incident with the numbers that led to each step",
}


@click.group(
    name="guard", cls=commands.LazyGroup, summaries=_COMMANDS, modules="specwatch.cli.guard_"
)
def command() -> None:
    """The guard, which restarts vLLM without speculation where that pays.

    What a person says goes before what the guard would do. It is stored in the database, so that
    it holds for whichever daemon guards the target.
    """
