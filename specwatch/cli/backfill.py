"""``specwatch backfill``: history from a Prometheus that has scraped vLLM."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specwatch import __version__
from specwatch.cli import options
from specwatch.config import loading
from specwatch.config.sections import Surroundings
from specwatch.domain.model import HOUR, MINUTE
from specwatch.domain.units import (
    format_duration,
    is_loopback,
    parse_duration,
    quoted,
    server_address,
)
from specwatch.errors import ConfigError, NoAnswer, SpecwatchError, StoreError
from specwatch.wording.figures import counted, moment
from specwatch.wording.text import shown

if TYPE_CHECKING:
    from specwatch.cli.progress import BackfillProgress
    from specwatch.lab.backfill.prometheus import Prometheus
    from specwatch.lab.backfill.prometheus_targets import BackfillSource, FoundTargets
    from specwatch.lab.backfill.service import Filled, Span
    from specwatch.store.repository import Store

_SHORTEST_STEP, _LONGEST_STEP = 1.0, 60.0
_LOOK_BACK = "1h"
_MOST_FAILURES = 3
"""Consecutive targets without an answer, after which the others are not tried."""
_LATE_HOURS = (
    "while rolling up the hours: all minutes are written; run the command again, or leave the rest"
    " to the daemon"
)


class Stopped(SpecwatchError):
    """The backfill did not finish."""


def _step(text: str) -> float:
    seconds = parse_duration(text)
    if not _SHORTEST_STEP <= seconds <= _LONGEST_STEP:
        raise ValueError(f"{format_duration(seconds)}: expected 1s to 1m, the length of a window")
    return seconds


def _header(_: click.Context, __: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
    pairs = [value.partition(":") for value in values]
    if any(not colon for _, colon, _ in pairs):
        raise click.BadParameter("write it like 'X-Scope-OrgID: tenant'")
    return {name.strip(): value.strip() for name, _, value in pairs}


@click.command(name="backfill")
@click.option(
    "--prometheus",
    "url",
    metavar="URL",
    required=True,
    help="Prometheus, Thanos Query, or Mimir (with a URL that ends in /prometheus).",
)
@click.option(
    "--since",
    default="30d",
    show_default=True,
    callback=options.moment,
    metavar="TIME",
    help=f"Start, rounded down to the hour. {options.WHEN}",
)
@click.option(
    "--until",
    callback=options.moment,
    metavar="TIME",
    help="End, written like --since.  [default: 15 minutes ago]",
)
@click.option(
    "--step",
    callback=options.parsed(_step),
    metavar="TIME",
    help="Time between samples, to fetch fewer.  [default: every scrape]",
)
@click.option(
    "--selector",
    default="{}",
    metavar="SELECTOR",
    help="Servers, like '{job=\"vllm\"}'.  [default: the configuration's targets; without a"
    " configuration all with vLLM's metrics]",
)
@click.option(
    "--target",
    metavar="NAME",
    help="Name of the target, if it is the only one.  [default: the configured one with the host"
    " and port of the instance, or HOST:PORT]",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All servers in Prometheus, even if the configuration does not have them as targets.",
)
@click.option(
    "--past-cursor",
    "past_cursors",
    is_flag=True,
    help="Also fill the time after the last scrape of a daemon that ended more than a day ago.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_header,
    metavar="'NAME: VALUE'",
    help="HTTP header of each query, like 'X-Scope-OrgID: tenant'. Repeatable.",
)
@options.path("--bearer-token-file", text="File with the token.")
@click.option("--user", metavar="NAME", help="User name, with --password-file.")
@options.path("--password-file", text="File with the password.")
@options.path("--ca-file", text="Certificate authorities for the server's certificate.")
@click.option("--insecure", is_flag=True, help="Accept any certificate.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@options.database_option
@options.file_option
@options.json_option
def command(**given: Any) -> None:
    """Fill the database from a Prometheus that has scraped vLLM.

    Minutes of the daemon are never overwritten. A backfill can be stopped at any time; the same
    command continues it. The last 15 minutes are left to a running daemon.

    It reads samples as they were scraped: no downsampled ones of Thanos, and no temperatures from a
    `specwatch tap proxy`, which are on another page.

    Exit code 1 when nothing is found, or Prometheus or the database fails for any target; 2 when
    the query is not possible.
    """
    from specwatch.cli.progress import BackfillProgress
    from specwatch.lab.backfill import prometheus_pages
    from specwatch.lab.backfill.service import MARGIN, Span, end_of

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
        progress = BackfillProgress()
        servers = _found(prometheus, selector, span, given, loaded, progress)
        if not servers.sources:
            raise ConfigError("\n".join(servers.refused))
        filled, failed = _fill(prometheus, store, servers.sources, span, daemon, progress, given)
    report = {
        "since": span.since,
        "until": span.until,
        "dry_run": given["dry_run"],
        "targets": [
            target._asdict() | {"held_by": target.held_by and target.held_by._asdict()}
            for target in filled
        ],
        "passed_over": servers.passed_over,
        "failed": [*failed, *servers.refused],
    }
    if given["as_json"]:
        options.print_json(report)
    else:
        proxied = {one.name for one in (loaded.targets if loaded else ()) if one.proxy}
        for line in _lines(filled, span, proxied, servers.passed_over, dry_run=given["dry_run"]):
            click.echo(line)
    if failed:
        raise Stopped("\n".join([*failed, *servers.refused]))
    if servers.refused:
        raise ConfigError("\n".join(servers.refused))


def _fill(
    prometheus: Prometheus,
    store: Store | None,
    sources: Sequence[BackfillSource],
    span: Span,
    daemon: str,
    progress: BackfillProgress,
    given: Mapping[str, Any],
) -> tuple[list[Filled], list[str]]:
    """The result of each target, and the errors of those that failed."""
    from specwatch.lab.backfill.service import Backfill

    backfill = Backfill(
        prometheus,
        store,
        daemon,
        progress.hour,
        step=given["step"],
        write=not given["dry_run"],
        past_cursors=given["past_cursors"],
    )
    filled: list[Filled] = []
    failed: list[str] = []
    in_a_row = 0
    try:
        present = [source.present.within(span.since, span.until) for source in sources]
        with progress.over(sum(len(minutes.hours) for minutes in present)):
            for source in sources:
                try:
                    filled.append(backfill.fill(source, span))
                    in_a_row = 0
                except NoAnswer as error:
                    in_a_row += 1
                    if in_a_row == _MOST_FAILURES or len(sources) == 1:
                        raise
                    failed.append(f"{shown(source.target)}: {error}; the same command continues")
        if store is not None and not given["dry_run"]:
            _roll_up(store, progress)
    except KeyboardInterrupt:
        raise Stopped(f"interrupted{_after(progress)}") from None
    except SpecwatchError as error:
        if isinstance(error, ConfigError | Stopped):
            raise
        raise Stopped("\n".join([*failed, f"{error}", f"stopped{_after(progress)}"])) from error
    return filled, failed


def _roll_up(store: Store, progress: BackfillProgress) -> None:
    """Roll up the hours of all daemons, because minutes were written under several names."""
    from specwatch.lab.backfill.service import retried

    progress.note("all minutes are written; rolling up the hours")
    try:
        retried(lambda: store.roll_up(time.time(), everybody=True), time.sleep)
    except KeyboardInterrupt:
        raise Stopped(f"interrupted {_LATE_HOURS}") from None
    except StoreError as error:
        raise Stopped(f"{error}\nstopped {_LATE_HOURS}") from error


def _after(progress: BackfillProgress) -> str:
    if progress.last is None:
        return " before the first hour: nothing was written; the same command continues"
    target, hour = progress.last
    return f" after the hour of {moment(hour)} of {shown(target)}; the same command continues"


@contextmanager
def _prometheus(given: Mapping[str, Any]) -> Iterator[Prometheus]:
    from specwatch.lab.backfill.prometheus import Access, Prometheus

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
    # Thanos: no partial answers, and no downsampled counters.
    parameters = {"partial_response": "false", "max_source_resolution": "0s"}
    with closing(Prometheus(access, parameters=parameters)) as prometheus:
        yield prometheus


@contextmanager
def _store(given: Mapping[str, Any], daemon: str, now: float) -> Iterator[Store | None]:
    """The database; None with ``--dry-run`` if it does not exist."""
    from specwatch.store.repository import Store
    from specwatch.store.stored_minutes import BACKFILL

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
        with suppress(StoreError):  # the error was reported already
            store.close(time.time())


def _found(
    prometheus: Prometheus,
    selector: str,
    span: Span,
    given: Mapping[str, Any],
    loaded: loading.Config | None,
    progress: BackfillProgress,
) -> FoundTargets:
    from specwatch.lab.backfill.prometheus_targets import named, names_of, sources
    from specwatch.lab.backfill.service import discover

    servers = [
        server
        for server in discover(prometheus, selector, span, progress.looked)
        if len(server.present.within(span.since, span.until))
    ]
    if not servers:
        cut = given["until"] is None or given["until"] >= span.until + MINUTE
        margin = " (the last 15 minutes are left out: give it more time)" if cut else ""
        raise NoAnswer(
            f"{prometheus.url} has no page of vLLM from {moment(span.since)} to"
            f" {moment(span.until)} for {given['selector']}{margin};"
            f" {_jobs(prometheus, span.until)}"
        )
    hostname = socket.gethostname()
    host, _ = server_address(prometheus.url)
    chosen = given["everything"] or given["target"] or given["selector"].strip() != "{}"
    matched = sources(
        servers,
        () if loaded is None else loaded.targets,
        name=given["target"],
        hostname=hostname,
        default_name=names_of(Surroundings(os.environ, hostname, Path())),
        near=is_loopback(host) or host.lower() == hostname.lower(),
        configured_only=loaded is not None and not chosen,
    )
    if not matched.sources and not matched.refused:
        raise ConfigError(
            "Prometheus has no target of the configuration, but"
            f" {named([quoted(name) for name in matched.passed_over])}; give --target NAME with"
            " --selector, or --all"
        )
    return matched


def _jobs(prometheus: Prometheus, time: float) -> str:
    """A hint: the jobs with vLLM's metrics."""
    from specwatch.lab.backfill.prometheus_pages import presence_selector
    from specwatch.lab.backfill.prometheus_targets import named

    query = f"group by (job) (last_over_time({presence_selector('{}')}[{_LOOK_BACK}]))"
    jobs = sorted(quoted(labels.get("job", "")) for labels, _ in prometheus.query(query, time))
    if jobs:
        return f"in the hour before {moment(time)} these jobs have some: {named(jobs)}"
    return f"no job has any in the hour before {moment(time)}; does this Prometheus scrape vLLM?"


