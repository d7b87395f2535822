"""Objectives, the guard, changes of the server, and the health of the data, as sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from specwatch.domain.tap_keys import UNCOVERED
from specwatch.report import layout
from specwatch.report.estimates import Bounds
from specwatch.report.layout import Cell, Listing, Part, ReportSection, Sentence, Style, table
from specwatch.report.model import (
    ModelReport,
    ReportGoodput,
    ReportIncident,
    ReportObjective,
    ReportSide,
)
from specwatch.wording import figures
from specwatch.wording.figures import moment
from specwatch.wording.segments import segment_words
from specwatch.wording.text import shown

_MOST_INCIDENTS = 20
_MOST_BREACHES = 30
_MOST_STEPS = 40
_MOST_REASONS = 12
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "whole request"}
_MODES = {"all": "on or off", "on": "on", "off": "off"}
_SEVERITIES: dict[str, Style] = {"critical": "bad", "warning": "warn"}
_SOURCES = {
    "server": "the server's own counters, which have no temperatures",
    "tap": "the tap inside vLLM",
    "proxy": "the proxy",
    "probe": "probes",
}


def objectives(model: ModelReport) -> ReportSection:
    """What the period used up of the budgets, its worst hours, and what met all objectives."""
    return ReportSection("Objectives", [*_objectives(model.objectives), *_goodput(model.goodput)])


def _objectives(objectives: Sequence[ReportObjective]) -> Iterator[Part]:
    if not objectives:
        yield Sentence("No objectives are configured.")
        return
    rows = []
    for slo in objectives:
        promised = figures.number(100 * slo.objective, 3)
        promised = promised.rstrip("0").rstrip(".") if "." in promised else promised
        metric = _METRICS.get(slo.metric, shown(slo.metric))
        promise = f"{promised}% {metric} within {figures.seconds(slo.threshold)}"
        left = figures.percent(None if slo.budget_left is None else max(slo.budget_left, 0.0))
        worst = Cell(figures.UNKNOWN)
        if slo.worst_hour is not None:
            hour = moment(slo.worst_hour.start)
            bad, of = map(figures.number, (slo.worst_hour.bad, slo.worst_hour.requests))
            worst = Cell(f"{hour}: {bad} of {of}", hour[5:16])
        rows.append(
            (
                shown(slo.name),
                Cell(f"{promise}, over {figures.span(slo.window)}", promise),
                layout.count(slo.requests),
                layout.count(slo.bad),
                Cell(
                    figures.budget_spent(slo.spent),
                    style="bad" if slo.spent is not None and slo.spent > 1 else "",
                ),
                Cell(left, style="bad" if (slo.budget_left or 0.0) < 0 else ""),
                worst,
            )
        )
    yield table(
        "Objectives: how much of the error budget this period used up",
        "*Objective|*Promise|Requests|Beyond it=Beyond|Budget spent=Spent|Budget left=Left"
        "|*Worst hour",
        rows,
    )
    for slo in objectives:
        if slo.unknown > slo.requests * (1 - slo.objective):
            yield Sentence(
                f"Of {figures.number(slo.unknown)} of {figures.number(slo.requests)} requests it is"
                f" not known whether they met {shown(slo.name)}: {figures.seconds(slo.threshold)}"
                " is not a bound of vLLM's histogram. They do not count as slow."
            )


def _goodput(goodput: Sequence[ReportGoodput]) -> Iterator[Part]:
    if not any(one.requests for one in goodput):
        return
    rows = [
        (
            _MODES.get(one.mode, shown(one.mode)),
            figures.number(one.requests),
            _range(one.share, figures.percent),
            figures.rate(one.offered, one.offered),
            _range(one.met, partial(figures.rate, of=one.offered)),
        )
        for one in goodput
    ]
    yield table(
        "Goodput: requests that met all objectives",
        "*Speculation|Requests|Met all|Requests a second=Requests/s|Met all, a second=Met all/s",
        rows,
        whole=len(goodput) > 1,
    )
    if any(one.share is not None and one.share.lower < one.share.upper for one in goodput):
        yield Sentence(
            "Latency histograms do not say which request missed which objective: these figures are"
            " a lower and an upper bound."
        )
    if any(one.requests and one.share is None for one in goodput):
        yield Sentence(
            "Goodput is unknown where no request was measured against one of the objectives."
        )
    if len(goodput) > 1:
        yield Sentence(
            "With and without speculation the load was not equal: the difference is not the effect"
            " of speculation."
        )


def _range(bounds: Bounds | None, form: Callable[[float], str]) -> str:
    if bounds is None:
        return figures.UNKNOWN
    return figures.between(form(bounds.lower), form(bounds.upper))


def guard(model: ModelReport) -> ReportSection:
    """Incidents with all that was done, rules in breach, and the time off."""
    return ReportSection("Guard and rules", [*_incidents(model), *_breaches(model)])


def _incidents(model: ModelReport) -> Iterator[Part]:
    incidents = model.incidents
    if not incidents:
        yield Sentence("The guard had nothing to do: no incident.")
        return
    if model.seconds_off_by_guard:
        off = figures.span(model.seconds_off_by_guard)
        yield Sentence(f"The guard had speculation off for {off}.")
    else:
        yield Sentence("The guard did not switch speculation off by itself.")
    if model.seconds_off_by_order:
        off = figures.span(model.seconds_off_by_order)
        yield Sentence(f"Speculation was off for {off} by order of a person.")
    yield table(
        "Incidents",
        "*Incident|*Began|*Ended|Off for|**Cause|**Outcome",
        [_incident(one) for one in incidents[-_MOST_INCIDENTS:]],
    )
    yield from _left_out(len(incidents), _MOST_INCIDENTS, "incident", "latest")
    steps = [
        (
            moment(step.at),
            shown(one.id),
            shown(step.phase).replace("_", " "),
            layout.short(step.reason),
        )
        for one in incidents
        for step in one.steps
    ]
    if steps:
        yield table("What the guard did", "*Time|*Incident|*Step|**Because", steps[-_MOST_STEPS:])
        yield from _left_out(len(steps), _MOST_STEPS, "step", "latest")


def _incident(one: ReportIncident) -> tuple[str | Cell, ...]:
    end = Cell("not over", style="warn")
    if one.ended is not None:
        end = Cell(moment(one.ended), f"until {moment(one.ended)}")
    off = figures.span(one.seconds_off)
    return (
        shown(one.id),
        moment(one.began),
        end,
        Cell(off, f"off for {off}") if one.seconds_off else figures.UNKNOWN,
        layout.short(one.cause),
        layout.short(one.outcome),
    )


def _left_out(count: int, most: int, noun: str, which: str) -> Iterator[Part]:
    if count > most:
        yield Sentence(f"These are the {which} {most} of {figures.number(count)} {noun}s.")


def _breaches(model: ModelReport) -> Iterator[Part]:
    if not model.breaches:
        yield Sentence("No rule was in breach.")
        return
    yield table(
        "Rules in breach",
        "*Rule|*Segment|*Severity|Times|In breach for=Lasted|*Last",
        [
            (
                shown(one.rule),
                segment_words(one.segment),
                Cell(shown(one.severity), style=_SEVERITIES.get(one.severity, "")),
                figures.number(one.count),
                figures.span(one.seconds),
                moment(one.last),
            )
            for one in model.breaches[:_MOST_BREACHES]
        ],
    )
    yield from _left_out(len(model.breaches), _MOST_BREACHES, "rule", "first")


def changes(model: ModelReport) -> ReportSection:
    """What became another server, and what that did."""
    parts: list[Part] = []
    for change in model.changes:
        when = moment(change.at)
        parts.append(Sentence(f"{when}: {layout.sentence(change.what)}"))
        if change.before.hours and change.after.hours:
            rows = [*_sides(change.before, change.after)]
            parts.append(table(f"Before and after {when}", "*What|Before|After|Change", rows))
        else:
            parts.append(Sentence("The effect is not known: there is nothing to compare with."))
    unchanged = Sentence("Neither the server nor its configuration changed.")
    return ReportSection("Changes", parts or [unchanged])


def _sides(before: ReportSide, after: ReportSide) -> Iterator[tuple[str | Cell, ...]]:
    old, new = before.acceptance_rate, after.acceptance_rate
    yield "Acceptance", figures.percent(old), figures.percent(new), layout.points(new, old)
    old, new = before.mean_length, after.mean_length
    yield "Tokens a step", figures.number(old, 2), figures.number(new, 2), layout.relative(new, old)
    old, new = before.tpot_mean, after.tpot_mean
    yield "Mean TPOT", figures.seconds(old), figures.seconds(new), layout.relative(new, old)
    for which in ("p50", "p99"):
        quantiles = (layout.quantile(side, f"tpot_{which}") for side in (before, after))
        yield f"TPOT {which.upper()}", *quantiles, figures.UNKNOWN
    yield "Speedup", layout.ratio(before.speedup), layout.ratio(after.speedup), figures.UNKNOWN
    hours = (figures.number(side.hours, 1) for side in (before, after))
    yield "Hours", *hours, figures.UNKNOWN


def health(model: ModelReport) -> ReportSection:
    """Whether the figures can be relied on."""
    state = model.health
    parts: list[Part] = []
    if state.warnings:
        parts.append(Listing([layout.sentence(one) for one in state.warnings], "warn"))
    source = figures.UNKNOWN if state.source is None else state.source
    looks, failed = map(figures.number, (state.scrapes_ok, state.scrapes_failed))
    gaps = figures.number(state.gap_count) if state.gap_count or state.gaps else "none"
    if state.gaps:
        longest = (f"{moment(g.start)} for {figures.span(g.end - g.start)}" for g in state.gaps)
        gaps += f", the longest: {'; '.join(longest)}"
    times = {
        "watched": state.observed,
        "that the server was down": state.down,
        "that was not watched": state.expected - state.observed - state.down,
    }
    expected = layout.length(state.expected)
    parts.append(
        table(
            "How well it was watched",
            "*What|**Figure",
            [
                *(
                    (f"Time {what}", f"{_percent(time, state.expected)} of {expected}")
                    for what, time in times.items()
                ),
                ("Looks at the server", f"{looks}, and {failed} that failed"),
                ("Restarts of the server", figures.number(state.restarts)),
                ("Temperatures come from", _SOURCES.get(source, shown(source))),
                ("Drafts whose temperature is known", figures.percent(state.coverage)),
                ("Gaps", gaps),
            ],
        )
    )
    if state.uncovered:
        reasons = sorted(state.uncovered.items(), key=lambda item: (-item[1], item[0]))
        parts.append(
            table(
                "Requests whose acceptance is not known",
                "**Why|Requests",
                [
                    (UNCOVERED.get(reason, shown(reason)), figures.number(count))
                    for reason, count in reasons[:_MOST_REASONS]
                ],
            )
        )
    return ReportSection("Health of the data", parts)


def _percent(part: float, whole: float) -> str:
    return figures.percent(part / whole if whole else None)
