"""The runbook as a page that needs nothing else: no script, no font, no address."""

from __future__ import annotations

from collections.abc import Iterable

from specwatch.alerts.alert import runbook_anchor
from specwatch.generate.runbook import INTRODUCTION, PARTS, TITLE, Section
from specwatch.pages.environment import render


def runbook_html(sections: Iterable[Section]) -> str:
    """The page as HTML, in the reader's dark or light; the text of a section is escaped."""
    return render(
        "runbook.html.j2",
        title=TITLE,
        introduction=INTRODUCTION,
        sections=list(sections),
        parts=PARTS,
        anchor=runbook_anchor,
    )
