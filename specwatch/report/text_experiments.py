"""What was measured on purpose, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.domain.experiments import Verdict, Zone
from specwatch.loadtest import zones
from specwatch.loadtest.verdicts import LABELS
from specwatch.report.columns import Cell, Line, table, wrapped
from specwatch.report.experiments import headline, others
from specwatch.report.model import Experiment, MeasuredLoad, ModelReport, ProbedTemperature
from specwatch.report.told import cells
from specwatch.report.told.experiments import load, temperature

_VERDICTS: dict[Verdict, str] = {
    "ship": "green", "not_worth_it": "yellow", "do_not": "red", "unknown": "",
}  # fmt: skip
_ZONES: dict[Zone, str] = {"wins": "green", "near": "yellow", "loses": "red", "unknown": ""}


def experiment_lines(model: ModelReport, width: int) -> Iterator[Line]:
    """Yield a sentence and a table for each experiment."""
    if not model.experiments:
        return
    yield ()
    yield (("measured on purpose", "bold"),)
    for each in model.experiments:
        style = "" if each.verdict is None else _VERDICTS[each.verdict]
        yield from _said(cells.sentence(headline(each)), width, style)
        yield from _table(each, width)
    if model.more_experiments:
        yield from _said(f"and {others(model.more_experiments)}", width)


def _table(found: Experiment, width: int) -> Iterator[Line]:
    if found.temperatures:
        rows = [_temperature(each) for each in found.temperatures]
        yield from table(("temp", "acceptance", "speedup", "break-even"), rows, width)
    elif found.loads:
        headers = ("load", "tok/s", "tok/s off", "per user", "TPOT p99", "speedup", "verdict")
        yield from table(headers, [_load(each) for each in found.loads], width)


def _temperature(each: ProbedTemperature) -> tuple[Cell, ...]:
    return (
        Cell(temperature(each.temperature)),
        Cell(cells.share(each.acceptance_rate)),
        Cell(cells.ratio(each.speedup)),
        Cell(zones.LABELS[each.zone], _ZONES[each.zone]),
    )


def _load(each: MeasuredLoad) -> tuple[Cell, ...]:
    verdict = each.verdict
    return (
        Cell(load(each)),
        Cell(cells.compact(each.throughput)),
        Cell(cells.compact(each.throughput_off)),
        Cell(cells.number(each.per_user, 1)),
        Cell(cells.seconds(each.tpot_p99)),
        Cell(cells.ratio(each.speedup)),
        Cell("") if verdict is None else Cell(LABELS[verdict], _VERDICTS[verdict]),
    )


def _said(text: str, width: int, style: str = "") -> Iterator[Line]:
    for line in wrapped(text, width, indent=2):
        yield ((line, style),)
