"""A probe as lines that fit a terminal: a chart of the acceptance, and the figures behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specwatch.domain.experiments import (
    Distribution,
    Estimate,
    Line,
    Probe,
    ProbeTemperature,
    Zone,
)
from specwatch.loadtest.zones import by_zone, line_sentence, percents
from specwatch.report.columns import Cell, cut, table, wrapped
from specwatch.report.columns import Line as Printed
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

_STYLES: dict[Zone, str] = {"loses": "red", "near": "yellow", "wins": "green", "unknown": ""}
_LABEL = 5
"""Columns of a temperature, before a bar; after it stand a rate and a zone."""
_BEHIND = len(" 100.0% unknown")
_LEAST_BAR = 10
_MOST_BAR = 80


Table = tuple[Sequence[str], Sequence[Sequence[Cell]]]
"""Headers and rows."""


class Marks(NamedTuple):
    """What bars are made of: up to the lower end of the interval, up to the upper; the break-even
    line, and the ends of what is near it."""

    sure: str
    unsure: str
    line: str
    edge: str


FANCY, PLAIN = Marks("█", "▒", "│", "┊"), Marks("#", "-", "|", ":")


def probe_lines(probe: Probe, width: int, *, fancy: bool) -> Iterator[Printed]:
    """Yield lines of at most ``width`` columns; all that is foreign in them is clean."""
    subject, work = probe.subject, probe.workload
    engine = f", engine {shown(subject.engine_version)}" if subject.engine_version else ""
    k = f", k = {subject.k}" if subject.k is not None else ""
    title = f"{shown(subject.model_name)} on {shown(subject.target)}{engine}{k}"
    yield from _paragraph(title, width, "bold")
    asked = max((one.requests + sum(one.errors.values()) for one in probe.temperatures), default=0)
    yield from _paragraph(
        f"{figures.counted(asked, 'request')} at each temperature, {probe.concurrency} at a time,"
        f" {work.max_tokens} tokens each; prompts: {shown(work.source)}",
        width,
        "dim",
    )
    known = [one for one in probe.temperatures if one.acceptance is not None]
    yield from _chart(known, probe.line, width, FANCY if fancy else PLAIN)
    yield ()
    yield from table(*_figures(probe.temperatures), width)
    yield ()
    yield from table(*_latencies(probe.temperatures), width)
    yield from _positions(known, width)
    yield ()
    yield from _paragraph(line_sentence(probe.line), width, "bold")
    for zone, said in by_zone(probe.temperatures).items():
        yield from _paragraph(said, width, _STYLES[zone])
    for note in probe.notes:
        yield from _paragraph(f"note: {shown(note, LONGEST_SENTENCE)}", width, "yellow")


def _paragraph(text: str, width: int, style: str = "") -> Iterator[Printed]:
    for line in wrapped(text, width, indent=2):
        yield ((line, style),)


def _chart(
    known: Sequence[ProbeTemperature], line: Line, width: int, marks: Marks
) -> Iterator[Printed]:
    """Rates as bars, or as figures alone where there is no room for bars."""
    room = min(width - _LABEL - 1 - _BEHIND, _MOST_BAR)
    room = room if room >= _LEAST_BAR else 0
    if known:
        yield ((f"{'temp':>{_LABEL}} {_scale(room)}", "dim"),)
    for one in known:
        rate = one.acceptance.rate if one.acceptance is not None else None
        if rate is None:
            continue
        style = _STYLES[one.zone]
        parts = [(f"{cut(f'{one.temperature:g}', _LABEL):>{_LABEL}} ", "")]
        parts += _crossed(_bar(rate, room, marks), style, line.acceptance, marks)
        parts += [(f" {figures.percent(rate.value):>6} ", ""), (one.zone, style)]
        yield tuple(parts)
    if known and room:
        yield from _paragraph(_legend(marks, line.acceptance, room), width, "dim")


def _scale(room: int) -> str:
    scale = [" "] * room
    for share, text in ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")) if room else ():
        begin = min(round(share * room), room - len(text))
        scale[begin : begin + len(text)] = text
    return "".join(scale)


def _crossed(bar: str, style: str, line: Estimate, marks: Marks) -> Iterator[tuple[str, str]]:
    """A bar with the line drawn over it, where that is within."""
    found = _places(line, marks, len(bar))
    begin = 0
    for at, mark in sorted(found.items()):
        yield bar[begin:at], style
        yield mark, "bold"
        begin = at + 1
    yield bar[begin:], style


def _bar(rate: Estimate, room: int, marks: Marks) -> str:
    lower = rate.value if rate.lower is None else rate.lower
    upper = rate.value if rate.upper is None else rate.upper
    sure, end = round(lower * room), round(upper * room)
    return f"{marks.sure * sure}{marks.unsure * (end - sure)}".ljust(room)


def _places(line: Estimate, marks: Marks, room: int) -> dict[int, str]:
    """Where the line, and the ends of what is near it, stand in a bar, and as what."""
    ends = ((line.lower, marks.edge), (line.upper, marks.edge), (line.value, marks.line))
    return {
        min(round(value * room), room - 1): mark
        for value, mark in ends
        if room and value is not None and 0 < value < 1
    }


def _legend(marks: Marks, line: Estimate, room: int) -> str:
    told = f"{marks.sure} and {marks.unsure} reach to the ends of the 95% interval"
    drawn = _places(line, marks, room).values()
    if marks.line in drawn:
        told += f"; {marks.line} is break-even"
    if marks.edge in drawn:
        told += f", {marks.edge} the end of what is near it"
    return told


def _figures(temperatures: Sequence[ProbeTemperature]) -> Table:
    rows = []
    for one in temperatures:
        found, failed = one.acceptance, sum(one.errors.values())
        cells = [
            percents(found.rate) if found is not None else figures.UNKNOWN,
            figures.number(found.mean_length, 2) if found is not None else figures.UNKNOWN,
            between(one.speedup),
            figures.compact(found.drafts) if found is not None else figures.UNKNOWN,
            figures.number(one.requests),
        ]
        rows.append(
            [
                Cell(f"{one.temperature:g}"),
                *(Cell(each) for each in cells),
                Cell(figures.number(failed) if failed else "", "red"),
            ]
        )
    headers = ("temp", "acceptance", "tok/step", "speedup", "drafts", "requests", "failed")
    return headers, rows


def _latencies(temperatures: Sequence[ProbeTemperature]) -> Table:
    rows = [
        [
            Cell(f"{one.temperature:g}"),
            *(Cell(each) for each in (*_quantiles(one.ttft), *_quantiles(one.tpot))),
        ]
        for one in temperatures
    ]
    return ("temp", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99"), rows


def _quantiles(found: Distribution | None) -> tuple[str, str, str]:
    if found is None:
        return figures.UNKNOWN, figures.UNKNOWN, figures.UNKNOWN
    return figures.seconds(found.p50), figures.seconds(found.p95), figures.seconds(found.p99)


def _positions(known: Sequence[ProbeTemperature], width: int) -> Iterator[Printed]:
    """How often each position was kept, and how many drafts kept so many tokens."""
    found = [(one.temperature, one.acceptance) for one in known if one.acceptance is not None]
    positions = [(at, each.per_position) for at, each in found if each.per_position]
    lengths = [(at, each.histogram) for at, each in found if each.histogram]
    if positions:
        yield ()
        yield from _paragraph("position of a draft that was accepted", width)
        yield from table(*_wide(positions, 1, lambda share: f"{share:.0%}"), width)
    if lengths:
        yield ()
        yield from _paragraph("drafts by tokens accepted", width)
        yield from table(*_wide(lengths, 0, figures.compact), width)


def _wide(
    rows: Sequence[tuple[float, Sequence[float]]], first: int, told: Callable[[float], str]
) -> Table:
    """A column for each value, the first headed by ``first``."""
    count = max(len(values) for _, values in rows)
    headers = ("temp", *(str(first + at) for at in range(count)))
    return headers, [
        [
            Cell(f"{at:g}"),
            *(Cell(told(value)) for value in values),
            *[Cell("")] * (count - len(values)),
        ]
        for at, values in rows
    ]


def between(estimate: Estimate | None) -> str:
    """``1.61 (1.50-1.72)``."""
    if estimate is None:
        return figures.UNKNOWN
    if estimate.lower is None or estimate.upper is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.lower:.2f}-{estimate.upper:.2f})"
