"""A screen in pixels, with the origin at its top left, on which text and charts are put."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from tests.dashboards.colours import Theme

DPI = 100


@dataclass(frozen=True)
class Box:
    """A rectangle, in pixels from the top left of the screen."""

    x: float
    y: float
    width: float
    height: float

    def inside(self, left: float = 0, top: float = 0, right: float = 0, bottom: float = 0) -> Box:
        """What remains between margins."""
        return Box(
            self.x + left, self.y + top,
            max(1, self.width - left - right), max(1, self.height - top - bottom),
        )  # fmt: skip


class Canvas:
    """One picture of one theme."""

    def __init__(self, width: int, height: int, theme: Theme) -> None:
        self.width, self.height, self.theme = width, height, theme
        self.figure = Figure((width / DPI, height / DPI), dpi=DPI, facecolor=theme.canvas)
        FigureCanvasAgg(self.figure)

    def save(self, file: Path) -> None:
        """As a PNG."""
        self.figure.savefig(file, dpi=DPI, facecolor=self.theme.canvas)

    def frame(self, box: Box, colour: str, border: str | None = None) -> None:
        """A filled rectangle."""
        corner = (box.x / self.width, 1 - (box.y + box.height) / self.height)
        self.figure.add_artist(
            Rectangle(
                corner,
                box.width / self.width,
                box.height / self.height,
                facecolor=colour,
                edgecolor=border or colour,
                linewidth=0.8,
                zorder=-2,
            )
        )

    def write(
        self, x: float, y: float, text: str, *, size: float = 9, colour: str = "",
        width: float | None = None, weight: str = "normal", align: str = "left",
    ) -> None:  # fmt: skip
        """A line of text whose middle is at ``y``, cut to ``width`` pixels."""
        shown = text if width is None else fitted(text, size, width, weight)
        self.figure.text(
            x / self.width, 1 - y / self.height, _plain(shown), fontsize=size, fontweight=weight,
            color=colour or self.theme.text, ha=align, va="center_baseline",
        )  # fmt: skip

    def axes(self, box: Box) -> Axes:
        """A chart in a rectangle."""
        axes = self.figure.add_axes(
            (box.x / self.width, 1 - (box.y + box.height) / self.height,
             box.width / self.width, box.height / self.height)
        )  # fmt: skip
        axes.set_facecolor("none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0, labelsize=8, colors=self.theme.faint, pad=5)
        axes.grid(True, color=self.theme.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        return axes


@lru_cache(maxsize=20_000)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """In pixels; sizes of type are in points."""
    if not text.strip():
        return 0.3 * size * len(text)
    path = TextPath((0, 0), _plain(text), size=size, prop=FontProperties(weight=weight))
    return float(np.ptp(path.vertices[:, 0])) * DPI / 72 + 1


def fitted(text: str, size: float, width: float, weight: str = "normal") -> str:
    """The text, or as much of it as there is room for and an ellipsis."""
    if text_width(text, size, weight) <= width:
        return text
    while text and text_width(text + "…", size, weight) > width:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Lines that fit the width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
