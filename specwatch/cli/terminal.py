"""Sentences and tables on a terminal or in a pipe.

Only a terminal gets styles, and a pipe with FORCE_COLOR; nothing does with NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from specwatch.cli.options import no_color
from specwatch.report import columns
from specwatch.report.columns import Line, Part, TerminalCell
from specwatch.wording.figures import UNKNOWN
from specwatch.wording.text import MOST_COLUMNS

_WIDEST = 120
_LEAST_SHARE = 3
"""The first column of a table gets at least this fraction of the width: a third."""
_Row = TypeVar("_Row")
Columns = Mapping[str, Callable[[_Row], str]]
"""The headers of a table, each with the text of its cell for a row."""
Lines = Iterator[Part | Line]
"""Lines of one style or of several."""


def new_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error, without styles where NO_COLOR is set."""
    return Console(stderr=stderr, highlight=False, color_system=None if no_color() else "auto")


class Terminal:
    """Prints lines to standard output, or to standard error."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = new_console(stderr=stderr)
        try:
            "█".encode(self._console.encoding)
            self.bar = "█"
            """The character of bars."""
        except UnicodeEncodeError:
            self.bar = "#"

    @property
    def width(self) -> int:
        """Columns of a terminal, at most 120; 80 in a pipe."""
        if not self._console.is_terminal:
            return MOST_COLUMNS
        return min(self._console.width, _WIDEST)

    def line(self, *parts: str | Part, wrap: bool = True) -> None:
        """Print one line of texts, or pairs of text and style, that are clean; on a terminal what
        does not fit goes below, indented by two, unless ``wrap`` is false (to be copied)."""
        text = Text.assemble(*parts)
        text.rstrip()
        width = self._console.width
        if wrap and self._console.is_terminal and text.cell_len > width:
            first = text.wrap(self._console, width)[0]
            left = text.plain[len(first) :].lstrip()
            rest = text[len(text) - len(left) :].wrap(self._console, width - 2)
            text = Text("\n  ").join([first, *rest])
        self._console.print(text, soft_wrap=True)

    def lines(self, lines: Iterable[Part | Line]) -> None:
        """Print lines that are clean."""
        for line in lines:
            if line and isinstance(line[0], str):
                self.line((line[0], str(line[1])))
            else:
                self.line(*(part for part in line if isinstance(part, tuple)))

    def blocks(self, blocks: Iterable[Iterable[Part | Line]]) -> None:
        """Print blocks of lines, with an empty line between them."""
        for number, block in enumerate(blocks):
            if number:
                self.line()
            self.lines(block)


def paragraph(text: str, style: str = "", width: int = 0) -> Iterator[Part]:
    """Yield a sentence, made clean, as lines of at most ``width`` columns, by default the
    terminal's; all but the first are indented by two more than it is."""
    for line in columns.wrapped(text, width or Terminal().width, indent=2):
        yield line, style


def table(
    headers: Columns[_Row],
    rows: Iterable[_Row],
    width: int = 0,
    style: Callable[[_Row], str] = lambda _: "",
    indent: str = "",
    keys: int = 1,
    details: Callable[[_Row], Iterable[Part | Line]] = lambda _: (),
) -> Lines:
    """Yield a header and a line for each row, with its ``details`` below; nothing without rows.

    Columns that do not fit into ``width``, by default the terminal's, follow below as another table
    with the same first ones, which are ``keys``. Columns are two spaces apart if there is room.
    """
    width = (width or Terminal().width) - len(indent)
    rows, titles = list(rows), list(headers)
    if not rows:
        return
    texts = [[cell(row) for cell in headers.values()] for row in rows]
    sizes = [max(map(columns.columns, column)) for column in zip(titles, *texts, strict=True)]
    kept = [
        i
        for i, title in enumerate(titles)
        if i >= keys and title and any(text[i] not in ("", UNKNOWN) for text in texts)
    ]
    fitting = [_groups(sizes, kept, keys, most) for most in range(1, max(width, 1) + 1)]
    # Of as few tables as possible, the narrowest: balanced ones.
    for group in next(groups for groups in fitting if len(groups) == len(fitting[-1])):
        gap = " " if sum(2 + sizes[place] for place in group) <= width + 2 else ""

        def apart(column: int, text: str, gap: str = gap) -> str:
            return f"{gap}{text}" if column and text not in ("", UNKNOWN) else text

        cells = [
            [TerminalCell(apart(place, text[place]), style(row)) for place in group]
            for row, text in zip(rows, texts, strict=True)
        ]
        header, *lines = columns.table([apart(i, titles[i]) for i in group], cells, width)
        margin = ((indent, ""),) if indent else ()
        yield (*margin, *header)
        for row, line in zip(rows, lines, strict=True):
            yield (*margin, *line)
            if group[-1] == max(kept, default=keys - 1):
                yield from details(row)


def _groups(sizes: Sequence[int], kept: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """The columns of each table of which none is wider than ``width``; each has those of keys."""
    first = min(sizes[0], width // _LEAST_SHARE) + sum(size + 1 for size in sizes[1:keys])
    groups = [list(range(keys))]
    for i in kept:
        taken = sum(sizes[place] + 1 for place in (*groups[-1][keys:], i))
        if len(groups[-1]) > keys and first + taken > width:
            groups.append(list(range(keys)))
        groups[-1].append(i)
    return groups
