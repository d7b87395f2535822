"""``specwatch generate``: dashboards, alerts, systemd units, manifests and reference pages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from specwatch.cli import commands, options
from specwatch.config.guard import DEFAULT_RUNBOOK_URL, DEFAULT_URL
from specwatch.domain.units import parse_server_url, quoted
from specwatch.errors import ConfigError
from specwatch.generate import systemd as systemd_units

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(name="generate", cls=commands.CommandGroup)
def command() -> None:
    """Write files for other programs; --check exits with 1 if they are stale."""


def _output_option(default: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--output",
        "-o",
        "folder",
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        help="Folder to write to.",
    )


def _runbook_url(text: str) -> str:
    """A URL without braces, which mark templates of Prometheus and Grafana. Raises ValueError."""
    try:
        host = urlsplit(text).hostname
    except ValueError:  # brackets that do not enclose an IPv6 address
        host = None
    unfit = not text.isprintable() or re.search(r"[ {}]", text)
    if unfit or not host or not re.match(r"https?://", text):
        raise ValueError(f"{quoted(text)} is not a URL; write it like {DEFAULT_RUNBOOK_URL}")
    if "#" in text:
        raise ValueError(f"{quoted(text)} has a fragment, which each alert adds; leave it out")
    return text


_check_option = click.option(
    "--check", is_flag=True, help="Write nothing; exit with 1 if a file differs."
)
_runbook_option = click.option(
    "--runbook-url",
    metavar="URL",
    callback=options.parsed(_runbook_url),
    help="URL of the runbook. Default: /runbook of the daemon at its external_url, which dashboards"
    " read from its metrics.",
)


@command.command()
@_output_option("systemd")
@click.option(
    "--executable",
    default=systemd_units.DEFAULT_EXECUTABLE,
    show_default=True,
    help="Absolute path of the installed specwatch.",
)
@click.option(
    "--config",
    default=systemd_units.DEFAULT_CONFIG,
    show_default=True,
    help="Absolute path of the configuration file of the service. In another folder than the"
    " default, let it contain `database`, so that other commands use the same one.",
)
@click.option("--gpu", is_flag=True, help="Give access to NVIDIA devices, to read GPU memory.")
@_check_option
def systemd(folder: Path, executable: str, config: str, gpu: bool, check: bool) -> None:
    """Write the systemd units."""
    try:
        files = systemd_units.units(executable=executable, config=config, gpu=gpu)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _write(folder, files, check=check)


@command.command()
@_output_option("dashboards")
@_runbook_option
@_check_option
def dashboards(folder: Path, runbook_url: str | None, check: bool) -> None:
    """Write Grafana dashboards, and the files that provision them."""
    from specwatch.generate.dashboards import dashboards as all_dashboards
    from specwatch.generate.dashboards import of_database, provisioning

    files = {**all_dashboards(runbook_url=runbook_url), **of_database(), **provisioning()}
    _write(folder, files, check=check)


@command.command()
@_output_option("alerts")
@_runbook_option
@click.option(
    "--grafana-url",
    metavar="URL",
    callback=options.parsed(parse_server_url),
    help="Grafana with the dashboards, to which alerts link. Default: they link to the status page"
    " of the daemon.",
)
@click.option("--job", default="specwatch", show_default=True, help="Prometheus job of the daemon.")
@options.path(
    "--config",
    "-c",
    "file",
    text="Configuration file with the objectives (slos), external_url, and runbook_url and"
    " grafana_url of alertmanager to use.",
)
@_check_option
def alerts(
    folder: Path,
    runbook_url: str | None,
    grafana_url: str | None,
    job: str,
    file: Path | None,
    check: bool,
) -> None:
    """Write Prometheus rules, a sample Alertmanager configuration and the runbook."""
    from specwatch.generate.alerts import alert_files
    from specwatch.generate.alerts.objectives import SAMPLE_SLOS

    config = options.loaded(file) if file is not None else None
    if config is not None and config.alertmanager is not None:
        grafana_url = grafana_url or config.alertmanager.grafana_url
    files = alert_files(
        runbook_url=runbook_url or (DEFAULT_RUNBOOK_URL if config is None else config.runbook_url),
        job=job,
        slos=SAMPLE_SLOS if config is None else config.slos,
        status_url=DEFAULT_URL if config is None else config.external_url,
        grafana_url=grafana_url,
    )
    _write(folder, files, check=check)


@command.command()
@_output_option("deploy")
@click.option(
    "--external-url",
    metavar="URL",
    callback=options.parsed(parse_server_url),
    help="Where people reach the daemon, to which alerts link. Default: the Service specwatch in"
    " the namespace specwatch.",
)
@_check_option
def kubernetes(folder: Path, external_url: str | None, check: bool) -> None:
    """Write a kustomize base, a Helm chart, and gates for rollouts."""
    from specwatch.generate.kubernetes import DEFAULT_URL as SERVICE_URL
    from specwatch.generate.kubernetes import manifests

    _write(folder, manifests(external_url=external_url or SERVICE_URL), check=check)


@command.command(hidden=True)
@_output_option("docs/reference")
@_check_option
def reference(folder: Path, check: bool) -> None:
    """Write the manual's pages about the configuration, commands, metrics, rules and HTTP API."""
    from specwatch.cli.reference import reference as pages

    _write(folder, pages(), check=check)


def _write(folder: Path, files: Mapping[str, str], *, check: bool) -> None:
    stale = False
    for name, text in files.items():
        path = folder / name
        try:
            written = path.read_text() if path.exists() else ""
            if check and written != text:
                stale = True
                difference = difflib.unified_diff(
                    written.splitlines(), text.splitlines(), str(path), "generated", lineterm=""
                )
                click.echo("\n".join(difference))
            elif written != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                click.echo(f"wrote {path}")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    if stale:
        raise click.exceptions.Exit(1)
