"""A report as GitHub-flavoured Markdown: headings and tables, no pictures and no HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specwatch.report.fleet import worst_first
from specwatch.report.layout import Listing, Part, ReportSection, Sentence, Table, sentence
from specwatch.report.messages import answer
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections import sections
from specwatch.report.sections.answer import OUTCOMES, all_targets
from specwatch.wording import figures
from specwatch.wording.figures import counted, moment
from specwatch.wording.text import shown

_SPECIAL = re.compile(r"([\\`*{}\[\]()#+!|<>~&@:$^=-]|(?<![^\W_])_|_(?![^\W_]))")
_PLAIN = re.compile(r"(?:[^\W_]|[ ,.;%/'\"?>:()+-]|(?<=[^\W_])_(?=[^\W_]))*")
_LEADING = re.compile(r"^(\s*)([-+>:]|\d+[.)])")


def markdown(report: Report, most: int | None = None) -> str:
    """The report; whatever text is in it is escaped, and cut where it is long.

    Of single targets it has at most so many, the worst.
    """
    return "\n\n".join(_blocks(report, most)) + "\n"


def _blocks(report: Report, most: int | None) -> Iterator[str]:
    title = answer(report)
    yield f"# {_text(title[:1].upper() + title[1:])}"
    yield (
        f"{moment(report.since)} to {moment(report.until)}"
        f" ({figures.span(report.until - report.since)}), compared with as long before."
    )
    if report.notes:
        yield _listed([sentence(note) for note in report.notes])
    if len(report.targets) > 1:
        yield from _section(all_targets(report), "##")
    if not report.targets:
        yield "No server was watched in this period."
    for model in worst_first(report.targets)[:most]:
        yield from _model(model)
    if most is not None and len(report.targets) > most:
        yield f"{counted(len(report.targets) - most, 'more target')} in the whole report."
    made = f"Made {moment(report.generated)} by specwatch {_text(shown(report.version))}."
    yield "---"
    yield f"{made} Intervals are of 95 %; what is assumed and not measured says so."


def _model(model: ModelReport) -> Iterator[str]:
    outcome = _text(OUTCOMES[model.answer.outcome].alone)
    yield f"## {_text(shown(model.target))}, {_text(shown(model.model_name))}"
    yield f"**{outcome}**: {_coded(sentence(model.answer.sentence))}"
    yield f"**What to do:** {_coded(sentence(model.answer.recommendation))}"
    for section in sections(model):
        yield from _section(section, "###")


def _section(section: ReportSection, level: str) -> Iterator[str]:
    yield f"{level} {section.title}"
    for part in section.parts:
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Sentence):
        yield _coded(part.text)
    elif isinstance(part, Listing):
        if part.title:
            yield f"**{_text(part.title)}:**"
        yield _listed(part.items)
    elif isinstance(part, Table):
        yield from _table(part)


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"* {_coded(item)}" for item in items)


def _table(table: Table) -> Iterator[str]:
    yield f"{_text(table.caption)}:"
    rows = [
        [_text(column.name) for column in table.columns],
        ["---:" if column.kind == "number" else "---" for column in table.columns],
        *([_coded(cell.text) for cell in row] for row in table.rows),
    ]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _coded(text: str) -> str:
    """Text with code between backticks; an unpaired backtick is a character."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return _text(text)
    return "".join(
        _code(piece) if index % 2 else _text(piece) for index, piece in enumerate(pieces)
    )


def _code(text: str) -> str:
    # A bar ends the cell of a table, even in code.
    return f"`{text.replace('|', '¦')}`" if text.strip() else ""


def _text(text: str) -> str:
    """Text with markup, addresses and mentions escaped."""
    if _PLAIN.fullmatch(text) and not _LEADING.match(text) and "://" not in text:
        return text.replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace(r"\<", "&lt;").replace(r"\>", "&gt;")
