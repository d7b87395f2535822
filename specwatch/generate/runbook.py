"""The runbook: what to do about each alert, for a web page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

TITLE = "Runbook of specwatch"
INTRODUCTION = (
    "One section an alert. Commands are to be run where the daemon runs, so that they find its"
    " configuration and its database; panels are those of the generated Grafana dashboards."
)


class Section(NamedTuple):
    """What to do about one alert; words between backticks are typed as they are."""

    name: str
    severity: str
    meaning: str
    look: str
    do: str
    rule: str = ""
    """The rule that it is about, which is a further anchor of it."""


PARTS = (("What it means", "meaning"), ("What to look at", "look"), ("What to do", "do"))
"""The parts of a section in their order: heading and field."""


def markdown(sections: Iterable[Section]) -> str:
    """The sections as a Markdown page."""
    lines = [f"# {TITLE}", "", INTRODUCTION, ""]
    for section in sections:
        anchor = [f'<a id="{section.rule}"></a>', ""] if section.rule else []
        lines += [f"## {section.name}", "", *anchor, f"Severity: {section.severity}.", ""]
        for heading, field in PARTS:
            lines += [f"**{heading}.** {getattr(section, field)}", ""]
    return "\n".join(lines)
