"""Draw the dashboards with what a running Prometheus answers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.dashboards.asking import Asker, Span
from tests.dashboards.board import FOLDER, boards
from tests.dashboards.page import page
from tests.dashboards.prometheus import PrometheusApi


def main(words: Sequence[str]) -> None:
    """Write an HTML page for each dashboard, and print which panels have no data."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboards", description=__doc__)
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--folder", required=True, type=Path, metavar="OUT", help="for the pages")
    parser.add_argument("--dashboards", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME", help="a part of a file's name")
    parser.add_argument("--minutes", type=float, default=15.0, metavar="N", help="the time range")
    parser.add_argument("--end", type=float, default=None, metavar="SECONDS", help="as Unix time")
    parser.add_argument("--scrape-interval", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE")
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    end = time.time() if asked.end is None else asked.end
    span = Span(end - 60 * asked.minutes, end, asked.scrape_interval)
    chosen = {name: value.split(",") for name, _, value in (e.partition("=") for e in asked.set)}
    for board in boards(asked.dashboards):
        if asked.only not in board.name:
            continue
        asker = Asker(board, PrometheusApi(asked.prometheus), span, chosen)
        text, empty = page(asker)
        file = asked.folder / f"{board.name}.html"
        file.write_text(text)
        print(f"{file}: {', '.join(empty) or 'every panel'} {'without' if empty else 'with'} data")


if __name__ == "__main__":
    main(sys.argv[1:])
