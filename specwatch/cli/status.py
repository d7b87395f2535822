"""``specwatch status``: what the daemon knows now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.sections import read_secret
from specwatch.domain.units import local_url, parse_server_url
from specwatch.errors import ConfigError, NoAnswer, PageError, ScrapeError, ScrapeReason
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

_DEFAULT_URL = "http://127.0.0.1:9469"
_LARGEST_ANSWER = 256 << 20
_PARTS = {"daemon", "version", "started", "now", "stuck", "store", "targets"}


@click.command(name="status")
@options.file_option
@click.option(
    "--url", metavar="URL", help=f"The daemon; by default the configured one, or {_DEFAULT_URL}."
)
@click.option(
    "--timeout", callback=options.duration, default="5s", show_default=True, metavar="DURATION",
    help="How long to wait for its answer.",
)  # fmt: skip
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
    """Show what the daemon knows now.

    Exit code 1 when it does not answer, when a target or the database fails, when it is stuck,
    when a rule of severity critical or warning is in breach, or when a guard is held.
    """
    if url is not None:
        url = _given(url)
    else:
        url, configured = _configured(file)
        bearer_token_file = bearer_token_file or configured
    answer = ask(url, timeout, bearer_token_file)
    if as_json:
        options.print_json(answer)
        whole = True
    else:
        whole = _show(answer)
    from specwatch.cli.tables import in_breach

    failing = any(
        target["failure"] or target.get("not_shown") or in_breach(target) or _held(target)
        for target in answer["targets"]
    )
    if failing or not whole or answer["stuck"] or answer["store"]["error"]:
        raise click.exceptions.Exit(1)


def _given(url: str) -> str:
    try:
        return parse_server_url(url)
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from None


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


def ask(url: str, timeout: float, token_file: Path | None) -> dict[str, Any]:
    """What a daemon says of all targets. Raises NoAnswer, and ConfigError for the token's file."""
    from specwatch.scrape.page_client import PageClient

    headers = {}
    if token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {read_secret(token_file)}"
        except ValueError as error:
            raise ConfigError(f"the daemon's token: {error}") from None
    client = PageClient(url, timeout=timeout, max_size=_LARGEST_ANSWER, headers=lambda: headers)
    stranger = f"what answers at {url} is not a daemon of specwatch"
    try:
        answer = msgspec.json.decode(client.fetch("/api/v1/targets"))
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
    except msgspec.DecodeError as error:
        raise NoAnswer(stranger) from error
    finally:
        client.close()
    if not isinstance(answer, dict) or not answer.keys() >= _PARTS:
        raise NoAnswer(f"{stranger}, or of another version")
    return answer


def _held(target: dict[str, Any]) -> bool:
    state = (target["guard"] or {}).get("state")
    return state is not None and state["phase"] == "held"


def _show(answer: dict[str, Any]) -> bool:
    """Print it; whether all of it could be shown."""
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    up = figures.span(answer["now"] - answer["started"])
    terminal.line(f"specwatch {shown(answer['version'])} on {shown(answer['daemon'])}, up {up}")
    _show_store(terminal, answer["store"], answer["now"])
    targets = sorted(answer["targets"], key=lambda target: target["failure"] is None)
    failing = sum(target["failure"] is not None for target in targets)
    watched = f"watching {figures.counted(len(targets), 'target')}"
    terminal.line(watched, (f", {failing} failing" if failing else "", "red"))
    if answer["stuck"]:
        names = ", ".join(map(shown, answer["stuck"]))
        terminal.line((f"stuck, no scrape ended for three intervals: {names}", "red"))
    whole = True
    for target in targets:
        terminal.line("")
        try:
            _show_target(terminal, target, answer["now"])
        except Exception as error:  # a defect of ours in one target hides no other
            whole = False
            problem = f"{type(error).__name__}: {error}"
            rest = f"the rest cannot be shown, for a defect of specwatch: {problem}; see --json"
            terminal.lines(wrapped(rest, "red"))
    return whole


def _show_store(terminal: Any, store: dict[str, Any], now: float) -> None:
    terminal.line(shown(store["where"], LONGEST_SENTENCE))
    parts = figures.counted(store["written"], "window") + " written"
    if store["dropped"]:
        parts += f", {figures.number(store['dropped'])} given up"
    if store.get("damaged"):
        damage = figures.damaged_rows(store["damaged"], store["last_damaged"])
        terminal.lines(wrapped(damage, "red"))
    if store["error"] or store["queued"]:
        parts += f", {figures.number(store['queued'])} waiting"
    if not store["error"]:
        terminal.line(parts)
        return
    since = store["behind_since"]
    failing = f"failing for {figures.span(now - since)}" if since is not None else "failing"
    terminal.line(parts, ", ", (f"{failing}: {shown(store['error'], LONGEST_SENTENCE)}", "red"))


def _show_target(terminal: Any, target: dict[str, Any], now: float) -> None:
    from specwatch.cli.guard_output import target_lines as guard_lines
    from specwatch.cli.tables import recent_lines, trouble_lines

    version = f"  engine {shown(target['engine_version'])}" if target["engine_version"] else ""
    name, url = shown(target["name"]), shown(target["url"], LONGEST_SENTENCE)
    terminal.line((name, "bold underline"), f"  {url}{version}")
    for model in target.get("not_shown", ()):
        what = f"model {shown(model)}" if model else "some of it"
        text = f"{what} cannot be shown, for a defect of specwatch: see the daemon's log"
        terminal.lines(wrapped(text, "red"))
    failure = target["failure"]
    if failure:
        since = figures.span(now - failure["since"])
        detail = shown(failure["detail"], LONGEST_SENTENCE)
        terminal.line((f"failing for {since}: {detail}", "red"))
    elif target["last_success"] is None:
        terminal.line("not scraped yet")
    else:
        ago = figures.span(now - target["last_success"])
        took = figures.seconds(target["scrape_seconds"])
        restarts = figures.counted(target["restarts"], "restart")
        seen = f", {restarts} of the engine seen" if target["restarts"] else ""
        terminal.line(f"scraped {ago} ago in {took}{seen}")
    proxy = target["tap"]["proxy"]
    if proxy and proxy["failure"]:
        since = figures.span(now - proxy["failure"]["since"])
        detail = shown(proxy["failure"]["detail"], LONGEST_SENTENCE)
        terminal.line((f"proxy failing for {since}: {detail}", "red"))
    terminal.lines([*guard_lines(target["guard"], now), *trouble_lines(target["tap"])])
    terminal.lines(recent_lines(target, now))
