"""A report as a mail: the summary and the worst targets, with pictures in place of SVG."""

from __future__ import annotations

import re
from html import unescape
from typing import NamedTuple

from specwatch.pages.environment import render
from specwatch.report import charts
from specwatch.report.fleet import worst_first
from specwatch.report.layout import Style, sentence
from specwatch.report.messages import MOST_MODELS, MailBody, answer
from specwatch.report.model import Report
from specwatch.report.sections.answer import OUTCOMES, all_targets
from specwatch.report.sections.answer import answer as answer_section

_WIDTH = 1040
"""Pixels of a picture, twice what is shown: screens are dense."""
_COLOURS: dict[Style, str] = {
    "good": "#1a8a4a",
    "bad": "#d1431a",
    "warn": "#a87410",
    "": "#6b7580",
}
"""Of an outcome, with a contrast of 3 to white and to black: a program may show the mail in the
dark."""


class _Picture(NamedTuple):
    """A picture's content id, and what it shows in words."""

    id: str
    words: str


def mail_html(
    report: Report, *, url: str | None = None, attached: bool = True, pictures: bool = True
) -> MailBody:
    """The page of a mail, below the 102 KB at which Gmail cuts, and its pictures (PNG).

    The worst five targets are in it; ``url`` leads to the whole report, which is ``attached`` too
    or not. Without fonts on this machine there should be no pictures: their text would be missing.
    """
    models = worst_first(report.targets)
    drawn = {
        f"over-time-{number}": charts.speedup_over_time(
            model.series, model.incidents, report.since, report.until
        )
        for number, model in enumerate(models[:MOST_MODELS], 1)
        if model.series.speedup
    }
    drawn["forest"] = charts.forest(models)
    svgs = {name: svg for name, svg in drawn.items() if pictures and svg.startswith("<svg")}
    title = answer(report)
    html = render(
        "mail.html.j2",
        title=f"{title[:1].upper()}{title[1:]}",
        report=report,
        all_targets=all_targets(report),
        models=models[:MOST_MODELS],
        left_out=len(models[MOST_MODELS:]),
        pictures={name: _Picture(name, _words(svg)) for name, svg in svgs.items()},
        outcomes=OUTCOMES,
        colours=_COLOURS,
        answer=answer_section,
        whole_sentence=sentence,
        url=url,
        attached=attached,
    )
    used = {name: svg for name, svg in svgs.items() if f"cid:{name}" in html}
    return MailBody(html, {name: charts.png(svg, _WIDTH) for name, svg in used.items()})


def _words(svg: str) -> str:
    """The description of a chart."""
    described = re.search(r"<desc[^>]*>(.*?)</desc>", svg)
    return unescape(described[1]) if described else ""
