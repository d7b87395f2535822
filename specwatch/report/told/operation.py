"""Objectives, the guard, changes of the server, and the health of the data, as sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.domain.model import UNCOVERED
from specwatch.report.charts.scale import finite
from specwatch.report.model import (
    Breach,
    Change,
    Goodput,
    Health,
    Incident,
    ModelReport,
    Objective,
    Side,
)
from specwatch.report.told import cells
from specwatch.report.told.parts import Listing, Part, Section, Sentence, table
from specwatch.wording import figures

_MOST_INCIDENTS = 20
_MOST_BREACHES = 30
_MOST_STEPS = 40
_MOST_REASONS = 12
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "whole request"}
_MODES = {"all": "on or off", "on": "on", "off": "off"}
_SOURCES = {
    "server": "the server's own counters, which have no temperatures",
    "tap": "the tap inside vLLM",
    "proxy": "the proxy",
    "probe": "probes",
}


def objectives(model: ModelReport) -> Section:
    """What the period used up of the budgets, its worst hours, and what met all objectives."""
    return Section("Objectives", [*_objectives(model.objectives), *_goodput(model.goodput)])


def guard(model: ModelReport) -> Section:
    """Incidents with all that was done, rules in breach, and the time off."""
    return Section("Guard and rules", [*_guard(model)])


def changes(model: ModelReport) -> Section:
    """What became another server, and what that did."""
    if not model.changes:
        return Section("Changes", [Sentence("Neither the server nor its configuration changed.")])
    return Section("Changes", [part for each in model.changes for part in _change(each)])


def health(model: ModelReport) -> Section:
    """Whether the figures can be relied on."""
    return Section("Health of the data", [*_health(model.health)])


def _objectives(found: Sequence[Objective]) -> Iterator[Part]:
    if not found:
        yield Sentence("No objectives are configured.")
        return
    yield table(
        "Objectives: how much of the error budget this period used up",
        "*Objective|*Promise|Requests|Beyond it|Budget spent|Budget left|*Worst hour",
        [_objective(each) for each in found],
    )
    yield from map(Sentence, objective_notes(found))


def objective_notes(found: Sequence[Objective]) -> list[str]:
    """Which objectives cannot be told for how many requests, and why, in sentences."""
    return [
        f"Of {cells.number(each.unknown)} of {cells.number(each.requests)} requests it is not known"
        f" whether they met {cells.name(each.name)}: {cells.seconds(each.threshold)} is not a bound"
        " of vLLM's histogram. They do not count as slow."
        for each in found
        if each.unknown > each.requests * (1 - each.objective)
    ]


def _goodput(found: Sequence[Goodput]) -> Iterator[Part]:
    if not any(each.requests for each in found):
        return
    yield table(
        "Goodput: requests that met all objectives",
        "*Speculation|Requests|Met all|Requests a second|Met all, a second",
        goodput_rows(found),
        whole=len(found) > 1,
    )
    for said in goodput_notes(found):
        yield Sentence(said)


def goodput_rows(found: Sequence[Goodput]) -> list[tuple[str, ...]]:
    """Speculation, requests, the share that met all objectives, all a second, and those that did,
    of each row."""
    rows: list[tuple[str, ...]] = []
    for each in found:
        share = met = cells.UNKNOWN
        if each.share is not None:
            lower, upper = each.share.lower, each.share.upper
            share = figures.between(cells.percent(lower), cells.percent(upper))
        if each.met is not None:
            lower, upper = each.met.lower, each.met.upper
            met = figures.between(
                cells.per_second(lower, each.offered), cells.per_second(upper, each.offered)
            )
        rows.append(
            (
                _MODES.get(each.mode, cells.name(each.mode)),
                cells.number(each.requests),
                share,
                cells.per_second(each.offered, each.offered),
                met,
            )
        )
    return rows


def goodput_notes(found: Sequence[Goodput]) -> list[str]:
    """How far figures of goodput may be relied on, in sentences."""
    notes = []
    if any(each.share is not None and each.share.lower < each.share.upper for each in found):
        notes.append(
            "Latency histograms do not say which request missed which objective: these figures are"
            " a lower and an upper bound."
        )
    if any(each.requests and each.share is None for each in found):
        notes.append(
            "Goodput is unknown where no request was measured against one of the objectives."
        )
    if len(found) > 1:
        notes.append(
            "With and without speculation the load was not equal: the difference is not the effect"
            " of speculation."
        )
    return notes


def _objective(each: Objective) -> tuple[str, ...]:
    metric = _METRICS.get(each.metric, cells.name(each.metric))
    worst = each.worst_hour
    hour = (
        cells.UNKNOWN
        if worst is None
        else (
            f"{cells.moment(worst.start)}: {cells.number(worst.bad)}"
            f" of {cells.number(worst.requests)}"
        )
    )
    return (
        cells.name(each.name),
        f"{_share(each.objective)} {metric} within {cells.seconds(each.threshold)},"
        f" over {cells.span(each.window)}",
        cells.number(each.requests),
        cells.number(each.bad),
        figures.budget_spent(finite(each.spent)),
        cells.percent(None if each.budget_left is None else max(each.budget_left, 0.0)),
        hour,
    )


def _share(value: float) -> str:
    """``99%``, ``99.9%``: with the digits that it has."""
    said = cells.number(100 * value, 3)
    return f"{said.rstrip('0').rstrip('.')}%" if "." in said else said


def _guard(model: ModelReport) -> Iterator[Part]:
    found = model.incidents
    if not found:
        yield Sentence("The guard had nothing to do: no incident.")
    else:
        off, ordered = model.seconds_off_by_guard, model.seconds_off_by_order
        yield Sentence(
            f"The guard had speculation off for {cells.span(off)}." if off
            else "The guard did not switch speculation off by itself."
        )  # fmt: skip
        if ordered:
            yield Sentence(f"Speculation was off for {cells.span(ordered)} by order of a person.")
        yield table(
            "Incidents",
            "*Incident|*Began|*Ended|Off for|**Cause|**Outcome",
            [_incident(each) for each in found[-_MOST_INCIDENTS:]],
        )
        yield from _left_out(len(found), _MOST_INCIDENTS, "incident", "latest")
        yield from _steps(found)
    yield from _breaches(model.breaches)


def _incident(each: Incident) -> tuple[str, ...]:
    return (
        cells.name(each.id),
        cells.moment(each.began),
        "not over" if each.ended is None else cells.moment(each.ended),
        cells.span(each.seconds_off) if each.seconds_off else cells.UNKNOWN,
        cells.short(each.cause),
        cells.short(each.outcome),
    )


def _steps(found: Sequence[Incident]) -> Iterator[Part]:
    rows = [
        (
            cells.moment(step.at),
            cells.name(each.id),
            cells.name(step.phase).replace("_", " "),
            cells.short(step.reason),
        )
        for each in found
        for step in each.steps
    ]
    if rows:
        yield table("What the guard did", "*Time|*Incident|*Step|**Because", rows[-_MOST_STEPS:])
        yield from _left_out(len(rows), _MOST_STEPS, "step", "latest")


def _left_out(count: int, most: int, noun: str, which: str) -> Iterator[Part]:
    if count > most:
        yield Sentence(f"These are the {which} {most} of {cells.number(count)} {noun}s.")


def _breaches(found: Sequence[Breach]) -> Iterator[Part]:
    if not found:
        yield Sentence("No rule was in breach.")
        return
    yield table(
        "Rules in breach",
        "*Rule|*Temperature|*Severity|Times|In breach for|*Last",
        [
            (
                cells.name(each.rule),
                cells.name(each.temperature),
                cells.name(each.severity),
                cells.number(each.count),
                cells.span(each.seconds),
                cells.moment(each.last),
            )
            for each in found[:_MOST_BREACHES]
        ],
    )
    yield from _left_out(len(found), _MOST_BREACHES, "rule", "first")


def _change(each: Change) -> Iterator[Part]:
    sides = (each.before, each.after)
    yield Sentence(f"{cells.moment(each.at)}: {cells.sentence(each.what)}")
    if not all(side.hours for side in sides):
        yield Sentence("The effect is not known: there is nothing to compare with.")
        return
    yield table(
        f"Before and after {cells.moment(each.at)}",
        "*What|Before|After|Change",
        [*_sides(*sides)],
    )


def _sides(before: Side, after: Side) -> Iterator[tuple[str, ...]]:
    old, new = before.acceptance_rate, after.acceptance_rate
    yield "Acceptance", cells.percent(old), cells.percent(new), cells.points(new, old)
    yield (
        "Tokens a step",
        cells.number(before.mean_length, 2),
        cells.number(after.mean_length, 2),
        cells.relative(after.mean_length, before.mean_length),
    )
    one, other = before.tpot_mean, after.tpot_mean
    yield "Mean TPOT", cells.seconds(one), cells.seconds(other), cells.relative(other, one)
    for which in ("p50", "p99"):
        quantiles = (cells.quantile(each, f"tpot_{which}") for each in (before, after))
        yield f"TPOT {which.upper()}", *quantiles, cells.UNKNOWN
    yield "Speedup", cells.ratio(before.speedup), cells.ratio(after.speedup), cells.UNKNOWN
    yield "Hours", cells.number(before.hours, 1), cells.number(after.hours, 1), cells.UNKNOWN


def _health(found: Health) -> Iterator[Part]:
    if found.warnings:
        yield Listing([cells.sentence(each) for each in found.warnings])
    unwatched = found.expected - found.observed - found.down
    source = cells.UNKNOWN if found.source is None else found.source
    yield table(
        "How well it was watched",
        "*What|**Figure",
        [
            ("Time watched", _time(found.observed, found.expected)),
            ("Time that the server was down", _time(found.down, found.expected)),
            ("Time that was not watched", _time(unwatched, found.expected)),
            ("Looks at the server", f"{cells.number(found.scrapes_ok)}, and"
             f" {cells.number(found.scrapes_failed)} that failed"),
            ("Restarts of the server", cells.number(found.restarts)),
            ("Temperatures come from", _SOURCES.get(source, cells.name(source))),
            ("Drafts whose temperature is known", cells.percent(found.coverage)),
            ("Gaps", _gaps(found)),
        ],
    )  # fmt: skip
    if found.uncovered:
        reasons = sorted(found.uncovered.items(), key=lambda each: (-each[1], each[0]))
        yield table(
            "Requests whose acceptance is not known",
            "**Why|Requests",
            [
                (UNCOVERED.get(reason, cells.name(reason)), cells.number(count))
                for reason, count in reasons[:_MOST_REASONS]
            ],
        )


def _time(seconds: float, expected: float) -> str:
    return f"{cells.percent(seconds / expected if expected else None)} of {cells.length(expected)}"


def _gaps(found: Health) -> str:
    if not found.gap_count:
        return "none"
    longest = "; ".join(
        f"{cells.moment(each.start)} for {cells.span(each.end - each.start)}" for each in found.gaps
    )
    return (
        f"{cells.number(found.gap_count)}, the longest: {longest}"
        if longest
        else str(found.gap_count)
    )
