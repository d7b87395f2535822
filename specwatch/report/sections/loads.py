"""Load, draft tokens, and what was measured by experiment, as sections."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.domain.experiments import Verdict, Zone
from specwatch.report import layout, schedule
from specwatch.report.experiment_model import Experiment, MeasuredLoad
from specwatch.report.experiments import headline, others
from specwatch.report.layout import Cell, Figure, Part, ReportSection, Sentence, Style, Table, table
from specwatch.report.model import ModelReport, ReportLoad
from specwatch.wording import break_even_zones, experiment_verdicts, figures, speculation
from specwatch.wording import experiment as wording
from specwatch.wording.figures import finite, moment
from specwatch.wording.text import shown

_GROUPS = {
    "all": "{}",
    "load": "{} running",
    "temperature": "temperature {}",
    "prompt length": "prompt of {}",
}
_VERDICTS: dict[Verdict, Style] = {"ship": "good", "not_worth_it": "warn", "do_not": "bad"}
_ZONES: dict[Zone, Style] = {"wins": "good", "near": "warn", "loses": "bad"}


def loads(model: ModelReport) -> ReportSection:
    """The speedup at each load, and where it crosses 1."""
    if not model.loads:
        nothing = Sentence("Nothing ran with speculation, so nothing is known by load.")
        return ReportSection("Load", [nothing])
    parts: list[Part] = [Sentence(_crossing(model))]
    if any(one.speedup for one in model.loads):
        parts.append(
            Figure(
                "speedup",
                "Speedup per token at each load, with its 95 % interval where it was measured, and"
                " the break-even line at 1. The table has the figures.",
            )
        )
    rows = [
        (
            shown(one.load),
            figures.number(one.running, 1),
            figures.span(one.busy),
            figures.percent(one.share),
            figures.percent(one.acceptance_rate),
            layout.rate(one.break_even_acceptance),
            layout.ratio(one.speedup),
            _step_cost(one),
            layout.mean(one.tpot_on),
            layout.change(one.tpot_on, one.tpot_off),
            layout.quantile(one.tpot_on, "p99"),
            layout.quantile(one.tpot_off, "p99"),
        )
        for one in model.loads
    ]
    parts.append(
        table(
            "Speculation by load",
            "*Running requests=Load|Mean|Busy|Share of tokens=Share|Acceptance=Accept"
            "|Break-even acceptance=Break-even|Speedup per token=Speedup|Cost of a step=Step"
            "|Mean TPOT=?TPOT|Against off=?Vs off|P99=?P99|P99 off=?P99 off",
            rows,
            bars=[
                (one.speedup.value if one.speedup else None, layout.verdict(one.speedup))
                for one in model.loads
            ],
            mark=1.0,
        )
    )
    return ReportSection("Load", parts)


def _step_cost(load: ReportLoad) -> Cell:
    cost = load.step_cost
    return Cell(layout.ratio(cost).text, layout.times(None if cost is None else cost.value))


def _crossing(model: ModelReport) -> str:
    running = None if model.crossing is None else finite(model.crossing.running)
    if running is not None:
        return f"Speculation pays up to about {running:.0f} running requests, and loses above that."
    speedups = [one.speedup for one in model.loads]
    values = [finite(one.value) for one in speedups if one and one.basis == "measured"]
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "No speedup was measured at any load."
    if min(numbers) > 1:
        return "At no load that was measured does speculation lose."
    if max(numbers) < 1:
        return "At no load that was measured does speculation pay."
    return "Speculation does not stop paying at any one load."


def choices(model: ModelReport) -> ReportSection:
    """The best number of draft tokens; speculation at some loads only."""
    varying = speculation.draft_lengths(model.draft_lengths)
    lengths = [] if varying is None else [Sentence(f"{varying[:1].upper()}{varying[1:]}.")]
    return ReportSection("Draft tokens, and what if", [*lengths, *_best_k(model), *_what_if(model)])


def _best_k(model: ModelReport) -> Iterator[Part]:
    best = model.best_k
    if best is None:
        why = model.best_k_unknown
        because = f": {speculation.BEST_K_UNKNOWN[why]}" if why else ""
        yield Sentence(f"The best number of draft tokens is not known{because}.")
        return
    if best.k == best.now:
        yield Sentence(f"The number of draft tokens is right: {best.now}.")
    else:
        yield Sentence(
            f"The best number of draft tokens is predicted to be {speculation.best_of(best.k)}; it"
            f" is {best.now}."
        )
    if best.speedups:
        yield table(
            "Speedup per token predicted for each number of draft tokens",
            "|".join(["*Draft tokens", "off", *map(str, range(1, len(best.speedups)))]),
            [("Predicted speedup", *map(layout.times, best.speedups))],
        )


def _what_if(model: ModelReport) -> Iterator[Part]:
    what_if = model.what_if
    if what_if is None:
        yield Sentence("Nothing is known to be gained by speculation at some loads only.")
        return
    most = schedule.limit(what_if)
    if not most:
        yield Sentence(
            "It pays at no load that was measured, so switch it off: the same work would have been"
            f" done {layout.times(what_if.gain)} as fast as it was."
        )
        return
    yield Sentence(
        f"It loses above {most} running requests, {figures.percent(what_if.share)} of the measured"
        " time: a separate server without speculation, or switching it off, ends that."
    )
    if not schedule.stops_the_loss(what_if):
        yield Sentence(f"A schedule by batch size does not: {schedule.expected(what_if)}.")
        return
    yield Sentence(
        f"`{schedule.setting(what_if)}` in the speculative configuration"
        f" {'stops drafting' if what_if.fewer is None else 'drafts less'} there;"
        f" it {schedule.needs(model.engine_version)}."
    )
    if what_if.gain is None:
        yield Sentence(f"What that gains has to be measured: {schedule.expected(what_if)}.")
    else:
        yield Sentence(
            f"With it the same work would have been done {layout.times(what_if.gain)} as fast as it"
            f" was: {schedule.expected(what_if)}."
        )
    yield Sentence(schedule.WITH_MTP)
    unmeasured = schedule.unmeasured(model, what_if)
    if unmeasured:
        yield Sentence(f"Of these loads nothing was measured: {', '.join(map(shown, unmeasured))}.")


def live_experiment(model: ModelReport) -> ReportSection | None:
    """The experiment on live traffic, with what it cost; no section without one."""
    live = model.live_experiment
    if live is None:
        return None
    known = layout.sentence(live.sentence)
    left_out = f", {figures.number(live.excluded)} left out" if live.excluded else ""
    parts: list[Part] = [
        Sentence(f"{known[:1].upper()}{known[1:]}."),
        table(
            "Measured by experiment on live traffic: time per token at the launch over that of"
            " other arms",
            "*Requests|*Arm|Speedup|Episodes|Share of tokens=?Share",
            [
                (
                    _GROUPS[group.by].format(shown(group.value)),
                    wording.arm_name(arm.arm),
                    layout.ratio(arm.speedup),
                    figures.number(arm.episodes),
                    figures.percent(group.share),
                )
                for group in live.groups
                for arm in group.arms
            ],
        ),
        Sentence(
            f"{figures.counted(live.episodes, 'episode')} since {moment(live.began)}{left_out}."
            f" Other arms than {wording.arm_name(live.usual)} were in force for"
            f" {figures.percent(live.share)} of the time"
            f" ({figures.percent(live.share_allowed)} allowed), and lost"
            f" {figures.percent(live.regret)} of it at most"
            f" ({figures.percent(live.regret_allowed)} allowed)."
        ),
    ]
    if live.episodes:
        covered = wording.coverage(live.covered)
        parts.append(Sentence(f"{covered[:1].upper()}{covered[1:]}."))
    if live.dropped:
        names = ", ".join(map(wording.arm_name, live.dropped))
        parts.append(Sentence(f"No longer ordered, slower than the launch: {names}."))
    if live.stopped:
        parts.append(Sentence(f"Stopped by {layout.short(live.stopped)}.", "warn"))
    return ReportSection("Experiment on live traffic", parts)


def experiments(model: ModelReport) -> ReportSection | None:
    """Experiments with their figures; no section without experiments."""
    parts: list[Part] = []
    for one in model.experiments:
        style = "" if one.verdict is None else _VERDICTS.get(one.verdict, "")
        parts.append(Sentence(layout.sentence(headline(one)), style))
        if one.temperatures or one.loads:
            parts.append(_measured(one))
    if model.more_experiments:
        parts.append(Sentence(f"And {others(model.more_experiments)}."))
    return ReportSection("Measured on purpose", parts) if model.experiments else None


def _measured(experiment: Experiment) -> Table:
    when = moment(experiment.at)
    if experiment.temperatures:
        return table(
            f"Probe of {when}: acceptance by temperature",
            "*Temperature=Temp|Acceptance|*Against break-even=Break-even|Speedup",
            [
                (
                    figures.UNKNOWN if finite(one.temperature) is None else f"{one.temperature:g}",
                    layout.share(one.acceptance_rate),
                    Cell(break_even_zones.LABELS[one.zone], style=_ZONES.get(one.zone, "")),
                    layout.ratio(one.speedup),
                )
                for one in experiment.temperatures
            ],
        )
    if experiment.kind == "comparison":
        return table(
            f"Comparison of {when}: with speculation against without, by load",
            "*Load|Speedup|Tokens/s with=Tok/s|Tokens/s without=Tok/s off"
            "|Tokens/s of a request=Per user|TPOT P99|*Verdict",
            [
                (
                    _load(one),
                    layout.ratio(one.speedup),
                    figures.compact(one.throughput),
                    figures.compact(one.throughput_off),
                    figures.number(one.per_user, 1),
                    figures.seconds(one.tpot_p99),
                    Cell(figures.UNKNOWN)
                    if one.verdict is None
                    else Cell(
                        experiment_verdicts.LABELS[one.verdict],
                        style=_VERDICTS.get(one.verdict, ""),
                    ),
                )
                for one in experiment.loads
            ],
        )
    return table(
        f"Bench of {when}: throughput by load",
        "*Load|Tokens/s=Tok/s|Tokens/s of a request=Per user|TPOT P99",
        [
            (
                _load(one),
                figures.compact(one.throughput),
                figures.number(one.per_user, 1),
                figures.seconds(one.tpot_p99),
            )
            for one in experiment.loads
        ],
    )


def _load(measured_load: MeasuredLoad) -> str:
    """``16`` clients, or ``4/s``; ``16, in part`` if it was broken off."""
    rate = finite(measured_load.rate)
    by_clients = measured_load.concurrency is not None or rate is None
    load = figures.number(measured_load.concurrency) if by_clients else f"{rate:g}/s"
    return load if measured_load.complete else f"{load}, in part"
