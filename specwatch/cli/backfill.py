"""``specwatch backfill``: history from a Prometheus that has scraped vLLM all along."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from specwatch import __version__, config
from specwatch.cli import options
from specwatch.errors import ConfigError, NoAnswer, SpecwatchError, StoreError
from specwatch.model import HOUR
from specwatch.scalars import format_duration, quoted
from specwatch.sections import Surroundings
from specwatch.target import Target
from specwatch.wording.figures import counted
from specwatch.wording.moments import moment
from specwatch.wording.text import shown

if TYPE_CHECKING:
    from specwatch.backfill import Filled, Span
    from specwatch.cli.backfill_progress import Progress
    from specwatch.core.prometheus_targets import Source
    from specwatch.edges.prometheus import Prometheus
    from specwatch.edges.store import Store

_SHORTEST_STEP, _LONGEST_STEP = 1.0, 60.0
_LOOK_BACK = "1h"


class Stopped(SpecwatchError):
    """It did not come to its end."""


def _step(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = options.duration(context, parameter, text)
    if not _SHORTEST_STEP <= seconds <= _LONGEST_STEP:
        raise click.BadParameter(
            f"{format_duration(seconds)} is outside 1s to 1m, the length of a window"
        )
    return seconds


def _header(_: click.Context, __: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
    pairs = [value.partition(":") for value in values]
    if any(not colon for _, colon, _ in pairs):
        raise click.BadParameter("write it like 'X-Scope-OrgID: tenant'")
    return {name.strip(): value.strip() for name, _, value in pairs}


@click.command(name="backfill")
@click.option(
    "--prometheus", "url", metavar="URL", required=True,
    help="The API: of Prometheus, Thanos Query, or Mimir (whose URL ends in /prometheus).",
)  # fmt: skip
@click.option(
    "--since", default="30d", show_default=True, callback=options.moment, metavar="TIME",
    help="From when on: a duration before now, or a Unix time; the whole hour.",
)  # fmt: skip
@click.option(
    "--until", callback=options.moment, metavar="TIME",
    help="Until when.  [default: 15 minutes ago]",
)  # fmt: skip
@click.option(
    "--step", callback=_step, metavar="TIME",
    help="Look so often, for history that was thinned out.  [default: every scrape]",
)  # fmt: skip
@click.option(
    "--selector", default="{}", metavar="SELECTOR",
    help="Which servers, like '{job=\"vllm\"}'.  [default: all with vLLM's metrics]",
)  # fmt: skip
@click.option(
    "--target", metavar="NAME",
    help="Which target it is, where that is one.  [default: the configuration's with the host and"
    " port of the instance, or HOST:PORT]",
)  # fmt: skip
@click.option(
    "--header", "headers", multiple=True, callback=_header, metavar="'NAME: VALUE'",
    help="Sent with each query, like 'X-Scope-OrgID: tenant'. Repeatable.",
)  # fmt: skip
@click.option(
    "--bearer-token-file", type=click.Path(path_type=Path), metavar="FILE", help="Holds the token.",
)  # fmt: skip
@click.option("--user", metavar="NAME", help="User name, with --password-file.")
@click.option(
    "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="Holds the password.",
)  # fmt: skip
@click.option(
    "--ca-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Authorities that may sign its certificate.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Take any certificate.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@options.database_option
@options.file_option
@options.json_option
def command(**given: Any) -> None:
    """Fill the store from a Prometheus that has scraped vLLM all along.

    What the daemon saw itself is never written over. It can be stopped at any time: the same
    command goes on where it was. Beside a running daemon it leaves the last 15 minutes alone.

    Exit code 1 where there is nothing, or Prometheus or the database fails; 2 where it cannot be
    asked like that.
    """
    from specwatch.backfill import MARGIN, Span, end_of
    from specwatch.cli.backfill_progress import Progress
    from specwatch.core import prometheus_pages

    now = time.time()
    loaded = options.loaded(given["file"])
    daemon = socket.gethostname() if loaded is None else loaded.daemon
    try:
        selector = prometheus_pages.presence_selector(given["selector"])
    except ValueError as error:
        raise ConfigError(f"--selector: {error}") from None
    since = int(given["since"] // HOUR) * HOUR
    if given["until"] is not None and given["until"] <= given["since"]:
        raise ConfigError("--until is not after --since; leave it out, or make it later")
    wanted = now - MARGIN if given["until"] is None else given["until"]
    with _prometheus(given) as prometheus, _store(given, daemon, now) as store:
        span = Span(since, max(end_of(store, wanted, now), since))
        found = _sources(prometheus, selector, span, given, loaded)
        progress = Progress()
        filled = _fill(prometheus, store, found, span, daemon, progress, given)
    report = {
        "since": span.since,
        "until": span.until,
        "dry_run": given["dry_run"],
        "targets": [each._asdict() for each in filled],
    }
    if given["as_json"]:
        options.print_json(report)
    else:
        for line in _lines(filled, span, dry_run=given["dry_run"]):
            click.echo(line)


def _fill(
    prometheus: Prometheus,
    store: Store | None,
    sources: Sequence[Source],
    span: Span,
    daemon: str,
    progress: Progress,
    given: Mapping[str, Any],
) -> list[Filled]:
    from specwatch.backfill import Backfill

    backfill = Backfill(
        prometheus, store, daemon=daemon, progress=progress, step=given["step"],
        write=not given["dry_run"],
    )  # fmt: skip
    try:
        with progress.over(sum(backfill.hours(source, span) for source in sources)):
            filled = [backfill.fill(source, span) for source in sources]
        if store is not None and not given["dry_run"]:
            store.roll_up(time.time())
    except KeyboardInterrupt:
        raise Stopped(f"interrupted{_after(progress)}") from None
    except SpecwatchError as error:
        if isinstance(error, ConfigError):
            raise
        raise Stopped(f"{error}\nstopped{_after(progress)}") from error
    return filled


def _after(progress: Progress) -> str:
    if progress.at is None:
        return " before the first hour: nothing was written; the same command goes on"
    target, hour = progress.at
    return f" after the hour of {moment(hour)} of {shown(target)}; the same command goes on"


@contextmanager
def _prometheus(given: Mapping[str, Any]) -> Iterator[Prometheus]:
    from specwatch.edges.prometheus import Access, Prometheus

    if bool(given["user"]) != bool(given["password_file"]):
        raise ConfigError("--user and --password-file go together; give both")
    written = {
        "url": given["url"],
        "headers": given["headers"],
        "bearer_token_file": given["bearer_token_file"],
        "insecure_skip_verify": given["insecure"],
        "ca_file": given["ca_file"],
    }
    if given["user"]:
        written["basic_auth"] = {"username": given["user"], "password_file": given["password_file"]}
    access = options.section(
        "--prometheus", Access, {name: value for name, value in written.items() if value}
    )
    # Thanos: all or nothing, and every sample unless thinned ones are asked for.
    parameters = {"partial_response": "false"}
    if given["step"] is None:
        parameters["max_source_resolution"] = "0s"
    prometheus = Prometheus(access, parameters=parameters)
    try:
        yield prometheus
    finally:
        prometheus.close()


@contextmanager
def _store(given: Mapping[str, Any], daemon: str, now: float) -> Iterator[Store | None]:
    """The database; None where it does not exist and nothing shall be written."""
    from specwatch.edges.store import Store
    from specwatch.edges.taken import BACKFILL

    url = options.database_url(given["database"], given["file"])
    if given["dry_run"] and options.revision(url) is None:
        yield None
        return
    store = Store(url, daemon=daemon, version=f"{__version__}{BACKFILL}")
    if not given["dry_run"]:
        store.open(now)
    try:
        yield store
    finally:
        with suppress(StoreError):  # why it is not there was told
            store.close(time.time())


def _sources(
    prometheus: Prometheus,
    selector: str,
    span: Span,
    given: Mapping[str, Any],
    loaded: config.Config | None,
) -> list[Source]:
    from specwatch.backfill import discover
    from specwatch.core.prometheus_targets import sources

    servers = [
        server
        for server in discover(prometheus, selector, span)
        if len(server.present.within(span.since, span.until))
    ]
    if not servers:
        raise NoAnswer(
            f"{prometheus.url} has no page of vLLM from {moment(span.since)} to"
            f" {moment(span.until)} for {selector}; {_jobs(prometheus, span.until)}"
        )
    return sources(
        servers,
        () if loaded is None else loaded.targets,
        name=given["target"],
        hostname=socket.gethostname(),
        default_name=_default_name(),
    )


def _jobs(prometheus: Prometheus, at: float) -> str:
    """Which jobs do have vLLM's metrics, as a hint."""
    from specwatch.core.prometheus_pages import presence_selector
    from specwatch.core.prometheus_targets import named

    asked = f"group by (job) (last_over_time({presence_selector('{}')}[{_LOOK_BACK}]))"
    jobs = sorted(quoted(labels.get("job", "")) for labels, _ in prometheus.query(asked, at))
    if jobs:
        return f"in the hour before {moment(at)} these jobs have: {named(jobs)}"
    return f"nor has any job in the hour before {moment(at)}; does this one scrape vLLM?"


def _default_name() -> Callable[[str], str]:
    """Names an instance as ``specwatch run --target http://INSTANCE`` would."""
    surroundings = Surroundings(os.environ, socket.gethostname(), Path())

    def name(instance: str) -> str:
        try:
            written = {"url": f"http://{instance}"}
            return Target.model_validate(written, context=surroundings).name
        except ValidationError:
            pass
        try:
            return Target.model_validate({"url": "http://instance", "name": instance}).name
        except ValidationError:
            raise ConfigError(
                f"the instance {quoted(instance)} cannot be the name of a target; give --target"
                " NAME, and --selector for one instance"
            ) from None

    return name


def _lines(filled: Sequence[Filled], span: Span, *, dry_run: bool) -> Iterator[str]:
    would = "would be written" if dry_run else "written"
    for each in filled:
        yield (
            f"{shown(each.target)}: {counted(each.minutes_written, 'minute')} {would},"
            f" {counted(each.minutes_kept, 'minute')} there already, of"
            f" {counted(each.hours, 'hour')} with pages"
        )
        if each.until < span.until:
            yield (
                f"  not after {moment(each.until)}, where the daemon stands: it counts the rest"
                " itself, when it runs"
            )
