"""``python -m tests.benchmarks [--json] [NAME ...]``: measure and print one table.

A figure over its budget is shown, not failed: only a benchmark that breaks ends with status 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from pathlib import Path

from tests.benchmarks.figure import HEADINGS, Figure

NAMES = sorted(
    file.stem.removeprefix("bench_") for file in Path(__file__).parent.glob("bench_*.py")
)


def main(arguments: list[str]) -> int:
    """Run the benchmarks named, or all; returns the exit status."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    figures: list[Figure] = []
    broken = []
    for name in chosen.names or NAMES:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        try:
            figures += importlib.import_module(f"tests.benchmarks.bench_{name}").run()
        except Exception:
            traceback.print_exc()
            broken.append(name)
    if chosen.json:
        print(json.dumps([figure.as_json() for figure in figures], indent=2))
    else:
        print(table(figures))
    if broken:
        print(f"broken: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def table(figures: list[Figure]) -> str:
    """Figures as aligned columns, numbers to the right."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = range(1, len(HEADINGS) - 1)
    lines = [
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
