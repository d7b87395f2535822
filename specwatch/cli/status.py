"""``specwatch status``: what the daemon knows now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from specwatch.cli import options, tables
from specwatch.cli.guard_output import target_lines as guard_lines
from specwatch.cli.terminal import Lines, Terminal, paragraph
from specwatch.config.loading import Config
from specwatch.config.sections import read_secret
from specwatch.domain.units import local_url, parse_server_url
from specwatch.errors import ConfigError, NoAnswer, PageError, ScrapeError, ScrapeReason
from specwatch.guard.state import Phase
from specwatch.problems import HARMFUL
from specwatch.scrape.page_client import BlockingPageClient
from specwatch.status import Failure, StoreStatus
from specwatch.web.daemon_view import DaemonView, TargetView
from specwatch.wording import experiment, figures, groups, lease, speculation
from specwatch.wording.headline import headlines, no_problem
from specwatch.wording.text import LONGEST_SENTENCE, shown

_DEFAULT_URL = "http://127.0.0.1:9469"
_LARGEST_ANSWER = 256 << 20
_MOST_PROBLEMS = 5


class TargetHead(msgspec.Struct):
    """What is shown of a target whose other fields cannot be read."""

    name: str
    failure: Failure | None = None


@click.command(name="status")
@options.file_option
@click.option(
    "--url", metavar="URL", help=f"The daemon; by default the configured one, or {_DEFAULT_URL}."
)
@click.option(
    "--timeout",
    callback=options.duration,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for its answer.",
)
@click.option(
    "--bearer-token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Holds the token of the daemon; by default the listen_token_file of the configuration,"
    " where that names the daemon.",
)
@options.json_option
def command(
    file: Path | None,
    url: str | None,
    timeout: float,
    bearer_token_file: Path | None,
    as_json: bool,
) -> None:
    """Show what the daemon knows now: what is wrong and what to do, then each target.

    Exit code 1 when it does not answer, when a target, a source of targets or the database fails,
    when it is stuck, when a rule of severity critical or warning is in breach, when a guard is
    held, or when it stands by and the daemon that watches seems not to have its targets.
    """
    if url is not None:
        try:
            url = parse_server_url(url)
        except ValueError as error:
            raise ConfigError(f"--url: {error}") from None
    else:
        url, configured = _configured(file)
        bearer_token_file = bearer_token_file or configured
    answer = ask(url, timeout, bearer_token_file)
    complete = True
    if as_json:
        options.print_json(msgspec.Raw(answer.encoded))
    else:
        complete = _show(answer)
    failing = any(map(_is_failing, answer.targets))
    broken = any(source.failure for source in answer.daemon.discovery)
    lease = answer.daemon.lease
    unreachable = answer.daemon.store.error or lease.error
    unwatched = answer.daemon.stuck or lease.never_read
    if failing or broken or not complete or unreachable or unwatched:
        raise click.exceptions.Exit(1)


def _is_failing(target: TargetView | TargetHead) -> bool:
    if isinstance(target, TargetHead) or target.failure or target.not_shown:
        return True
    held = target.guard and target.guard.state and target.guard.state.phase is Phase.HELD
    return bool(held) or any(map(tables.is_urgent, target.decision.findings))


def _configured(file: Path | None) -> tuple[str, Path | None]:
    """Where the daemon answers, and the file of its token."""
    try:
        loaded = options.loaded(file)
    except ConfigError as error:
        raise ConfigError(f"{error}\nor say where the daemon listens: --url") from None
    if loaded is None:
        return _DEFAULT_URL, None
    url = url_of(loaded)
    if url is None:
        raise ConfigError(
            "listen: port 0 is another one at each start; name the daemon with --url, its log says"
            " where it listens"
        )
    return url, loaded.listen_token_file


def url_of(config: Config) -> str | None:
    """Where a daemon of that configuration answers; None where it is another place each time."""
    listen = config.listen
    return local_url(listen.host, listen.port) if listen.port else None


class DaemonAnswer(NamedTuple):
    """The JSON of a daemon, and what is in it."""

    encoded: bytes
    daemon: DaemonView
    targets: list[TargetView | TargetHead]


def ask(url: str, timeout: float, token_file: Path | None) -> DaemonAnswer:
    """Ask a daemon for its targets. Raises NoAnswer, and ConfigError for the token's file."""
    headers = {}
    if token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {read_secret(token_file)}"
        except ValueError as error:
            raise ConfigError(f"the daemon's token: {error}") from None
    stranger = f"what answers at {url} is not a daemon of specwatch"
    client = BlockingPageClient(
        url, timeout=timeout, max_size=_LARGEST_ANSWER, headers=lambda: headers
    )
    try:
        with closing(client):
            answer = client.fetch("/api/v1/targets")
        daemon = msgspec.json.decode(answer, type=DaemonView)
        return DaemonAnswer(answer, daemon, [_target(raw) for raw in daemon.targets])
    except ScrapeError as error:
        problem = str(error).partition(";")[0]
        if error.status == 401:
            remedy = "give the token of its listen_token_file with --bearer-token-file"
            raise NoAnswer(f"{problem}: {remedy}") from error
        if isinstance(error, PageError) or error.reason is ScrapeReason.HTTP_STATUS:
            raise NoAnswer(f"{stranger}: {problem}") from error
        raise NoAnswer(
            f"no daemon answers: {problem}; is it running, and listening there?"
        ) from error
    except msgspec.ValidationError as error:
        raise NoAnswer(f"{stranger}, or of another version: {error}") from error
    except msgspec.DecodeError as error:
        raise NoAnswer(stranger) from error


