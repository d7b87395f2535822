"""What a report is told in: sentences, lists, tables, figures, as HTML and Markdown have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Kind = Literal["number", "text", "long"]
Plot = Literal["acceptance", "ttft", "tpot", "speedup", "histogram"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph; what stands between backticks is code."""

    part: ClassVar[str] = "sentence"
    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Some sentences, each by itself."""

    part: ClassVar[str] = "listing"
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and what it shows in words."""

    part: ClassVar[str] = "figure"
    plot: Plot
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells that are text already. The first of a row is its header.

    ``kinds`` are those of the columns; ``long`` is text that may need several lines.
    """

    part: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    kinds: Sequence[Kind]
    rows: Sequence[Sequence[str]]
    whole: bool = False
    """Whether the first row is about all that the others are about."""


Part = Sentence | Listing | Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what follows it."""

    title: str
    parts: Sequence[Part]


def table(
    caption: str, columns: str, rows: Sequence[Sequence[str]], *, whole: bool = False
) -> Table:
    """A table with columns such as ``Load|Share|*Rule|**Why``: a star for text, two for long."""
    names = columns.split("|")
    kinds: list[Kind] = [
        "long" if name.startswith("**") else "text" if name.startswith("*") else "number"
        for name in names
    ]
    return Table(caption, [name.lstrip("*") for name in names], kinds, rows, whole)
