"""``specwatch rules list``: the rules that apply, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.rules import Rule, Rules
from specwatch.wording import rules as rule_words
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped


@click.command(name="list")
@options.file_option
@options.json_option
def command(file: Path | None, as_json: bool) -> None:
    """Show the rules that apply: when they fire and clear, for whom, and what then.

    Without a configuration these are the defaults.
    """
    loaded = options.loaded(file)
    rules, own = rules_of(loaded), () if loaded is None else loaded.rules.extra
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
        for line in _lines(rule, ", yours" if rule in own else ""):
            terminal.line(line)


def rules_of(loaded: Config | None) -> tuple[Rule, ...]:
    """The rules of a configuration, or the defaults."""
    return Rules().effective() if loaded is None else loaded.effective_rules()


def _lines(rule: Rule, origin: str) -> Iterator[str | tuple[str, str]]:
    yield rule.name, "bold"
    yield f"  {rule.severity}, {_ACTIONS[rule.action]}{origin}"
    if rule.summary:
        yield from wrapped(f"  {shown(rule.summary, LONGEST_SENTENCE)}")
    yield from wrapped(f"  fires: {rule_words.conditions(rule)}")
    yield from wrapped(f"  clears: {rule_words.clearing(rule)}")
    for name, said in (("needs", rule_words.traffic(rule)), ("only", rule_words.scope(rule))):
        if said is not None:
            yield from wrapped(f"  {name}: {shown(said, LONGEST_SENTENCE)}")


_ACTIONS = {"alert": "alerts", "disable": "asks to switch speculation off"}
