"""The layout of a report: sections of sentences, lists, charts and tables.

Sections are made once, and each renderer formats them. Cells are text already: ``-`` means that
the figure is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from specwatch.domain.histogram import wide
from specwatch.domain.model import HOUR
from specwatch.report.estimates import Amount, Quantiles, Ratio
from specwatch.report.model import ReportSide
from specwatch.wording import figures
from specwatch.wording.figures import UNKNOWN, finite
from specwatch.wording.text import LONGEST_SENTENCE, shown

Kind = Literal["number", "text", "name", "long"]
Plot = Literal["forest", "over_time", "acceptance", "ttft", "tpot", "speedup", "histogram"]
Style = Literal["", "good", "warn", "bad"]

LONGEST_TEXT = 4 * LONGEST_SENTENCE
_LEAST_CHANGE = 0.0005
_MUCH = 0.1
"""Change of a latency that is coloured."""
_KINDS: dict[str, Kind] = {"": "number", "*": "text", "@": "name", "**": "long"}


class Cell(NamedTuple):
    """Text of a table; ``short`` is what a terminal shows in its place, ``link`` an anchor."""

    text: str
    short: str = ""
    style: Style = ""
    link: str = ""


class Column(NamedTuple):
    """A column; ``short`` heads it on a terminal, which leaves it out where that is empty.

    Text of the kind ``long`` may need several lines. A terminal that is too narrow leaves out
    columns that are ``optional`` first.
    """

    name: str
    kind: Kind
    short: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph; text between backticks is code."""

    part: ClassVar[str] = "sentence"
    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Some sentences, each by itself, and what they are."""

    part: ClassVar[str] = "listing"
    items: Sequence[str]
    style: Style = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and what it shows in words."""

    part: ClassVar[str] = "figure"
    plot: Plot
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row is its header.

    ``whole`` says that the first row is the total of the others. A terminal draws
    ``bars`` behind the rows, in the colours of their cells, with a mark at ``mark``.
    """

    part: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    whole: bool = False
    bars: Sequence[tuple[float | None, Style]] = ()
    mark: float | None = None


Part = Sentence | Listing | Figure | Table


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading and what follows it."""

    title: str
    parts: Sequence[Part]


def table(
    caption: str,
    columns: str,
    rows: Sequence[Sequence[str | Cell]],
    *,
    whole: bool = False,
    bars: Sequence[tuple[float | None, Style]] = (),
    mark: float | None = None,
) -> Table:
    """A table with columns such as ``*Rule|Share of tokens=Share|P99=?P99|**Why``.

    A star is for text, ``@`` for names, two stars for long text; after ``=`` comes the name on a
    terminal, where ``?`` marks the column as optional, and ``-`` leaves it out.
    """
    made = []
    for column in columns.split("|"):
        name, _, short = column.lstrip("*@").partition("=")
        kind = _KINDS[column[: len(column) - len(column.lstrip("*@"))]]
        title = "" if short == "-" else short.removeprefix("?") or name
        made.append(Column(name, kind, title, short.startswith("?")))
    cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    return Table(caption, made, cells, whole, bars, mark)


def sentence(text: str) -> str:
    """A sentence that may contain foreign text."""
    return shown(text, LONGEST_TEXT)


def short(text: str) -> str:
    """A reason or a cause, shortened if it is very long."""
    return shown(text, LONGEST_SENTENCE)


def count(value: float | None) -> Cell:
    """``2,940``; on a terminal ``2.94k``."""
    return Cell(figures.number(value), figures.compact(value))


def times(value: float | None) -> str:
    """``1.62x``."""
    number = finite(value)
    return UNKNOWN if number is None else f"{number:.2f}x"


def ratio(value: Ratio | None) -> Cell:
    """``1.62x (1.55 to 1.69)``; ``about 1.4x, assumed``."""
    number = None if value is None else finite(value.value)
    if value is None or number is None:
        return Cell(UNKNOWN)
    if value.basis != "measured":
        return Cell(f"about {number:.1f}x, {shown(value.basis)}", f"~{number:.1f}")
    interval = _between(value.lower, value.upper, "{:.2f}")
    return Cell(
        f"{number:.2f}x{interval}", f"{number:.2f}{interval.replace(' to ', '-')}", verdict(value)
    )


