"""A report as one page that needs nothing else: no script, no picture, no address."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from specwatch.pages.environment import coded, markup, render
from specwatch.report import charts, told
from specwatch.report.letter import answer
from specwatch.report.model import ModelReport, Report
from specwatch.report.told import cells

if TYPE_CHECKING:
    from markupsafe import Markup

BADGES = {"pays": "good", "not_worth_it": "warn", "even": "warn", "loses": "bad", "unknown": "warn"}
"""Classes of outcomes, which words tell too."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A model as its part of the page needs it."""

    anchor: str
    name: str
    model_name: str
    badge: str
    outcome: str
    sentence: str
    recommendation: str
    sections: list[told.Section]
    charts: dict[str, Markup]


def report_html(report: Report) -> str:
    """The page; whatever text is in the report is escaped, and cut where it is long."""
    numbers = itertools.count(1)
    said = answer(report)
    return render(
        "report.html.j2",
        title=f"{said[:1].upper()}{said[1:]}",
        period=f"{cells.moment(report.since)} to {cells.moment(report.until)}",
        length=cells.span(report.until - report.since),
        generated=cells.moment(report.generated),
        version=cells.name(report.version),
        notes=[cells.sentence(each) for each in report.notes],
        models=list(_models(report)),
        overview=told.overview(report),
        next_number=lambda: next(numbers),
        cell=lambda text: markup(_cell(text, "number")),
        cells=_cells,
    )


def _cells(row: Sequence[str], kinds: Sequence[told.Kind]) -> Markup:
    """The cells of a row, its header first."""
    header = f'<th scope="row"{_class(kinds[0])}>{coded(row[0])}</th>'
    others = (_cell(text, kind) for text, kind in zip(row[1:], kinds[1:], strict=True))
    return markup(header + "".join(others))


def _cell(text: str, kind: told.Kind) -> str:
    """A cell; the interval of a figure is one piece, before which a line may end."""
    if kind != "number":
        return f"<td{_class(kind)}>{coded(text)}</td>"
    figure, space, interval = text.partition(" (")
    if not space:
        return f"<td>{escape(figure)}</td>"
    return f'<td class="pair-of">{escape(figure)} <span>({escape(interval)}</span></td>'


def _class(kind: told.Kind) -> str:
    return "" if kind == "number" else f' class="{kind}"'


def _models(report: Report) -> Iterator[_Model]:
    for number, each in enumerate(report.targets, 1):
        yield _Model(
            anchor=f"target-{number}",
            name=cells.name(each.target),
            model_name=cells.name(each.model_name),
            badge=BADGES.get(each.answer.outcome, ""),
            outcome=told.outcome(each),
            sentence=cells.sentence(each.answer.sentence),
            recommendation=cells.sentence(each.answer.recommendation),
            sections=told.sections(each),
            charts=_charts(report, each, f"t{number}"),
        )


def _charts(report: Report, model: ModelReport, prefix: str) -> dict[str, Markup]:
    """The plots by name, with ids that begin with the prefix."""
    series, since, until = model.series, report.since, report.until
    crossing = None if model.crossing is None else model.crossing.running
    drawn: dict[str, Callable[[str], str]] = {
        "acceptance": lambda id_: charts.acceptance(series, since, until, id_),
        "ttft": lambda id_: charts.latency(series, "ttft", since, until, id_),
        "tpot": lambda id_: charts.latency(series, "tpot", since, until, id_),
        "speedup": lambda id_: charts.speedup_by_load(model.loads, crossing, id_),
        "histogram": lambda id_: charts.histogram(model.temperatures, id_),
    }
    return {name: markup(draw(f"{prefix}-{name}")) for name, draw in drawn.items()}
