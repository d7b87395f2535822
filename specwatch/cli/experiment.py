"""``specwatch experiment``: what experiments on live traffic have shown, and stopping them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click
import msgspec

from specwatch.cli import commands, options
from specwatch.cli.terminal import Columns, Terminal, table
from specwatch.config.sections import nearest
from specwatch.domain.interval import Interval
from specwatch.domain.switchback import ALL_TRAFFIC, LAUNCH, Switchback, TunedSchedule
from specwatch.domain.switchback_results import compared_episodes, results, washout_of
from specwatch.domain.tuning import advice
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from specwatch.wording import experiment, figures
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

ACTOR = "specwatch experiment"
"""Recorded in the database for a change by these commands, in place of a daemon."""
_NONE = (
    "there is no experiment in the database; give a target `switch` and `experiments`, and let the"
    " daemon run"
)


class ArmResult(msgspec.Struct, frozen=True):
    """An arm against the reference: its speedup, None with too few ``episodes``."""

    arm: str
    speedup: Interval | None
    episodes: int


class ExperimentRow(msgspec.Struct, frozen=True):
    """An experiment as ``status --json`` has it; shares are of the time since ``began``.

    ``dropped`` arms lose against the ``usual`` one, which is in use between episodes, and are not
    ordered any more; ``stopped`` says by whom, and why.
    """

    target: str
    stopped: str
    arms: tuple[str, ...]
    usual: str
    dropped: tuple[str, ...]
    began: float
    episodes: int
    excluded: int
    share: float
    share_allowed: float
    regret: float
    regret_allowed: float
    washout: float


class ExperimentResults(msgspec.Struct, frozen=True):
    """Results as ``results --json`` has them; ``best`` is the best arm, the launch if none is
    certainly faster. ``loads`` are by group of running requests. ``tuning`` is None without
    ``experiments.tune``."""

    target: str
    answer: str
    reference: str
    best: str
    washout: float
    stopped: str
    episodes: int
    excluded: int
    arms: list[ArmResult]
    loads: dict[str, list[ArmResult]]
    tuning: TunedSchedule | None


_STATUS: Columns[ExperimentRow] = {
    "target": lambda row: shown(row.target),
    "episodes": lambda row: figures.number(row.episodes),
    "left out": lambda row: figures.number(row.excluded),
    "other arms": lambda row: f"{row.share:.1%} of {row.share_allowed:.1%}",
    "lost": lambda row: f"{row.regret:.1%} of {row.regret_allowed:.1%}",
    "washout": lambda row: figures.seconds(row.washout),
}
_RESULTS: Columns[tuple[str, ArmResult]] = {
    "running": lambda row: row[0],
    "arm": lambda row: experiment.arm_name(row[1].arm),
    "speedup": lambda row: f"{row[1].speedup.value:.2f}" if row[1].speedup else figures.UNKNOWN,
    "95 % interval": lambda row: experiment.bounds(row[1].speedup) or figures.UNKNOWN,
    "episodes": lambda row: figures.number(row[1].episodes),
}


@click.group(name="experiment", cls=commands.CommandGroup)
def command() -> None:
    """Experiments on live traffic: other numbers of draft tokens against the launch.

    The daemon runs them where a target has `switch` and `experiments`; these commands read and
    change what it has stored.
    """


_target_argument = click.argument("target", required=False, metavar="[TARGET]")


def _stored(url: str) -> dict[str, Switchback]:
    """The experiments in a database by target; reading them writes nothing."""
    with closing(Reader.of(url)) as reader:
        stored = reader.switchbacks() if reader.is_set_up() else []
    return {one.target: one for one in stored}


def _chosen(known: Mapping[str, Switchback], target: str | None) -> Switchback:
    """The experiment of a target, by default the only one."""
    if not known:
        raise SpecwatchError(_NONE)
    if target is not None and target not in known:
        raise SpecwatchError(
            f"there is no experiment of {quoted(target)}; {nearest(target, known)}"
        )
    return known[options.choose(target, known, "", "TARGET")]


@command.command(short_help="how many episodes there were, and what they cost")
@_target_argument
@options.store_options
def status(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show how far the experiment of each target, or of TARGET, is, and what it cost so far.

    `specwatch status` shows which arm is in force. Exit code 1 when there is no experiment.
    """
    known = _stored(options.database_url(database, file))
    stored = [_chosen(known, target)] if target is not None or not known else known.values()
    rows = [_status_row(one) for one in stored]
    if as_json:
        options.print_json({"experiments": rows})
        return
    terminal = Terminal()
    header, *lines = table(_STATUS, rows)
    terminal.lines([header])
    for row, line in zip(rows, lines, strict=True):
        terminal.lines([line])
        if row.stopped:
            text = f"  stopped by {shown(row.stopped, LONGEST_SENTENCE)}"
            terminal.lines(wrapped(text, "yellow"))
        if row.dropped:
            names = ", ".join(map(experiment.arm_name, row.dropped))
            usual = experiment.arm_name(row.usual)
            terminal.lines(wrapped(f"  no longer ordered, slower than {usual}: {names}"))


