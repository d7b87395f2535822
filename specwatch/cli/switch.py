"""``specwatch switch``: the number of draft tokens of a running vLLM."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click
import msgspec

from specwatch.actuators.switch import SwitchClient
from specwatch.cli import options
from specwatch.cli.terminal import Terminal
from specwatch.config.target import Target
from specwatch.domain.model import Series
from specwatch.errors import ConfigError, ScrapeError
from specwatch.runtime.tls import tls_context
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import BlockingPageClient
from specwatch.scrape.switch import DraftCounts
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown
from specwatch_tap.orders import LONGEST_LEASE, Schedule, SwitchState, check_schedule

_SETTLES = 0.5
"""Seconds after an order until all steps under way have ended."""
_LOOK_SECONDS = 0.25
_WATCHED_SECONDS = 10.0
"""How long the counters may take to show whether an order is followed."""


class Outcome(msgspec.Struct, frozen=True):
    """The state of a switch, and whether the counters show that an order is followed: null if none
    was given, or too little was generated."""

    target: str
    state: SwitchState
    followed: bool | None
    reason: str = ""


@click.command(name="switch")
@click.argument("target", required=False, metavar="[TARGET]")
@click.option(
    "--k",
    "draft_tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="Draft tokens of each step, up to those of the launch; 0 is standby.",
)
@click.option(
    "--schedule",
    metavar="JSON",
    help="Draft tokens by number of requests in a step, such as [[1,8,4],[9,256,0]].",
)
@click.option("--launch", is_flag=True, help="Back to what vLLM was launched with.")
@options.time_option("--lease", "10m", "Time after which vLLM returns to that by itself.")
@click.option("--url", metavar="URL", help="A server that is not in the configuration.")
@options.path("--directory", text="Its directory of the switch.")
@options.path("--token-file", text="The token of its switch, for orders over HTTP.")
@options.file_option
@options.by_option
@options.json_option
def command(
    target: str | None,
    draft_tokens: int | None,
    schedule: str | None,
    launch: bool,
    lease: float,
    url: str | None,
    directory: Path | None,
    token_file: Path | None,
    file: Path | None,
    by: str,
    as_json: bool,
) -> None:
    """Show or set the number of draft tokens of a running vLLM, without a restart.

    vLLM needs what `specwatch tap flags --switch` prints. No request is lost, and vLLM returns to
    how it was launched when the lease ends. Without --k, --schedule or --launch the state is shown.

    With an order, the server's counters are watched for 10 seconds. Where they show that it is not
    followed, the order is taken back.

    Exit code 1 when the server follows no orders, or not this one.
    """
    if [launch, draft_tokens is not None, schedule is not None].count(True) > 1:
        raise click.UsageError("give one of --k, --schedule and --launch")
    ordered = draft_tokens if schedule is None else _schedule(schedule)
    if not 1 <= lease <= LONGEST_LEASE:
        raise click.UsageError("--lease: from 1s to 1d")
    chosen = _target(target, url, directory, token_file, file)
    with closing(SwitchClient(chosen)) as switch:
        if launch or ordered is not None:
            outcome = _ordered(switch, chosen, ordered, lease, by)
        else:
            state = switch.state()
            outcome = Outcome(chosen.name, state, None, state.unavailable)
    if as_json:
        options.print_json(outcome)
    else:
        Terminal().line(f"{shown(chosen.name)}: {shown(_sentence(outcome), LONGEST_SENTENCE)}")
    if outcome.followed is False or outcome.state.unavailable:
        raise click.exceptions.Exit(1)


def _schedule(text: str) -> Schedule:
    """A schedule from JSON, each range after the one before."""
    try:
        schedule = msgspec.json.decode(text, type=Schedule)
        check_schedule(schedule)
        if not schedule:
            raise ValueError("it has no ranges")
    except ValueError as error:  # also a DecodeError
        raise click.UsageError(
            f"--schedule: {error}; give ranges of first and last number of requests, and their"
            " draft tokens, from 1 on and without gaps, such as [[1,8,4],[9,256,0]]"
        ) from None
    return schedule


def _target(
    name: str | None,
    url: str | None,
    directory: Path | None,
    token_file: Path | None,
    file: Path | None,
) -> Target:
    if url is None:
        if directory is not None or token_file is not None:
            raise click.UsageError("--directory and --token-file need the --url of the server")
        loaded = options.loaded(file)
        if loaded is None:
            raise ConfigError("there is no configuration: give --url and --directory")
        known = {one.name: one for one in loaded.targets if one.switch is not None}
        if not known:
            raise ConfigError("no target of the configuration has a switch; see targets[].switch")
        return known[options.choose(name, known, "no switch is configured for", "TARGET")]
    if (directory is None) is (token_file is None):
        raise click.UsageError("--url needs --directory or --token-file, one of them")
    access = {"token_file": token_file} if directory is None else {"directory": directory}
    return options.section("--url", Target, {"url": url, "switch": access})


def _ordered(
    switch: SwitchClient,
    target: Target,
    ordered: int | Schedule | None,
    lease: float,
    by: str,
) -> Outcome:
    state = switch.order(ordered, lease=lease, by=by)
    followed, reason = _watched(target, state.draft_tokens_now)
    if followed is False and ordered is not None:
        state = switch.order(None, lease=lease, by=by)
        reason += "; the order was taken back"
    return Outcome(target.name, state, followed, reason)


def _watched(target: Target, draft_tokens: int) -> tuple[bool | None, str]:
    """Whether the counters show that no step drafts more; None, and why, where they cannot."""
    client = BlockingPageClient(
        target.url,
        timeout=target.timeout,
        max_size=target.max_page_size,
        headers=target.request_headers,
        tls=tls_context(target),
    )
    reader = PageReader(target.page_limits)

    def counts() -> DraftCounts:
        samples: dict[Series, float] = dict(reader.read(client.fetch(target.metrics_path)))
        return DraftCounts.of(samples)

    deadline = time.monotonic() + _WATCHED_SECONDS
    followed = None
    try:
        with closing(client):
            time.sleep(_SETTLES)
            before = counts()
            while time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                now = counts()
                followed = now.follow(draft_tokens, before)
                if followed:
                    return True, ""
                if followed is False:
                    before = now
    except ScrapeError as error:
        return None, str(error)
    if followed is None:
        return None, "too little is generated to see whether it is followed"
    return False, "its counters show that it is not followed"


def _sentence(outcome: Outcome) -> str:
    state = outcome.state
    if state.unavailable:
        return f"follows no orders: {state.unavailable}"
    k = figures.counted(state.draft_tokens_now, "draft token")
    if state.ordered is None:
        ranges = len(state.launch_schedule) > 1
        sentence = f"{'up to ' if ranges else ''}{k} a step, as launched"
    else:
        left = figures.moment(state.until) if state.until else ""
        if state.schedule:
            k = f"{msgspec.json.encode(state.schedule).decode()} (requests, and their draft tokens)"
        sentence = f"{k} a step until {left}, ordered by {state.by or 'an unknown user'}"
    if state.refused:
        sentence += f"; the last order was refused: {state.refused}"
    if outcome.followed:
        sentence += "; its counters show it"
    return f"{sentence}; {outcome.reason}" if outcome.reason else sentence
