"""``specwatch tap``: acceptance and latency by temperature, from the traffic itself."""

from __future__ import annotations

import click

from specwatch.cli import commands

_COMMANDS = {
    "flags": "what to add to `vllm serve`, so that it loads the tap itself",
    "proxy": "the tap as a reverse proxy, for servers that cannot load it",
}


@click.group(name="tap", cls=commands.LazyGroup, summaries=_COMMANDS, modules="specwatch.cli.tap_")
def command() -> None:
    """Acceptance and latency by sampling temperature, read off the traffic."""
