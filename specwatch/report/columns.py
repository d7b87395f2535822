"""Tables, bars and paragraphs that fit the columns of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from specwatch.wording.text import clean

Part = tuple[str, str]
"""Text and style."""
Line = tuple[Part, ...]

_LEAST_FIRST = 8
"""Least columns of the first cell of a row."""
_LEAST_BAR, _MOST_BAR = 8, 40
_WIDE = ("W", "F")


class TerminalCell(NamedTuple):
    """A cell of a table; the first of a row is aligned left, others right."""

    text: str
    style: str = ""


class Bar(NamedTuple):
    """A bar at the end of a row, in its unit, with a mark at ``mark``."""

    value: float | None
    style: str = ""
    mark: float | None = None


def columns(text: str) -> int:
    """How many columns of a terminal clean text takes at most."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in _WIDE else 1 for character in text)


def cut(text: str, most: int) -> str:
    """Clean text, cut at the end if it takes more columns than ``most``."""
    text = clean(text[: most + 1] if len(text) > most else text)
    if columns(text) <= most:
        return text
    mark = "..."[:most]
    while text and columns(text) > most - len(mark):
        text = text[:-1]
    return text + mark


def wrapped(text: str, width: int, *, indent: int = 0) -> Iterator[str]:
    """Yield a paragraph, which is made clean, as lines; all but the first begin with ``indent``
    spaces more than it does."""
    text = clean(text)
    lead = text[: len(text) - len(text.lstrip(" "))]
    line, begun = lead, False
    for word in text.split():
        while columns(line) + begun + columns(word) > width:
            if not begun:  # it is longer than a line
                head = word
                while len(head) > 1 and columns(head) > width - columns(line):
                    head = head[:-1]
                line, word = line + head, word[len(head) :]
            yield line
            line, begun = lead + " " * indent, False
        line, begun = f"{line} {word}" if begun else line + word, True
    if begun:
        yield line


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[TerminalCell]],
    width: int,
    *,
    bars: Sequence[Bar] = (),
    bar: str = "#",
    optional: Collection[int] = (),
) -> Iterator[Line]:
    """Yield a header and a line for each row, no wider than ``width``.

    ``bar`` is the character of bars. If the columns do not fit, those that are ``optional`` are
    left out, then the bars, then the first column is narrowed, and then the last ones are left out.
    Columns without any value, and columns other than the first without a header, are left out, too.
    """
    kept = [
        i
        for i, header in enumerate(headers)
        if not i or (header and any(row[i].text not in ("", "-") for row in rows))
    ]
    sizes = {i: max(columns(headers[i]), *(columns(row[i].text) for row in rows)) for i in kept}
    spare = [i for i in kept if i in optional]
    least_bar = _LEAST_BAR if bars else -1
    while spare and sum(sizes[i] + 1 for i in kept) + least_bar > width:
        kept.remove(spare.pop())
    least_first = min(sizes[0], _LEAST_FIRST)
    while len(kept) > 1 and sum(sizes[i] + 1 for i in kept[1:]) + least_first > width:
        kept.pop()
    sizes[0] = min(sizes[0], width - sum(sizes[i] + 1 for i in kept[1:]))
    yield ((_row([TerminalCell(header) for header in headers], kept, sizes)[0][0], "dim"),)
    room = min(width - sum(sizes[i] + 1 for i in kept), _MOST_BAR)
    longest = max((max(one.value or 0.0, one.mark or 0.0) for one in bars), default=0.0)
    for number, row in enumerate(rows):
        line = _row(row, kept, sizes)
        if longest and room >= _LEAST_BAR:
            line += _bar(bars[number], (room - 1) / longest, bar)
        yield tuple(line)


def _row(row: Sequence[TerminalCell], kept: Sequence[int], sizes: dict[int, int]) -> list[Part]:
    """Neighbours of one style are one part."""
    parts: list[Part] = []
    for i in kept:
        text = cut(row[i].text, sizes[i])
        space = " " * (sizes[i] - columns(text))
        piece = f" {space}{text}" if i else text + space
        if parts and parts[-1][1] == row[i].style:
            parts[-1] = (parts[-1][0] + piece, row[i].style)
        else:
            parts.append((piece, row[i].style))
    return parts


def _bar(one: Bar, scale: float, character: str) -> Iterator[Part]:
    if one.value is None:
        return
    drawn = character * round(one.value * scale)
    if one.mark is None:
        yield f" {drawn}", one.style
        return
    place = round(one.mark * scale)
    yield f" {drawn[:place]:{place}}", one.style
    yield "|", ""
    yield drawn[place + 1 :], one.style
