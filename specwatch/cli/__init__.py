"""The command line: the only room that knows everyone.

Exit codes: 0 ok, 1 the answer is "no" (unhealthy, breach, difference), 2 a usage or configuration
error, 130 interrupted before there was an answer.
"""

from __future__ import annotations

from typing import Any

import click

from specwatch import __version__
from specwatch.cli import commands

_COMMANDS = {
    "run": "watch vLLM: the daemon",
    "demo": "the whole loop against a simulated vLLM, in about a minute and a half",
    "simulate": "a simulated vLLM",
    "scrape": "what one look at a URL or a saved page sees",
    "status": "what the daemon knows now",
    "backfill": "fills the store from a Prometheus that has scraped vLLM all along",
    "report": "the report of a week: did speculation pay, and what to do",
    "probe": "what drafts are worth at each sampling temperature",
    "calibrate": "what serving costs without speculation, by load: measured, or imported",
    "bench": "what clients get at each load, and what speculation brings there: compare",
    "advise": "is this pairing of target and draft sound, before anything is started",
    "check-config": "everything that can be wrong with a configuration, found now",
    "strip": "a command that starts vLLM, without speculation",
    "generate": "files for other programs: dashboards, alerts, systemd units",
    "rules": "the rules, and what they would have done: list, test",
    "guard": "restarts vLLM without speculation where that pays: status, plan, pause, ...",
    "db": "the store: upgrade, current, prune",
    "tap": "numbers by temperature: flags for vLLM, or a proxy",
    "guard-helper": "",
}


@click.group(
    cls=commands.LazyGroup,
    summaries=_COMMANDS,
    modules="specwatch.cli.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="specwatch")
def group() -> None:
    """Does speculative decoding pay on your vLLM server?

    Exit codes: 0 ok, 1 the answer is "no" (unhealthy, breach, difference), 2 a usage or
    configuration error, 130 interrupted before there was an answer.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the ``specwatch`` command."""
    return group.main(args=arguments, prog_name="specwatch")
