"""A report as GitHub-flavoured Markdown: headings and tables, no pictures and no HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specwatch.report import told
from specwatch.report.letter import answer
from specwatch.report.model import ModelReport, Report
from specwatch.report.told import Part, Table, cells

_SPECIAL = re.compile(r"([\\`*{}\[\]()#+!|<>~&@:$^=-]|(?<![^\W_])_|_(?![^\W_]))")
_PLAIN = re.compile(r"(?:[^\W_]|[ ,.;%/'\"?>:()+-]|(?<=[^\W_])_(?=[^\W_]))*")
_LEADING = re.compile(r"^(\s*)([-+>:]|\d+[.)])")


def markdown(report: Report) -> str:
    """The report; whatever text is in it is escaped, and cut where it is long."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: Report) -> Iterator[str]:
    said = answer(report)
    yield f"# {_text(said[:1].upper() + said[1:])}"
    yield (
        f"{cells.moment(report.since)} to {cells.moment(report.until)}"
        f" ({cells.span(report.until - report.since)}), compared with as long before."
    )
    if report.notes:
        yield _listed([cells.sentence(each) for each in report.notes])
    if len(report.targets) > 1:
        yield from _table(told.overview(report))
    if not report.targets:
        yield "No server was watched in this period."
    for each in report.targets:
        yield from _model(each)
    made = (
        f"Made {cells.moment(report.generated)} by specwatch {_text(cells.name(report.version))}."
    )
    yield "---"
    yield f"{made} Intervals are of 95 %; what is assumed and not measured says so."


def _model(model: ModelReport) -> Iterator[str]:
    yield f"## {_text(cells.name(model.target))}, {_text(cells.name(model.model_name))}"
    yield f"**{_text(told.outcome(model))}**: {_coded(cells.sentence(model.answer.sentence))}"
    yield f"**What to do:** {_coded(cells.sentence(model.answer.recommendation))}"
    for section in told.sections(model):
        yield f"### {section.title}"
        for part in section.parts:
            yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, told.Sentence):
        yield _coded(part.text)
    elif isinstance(part, told.Listing):
        yield _listed(part.items)
    elif isinstance(part, told.Table):
        yield from _table(part)


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"* {_coded(each)}" for each in items)


def _table(found: Table) -> Iterator[str]:
    yield f"{_text(found.caption)}:"
    rules = ["---:" if kind == "number" else "---" for kind in found.kinds]
    yield "\n".join(
        [
            _row([_text(each) for each in found.columns]),
            _row(rules),
            *(_row([_coded(cell) for cell in row]) for row in found.rows),
        ]
    )


def _row(cells_: Sequence[str]) -> str:
    return f"| {' | '.join(cells_)} |"


def _coded(text: str) -> str:
    """Text with what stands between backticks as code; a backtick that is alone is just one."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return _text(text)
    return "".join(
        _code(piece) if index % 2 else _text(piece) for index, piece in enumerate(pieces)
    )


def _code(text: str) -> str:
    # A bar would end the cell of a table, even in code.
    return f"`{text.replace('|', '¦')}`" if text.strip() else ""


def _text(text: str) -> str:
    """Text of which nothing is markup, an address or somebody's name."""
    if _PLAIN.fullmatch(text) and not _LEADING.match(text) and "://" not in text:
        return text.replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace(r"\<", "&lt;").replace(r"\>", "&gt;")
