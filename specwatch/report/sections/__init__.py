"""The sections of a report, worded once for text, Markdown and HTML."""

from __future__ import annotations

from specwatch.report.layout import ReportSection
from specwatch.report.model import ModelReport
from specwatch.report.sections.answer import answer
from specwatch.report.sections.loads import choices, experiments, live_experiment, loads
from specwatch.report.sections.operation import changes, guard, health, objectives
from specwatch.report.sections.segments import latencies, segments

_SECTIONS = (
    answer,
    segments,
    latencies,
    loads,
    choices,
    live_experiment,
    experiments,
    objectives,
    guard,
    changes,
    health,
)
_QUIET = (answer, live_experiment, experiments, guard, changes, health)


def sections(model: ModelReport) -> list[ReportSection]:
    """All sections about a model after its answer."""
    chosen = _QUIET if model.answer.outcome == "no_traffic" else _SECTIONS
    return [section for make in chosen if (section := make(model)) is not None]
