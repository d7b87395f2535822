"""Lines on a terminal or in a pipe.

Styles only on a terminal, colours only there and not under NO_COLOR. In a pipe no line is wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from specwatch.wording.text import MOST_COLUMNS

_WIDEST = 120


class Terminal:
    """Prints lines to standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)  # which heeds NO_COLOR itself
        self.bar = "█" if _can_show("█", self._console.encoding) else "#"
        """What bars are made of."""

    @property
    def width(self) -> int:
        """Columns of a terminal, at most 120; 80 in a pipe."""
        if not self._console.is_terminal:
            return MOST_COLUMNS
        return min(self._console.width, _WIDEST)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line of texts, or pairs of text and style, that are clean."""
        text = Text.assemble(*parts)
        text.rstrip()
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print lines of a text and its style each."""
        for line in lines:
            self.line(line)


def row(cells: Iterable[str], gap: str = " ") -> str:
    """Cells of a table, padded, as a line; on a terminal that is too narrow without the last ones,
    which would stand below the first."""
    console = Console()
    line = ""
    for cell in cells:
        longer = f"{line}{gap}{cell}" if line else cell
        if line and console.is_terminal and len(longer) > console.width:
            break
        line = longer
    return line


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