def _target(encoded: msgspec.Raw) -> TargetView | TargetHead:
    try:
        return msgspec.json.decode(encoded, type=TargetView)
    except msgspec.ValidationError:
        return msgspec.json.decode(encoded, type=TargetHead)


def _show(answer: DaemonAnswer) -> bool:
    """Print it; whether all of it could be shown."""
    terminal, (_, daemon, targets) = Terminal(), answer
    terminal.lines(_problem_lines(answer))
    terminal.line()
    up = figures.span(daemon.now - daemon.started)
    shard = f", shard {shown(daemon.shard)}" if daemon.shard else ""
    terminal.line(f"specwatch {shown(daemon.version)} on {shown(daemon.daemon)}{shard}, up {up}")
    terminal.lines(_store_lines(daemon.store, daemon.now))
    for source in daemon.discovery:
        style = "red" if source.failure or source.refused else ""
        terminal.lines(paragraph(f"discovery by {figures.source_state(source, daemon.now)}", style))
    failing = sum(target.failure is not None for target in targets)
    scraped = sum(not getattr(target, "pods", ()) for target in targets)
    if not daemon.lease.standby:
        watched = f"watching {figures.counted(scraped, 'target')}"
        terminal.line(watched, (f", {failing} failing" if failing else "", "red"))
    for problem in lease.problems(daemon.lease):
        terminal.lines(paragraph(problem, "red"))
    for group in daemon.groups:
        style = "red" if group.outliers or group.losing else ""
        terminal.lines(paragraph(groups.group_standing(group), style))
    if daemon.stuck:
        names = ", ".join(map(shown, daemon.stuck))
        terminal.line((f"stuck, no scrape ended for three intervals: {names}", "red"))
    complete = True
    for target in sorted(targets, key=lambda target: target.failure is None):
        terminal.line()
        try:
            terminal.lines(_target_lines(target, daemon.now))
        except Exception as error:  # a defect of ours in one target hides no other
            complete = False
            problem = f"{type(error).__name__}: {error}"
            text = f"the rest cannot be shown, for a defect of specwatch: {problem}; see --json"
            terminal.lines(paragraph(text, "red"))
    return complete