def _lines(
    filled: Sequence[Filled],
    span: Span,
    proxied: Collection[str],
    passed_over: Sequence[str],
    *,
    dry_run: bool,
) -> Iterator[str]:
    from specwatch.lab.backfill.prometheus_targets import named

    would = "would be written" if dry_run else "written"
    for target in filled:
        yield (
            f"{shown(target.target)}: {counted(target.minutes_written, 'minute')} {would},"
            f" {counted(target.minutes_kept, 'minute')} stored already, of"
            f" {counted(target.hours, 'hour')} with pages"
            + (f"; {target.queries} or more queries" if dry_run else "")
        )
        if target.target in proxied:
            yield "  without temperatures: those of a `specwatch tap proxy` are not read"
        if target.until < span.until:
            yield f"  {_held(target)}"
    if passed_over:
        names = named([quoted(name) for name in passed_over])
        yield f"skipped, as the configuration does not have them: {names}; --all fills them"


def _held(filled: Filled) -> str:
    hold = filled.held_by
    if hold is None:
        return f"not after {moment(filled.until)}"
    reason = f"not after {moment(filled.until)}: daemon {quoted(hold.daemon)} scraped it last then"
    if hold.runs:
        return f"{reason}, has not stopped properly, and counts the rest itself"
    return (
        f"{reason} and has ended; it counts the rest when it runs again. If it never will,"
        " --past-cursor fills that time, from a day after its last scrape"
    )
