"""Tables, bars and paragraphs that fit the columns of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specwatch.wording.text import clean

Part = tuple[str, str]
"""Text and style."""
Line = tuple[Part, ...]

_LEAST_FIRST = 8
"""Columns that are left of what a row is about."""
_LEAST_BAR, _MOST_BAR = 8, 40
_WIDE = ("W", "F")


class Cell(NamedTuple):
    """A cell of a table; the first of a row stands left, others right."""

    text: str
    style: str = ""


class Bar(NamedTuple):
    """A bar at the end of a row, in its unit, with a mark at ``mark``."""

    value: float | None
    style: str = ""
    mark: float | None = None


def columns(text: str) -> int:
    """How many columns of a terminal clean text takes, at most."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in _WIDE else 1 for each in text)


def cut(text: str, most: int) -> str:
    """Clean text with its end left out where it takes more columns than that."""
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
                head = _head(word, width - columns(line))
                line, word = line + head, word[len(head) :]
            yield line
            line, begun = lead + " " * indent, False
        line, begun = f"{line} {word}" if begun else line + word, True
    if begun:
        yield line


def _head(word: str, most: int) -> str:
    """As much of a word as fits, at least a character."""
    while len(word) > 1 and columns(word) > most:
        word = word[:-1]
    return word


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int,
    *,
    bars: Sequence[Bar] = (),
    bar: str = "#",
    full: float = 0.0,
) -> Iterator[Line]:
    """Yield a header and a line for each row, no wider than ``width``.

    ``bar`` is what bars are made of, ``full`` the least that one of the whole length stands for.
    Where they do not fit the first column gives way, and then the last ones are left out. Columns
    in which nothing is known are left out as well.
    """
    shown = [at for at in range(len(headers)) if not at or any(_known(row[at]) for row in rows)]
    sizes = {
        at: max(columns(headers[at]), *(columns(row[at].text) for row in rows)) for at in shown
    }
    while len(shown) > 1 and sum(sizes[at] + 1 for at in shown[1:]) + _LEAST_FIRST > width:
        del sizes[shown.pop()]
    sizes[0] = min(sizes[0], width - sum(sizes[at] + 1 for at in shown[1:]))
    used = sum(sizes.values()) + len(shown)
    room = min(width - used, _MOST_BAR)
    yield ((_row([Cell(header) for header in headers], shown, sizes)[0][0], "dim"),)
    longest = max([full, *map(_size, bars)])
    for index, row in enumerate(rows):
        line = list(_row(row, shown, sizes))
        if bars and room >= _LEAST_BAR:
            line += _bar(bars[index], longest, room, bar)
        yield tuple(line)


def _known(cell: Cell) -> bool:
    return cell.text not in ("", "-")


def _row(row: Sequence[Cell], shown: Sequence[int], sizes: dict[int, int]) -> list[Part]:
    """Neighbours of one style are one part."""
    parts: list[Part] = []
    for at in shown:
        text = cut(row[at].text, sizes[at])
        space = " " * (sizes[at] - columns(text))
        piece = f" {space}{text}" if at else text + space
        if parts and parts[-1][1] == row[at].style:
            parts[-1] = (parts[-1][0] + piece, row[at].style)
        else:
            parts.append((piece, row[at].style))
    return parts


def _size(one: Bar) -> float:
    return max(one.value or 0.0, one.mark or 0.0)


def _bar(one: Bar, longest: float, room: int, mark: str) -> Iterator[Part]:
    if one.value is None or not longest:
        return
    scale = (room - 1) / longest
    drawn = mark * round(one.value * scale)
    if one.mark is None:
        yield f" {drawn}", one.style
        return
    at = round(one.mark * scale)
    yield f" {drawn[:at]:{at}}", one.style
    yield "|", ""
    yield drawn[at + 1 :], one.style
