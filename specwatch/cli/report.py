"""``specwatch report``: what decides on Monday."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

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
@click.option(
    "--since", default="7d", show_default=True, callback=options.moment, metavar="WHEN",
    help=options.WHEN,
)  # fmt: skip
@click.option(
    "--until", callback=options.moment, metavar="WHEN", help="The same; now when not given."
)
@click.option(
    "--target", "targets", multiple=True, metavar="NAME", help="Only this target. Repeatable."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS),
    help="Text, unless the suffix of the output says otherwise.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE",
    help="Write it to a file instead of standard output.",
)  # fmt: skip
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of the report, and nothing else."
)
@click.option(
    "--deliver", is_flag=True,
    help="Write and send the report of the last week, as the configuration's section report says.",
)  # fmt: skip
@click.option(
    "--retry", is_flag=True,
    help="With --deliver: only send what did not arrive of the last report.",
)  # fmt: skip
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
    """Tell whether speculation paid, for which temperatures and loads, and what to do.

    Of each target it says that first, then compares with the period before and with serving
    without speculation. All is read from the database: no daemon need run.
    """
    if deliver or retry:
        from specwatch.cli import report_delivery

        report_delivery.run(file, deliver=deliver, retry=retry, as_json=as_json)
        return
    if schema:
        _schema(output)
        return
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other; give one of them")
    form = _agreed("json" if as_json else form, output, "--json" if as_json else f"--format {form}")
    if output is not None:
        require_writable(output)
    loaded = options.configured(database, file)
    with _progress() as progress:
        report = made(
            options.database_url(database, file),
            loaded,
            since=since,
            until=until,
            targets=targets or None,
            progress=progress,
        )
    if output is not None:
        write(output, rendered(report, form))
    elif form == "text":
        _show(report)
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
    """The report of what the database at a URL has, ``since`` and ``until`` being Unix times.

    Without ``until`` and ``now`` it goes up to this moment. Raises ConfigError, StoreError,
    WorkerLostError.
    """
    # Its matrices are small: threads for them take longer than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from specwatch.report.reader import read_report
    from specwatch.store.readers import Reader

    now = time.time() if now is None else now
    reader = Reader.of(url)
    # A fifth of the time would go into looking for cycles among values that have none.
    collecting = gc.isenabled()
    gc.disable()
    try:
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
        reader.close()


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
    """The schema of the report, to a file or not; options that would have no effect are refused."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in ("schema", "output", "as_json"):
            raise click.UsageError(
                f"--schema and {option.opts[0]} exclude each other: the schema is that of every"
                " report; leave one of them out"
            )
    from specwatch.report import model

    if output is None:
        options.print_json(model.schema())
        return
    _agreed("json", output, "--schema")
    require_writable(output)
    write(output, json.dumps(model.schema(), indent=2) + "\n")


def _agreed(form: str | None, output: Path | None, option: str) -> str:
    """The format of the option, else that of the file; ConfigError where they contradict."""
    suffix = "" if output is None else output.suffix.lower()
    of_file = "text" if output is None else _SUFFIXES.get(suffix)
    if form is None and of_file is None:
        known = ", ".join(_SUFFIXES)
        raise click.UsageError(
            f"{quoted('' if output is None else output.name)} does not say which format: give"
            f" --format, or a name that ends with one of {known}"
        )
    if form is not None and output is not None and of_file not in (None, form):
        raise ConfigError(
            f"{option} writes {form}, and --output {clean_lines(str(output))} says {of_file}; leave"
            f" {option} out, or give another name"
        )
    return form or of_file or ""


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on a terminal's standard error; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    from specwatch.cli.progress import Progress

    progress = Progress(MofNCompleteColumn())
    with progress.over(None):
        yield lambda done, of, name: progress.step(name, completed=done, total=of)


def _show(report: Report) -> None:
    from specwatch.cli.terminal import Terminal
    from specwatch.report.text import lines

    terminal = Terminal()
    terminal.lines(lines(report, terminal.width, bar=terminal.bar))
