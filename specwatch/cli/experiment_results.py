"""What an experiment on live traffic has shown, as ``specwatch experiment results`` prints it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import msgspec

from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Mode
from specwatch.domain.sample import samples_of
from specwatch.domain.standby import StandbyCost, standby_cost
from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    LAUNCH,
    STANDBY,
    Grouping,
    Switchback,
    TunedSchedule,
    environment_of,
)
from specwatch.domain.switchback_results import (
    compared_episodes,
    results,
    speedup_against_off,
)
from specwatch.domain.tuning import advice
from specwatch.report.speedups import Chosen
from specwatch.store.readers import Reader
from specwatch.wording import experiment, figures
from specwatch.wording.text import LONGEST_SENTENCE, shown


class ArmResult(msgspec.Struct, frozen=True):
    """An arm against the reference: its speedup, None with too few ``episodes``."""

    arm: str
    speedup: Interval | None
    episodes: int


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
    certainly faster. ``loads`` are by running requests, ``temperatures`` by bucket,
    ``prompt_lengths`` by tokens; ``shares`` are those of the tokens, by grouping and value.
    ``against_off`` is None without an arm of 0 draft tokens, ``tuning`` without
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
    temperatures: dict[str, list[ArmResult]]
    prompt_lengths: dict[str, list[ArmResult]]
    shares: dict[Grouping, dict[str, float]]
    against_off: AgainstOff | None
    tuning: TunedSchedule | None


_RESULTS: Columns[tuple[str, ArmResult]] = {
    "arm": lambda row: experiment.arm_name(row[1].arm),
    "speedup": lambda row: f"{row[1].speedup.value:.2f}" if row[1].speedup else figures.UNKNOWN,
    "95 % interval": lambda row: experiment.bounds(row[1].speedup) or figures.UNKNOWN,
    "episodes": lambda row: figures.number(row[1].episodes),
}
_AGAINST_OFF = {header: cell for header, cell in _RESULTS.items() if header != "episodes"}


def results_of(stored: Switchback, reference: str | None) -> ExperimentResults:
    """All but ``against_off``."""
    state, design = stored.state, stored.design
    known = results(state, design, reference or LAUNCH)

    def groups(by: Grouping) -> dict[str, list[ArmResult]]:
        return {
            value: arms(by.group(value), group.speedups)
            for value, group in known.groups[by].items()
        }

    def arms(group: str, speedups: Mapping[str, Interval | None]) -> list[ArmResult]:
        return [
            ArmResult(arm, speedup, compared_episodes(state, arm, known.reference, group=group))
            for arm, speedup in speedups.items()
        ]

    return ExperimentResults(
        target=stored.target,
        answer=experiment.answer(state, known),
        reference=known.reference,
        best=known.best,
        washout=known.washout,
        stopped=stored.stopped,
        episodes=state.episodes,
        excluded=state.excluded,
        arms=arms(ALL_TRAFFIC, known.speedups),
        loads=groups(Grouping.LOAD),
        temperatures=groups(Grouping.TEMPERATURE),
        prompt_lengths=groups(Grouping.PROMPT_LENGTH),
        shares={
            by: {value: group.share for value, group in of.items()}
            for by, of in known.groups.items()
        },
        against_off=None,
        tuning=advice(state, design),
    )


def against_off(url: str, stored: Switchback, loads: Sequence[str], max_age: float) -> AgainstOff:
    """By minutes in standby and baselines that are at most ``max_age`` seconds old, of the software
    of the experiment and the model with most of these minutes."""
    now, state = time.time(), stored.state
    with closing(Reader.of(url)) as reader:
        windows = [
            window
            for window in reader.windows(
                since=now - max_age,
                until=now,
                target=stored.target,
                dimension=ALL.dimension,
                mode=Mode.STANDBY,
            )
            if state.environment.startswith(environment_of(window.environment))
        ]
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
            load: arms(
                Grouping.LOAD.group(load), standby_cost(minutes, baseline, loads=[load]).cost
            )
            for load in loads
        },
    )


def print_results(known: ExperimentResults) -> None:
    """Print the answer first, then tables by load, temperature and prompt length."""
    terminal = Terminal()
    keep = "; no arm is known to be faster than the launch" if known.best == LAUNCH else ""
    terminal.lines(paragraph(f"{shown(known.target)}: {known.answer}{keep}", "bold"))
    if known.stopped:
        terminal.lines(paragraph(f"stopped by {shown(known.stopped, LONGEST_SENTENCE)}", "yellow"))
    terminal.line()
    terminal.lines(_groups("running", {"all": known.arms, **known.loads}))
    for header, groups, by in (
        ("temperature", known.temperatures, Grouping.TEMPERATURE),
        ("prompt tokens", known.prompt_lengths, Grouping.PROMPT_LENGTH),
    ):
        if groups:
            terminal.line()
            terminal.lines(_groups(header, groups, known.shares[by]))
    terminal.line()
    if known.episodes:
        covered = sum(known.shares[Grouping.TEMPERATURE].values())
        terminal.lines(paragraph(experiment.coverage(covered)))
    left_out = f"{figures.counted(known.excluded, 'episode')} left out"
    washout = f"the first {figures.seconds(known.washout)} of a block do not count"
    terminal.lines(paragraph(f"{left_out}; {washout}"))
    if known.tuning is not None:
        terminal.lines(paragraph(experiment.tuning(known.tuning)))
    if known.against_off is None:
        return
    cost = StandbyCost(known.against_off.standby_cost, known.against_off.missing)
    terminal.line()
    terminal.lines(paragraph(experiment.against_off(known.target, cost)))
    if cost.cost is not None:
        terminal.line()
        off = known.against_off
        terminal.lines(_groups("running", {"all": off.arms, **off.loads}, columns=_AGAINST_OFF))


def _groups(
    header: str,
    groups: Mapping[str, list[ArmResult]],
    shares: Mapping[str, float] | None = None,
    columns: Columns[tuple[str, ArmResult]] = _RESULTS,
) -> Lines:
    """A table with the arms of each group, and the group's share of the tokens."""
    columns = {header: lambda row: shown(row[0]), **columns}
    if shares is not None:
        columns = {**columns, "of tokens": lambda row: figures.percent(shares[row[0]])}
    rows = [(name, arm) for name, arms in groups.items() for arm in arms]
    return table(columns, rows, keys=2)
