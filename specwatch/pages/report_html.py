"""A report as one page that needs nothing else: no script, no picture, no address."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from specwatch.domain.model import TEMPERATURE
from specwatch.pages.environment import coded, markup, render
from specwatch.report import charts
from specwatch.report.fleet import worst_first
from specwatch.report.layout import Cell, Column, sentence
from specwatch.report.messages import answer
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections import sections
from specwatch.report.sections.answer import OUTCOMES, all_targets

if TYPE_CHECKING:
    from markupsafe import Markup


def report_html(report: Report) -> str:
    """The page; whatever text is in the report is escaped, and cut where it is long."""
    numbers = itertools.count(1)
    title = answer(report)
    return render(
        "report.html.j2",
        title=f"{title[:1].upper()}{title[1:]}",
        report=report,
        models=worst_first(report.targets),
        all_targets=all_targets(report),
        forest={"forest": markup(charts.forest(worst_first(report.targets)))},
        outcomes=OUTCOMES,
        sections=sections,
        charts=lambda model, number: _charts(report, model, f"t{number}"),
        whole_sentence=sentence,
        next_number=lambda: next(numbers),
        cell=_cell,
    )


def _cell(cell: Cell, column: Column, *, header: bool = False) -> Markup:
    """A cell; the interval of a figure is one piece, before which a line may end."""
    name = 'th scope="row"' if header else "td"
    end = "th" if header else "td"
    kind = "" if column.kind == "number" else f' class="{column.kind}"'
    figure, space, interval = cell.text.partition(" (")
    content = str(coded(cell.text))
    if cell.link:
        content = f'<a href="{escape(cell.link)}">{content}</a>'
    elif column.kind == "text" and cell.style:
        content = f'<span class="badge {cell.style}">{content}</span>'
    elif column.kind == "number" and space and not header:
        kind, content = ' class="pair-of"', f"{escape(figure)} <span>({escape(interval)}</span>"
    return markup(f"<{name}{kind}>{content}</{end}>")


def _charts(report: Report, model: ModelReport, prefix: str) -> dict[str, Markup]:
    """The plots by name, with ids that begin with the prefix."""
    series, since, until = model.series, report.since, report.until
    crossing = None if model.crossing is None else model.crossing.running
    drawn: dict[str, Callable[[str], str]] = {
        "over_time": lambda id_: charts.speedup_over_time(
            series, model.incidents, since, until, id_
        ),
        "acceptance": lambda id_: charts.acceptance(
            series, since, until, id_, segments=model.of(TEMPERATURE)
        ),
        "ttft": lambda id_: charts.latency(series, "ttft", since, until, id_),
        "tpot": lambda id_: charts.latency(series, "tpot", since, until, id_),
        "speedup": lambda id_: charts.speedup_by_load(model.loads, crossing, id_),
        "histogram": lambda id_: charts.histogram(model.of(TEMPERATURE), id_),
    }
    return {name: markup(draw(f"{prefix}-{name}")) for name, draw in drawn.items()}
