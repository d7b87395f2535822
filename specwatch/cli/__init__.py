"""The command line.

Exit codes: 0 ok, 1 the answer is "no" (unhealthy, breach, difference), 2 a usage or configuration
error, 130 interrupted before there was an answer.
"""

from __future__ import annotations

from typing import Any

import click

from specwatch import __version__
from specwatch.cli import commands, examples

_COMMANDS = {
    "run": "watch vLLM: the daemon",
    "demo": "watch a simulated vLLM, for two minutes",
    "simulate": "run a simulated vLLM",
    "scrape": "show one metrics page, from a URL or a file",
    "status": "show the status of the daemon",
    "backfill": "fill the database from a Prometheus that has scraped vLLM",
    "report": "report on a week: did speculation pay, and what to do",
    "probe": "measure acceptance at each sampling temperature",
    "calibrate": "measure or import the cost of serving without speculation, by load",
    "bench": "measure speed and latency at each load, and the speedup: compare",
    "advise": "check a target and a draft model before starting them",
    "check-config": "check a configuration, and what it refers to",
    "strip": "remove speculation from a command that starts vLLM",
    "generate": "write files for other programs: dashboards, alerts, systemd units",
    "rules": "show and replay the rules: list, test",
    "guard": "show and control the guard, which restarts vLLM: status, plan, pause, ...",
    "switch": "change the draft tokens of a running vLLM",
    "experiment": "show and control the experiment of a target: status, results, stop, start",
    "db": "maintain the database: upgrade, current, prune, check",
    "tap": "measure by temperature: flags for vLLM, or a proxy",
    "guard-helper": "",
}


@click.group(
    name="specwatch",
    cls=commands.LazyGroup,
    summaries=_COMMANDS,
    modules="specwatch.cli.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples.epilog(""),
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
