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
from specwatch.config.sections import Baselines, nearest
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL_TEMPERATURES, Mode
from specwatch.domain.sample import samples_of
from specwatch.domain.speedup import StandbyCost, standby_cost
from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    LAUNCH,
    STANDBY,
    Switchback,
    environment_of,
)
from specwatch.domain.switchback_results import (
    compared_episodes,
    results,
    speedup_against_off,
    washout_of,
)
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError
from specwatch.report.speedups import Chosen
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

    ``dropped`` arms lose, and are not ordered any more; ``stopped`` says by whom, and why.
    """

    target: str
    stopped: str
    arms: tuple[str, ...]
    dropped: tuple[str, ...]
    began: float
    episodes: int
    excluded: int
    share: float
    share_allowed: float
    regret: float
    regret_allowed: float
    washout: float


class AgainstOff(msgspec.Struct, frozen=True):
    """Speedups against vLLM without speculation, None where that is unknown.

    ``standby_cost`` is the time per token in standby over that without speculation; ``missing``
    says why it is not known.
    """

    standby_cost: Interval | None
    missing: str
    arms: list[ArmResult]
    loads: dict[str, list[ArmResult]]


class ExperimentResults(msgspec.Struct, frozen=True):
    """Results as ``results --json`` has them; ``best`` is the best arm, the launch if none is
    certainly faster. ``loads`` are by group of running requests. ``against_off`` is None
    without an arm of 0 draft tokens."""

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
    against_off: AgainstOff | None


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
_AGAINST_OFF = {header: cell for header, cell in _RESULTS.items() if header != "episodes"}


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
            terminal.lines(wrapped(f"  no longer ordered, slower than the launch: {names}"))


def _status_row(stored: Switchback) -> ExperimentRow:
    state, design = stored.state, stored.design
    elapsed = max(state.counted - state.began, 1.0)
    return ExperimentRow(
        target=stored.target,
        stopped=stored.stopped,
        arms=design.arms,
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
    drafter still runs. Speedups against vLLM without speculation follow where the cost of standby
    is known: from minutes in standby, and a baseline. Exit code 1 when there is no experiment.
    """
    url = options.database_url(database, file)
    stored = _chosen(_stored(url), target)
    if reference is not None:
        options.choose(reference, stored.design.arms, "the experiment has no arm", "--reference")
    known = _results(stored, reference)
    if STANDBY in stored.design.arms:
        config = options.configured(database, file)
        max_age = (Baselines() if config is None else config.baseline).max_age
        known = msgspec.structs.replace(known, against_off=_against_off(url, stored, max_age))
    if as_json:
        options.print_json(known)
    else:
        _print_results(known)


def _results(stored: Switchback, reference: str | None) -> ExperimentResults:
    state, design = stored.state, stored.design
    known = results(state, design, reference)

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
        against_off=None,
    )


def _against_off(url: str, stored: Switchback, max_age: float) -> AgainstOff:
    """By minutes in standby and baselines that are at most ``max_age`` seconds old, of the software
    of the experiment and the model with most of these minutes."""
    now, state = time.time(), stored.state
    with closing(Reader.of(url)) as reader:
        windows = [
            window
            for window in reader.windows(
                since=now - max_age, until=now, target=stored.target,
                temperature=ALL_TEMPERATURES, mode=Mode.STANDBY,
            )
            if state.environment.startswith(environment_of(window.environment))
        ]  # fmt: skip
        measurements = reader.measurements(stored.target)
    names = [window.series.model_name for window in windows]
    model = max(sorted(set(names)), key=names.count, default="")
    minutes = samples_of(window for window in windows if window.series.model_name == model)
    baseline = Chosen([one for one in measurements if one.key.model_name == model], now, max_age)

    def arms(group: str, cost: Interval | None) -> list[ArmResult]:
        return [
            ArmResult(
                arm,
                None if cost is None else speedup_against_off(state, arm, cost, group=group),
                compared_episodes(state, arm, STANDBY, group=group),
            )
            for arm in stored.design.arms
        ]

    cost, missing = standby_cost(minutes, baseline)
    return AgainstOff(
        standby_cost=cost,
        missing=missing or "",
        arms=arms(ALL_TRAFFIC, cost),
        loads={
            load: arms(group, standby_cost(minutes, baseline, loads=[load]).cost)
            for group in sorted(state.differences)
            if (load := group.removeprefix("load ")) != group
        },
    )


def _print_results(known: ExperimentResults) -> None:
    terminal = Terminal()
    terminal.lines(wrapped(f"{shown(known.target)}: {known.answer}"))
    if known.stopped:
        terminal.lines(wrapped(f"stopped by {shown(known.stopped, LONGEST_SENTENCE)}", "yellow"))
    terminal.line()
    terminal.lines(table(_RESULTS, _rows(known)))
    terminal.line()
    best = f"best: {experiment.arm_name(known.best)}"
    if known.best == LAUNCH:
        best = "no arm is known to be faster than the launch"
    left_out = f"{figures.counted(known.excluded, 'episode')} left out"
    washout = f"the first {figures.seconds(known.washout)} of a block do not count"
    terminal.lines(wrapped(f"{best}; {left_out}; {washout}"))
    if known.against_off is None:
        return
    cost = StandbyCost(known.against_off.standby_cost, known.against_off.missing)
    terminal.line()
    terminal.lines(wrapped(experiment.against_off(known.target, cost)))
    if cost.cost is not None:
        terminal.line()
        terminal.lines(table(_AGAINST_OFF, _rows(known.against_off)))


def _rows(known: ExperimentResults | AgainstOff) -> list[tuple[str, ArmResult]]:
    loads = [(shown(load), one) for load, arms in known.loads.items() for one in arms]
    return [*(("all", one) for one in known.arms), *loads]


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
