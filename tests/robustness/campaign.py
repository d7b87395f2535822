"""What the programs of all campaigns share: progress on a terminal, and their figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def progress(text: str) -> None:
    """Show how far it is, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def show(figures: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the figures of each part."""
    if as_json:
        print(json.dumps(figures))
    else:
        for what, values in figures.items():
            print(what, *(f"  {name}: {value}" for name, value in values.items()), sep="\n")


def show_defects(defects: list[str]) -> None:
    """Print the first few, and end with status 1 if there are any."""
    print(*defects[:10], sep="\n")
    sys.exit(bool(defects))
