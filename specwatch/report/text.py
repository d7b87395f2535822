"""A report as lines for a terminal: the answer of each target first, then its sections."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.report import columns
from specwatch.report.columns import Line, cut, wrapped
from specwatch.report.fleet import worst_first
from specwatch.report.layout import Figure, Listing, Part, Sentence, Style, Table, sentence, table
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections import sections
from specwatch.report.sections.answer import OUTCOMES, all_targets
from specwatch.wording import figures
from specwatch.wording.figures import UNKNOWN, finite, moment
from specwatch.wording.text import MOST_COLUMNS, shown

LEAST_WIDTH = 40
_COLOURS: dict[Style, str] = {"": "", "good": "green", "warn": "yellow", "bad": "red"}
_LEAST_NAME = 8
_MOST_LENGTHS = 17


def lines(report: Report, width: int, *, bar: str = "#") -> Iterator[Line]:
    """Yield lines of texts with their styles, none of more than ``width`` columns.

    ``bar`` is the character that bars are made of. Foreign text in them is clean.
    """
    width = max(width, LEAST_WIDTH)
    span = figures.span(report.until - report.since)
    yield (("specwatch report", "bold"),)
    yield from _paragraph(f"{moment(report.since)} to {moment(report.until)} ({span})", width)
    for note in report.notes:
        yield from _paragraph(f"note: {sentence(note)}", width, "yellow", indent=2)
    if len(report.targets) > 1:
        for part in all_targets(report).parts:
            yield ()
            yield from _part(part, None, width, bar)
    for model in worst_first(report.targets):
        yield ()
        yield from _model(model, width, bar)


def plain(report: Report, width: int = MOST_COLUMNS) -> str:
    """The same as text without styles, for a file or a mail."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines(report, width, bar="█"))
    return "\n".join(texts) + "\n"


def _model(model: ModelReport, width: int, bar: str) -> Iterator[Line]:
    name = cut(shown(model.target), width)
    room = width - columns.columns(name) - 2
    of = f"  {cut(shown(model.model_name), room)}" if room >= _LEAST_NAME else ""
    yield (name, "bold underline"), (of, "")
    colour = _COLOURS[OUTCOMES[model.answer.outcome].style]
    yield from _paragraph(sentence(model.answer.sentence), width, f"bold {colour}".strip())
    advice = sentence(model.answer.recommendation)
    yield from _paragraph(f"What to do: {advice}", width, "bold")
    for section in sections(model):
        yield ()
        yield ((section.title, "bold"),)
        for part in section.parts:
            yield from _part(part, model, width, bar)


def _part(part: Part, model: ModelReport | None, width: int, bar: str) -> Iterator[Line]:
    if isinstance(part, Sentence):
        yield from _paragraph(part.text, width, _COLOURS[part.style])
    elif isinstance(part, Listing):
        if part.title:
            yield from _paragraph(f"{part.title}:", width, "bold")
        for item in part.items:
            yield from _paragraph(f"* {item}", width, _COLOURS[part.style], indent=2)
    elif isinstance(part, Figure):
        counts = model.segments[0].acceptance.histogram if model else None
        if part.plot == "histogram" and counts and sum(counts) > 0 and len(counts) <= _MOST_LENGTHS:
            # How many tokens of a draft were accepted, over all requests.
            shares = [count / sum(counts) for count in counts]
            rows = [(str(length), figures.percent(share)) for length, share in enumerate(shares)]
            bars: list[tuple[float | None, Style]] = [(share, "") for share in shares]
            yield from _table(table("", "*Accepted|Drafts", rows, bars=bars), width, bar)
    elif any(column.kind == "long" for column in part.columns[1:] if column.short):
        yield from _records(part, width)
    else:
        yield from _paragraph(part.caption, width, "dim")
        yield from _table(part, width, bar)


def _records(part: Table, width: int) -> Iterator[Line]:
    """A table with long texts, each row as a paragraph."""
    yield from _paragraph(part.caption, width, "dim")
    texts = [column.name.lower() for column in part.columns if column.kind == "long"]
    for row in part.rows:
        kinds = [(cell, column.kind) for cell, column in zip(row, part.columns, strict=True)]
        lead_texts = [cell.short or cell.text for cell, kind in kinds if kind != "long"]
        long = [cell.text for cell, kind in kinds if kind == "long"]
        lead = ", ".join(text for text in lead_texts if text not in ("", UNKNOWN))
        colour = _COLOURS[next((cell.style for cell in row if cell.style), "")]
        if len(long) == 1:
            yield from _paragraph(f"{lead}: {long[0]}", width, colour, indent=2)
            continue
        yield from _paragraph(lead, width, colour, indent=2)
        for name, text in zip(texts, long, strict=True):
            yield from _paragraph(f"  {name}: {text}", width, indent=2)


def _table(part: Table, width: int, bar: str) -> Iterator[Line]:
    rows = [
        [columns.TerminalCell(cell.short or cell.text, _COLOURS[cell.style]) for cell in row]
        for row in part.rows
    ]
    bars = [
        columns.Bar(finite(value), _COLOURS[style] or "cyan", part.mark)
        for value, style in part.bars
    ]
    yield from columns.table(
        [column.short for column in part.columns],
        rows,
        width,
        bars=bars,
        bar=bar,
        optional=[i for i, column in enumerate(part.columns) if column.optional],
    )


def _paragraph(text: str, width: int, style: str = "", indent: int = 0) -> Iterator[Line]:
    for line in wrapped(text, width, indent=indent):
        yield ((line, style),)