def verdict(value: Ratio | None) -> Style:
    """Whether the whole interval of a measured ratio is above 1, or below."""
    if value is None or value.basis != "measured":
        return ""
    if value.upper is not None and value.upper < 1:
        return "bad"
    return "good" if value.lower is not None and value.lower > 1 else ""


def rate(value: Ratio | None) -> str:
    """A ratio that is a rate: ``41.2%``; ``about 50%, assumed``."""
    number = None if value is None else finite(value.value)
    if value is None or number is None:
        return UNKNOWN
    least = "any" if number <= 0 else figures.percent(number) if number <= 1 else "out of reach"
    return least if value.basis == "measured" else f"{least}, {shown(value.basis)}"


def share(value: Ratio | None) -> str:
    """A ratio that is a share, with its interval: ``81.2% (79.0 to 83.1)``."""
    number = None if value is None else finite(value.value)
    if value is None or number is None:
        return UNKNOWN
    return f"{figures.percent(number)}{_between(value.lower, value.upper, '{:.1f}', 100)}"


def hours(amount: Amount | None, unit: str = "h") -> str:
    """``41 h (38 to 45)``."""
    number = None if amount is None else finite(amount.value)
    if amount is None or number is None:
        return UNKNOWN
    size = abs(number)
    form = "{:z.2f}" if size < 1 else "{:z.1f}" if size < 10 else "{:,.0f}"
    return f"{form.format(number)} {unit}{_between(amount.lower, amount.upper, form)}"


def length(value: float | None) -> str:
    """Seconds as hours: ``111.7 h``."""
    number = finite(value)
    return UNKNOWN if number is None else f"{number / HOUR:,.1f} h"


def quantile(latency: Quantiles | ReportSide | None, which: str) -> str:
    """``235 ms``; ``10 to 25 ms`` where its bucket is wide, ``> 10 s`` beyond the last bound."""
    if latency is None:
        return UNKNOWN
    bucket = latency.buckets.get(which)
    if bucket is not None and wide(bucket.lower, bucket.upper):
        return figures.within(bucket.lower, bucket.upper)
    return figures.bounded(finite(getattr(latency, which)), beyond=which in latency.beyond)


def mean(latency: Quantiles | None) -> str:
    """``235 ms``."""
    return UNKNOWN if latency is None else figures.seconds(latency.mean)


def change(now: Quantiles | None, other: Quantiles | None) -> Cell:
    """How much more one mean is than another: ``+4%``. Quantiles are too coarse to say."""
    means = [None if one is None else finite(one.mean) for one in (now, other)]
    if means[0] is None or not means[1]:
        return Cell(UNKNOWN)
    more = means[0] / means[1] - 1
    return Cell(relative(*means), style="bad" if more > _MUCH else "good" if more < -_MUCH else "")


def relative(now: float | None, other: float | None) -> str:
    """How much more a number is than another: ``+4%``, ``-12%``, ``same``."""
    one, base = finite(now), finite(other)
    if one is None or base is None or base <= 0:
        return UNKNOWN
    by = one / base - 1
    if by >= 10:
        return f"{min(one / base, 9999):,.0f}x"
    return "same" if abs(by) < 10 * _LEAST_CHANGE else f"{by:+.0%}"


def points(now: float | None, other: float | None) -> str:
    """How many percent points a rate is above another: ``+2.1``."""
    one, base = finite(now), finite(other)
    if one is None or base is None:
        return UNKNOWN
    return "same" if abs(one - base) < _LEAST_CHANGE else f"{100 * (one - base):+.1f}"


def _between(lower: float | None, upper: float | None, form: str, unit: float = 1) -> str:
    low, high = finite(lower), finite(upper)
    if low is None or high is None:
        return ""
    return f" ({form.format(unit * low)} to {form.format(unit * high)})"