def _status_row(stored: Switchback) -> ExperimentRow:
    state, design = stored.state, stored.design
    elapsed = max(state.counted - state.began, 1.0)
    return ExperimentRow(
        target=stored.target,
        stopped=stored.stopped,
        arms=design.arms,
        usual=design.usual,
        dropped=state.dropped.get(design.usual, ()),
        began=state.began,
        episodes=state.episodes,
        excluded=state.excluded,
        share=state.other_seconds / elapsed,
        share_allowed=design.share,
        regret=state.lost_seconds / elapsed,
        regret_allowed=design.regret,
        washout=washout_of(state, design),
    )


@command.command(name="results", short_help="the speedup of each number of draft tokens")
@_target_argument
@click.option("--reference", metavar="ARM", help="The arm to compare with.  [default: launch]")
@options.store_options
def show_results(
    target: str | None,
    reference: str | None,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show how fast each arm of the experiment of TARGET is, against the launch.

    A speedup of 1.10 means 1.10 times as many tokens in the same time of decoding. Its interval
    holds at all times at once, so you may look as often as you want. 0 draft tokens is standby: the
    drafter still runs. Exit code 1 when there is no experiment.
    """
    stored = _chosen(_stored(options.database_url(database, file)), target)
    if reference is not None:
        options.choose(reference, stored.design.arms, "the experiment has no arm", "--reference")
    known = _results(stored, reference)
    if as_json:
        options.print_json(known)
    else:
        _print_results(known)


def _results(stored: Switchback, reference: str | None) -> ExperimentResults:
    state, design = stored.state, stored.design
    known = results(state, design, reference or LAUNCH)

    def arms(group: str, speedups: Mapping[str, Interval | None]) -> list[ArmResult]:
        return [
            ArmResult(arm, speedup, compared_episodes(state, arm, known.reference, group=group))
            for arm, speedup in speedups.items()
        ]

    overall = arms(ALL_TRAFFIC, known.speedups)
    # The answer is on the best arm; where that is the reference, on the fastest other one.
    answer = next((one for one in overall if one.arm == known.best), None) or max(
        overall, key=lambda one: (one.speedup.value if one.speedup else 0.0, one.episodes)
    )
    return ExperimentResults(
        target=stored.target,
        answer=experiment.comparison(answer.arm, known.reference, answer.speedup, answer.episodes),
        reference=known.reference,
        best=known.best,
        washout=known.washout,
        stopped=stored.stopped,
        episodes=state.episodes,
        excluded=state.excluded,
        arms=overall,
        loads={
            group.removeprefix("load "): arms(group, speedups)
            for group, speedups in known.groups.items()
        },
        tuning=advice(state, design),
    )


def _print_results(known: ExperimentResults) -> None:
    terminal = Terminal()
    terminal.lines(wrapped(f"{shown(known.target)}: {known.answer}"))
    if known.stopped:
        terminal.lines(wrapped(f"stopped by {shown(known.stopped, LONGEST_SENTENCE)}", "yellow"))
    rows = [("all", one) for one in known.arms]
    loads = [(shown(load), one) for load, arms in known.loads.items() for one in arms]
    terminal.line()
    terminal.lines(table(_RESULTS, rows + loads))
    terminal.line()
    best = f"best: {experiment.arm_name(known.best)}"
    if known.best == LAUNCH:
        best = "no arm is known to be faster than the launch"
    left_out = f"{figures.counted(known.excluded, 'episode')} left out"
    washout = f"the first {figures.seconds(known.washout)} of a block do not count"
    terminal.lines(wrapped(f"{best}; {left_out}; {washout}"))
    if known.tuning is not None:
        terminal.lines(wrapped(experiment.tuning(known.tuning)))


@command.command(short_help="order no other arm than the launch any more")
@_target_argument
@options.reason_option
@options.by_option
@options.store_options
def stop(
    target: str | None,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Stop the experiment of TARGET until it is started again; what it has shown is kept.

    The daemon returns to the launch within seconds. The present episode does not count.
    """
    why = f"{by}: {reason}" if reason else by
    stored = _change(options.database_url(database, file), target, why)
    if as_json:
        options.print_json({"target": stored.target, "stopped": stored.stopped})
    else:
        click.echo(f"the experiment of {shown(stored.target)} is stopped by {shown(why, 300)}")


@command.command(short_help="let a stopped experiment go on")
@_target_argument
@options.by_option
@options.store_options
def start(
    target: str | None, by: str, file: Path | None, database: str | None, as_json: bool
) -> None:
    """Let the experiment of TARGET go on that was stopped."""
    stored = _change(options.database_url(database, file), target, "")
    if as_json:
        options.print_json({"target": stored.target, "stopped": stored.stopped})
    else:
        click.echo(f"the experiment of {shown(stored.target)} is started by {shown(by)}")


def _change(url: str, target: str | None, stopped: str) -> Switchback:
    """Store by whom an experiment is stopped, empty for nobody."""
    name = _chosen(_stored(url), target).target

    def change(stored: Switchback | None) -> Switchback | None:
        return None if stored is None else msgspec.structs.replace(stored, stopped=stopped)

    now = time.time()
    store = Store(url, daemon=ACTOR)
    try:
        changed = store.change_switchback(name, change, now)
    finally:
        store.close(now)
    if changed is None:
        raise SpecwatchError(f"the experiment of {quoted(name)} was removed meanwhile")
    return changed
