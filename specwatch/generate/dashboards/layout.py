"""Where panels stand: bands of them below one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grafanalib import core

from specwatch.generate.dashboards.panels import Panel, row

COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Band:
    """Panels beside one another, each with its width in columns, which sum to 24.

    A ``title`` puts the head of a group above them; the bands without a title that follow belong
    to it. A group can be ``collapsed``, and repeated for each value of the variable ``repeat``.
    ``height`` is in Grafana's units of 30 pixels.
    """

    title: str | None
    height: int
    panels: Sequence[tuple[int, Panel]]
    collapsed: bool = False
    repeat: str = ""


def arrange(*bands: Band) -> list[Panel]:
    """The panels of a dashboard in their places, with ids; those of a collapsed group inside it.

    Raises ValueError for a band that is not as wide as the dashboard.
    """
    placed: list[Panel] = []
    numbers = iter(range(1, 10_000))
    y = 0
    group: list[Panel] = placed
    for band in bands:
        if band.title is not None:
            head = row(band.title, collapsed=band.collapsed, repeat=band.repeat)
            head.id, head.gridPos = next(numbers), core.GridPos(h=1, w=COLUMNS, x=0, y=y)
            placed.append(head)
            group = head.panels if band.collapsed else placed
            y += 1
        group.extend(_beside(band, y, numbers))
        y += band.height
    return placed


def _beside(band: Band, y: int, numbers: Iterator[int]) -> Iterator[Panel]:
    x = 0
    for width, panel in band.panels:
        panel.id, panel.gridPos = next(numbers), core.GridPos(h=band.height, w=width, x=x, y=y)
        x += width
        yield panel
    if x != COLUMNS:
        names = ", ".join(panel.title for _, panel in band.panels)
        raise ValueError(f"a band must be {COLUMNS} columns wide, not {x}: {names}")
