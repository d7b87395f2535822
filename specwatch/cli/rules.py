"""``specwatch rules``: the rules that apply, and a replay of the stored history."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specwatch.cli import commands, options
from specwatch.config.loading import Config
from specwatch.config.rules import Rule, Rules
from specwatch.domain.model import HOUR
from specwatch.errors import SpecwatchError
from specwatch.wording import rules as rule_words
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

if TYPE_CHECKING:
    from specwatch.cli.rules_replay import ReplayedTarget
    from specwatch.store.readers import Reader

_ACTIONS = {"alert": "alerts", "disable": "asks to switch speculation off"}
_EXPLORATIONS = (
    "the explorations of guard.explore are not replayed: their times depend on how long earlier"
    " restarts took and what earlier explorations measured, which is unknown"
)


@click.group(name="rules", cls=commands.CommandGroup)
def command() -> None:
    """The rules that judge speculation."""


@command.command("list", short_help="the rules that apply, in words")
@options.file_option
@options.json_option
def list_rules(file: Path | None, as_json: bool) -> None:
    """Show the rules that apply: when they fire and clear, for which targets, and their actions.

    Without a configuration these are the defaults.
    """
    loaded = options.loaded(file)
    rules, own = _rules_of(loaded), () if loaded is None else loaded.rules.extra
    if as_json:
        options.print_json(
            [{"default": rule not in own, **rule.model_dump(mode="json")} for rule in rules]
        )
        return
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    for number, rule in enumerate(rules):
        if number:
            terminal.line("")
        terminal.lines(_lines(rule, ", yours" if rule in own else ""))


@command.command("test", short_help="replay the stored history: when would each rule have fired?")
@options.file_option
@options.database_option
@options.since_option
@options.until_option
@click.option("--target", metavar="NAME", help="Only this target.")
@click.option("--rule", "name", metavar="NAME", help="Only this rule.")
@options.json_option
def test_rules(
    file: Path | None,
    database: str | None,
    since: float,
    until: float | None,
    target: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Replay the stored minutes through the rules: when would each have fired?

    It uses the baselines that are stored today. A daemon that ran all the time would have found the
    same, unless it had acted on it: actions of the guard, such as explorations, are not replayed.

    Exit code 1 when a rule would have fired, 0 when none would have.
    """
    from specwatch.cli import rules_replay
    from specwatch.cli.terminal import Terminal
    from specwatch.store.readers import Reader

    now = time.time()
    until = now if until is None else until
    if since >= until:
        raise click.UsageError("--since is not before --until; give an earlier time")
    loaded = options.loaded(file)
    rules = {rule.name: rule for rule in _rules_of(loaded)}
    if name is not None:
        rules = {name: rules[options.choose(name, rules, "there is no rule", "--rule")]}
    with closing(Reader.of(options.database_url(database, file))) as reader:
        targets = sorted({watched.target for watched in reader.targets()})
        if target is not None:
            targets = [options.choose(target, targets, "no daemon has ever watched", "--target")]
        replays = [
            replay
            for watched in targets
            if (replay := _replayed(reader, loaded, watched, list(rules.values()), since, until))
        ]
        if not replays:
            raise SpecwatchError(_nothing(reader, since, until))
    explores = loaded is not None and loaded.guard.mode != "off" and loaded.guard.explore.budget
    notes = [_EXPLORATIONS] if explores else []
    fired = any(replay.fired for replay in replays)
    if as_json:
        replayed = [replay.as_json(now) for replay in replays]
        options.print_json({"fired": fired, "targets": replayed, "notes": notes})
    else:
        terminal = Terminal()
        for number, replay in enumerate(replays):
            if number:
                terminal.line("")
            terminal.lines(rules_replay.lines(replay, now))
        for note in notes:
            terminal.line("")
            terminal.lines(wrapped(f"note: {note}", "yellow"))
    if fired:
        raise click.exceptions.Exit(1)


def _replayed(
    reader: Reader,
    loaded: Config | None,
    target: str,
    rules: Sequence[Rule],
    since: float,
    until: float,
) -> ReplayedTarget | None:
    """The replay of one target, with a progress bar."""
    from specwatch.cli import rules_replay
    from specwatch.cli.progress import ProgressBar

    def progress(reached: float) -> None:
        bar.step(target, completed=max(0.0, reached - since))

    bar = ProgressBar()
    with bar.over(until - since):
        return rules_replay.replay(
            reader, loaded, target, rules, since=since, until=until, progress=progress
        )


def _nothing(reader: Reader, since: float, until: float) -> str:
    from specwatch.cli.rules_replay import moment

    span = f"from {moment(since)} to {moment(until)}"
    hours = reader.windows(since=since, until=until, length=HOUR, limit=1)
    if next(hours, None) is not None:
        return f"only hours are stored {span}, and rules need minutes; give a later --since"
    return f"no minutes are stored {span}; `specwatch db current` shows what is stored"


def _rules_of(loaded: Config | None) -> tuple[Rule, ...]:
    """The rules of a configuration, or the defaults."""
    return Rules().effective() if loaded is None else loaded.effective_rules()


def _lines(rule: Rule, origin: str) -> Iterator[tuple[str, str]]:
    yield rule.name, "bold"
    yield f"  {rule.severity}, {_ACTIONS[rule.action]}{origin}", ""
    if rule.summary:
        yield from wrapped(f"  {shown(rule.summary, LONGEST_SENTENCE)}")
    yield from wrapped(f"  fires: {rule_words.conditions(rule)}")
    yield from wrapped(f"  clears: {rule_words.clearing(rule)}")
    for name, text in (("needs", rule_words.traffic(rule)), ("only", rule_words.scope(rule))):
        if text is not None:
            yield from wrapped(f"  {name}: {shown(text, LONGEST_SENTENCE)}")
