"""``specwatch tap flags``: what to add to ``vllm serve``, and why."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from specwatch.cli import options
from specwatch.cli.output import for_a_shell, for_json
from specwatch.domain.temperature import DEFAULT_EDGES
from specwatch.domain.units import parse_engine_url
from specwatch.errors import CannotStrip, ConfigError, SpecwatchError
from specwatch.generate import tap as tap_flags
from specwatch.generate.tap import TapAdvice, Version
from specwatch.runtime.text_file import read_text
from specwatch.scrape import engine_info
from specwatch.scrape.page_client import PageClient
from specwatch.tap import settings
from specwatch.vllm_cli import read_command
from specwatch.vllm_cli.command import Arguments, ServeCommand
from specwatch.wording.text import clean_lines, shown

_TIMEOUT = 5.0
_LARGEST_ANSWER = 1 << 20
_WHY = {
    settings.BUCKETS: "Upper ends of the temperature buckets. Give the daemon the same, as"
    " temperature_buckets.",
    settings.REMOVE_METRICS: "Clients do not see the acceptance record that vLLM adds to"
    " responses of chat and completions.",
}


@click.command(name="flags")
@click.option("--vllm-version", metavar="V", help="Version of vLLM, such as 0.29.0.")
@click.option("--target", metavar="URL", help="A vLLM that runs: ask it for its version.")
@click.option(
    "--temperature-buckets", "buckets", metavar="0,0.3,..",
    help="Upper ends of the temperature buckets, when not the default 0,0.3,0.7,1.",
)  # fmt: skip
@click.option(
    "--remove-metrics", is_flag=True,
    help="Have the tap take the acceptance record out of chat and completions.",
)  # fmt: skip
@click.option(
    "--per-request-metrics", "timings", is_flag=True,
    help="TTFT and TPOT of responses that are not streamed, too (vLLM 0.25).",
)  # fmt: skip
@click.option("--systemd", is_flag=True, help="Print a drop-in for vLLM's unit; needs COMMAND.")
@options.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    vllm_version: str | None,
    target: str | None,
    buckets: str | None,
    remove_metrics: bool,
    timings: bool,
    systemd: bool,
    as_json: bool,
    words: tuple[str, ...],
) -> None:
    """Print what to add to `vllm serve` so that it loads the tap, and why.

    COMMAND is the command line that starts vLLM now: the whole is printed with the flags where
    they belong, and nothing added that is there already.

    Exit code 2 when COMMAND cannot be changed safely; it says why.
    """
    if systemd and not words:
        raise click.UsageError("--systemd needs the command that starts vLLM: -- vllm serve ...")
    version = _version(vllm_version, target)
    environment = _environment(buckets, remove_metrics)
    try:
        given = read_command(words) if words else None
        arguments, problem = _arguments_of(given)
        advice = tap_flags.advise(
            version,
            environment=environment,
            timings=timings,
            removes_metrics=remove_metrics,
            command=given,
            arguments=arguments,
            unread=problem,
        )
        drop_in = tap_flags.drop_in(advice, _install()) if systemd else None
    except (CannotStrip, ValueError) as error:
        raise ConfigError(f"COMMAND: {error}") from None
    if as_json:
        options.print_json(_as_json(advice, drop_in))
    elif drop_in is not None:
        click.echo(drop_in, nl=False)
    else:
        _show(advice)


def _install() -> str:
    """The command that installs this specwatch into another environment, from the same source."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install --no-deps {shlex.quote(str(checkout))}"
    try:
        # As pip notes it of what did not come from an index (PEP 610).
        origin = json.loads(distribution("specwatch").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "vcs_info" in origin:
        control = origin["vcs_info"]
        source = f"{control['vcs']}+{origin['url']}@{control['commit_id']}"
        return f"pip install --no-deps {shlex.quote(source)}"
    folder = url2pathname(urlsplit(origin.get("url", "")).path)
    if folder and Path(folder).exists():
        return f"pip install --no-deps {shlex.quote(folder)}"
    return "pip install --no-deps .   # in a checkout of specwatch"


def _version(version: str | None, target: str | None) -> Version | None:
    if version is not None and target is not None:
        raise click.UsageError("give either --vllm-version or --target, not both")
    if version is not None:
        try:
            return tap_flags.version_of(version)
        except ValueError as error:
            raise ConfigError(f"--vllm-version: {error}") from None
    return None if target is None else _version_at(target)


def _version_at(target: str) -> Version | None:
    try:
        url = parse_engine_url(target)
    except ValueError as error:
        raise ConfigError(f"--target: {error}") from None
    client = PageClient(url, timeout=_TIMEOUT, max_size=_LARGEST_ANSWER)
    try:
        version = engine_info.ask(client.fetch).version
    finally:
        client.close()
    if version is None:
        return None
    try:
        return tap_flags.version_of(version)
    except ValueError:
        raise SpecwatchError(
            f"{target} is not vLLM (its version is {shown(version)!r}), so it cannot load the tap;"
            f" put `specwatch tap proxy --upstream {target}` before it"
        ) from None


def _environment(buckets: str | None, remove_metrics: bool) -> dict[str, str]:
    environment = {}
    if buckets is not None:
        environment[settings.BUCKETS] = buckets.replace(" ", "")
        try:
            edges = settings.from_environment(environment).edges
        except ValueError as error:
            raise ConfigError(f"--temperature-buckets: {error}") from None
        if edges == DEFAULT_EDGES:
            environment.clear()
    if remove_metrics:
        environment[settings.REMOVE_METRICS] = "1"
    return environment


def _arguments_of(given: ServeCommand | None) -> tuple[Arguments | None, str | None]:
    """What a command says together with its ``--config`` file; else why that cannot be read."""
    if given is None:
        return None, None
    try:
        return given.with_file(read_text), None
    except CannotStrip as error:
        return given.arguments, str(error)


def _as_json(advice: TapAdvice, drop_in: str | None) -> dict[str, Any]:
    changed = advice.command
    environment = advice.environment if changed is None else changed.environment
    return {
        "flags": [flag._asdict() for flag in advice.flags],
        "environment": {name: for_json(value) for name, value in environment.items()},
        "install": _install(),
        "command": None if changed is None else list(map(for_json, changed.words)),
        "drop_in": None if drop_in is None else for_json(drop_in),
        "notes": list(advice.notes),
    }


def _show(advice: TapAdvice) -> None:
    _section("Install the tap into vLLM's environment (Python 3.11 or later):", "")
    click.echo(f"  {_install()}\n  {tap_flags.INSTALL_CHECK}   # silent when it works\n")
    if advice.flags:
        _section("Add to `vllm serve`:", "")
        for flag in advice.flags:
            _section(f"  {' '.join(filter(None, flag[:2]))}", flag.why)
    elif advice.command is not None:
        click.echo("The command has all flags that the tap needs.\n")
    if advice.environment:
        click.echo("Set in its environment:\n")
        for name, value in advice.environment.items():
            _section(f"  {name}={shlex.quote(value)}", _WHY[name])
    for note in advice.notes:
        _section("", note, indent="")
    if advice.command is not None:
        click.echo("The whole command:\n")
        click.echo(
            f"  {clean_lines(for_a_shell([*advice.command.assignments, *advice.command.words]))}"
        )


def _section(title: str, text: str, indent: str = "      ") -> None:
    if title:
        click.echo(title)
    if text:
        click.echo(click.wrap_text(text, 80, indent, indent))
    click.echo()
