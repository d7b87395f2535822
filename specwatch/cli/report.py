"""``specwatch report``: the report of a period, printed or written."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specwatch.cli import options
from specwatch.cli.output import json_text, require_writable, write
from specwatch.config.loading import Config
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.wording.text import clean_lines

if TYPE_CHECKING:
    from specwatch.report.model import Report
    from specwatch.report.reader import Progress

FORMATS = ("text", "md", "html", "json")
_SUFFIXES = {".txt": "text", ".md": "md", ".html": "html", ".htm": "html", ".json": "json"}


@click.command(name="report")
@options.since_option
@options.until_option
@click.option(
    "--target", "targets", multiple=True, metavar="NAME", help="Only this target. Repeatable."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format.  [default: by the suffix of --output, else text]",
)
@options.path("--output", "-o", text="Write the report to a file.  [default: standard output]")
@click.option("--schema", is_flag=True, help="Print only the JSON schema of reports.")
@click.option(
    "--deliver",
    is_flag=True,
    help="Write and send the report of the last week, according to `report` in the configuration.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="With --deliver: send the last report again to those who did not receive it.",
)
@options.file_option
@options.database_option
@options.json_option
def command(
    since: float,
    until: float | None,
    targets: tuple[str, ...],
    form: str | None,
    output: Path | None,
    schema: bool,
    deliver: bool,
    retry: bool,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Report whether speculation paid, for which temperatures and loads, and what to do.

    For each target the answer comes first, then comparisons with the period before and with serving
    without speculation. Everything is read from the database; no daemon has to run.
    """
    if deliver or retry:
        from specwatch.cli import report_delivery
        from specwatch.pages.mail_html import mail_html
        from specwatch.report.charts import has_fonts
        from specwatch.report.markdown import markdown
        from specwatch.report.messages import MOST_MODELS

        by = report_delivery.Means(
            lambda config, since, until, now: made(
                config.database.connect_url(), config, since=since, until=until, now=now
            ),
            lambda report: rendered(report, "html"),
            lambda report: rendered(report, "md"),
            lambda report: markdown(report, MOST_MODELS),
            lambda report, url, attached: mail_html(
                report, url=url, attached=attached, pictures=has_fonts()
            ),
        )
        report_delivery.run(file, by, deliver=deliver, retry=retry, as_json=as_json)
        return
    if schema:
        _schema(output)
        return
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other; give one of them")
    form = _agreed("json" if as_json else form, output, "--json" if as_json else f"--format {form}")
    if output is not None:
        require_writable(output)
    from rich.progress import MofNCompleteColumn

    from specwatch.cli.progress import ProgressBar

    loaded = options.configured(database, file)
    bar = ProgressBar(MofNCompleteColumn())
    with bar.over(None):
        report = made(
            options.database_url(database, file),
            loaded,
            since=since,
            until=until,
            targets=targets or None,
            progress=lambda done, of, name: bar.step(name, completed=done, total=of),
        )
    if output is not None:
        write(output, rendered(report, form))
    elif form == "text":
        from specwatch.cli.terminal import Terminal
        from specwatch.report.text import lines

        terminal = Terminal()
        terminal.lines(lines(report, terminal.width, bar=terminal.bar))
    else:
        click.echo(rendered(report, form), nl=False)


def made(
    url: str,
    config: Config | None,
    *,
    since: float,
    until: float | None = None,
    targets: Sequence[str] | None = None,
    now: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report on a database between two Unix times.

    ``until`` and ``now`` are by default the current time. Raises ConfigError, StoreError,
    WorkerLostError.
    """
    # The matrices are small: threads for them take longer than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from specwatch.report.reader import read_report
    from specwatch.store.readers import Reader

    now = time.time() if now is None else now
    # Garbage collection would take a fifth of the time, and there are no cycles to find.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with closing(Reader.of(url)) as reader:
            return read_report(
                reader,
                since=since,
                until=now if until is None else until,
                now=now,
                targets=targets,
                config=config,
                progress=progress or (lambda done, of, name: None),
            )
    finally:
        if collecting:
            gc.enable()


def rendered(report: Report, form: str) -> str:
    """A report in one of :data:`FORMATS`; as text it has no colours and 80 columns."""
    if form == "json":
        return json_text(report)
    if form == "md":
        from specwatch.report.markdown import markdown

        return markdown(report)
    if form == "html":
        from specwatch.pages.report_html import report_html

        return report_html(report)
    from specwatch.report.text import plain

    return plain(report)


def _schema(output: Path | None) -> None:
    """Print or write the schema of reports. Raises UsageError for options without effect."""
    from specwatch.report import model

    for name, option in options.given_options(click.get_current_context()).items():
        if name not in ("schema", "output", "as_json"):
            raise click.UsageError(
                f"--schema and {option} exclude each other: the schema is that of every report;"
                " leave one of them out"
            )
    if output is None:
        options.print_json(model.schema())
    else:
        _agreed("json", output, "--schema")
        require_writable(output)
        write(output, json.dumps(model.schema(), indent=2) + "\n")


def _agreed(form: str | None, output: Path | None, option: str) -> str:
    """The format of the option, else that of the file. Raises ConfigError if they contradict."""
    if output is None:
        return form or "text"
    of_file = _SUFFIXES.get(output.suffix.lower())
    if form is None and of_file is None:
        raise click.UsageError(
            f"{quoted(output.name)} has no known suffix: give --format, or a name that ends with"
            f" one of {', '.join(_SUFFIXES)}"
        )
    if form is not None and of_file not in (None, form):
        raise ConfigError(
            f"{option} writes {form}, and --output {clean_lines(str(output))} is for {of_file};"
            f" leave {option} out, or give another name"
        )
    return form or of_file or ""
