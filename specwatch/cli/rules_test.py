"""``specwatch rules test``: when would each rule have fired?"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specwatch.cli import options
from specwatch.cli.rules_list import rules_of
from specwatch.config.loading import Config
from specwatch.config.rules import Rule
from specwatch.config.rules.condition import nearest
from specwatch.config.sections import Baselines
from specwatch.domain.model import HOUR
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError
from specwatch.wording.text import shown, wrapped

if TYPE_CHECKING:
    from specwatch.cli.replaying import Progress, Replayed
    from specwatch.store.readers import Reader

_EXPLORATIONS = (
    "the explorations of guard.explore are not replayed: when one is due follows from what the"
    " restarts before took, and from what earlier ones would have measured, which is not known"
)


@click.command(name="test")
@options.file_option
@options.database_option
@click.option(
    "--since", default="7d", show_default=True, callback=options.moment, metavar="WHEN",
    help=options.WHEN,
)  # fmt: skip
@click.option(
    "--until", callback=options.moment, metavar="WHEN", help="The same; now when not given."
)
@click.option("--target", metavar="NAME", help="Only this target.")
@click.option("--rule", "name", metavar="NAME", help="Only this rule.")
@options.json_option
def command(
    file: Path | None,
    database: str | None,
    since: float,
    until: float | None,
    target: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Replay the stored minutes through the rules: when would each have fired?

    Compared is with the baselines as they are stored today. A daemon that ran all the time would
    have found the same, but for what it did about it: nothing is done here. What the guard would
    have done, its explorations included, is not replayed.

    Exit code 1 when a rule would have fired, 0 when none would have.
    """
    from specwatch.store.readers import Reader

    now = time.time()
    until = now if until is None else until
    if since >= until:
        raise click.UsageError("--since is not before --until; give an earlier time")
    loaded = options.loaded(file)
    rules = _chosen(rules_of(loaded), name)
    reader = Reader.of(options.database_url(database, file))
    try:
        names = _targets(reader, target)
        found = list(_replayed(reader, names, rules, since, until, loaded))
        if not found:
            raise SpecwatchError(_nothing(reader, since, until))
    finally:
        reader.close()
    explores = loaded is not None and loaded.guard.mode != "off" and loaded.guard.explore.budget
    notes = [_EXPLORATIONS] if explores else []
    if as_json:
        _print_json(found, notes, now)
    else:
        _show(found, notes, now)
    if any(each.fired for each in found):
        raise click.exceptions.Exit(1)


def _chosen(rules: Sequence[Rule], name: str | None) -> Sequence[Rule]:
    if name is None:
        return rules
    known = [rule.name for rule in rules]
    if name not in known:
        raise click.BadParameter(
            f"there is no rule {quoted(name)}; {nearest(name, known)}", param_hint="--rule"
        )
    return [rule for rule in rules if rule.name == name]


def _targets(reader: Reader, target: str | None) -> list[str]:
    known = sorted({watched.target for watched in reader.targets()})
    if target is None:
        return known
    if target not in known:
        raise click.BadParameter(
            f"no target {quoted(target)} was ever watched; {nearest(target, known)}",
            param_hint="--target",
        )
    return [target]


def _replayed(
    reader: Reader,
    names: Collection[str],
    rules: Sequence[Rule],
    since: float,
    until: float,
    loaded: Config | None,
) -> Iterator[Replayed]:
    from specwatch.cli.replaying import replay
    from specwatch.domain.breakeven import DRAFT_COST_RATIO
    from specwatch.domain.model import Objective

    targets = {each.name: each for each in loaded.targets} if loaded else {}
    for name in names:
        known = targets.get(name)
        with _progress(shown(name), since, until) as progress:
            found = replay(
                reader,
                name,
                rules,
                since=since,
                until=until,
                max_age=(Baselines() if loaded is None else loaded.baseline).max_age,
                draft_cost_ratio=known.draft_cost_ratio if known else DRAFT_COST_RATIO,
                objective=known.objective if known else Objective.E2E,
                progress=progress,
            )
        if found is not None:
            yield found


@contextmanager
def _progress(label: str, since: float, until: float) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    seconds = int(until - since)
    with click.progressbar(length=seconds, label=label, file=sys.stderr) as bar:

        def advance(reached: float) -> None:
            bar.update(max(0, int(reached - since) - bar.pos))

        yield advance


def _nothing(reader: Reader, since: float, until: float) -> str:
    from specwatch.cli.firing_lines import moment

    span = f"from {moment(since)} to {moment(until)}"
    hours = reader.windows(since=since, until=until, length=HOUR, limit=1)
    if next(hours, None) is not None:
        return f"only hours are stored {span}, and rules judge minutes; give a later --since"
    return f"no minutes are stored {span}; `specwatch db current` shows what there is"


def _print_json(found: Sequence[Replayed], notes: Sequence[str], now: float) -> None:
    from specwatch.cli import replaying

    targets: list[dict[str, Any]] = [replaying.as_json(each, now) for each in found]
    fired = any(each.fired for each in found)
    options.print_json({"fired": fired, "targets": targets, "notes": notes})


def _show(found: Sequence[Replayed], notes: Sequence[str], now: float) -> None:
    from specwatch.cli import firing_lines
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    for number, each in enumerate(found):
        if number:
            terminal.line("")
        for line, style in firing_lines.lines(each, now):
            terminal.line((line, style))
    for note in notes:
        terminal.line("")
        for line, style in wrapped(f"note: {note}", "yellow"):
            terminal.line((line, style))
