"""Lines and tables on a terminal or in a pipe.

Only a terminal gets styles, and colours unless NO_COLOR is set. In a pipe no line is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from specwatch.report import columns
from specwatch.report.columns import Line, Part, TerminalCell
from specwatch.wording.figures import UNKNOWN
from specwatch.wording.text import MOST_COLUMNS

_WIDEST = 120
_Row = TypeVar("_Row")
Columns = Mapping[str, Callable[[_Row], str]]
"""The headers of a table, each with the text of its cell for a row."""
Lines = Iterator[Part | Line]
"""Lines of one style or of several."""


class Terminal:
    """Prints lines to standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)  # it respects NO_COLOR
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

    def line(self, *parts: str | Part) -> None:
        """Print one line of texts, or pairs of text and style, that are clean."""
        text = Text.assemble(*parts)
        text.rstrip()
        self._console.print(text, soft_wrap=not self._console.is_terminal)

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


def table(
    headers: Columns[_Row],
    rows: Iterable[_Row],
    width: int = 0,
    style: Callable[[_Row], str] = lambda _: "",
    indent: str = "",
) -> Iterator[Line]:
    """Yield a header and a line for each row; nothing without rows.

    :func:`specwatch.report.columns.table` fits them into ``width``, by default the terminal's.
    Columns are two spaces apart if there is room.
    """
    width = (width or Terminal().width) - len(indent)
    rows = list(rows)
    if not rows:
        return
    texts = [[cell(row) for cell in headers.values()] for row in rows]
    room = sum(
        2 + max(map(columns.columns, column)) for column in zip(headers, *texts, strict=True)
    )
    gap = " " if room <= width + 2 else ""

    def apart(column: int, text: str) -> str:
        return f"{gap}{text}" if column and text not in ("", UNKNOWN) else text

    cells = [
        [TerminalCell(apart(column, text), style(row)) for column, text in enumerate(line)]
        for row, line in zip(rows, texts, strict=True)
    ]
    titles = [apart(column, title) for column, title in enumerate(headers)]
    for line in columns.table(titles, cells, width):
        yield ((indent, ""), *line) if indent else line
