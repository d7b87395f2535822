"""``specwatch experiment``: what experiments on live traffic have shown, and stopping them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click
import msgspec

from specwatch.cli import commands, options
from specwatch.cli.experiment_results import against_off, print_results, results_of
from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.config.sections import Baselines, nearest
from specwatch.domain.switchback import STANDBY, Switchback
from specwatch.domain.switchback_results import washout_of
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from specwatch.wording import experiment, figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

ACTOR = "specwatch experiment"
"""Recorded in the database for a change by these commands, in place of a daemon."""
_NONE = (
    "there is no experiment in the database; give a target `switch` and `experiments`, and let the"
    " daemon run"
)


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


_STATUS: Columns[ExperimentRow] = {
    "target": lambda row: shown(row.target),
    "episodes": lambda row: figures.number(row.episodes),
    "left out": lambda row: figures.number(row.excluded),
    "other arms": lambda row: f"{row.share:.1%} of {row.share_allowed:.1%}",
    "lost": lambda row: f"{row.regret:.1%} of {row.regret_allowed:.1%}",
    "washout": lambda row: figures.seconds(row.washout),
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
    Terminal().lines(table(_STATUS, rows, details=_details))


def _details(row: ExperimentRow) -> Lines:
    if row.stopped:
        text = f"  stopped by {shown(row.stopped, LONGEST_SENTENCE)}"
        yield from paragraph(text, "yellow")
    if row.dropped:
        names = ", ".join(map(experiment.arm_name, row.dropped))
        usual = experiment.arm_name(row.usual)
        yield from paragraph(f"  no longer ordered, slower than {usual}: {names}")


def _status_row(stored: Switchback) -> ExperimentRow:
    state, design = stored.state, stored.design
    return ExperimentRow(
        target=stored.target,
        stopped=stored.stopped,
        arms=design.arms,
        usual=design.usual,
        dropped=state.dropped.get(design.usual, ()),
        began=state.began,
        episodes=state.episodes,
        excluded=state.excluded,
        share=state.other_share,
        share_allowed=design.share,
        regret=state.lost_share,
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
    drafter still runs. Speedups against vLLM without speculation follow where the cost of standby
    is known: from minutes in standby, and a baseline. Exit code 1 when there is no experiment.
    """
    url = options.database_url(database, file)
    stored = _chosen(_stored(url), target)
    if reference is not None:
        options.choose(reference, stored.design.arms, "the experiment has no arm", "--reference")
    known = results_of(stored, reference)
    if STANDBY in stored.design.arms:
        config = options.configured(database, file)
        max_age = (Baselines() if config is None else config.baseline).max_age
        known = msgspec.structs.replace(
            known, against_off=against_off(url, stored, list(known.loads), max_age)
        )
    if as_json:
        options.print_json(known)
    else:
        print_results(known)


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
        Terminal().line(f"the experiment of {shown(stored.target)} is stopped by {shown(why, 300)}")


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
        Terminal().line(f"the experiment of {shown(stored.target)} is started by {shown(by)}")


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
