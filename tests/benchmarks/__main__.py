"""``python -m tests.benchmarks [--json] [--runs N] [NAME ...]``: measure and print one table.

Of several runs it has the middle one of each figure, and the spread.

A figure over its budget is shown, not failed: only a benchmark that breaks ends with status 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import traceback
from pathlib import Path

import structlog

from tests.benchmarks.figure import HEADINGS, Figure, middle

NAMES = sorted(
    file.stem.removeprefix("bench_") for file in Path(__file__).parent.glob("bench_*.py")
)


def main(arguments: list[str]) -> int:
    """Run the benchmarks named, or all; returns the exit status."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="repeat each N times")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if chosen.runs < 1:
        parser.error(f"--runs {chosen.runs}: give 1 or more")
    # The table is all that standard output has.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: list[Figure] = []
    broken = []
    for name in chosen.names or NAMES:
        runs = []
        try:
            for run in range(1, chosen.runs + 1):
                print(f"measuring: {name}, {run} of {chosen.runs}", file=sys.stderr, flush=True)
                runs.append(importlib.import_module(f"tests.benchmarks.bench_{name}").run())
        except Exception:
            traceback.print_exc()
            broken.append(name)
        figures += map(middle, zip(*runs, strict=True))
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
