"""What happened to a target, and how well it was watched, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.domain.model import ALL_TEMPERATURES
from specwatch.report.columns import Cell, Line, table, wrapped
from specwatch.report.model import (
    Change,
    Goodput,
    Health,
    Incident,
    ModelReport,
    Objective,
    Side,
)
from specwatch.report.told import cells
from specwatch.report.told.operation import goodput_notes, goodput_rows, objective_notes
from specwatch.scrape.coverage import leading_reasons
from specwatch.wording import figures
from specwatch.wording.moments import moment
from specwatch.wording.text import LONGEST_SENTENCE, shown

_MOST_STEPS = 12
_STYLES = {"critical": "red", "warning": "yellow"}


def event_lines(model: ModelReport, width: int) -> Iterator[Line]:
    """Yield lines about objectives, incidents, breaches, changes, and the data itself."""
    yield from _objectives(model.objectives, width)
    yield from _goodput(model.goodput, width)
    yield from _breaches(model, width)
    yield from _incidents(model, width)
    yield from _changes(model.changes, width)
    yield from _health(model.health, width)


def _objectives(found: tuple[Objective, ...], width: int) -> Iterator[Line]:
    if not found:
        return
    headers = ("objective", "within", "share", "requests", "slower", "spent", "left", "worst hour")
    rows = [
        (
            Cell(f"{shown(each.name)} ({shown(each.metric)})"),
            Cell(figures.seconds(each.threshold)),
            Cell(f"{each.objective:.6g}" if each.objective > 0.99999 else f"{each.objective:.3%}"),
            Cell(figures.compact(each.requests)),
            Cell(figures.compact(each.bad)),
            Cell(
                figures.budget_spent(each.spent),
                "red" if each.spent is not None and each.spent > 1 else "",
            ),
            Cell(
                figures.UNKNOWN
                if each.budget_left is None
                else f"{max(each.budget_left, 0.0):.0%}",
                "red" if each.budget_left is not None and each.budget_left < 0 else "",
            ),
            Cell(moment(each.worst_hour.start)[5:16] if each.worst_hour else figures.UNKNOWN),
        )
        for each in found
    ]
    yield ()
    yield from table(headers, rows, width)
    for said in objective_notes(found):
        for line in wrapped(said, width):
            yield ((line, ""),)


def _goodput(found: tuple[Goodput, ...], width: int) -> Iterator[Line]:
    if not any(each.requests for each in found):
        return
    headers = ("goodput, speculation", "requests", "met all", "requests/s", "met all/s")
    yield ()
    yield from table(headers, [[*map(Cell, row)] for row in goodput_rows(found)], width)
    for said in goodput_notes(found):
        for line in wrapped(said, width):
            yield ((line, ""),)


def _breaches(model: ModelReport, width: int) -> Iterator[Line]:
    if not model.breaches:
        return
    headers = ("rule in breach", "temp", "severity", "times", "lasted", "last")
    rows = [
        (
            Cell(shown(each.rule)),
            Cell("" if each.temperature == ALL_TEMPERATURES else shown(each.temperature, 20)),
            Cell(shown(each.severity, 20), _STYLES.get(each.severity, "")),
            Cell(figures.number(each.count)),
            Cell(figures.span(each.seconds)),
            Cell(moment(each.last)),
        )
        for each in model.breaches
    ]
    yield ()
    yield from table(headers, rows, width)


def _incidents(model: ModelReport, width: int) -> Iterator[Line]:
    if model.incidents:
        yield ()
    for each in model.incidents:
        yield from _incident(each, width)
    for seconds, why in (
        (model.seconds_off_by_guard, "because of the guard"),
        (model.seconds_off_by_order, "because a person ordered it"),
    ):
        if seconds:
            yield from _said(f"speculation was off for {figures.span(seconds)} {why}", width)


def _incident(each: Incident, width: int) -> Iterator[Line]:
    end = "lasts" if each.ended is None else f"until {moment(each.ended)}"
    said = f"incident {shown(each.id)}, {moment(each.began)}, {end}"
    yield from _said(said, width, "red" if each.ended is None else "yellow")
    yield from _said(f"  cause: {shown(each.cause, LONGEST_SENTENCE)}", width, indent=4)
    outcome = f"  outcome: {shown(each.outcome, LONGEST_SENTENCE)}"
    if each.seconds_off:
        outcome += f"; off for {figures.span(each.seconds_off)}"
    yield from _said(outcome, width, indent=4)
    left = len(each.steps) - _MOST_STEPS
    for step in each.steps[:_MOST_STEPS]:
        why = shown(step.reason, LONGEST_SENTENCE)
        yield from _said(
            f"  {moment(step.at)[5:16]}  {shown(step.phase)}: {why}", width, "dim", indent=15
        )
    if left > 0:
        more = figures.counted(left, "more step")
        yield from _said(f"  and {more}: specwatch guard explain shows them", width, "dim")


def _changes(found: tuple[Change, ...], width: int) -> Iterator[Line]:
    if found:
        yield ()
    for each in found:
        yield from _said(f"{moment(each.at)}: {shown(each.what, LONGEST_SENTENCE)}", width)
        pairs = [
            f"{name} {before} -> {after}"
            for name, before, after in zip(
                ("acceptance", "tau", "mean TPOT", "p50", "p99", "speedup"),
                _side(each.before),
                _side(each.after),
                strict=True,
            )
            if (before, after) != (figures.UNKNOWN, figures.UNKNOWN)
        ]
        if pairs:
            yield from _said("  " + ", ".join(pairs), width, indent=4)


def _side(side: Side) -> tuple[str, ...]:
    return (
        figures.percent(side.acceptance_rate),
        figures.number(side.mean_length, 2),
        figures.seconds(side.tpot_mean),
        *(cells.quantile(side, name) for name in ("tpot_p50", "tpot_p99")),
        figures.UNKNOWN if side.speedup is None else f"{side.speedup.value:.2f}",
    )


def _health(found: Health, width: int) -> Iterator[Line]:
    yield ()
    share = found.observed / found.expected if found.expected else None
    said = f"data: watched {figures.percent(share)} of the time"
    if found.down:
        unwatched = found.expected - found.observed - found.down
        said += f", server down {figures.percent(found.down / found.expected)}"
        said += f", not watched {figures.percent(unwatched / found.expected)}"
    if found.gap_count:
        said += f", {figures.counted(found.gap_count, 'gap')}"
    scrapes = found.scrapes_ok + found.scrapes_failed
    said += (
        f"; {figures.number(found.scrapes_failed)} of {figures.counted(scrapes, 'scrape')} failed"
    )
    if found.restarts:
        said += f"; {figures.counted(found.restarts, 'restart')} of the engine"
    yield from _said(said, width)
    for gap in found.gaps:
        lasted = figures.span(gap.end - gap.start)
        yield from _said(f"  not watched from {moment(gap.start)} for {lasted}", width, indent=4)
    if found.source is not None and found.coverage is not None:
        who = shown(found.source)
        yield from _said(f"{who}: covers {figures.percent(found.coverage)} of drafts", width)
    for count, reason in leading_reasons(found.uncovered):
        requests = figures.counted(count, "request")
        yield from _said(
            f"  not covered: {requests}, {shown(reason, LONGEST_SENTENCE)}", width, indent=4
        )
    for warning in found.warnings:
        yield from _said(f"warning: {shown(warning, LONGEST_SENTENCE)}", width, "yellow")


def _said(text: str, width: int, style: str = "", *, indent: int = 2) -> Iterator[Line]:
    for line in wrapped(text, width, indent=indent):
        yield ((line, style),)
