"""A comparison as a picture in a file: SVG, or PNG where the package for it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from specwatch.cli import output_file
from specwatch.domain.experiments import Comparison
from specwatch.errors import ConfigError
from specwatch.report.charts.speedup_by_concurrency import speedup_by_concurrency

_WIDTH = 1200
"""Pixels."""
_FONTS = "DejaVu Sans"
"""What stands in for the system's own font, which has no name that a renderer knows."""
_FORMATS = (".svg", ".png")


def require(path: Path) -> None:
    """Raise ConfigError before the work for a plot that cannot be written after it."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: give a name that ends with .svg or .png")
    output_file.require_writable(path, "--plot")
    if path.suffix.lower() == ".png":
        _renderer()


def drawable(found: Comparison) -> bool:
    """Whether a speedup is known at any load."""
    return any(each.speedup is not None and each.speedup.value > 0 for each in found.levels)


def write(path: Path, found: Comparison) -> None:
    """Draw the speedup into a file. Raises ConfigError where it cannot be written."""
    drawn = speedup_by_concurrency(found.levels, found.crossing, rising=found.rising)
    if path.suffix.lower() == ".svg":
        output_file.write(path, _XML + _on_white(drawn) + "\n", "--plot")
        return
    resvg = _renderer()
    data = resvg.svg_to_bytes(
        svg_string=drawn,
        background="#ffffff",
        width=_WIDTH,
        font_family=_FONTS,
        sans_serif_family=_FONTS,
    )
    output_file.write(path, bytes(data), "--plot")


_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


def _on_white(drawn: str) -> str:
    """With a ground of its own: the page that shows the file may be dark."""
    opened, rest = drawn.split(">", 1)
    return f'{opened}><rect width="100%" height="100%" fill="#ffffff"/>{rest}'


def _renderer() -> ModuleType:
    try:
        import resvg_py
    except ModuleNotFoundError:
        raise ConfigError(
            "--plot: a PNG needs the package resvg-py; install it:"
            f" {sys.executable} -m pip install resvg-py, or write an .svg"
        ) from None
    return resvg_py
