"""Draws how costs grow with the number of targets, from the table of ``bench_fleet``.

``python -m tests.benchmarks.fleet_plot < TABLE > docs/pictures/fleet.svg``
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specwatch.report.charts.drawing import (
    AXIS,
    LEFT,
    SIZE,
    WIDTH,
    Field,
    Ink,
    Scale,
    document,
    element,
    legend,
    levels,
    rule,
    ticks,
    words,
)

_INKS = {
    "specwatch, SQLite": Ink(0),
    "specwatch, Postgres": Ink(3, 2),
    "Prometheus": Ink(4, 1),
}
_PANELS = {"CPU, cores": 2, "memory, MB": 4, "lateness of a scrape, P99, ms": 6}
"""What each panel shows, and its column."""
_PANEL, _GAP, _RIGHT = 110.0, 54.0, 24.0


class _Row(NamedTuple):
    targets: float
    watcher: str
    cells: Sequence[str]


def drawing(table: Iterable[str]) -> str:
    """The SVG of the rows of a Markdown table; other lines are left out."""
    rows = list(_rows(table))
    most = max(row.targets for row in rows)
    inks = {
        watcher: ink for watcher, ink in _INKS.items() if any(r.watcher == watcher for r in rows)
    }
    drawn: list[str] = [element("rect", width="100%", height="100%", fill="#ffffff")]
    top = 30.0
    for name, column in _PANELS.items():
        values = [float(row.cells[column]) for row in rows]
        steps = ticks(0.0, max(values), 4)
        field = Field(
            Scale(0.0, most, LEFT, WIDTH - _RIGHT), Scale(0.0, steps[-1], top + _PANEL, top)
        )
        drawn += [words(name, LEFT, top - 10), *levels(field, steps, "{:g}".format)]
        for watcher, ink in inks.items():
            points = [
                (field.across.at(row.targets), field.down.at(value))
                for row, value in zip(rows, values, strict=True)
                if row.watcher == watcher
            ]
            drawn.append(ink.drawn([points]))
        drawn.append(rule((LEFT, field.bottom), (WIDTH - _RIGHT, field.bottom), **AXIS))
        for count in ticks(0.0, most, 5):
            x = field.across.at(count)
            drawn.append(rule((x, field.bottom), (x, field.bottom + 4), **AXIS))
            drawn.append(words(f"{count:,.0f}", x, field.bottom + 4 + SIZE, "middle"))
        top = field.bottom + _GAP
    listed, bottom = legend(((ink, watcher) for watcher, ink in inks.items()), top - 10)
    title = "Costs by number of targets"
    text = f"{', '.join(_PANELS)} of {', '.join(inks)} with 1 to {most:,.0f} targets."
    return document("fleet", (WIDTH, round(bottom)), title, text, [*drawn, listed])


def _rows(table: Iterable[str]) -> Iterator[_Row]:
    for line in table:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 1 and cells[1] in _INKS:
            yield _Row(float(cells[0].replace(",", "")), cells[1], cells)


if __name__ == "__main__":
    print(drawing(sys.stdin))