def _problem_lines(answer: DaemonAnswer) -> Lines:
    """The worst problems and what to do about them; without any, for how many models it pays."""
    daemon = answer.daemon
    texts = headlines(daemon.problems, daemon.now, _MOST_PROBLEMS)
    for problem, text in texts:
        yield from paragraph(text.sentence, "bold red" if problem.kind in HARMFUL else "yellow")
        if text.remedy:
            yield from paragraph(f"  {text.remedy}")
    if len(texts) == _MOST_PROBLEMS < len(daemon.problems):
        yield f"{len(daemon.problems)} problems in all", "dim"
    if daemon.lease.standby:
        yield from paragraph(lease.standing_by(daemon.lease, daemon.now), "bold")
    elif not texts:
        outcomes = [
            speculation.answer(
                target.decision.models.get(model),
                mode,
                minutes=target.last_window is not None or bool(target.recent),
            )[0]
            for target in answer.targets
            if isinstance(target, TargetView) and not target.pods
            for model, mode in target.models.items()
        ]
        yield from paragraph(no_problem(outcomes), "bold")


def _store_lines(store: StoreStatus, now: float) -> Lines:
    yield shown(store.where, LONGEST_SENTENCE), ""
    if store.damaged_files:
        yield from paragraph(figures.damaged_files(store.damaged_files), "red")
    parts = figures.counted(store.written, "window") + " written"
    if store.dropped:
        parts += f", {figures.number(store.dropped)} given up"
    if store.error or store.queued:
        parts += f", {figures.number(store.queued)} waiting"
    if not store.error:
        yield parts, ""
        return
    since = store.behind_since
    failing = f"failing for {figures.span(now - since)}" if since is not None else "failing"
    yield (f"{parts}, ", ""), (f"{failing}: {shown(store.error, LONGEST_SENTENCE)}", "red")


def _target_lines(target: TargetView | TargetHead, now: float) -> Lines:
    name = (shown(target.name), "bold underline")
    if isinstance(target, TargetHead):
        yield name
        yield "it cannot be shown: the daemon is of another version; see --json", "red"
        return
    version = f"  engine {shown(target.engine_version)}" if target.engine_version else ""
    pods = f"the sum of {figures.counted(len(target.pods), 'pod')}"
    yield name, (f"  {pods if target.pods else shown(target.url, LONGEST_SENTENCE)}{version}", "")
    for model in target.not_shown:
        what = f"model {shown(model)}" if model else "some of it"
        text = f"{what} cannot be shown, for a defect of specwatch: see the daemon's log"
        yield from paragraph(text, "red")
    if target.failure:
        yield _failing(target.failure, now), "red"
    elif target.last_success is None:
        yield "not scraped yet", ""
    elif not target.pods:
        ago = figures.span(now - target.last_success)
        took = figures.seconds(target.scrape_seconds)
        restarts = figures.counted(target.restarts, "restart")
        seen = f", {restarts} of the engine seen" if target.restarts else ""
        yield f"scraped {ago} ago in {took}{seen}", ""
    if target.tap.proxy and target.tap.proxy.failure:
        yield f"proxy {_failing(target.tap.proxy.failure, now)}", "red"
    yield from paragraph(speculation.switch(target.switch) or "", "yellow")
    if target.experiment is not None:
        text = experiment.standing(target.experiment, now)
        yield from paragraph(f"experiment: {text}", "dim" if target.experiment.paused else "")
    if target.workload:
        yield f"guarded as {shown(target.workload)}", ""
    else:
        yield from guard_lines(target.guard, now)
    yield from tables.trouble_lines(target.tap)
    yield from tables.recent_lines(target, now)


def _failing(failure: Failure, now: float) -> str:
    since = figures.span(now - failure.since)
    return f"failing for {since}: {shown(failure.detail, LONGEST_SENTENCE)}"
