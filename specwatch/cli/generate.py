"""``specwatch generate``: dashboards, alerts, systemd units and reference pages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from specwatch.cli import options
from specwatch.config.guard import DEFAULT_RUNBOOK_URL
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.generate import systemd as systemd_units

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(name="generate")
def command() -> None:
    """Write files for other programs; --check exits with 1 if they are stale."""


def _output_option(default: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--output", "-o", "folder", type=click.Path(path_type=Path), default=Path(default),
        show_default=True, help="Folder to write to.",
    )  # fmt: skip


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
    "--runbook-url", metavar="URL", callback=options.parsed(_runbook_url),
    default=DEFAULT_RUNBOOK_URL, show_default=True,
    help="URL of the runbook; a daemon serves it below its own address.",
)  # fmt: skip


@command.command()
@_output_option("systemd")
@click.option(
    "--executable", default=systemd_units.DEFAULT_EXECUTABLE, show_default=True,
    help="Absolute path of the installed specwatch.",
)  # fmt: skip
@click.option(
    "--config", default=systemd_units.DEFAULT_CONFIG, show_default=True,
    help="Absolute path of the configuration file of the service. In another folder than the"
    " default, let it contain `database`, so that other commands use the same one.",
)  # fmt: skip
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
def dashboards(folder: Path, runbook_url: str, check: bool) -> None:
    """Write Grafana dashboards, and the files that provision them."""
    from specwatch.generate.dashboards import dashboards as all_dashboards
    from specwatch.generate.dashboards import provisioning

    files = {**all_dashboards(runbook_url=runbook_url), **provisioning()}
    _write(folder, files, check=check)


@command.command()
@_output_option("alerts")
@_runbook_option
@click.option("--job", default="specwatch", show_default=True, help="Prometheus job of the daemon.")
@options.path(
    "--config", "-c", "file", text="Configuration file with objectives (slos) to use, not examples."
)
@_check_option
def alerts(folder: Path, runbook_url: str, job: str, file: Path | None, check: bool) -> None:
    """Write Prometheus rules, a sample Alertmanager configuration and the runbook."""
    from specwatch.generate.alerts import alert_files

    config = options.loaded(file) if file is not None else None
    slos = {} if config is None else {"slos": config.slos}
    _write(folder, alert_files(runbook_url=runbook_url, job=job, **slos), check=check)


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
