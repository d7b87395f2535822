"""What is said of one model, part by part: HTML and Markdown are two ways to set it."""

from __future__ import annotations

from specwatch.report.model import ModelReport
from specwatch.report.told.answers import OUTCOMES, answer, outcome, overview, units
from specwatch.report.told.experiments import experiments
from specwatch.report.told.load import by_load, choices
from specwatch.report.told.operation import changes, guard, health, objectives
from specwatch.report.told.parts import Figure, Kind, Listing, Part, Section, Sentence, Table
from specwatch.report.told.temperatures import by_temperature, latencies

__all__ = [
    "OUTCOMES", "Figure", "Kind", "Listing", "Part", "Section", "Sentence", "Table",
    "outcome", "overview", "sections", "units",
]  # fmt: skip

_SECTIONS = (
    answer, by_temperature, latencies, by_load, choices, experiments, objectives, guard, changes,
    health,
)  # fmt: skip


def sections(model: ModelReport) -> list[Section]:
    """All that is said of a model after the sentences of its answer."""
    quiet = (answer, experiments, guard, changes, health)
    chosen = quiet if model.answer.outcome == "no_traffic" else _SECTIONS
    return [section for each in chosen if (section := each(model)) is not None]
