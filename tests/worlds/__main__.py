"""``python -m tests.worlds``: every policy in every world, as a table; ``coverage`` the other.

For orientation, never an assertion: a thousand hours of all worlds take an hour or two.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from specwatch.model import Mode
from tests.worlds import coverage
from tests.worlds.cache import trace_of
from tests.worlds.coverage import Covered
from tests.worlds.ours import DISABLING_RULES, Ours, calibrated
from tests.worlds.score import Score, live, score_of, truth_of
from tests.worlds.seen import Policy
from tests.worlds.simple import SIMPLE
from tests.worlds.world import WORLDS, World

_HEADINGS = (
    "world", "policy", "hours", "S truly", "false off/1000h", "delay", "(max)", "missed",
    "regret", "switches", "on",
)  # fmt: skip
_WIDTHS = (12, 15, 6, 12, 16, 6, 6, 7, 8, 9, 6)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for, telling how far it is on stderr."""
    asked = _parser().parse_args(arguments)
    os.nice(asked.nice)
    if asked.what == "coverage":
        covered = coverage.run(hours=asked.hours, runs=asked.runs, progress=_tell)
        _print(covered, asked.json, _covered_line)
        return
    if not asked.json:
        print(_line(_HEADINGS))
    worlds = [WORLDS[name] for name in asked.worlds or WORLDS]
    scores = (score for world in worlds for score in scores_of(world, asked.hours, asked.policies))
    _print(scores, asked.json, _score_line)


def scores_of(world: World, hours: int, names: Sequence[str] | None = None) -> Iterator[Score]:
    """How each policy, or those named, does in a world."""
    on, off = (
        trace_of(world, mode, hours, progress=_Progress(f"{world.name}, {mode}", hours))
        for mode in (Mode.ON, Mode.OFF)
    )
    truth = truth_of(world, on, off)
    for name, make in _policies(world).items():
        if names and name not in names:
            continue
        policy = make()
        life = live(world, policy, on, off, _Progress(f"{world.name}, {name}", hours))
        yield score_of(world, name, life, truth)


def _policies(world: World) -> dict[str, Callable[[], Policy]]:
    measurements = calibrated(world)
    return {
        **SIMPLE,
        "ours": lambda: Ours(measurements),
        "no-prediction": lambda: Ours(measurements, predicts=False),
        "all-rules": lambda: Ours(measurements, rules=DISABLING_RULES),
    }


class _Progress:
    """A line on stderr that is written over, at most twice a second."""

    def __init__(self, what: str, hours: int) -> None:
        self._what, self._hours, self._told = what, hours, 0.0

    def __call__(self, minutes: int) -> None:
        if time.monotonic() - self._told > 0.5:
            self._told = time.monotonic()
            _tell(f"{self._what}: {minutes // 60} of {self._hours} h")


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="\r", file=sys.stderr, flush=True)


def _print(
    rows: Iterable[Score] | Iterable[Covered], as_json: bool, line: Callable[..., str]
) -> None:
    for row in rows:
        print(json.dumps(dataclasses.asdict(row)) if as_json else line(row), flush=True)


def _line(cells: Iterable[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _score_line(score: Score) -> str:
    low, high = score.speedup
    delay = "-" if score.median_delay is None else f"{score.median_delay:g}m"
    return _line(
        (
            score.world, score.policy, f"{score.hours:g}",
            f"{low:.2f}" if high - low < 0.005 else f"{low:.2f}-{high:.2f}",
            f"{score.false_per_1000_hours:.1f}", delay,
            f"{max(score.delays)}m" if score.delays else "-", str(score.missed),
            f"{100 * score.regret:.2f}%", str(score.switches), f"{100 * score.share_on:.0f}%",
        )
    )  # fmt: skip


def _covered_line(found: Covered) -> str:
    return (
        f"{found.case:6} {found.minutes:3} minutes  {found.figure:12} {100 * found.share:5.1f}%"
        f" (+-{100 * found.doubt:3.1f}%) of {found.runs:4}"
        f"  below {100 * found.below / found.runs:4.1f}%"
        f"  bias {100 * (found.mean / found.truth - 1):+5.2f}%  truth {found.truth:5.3f}"
        f"  width {100 * found.width:5.1f}%"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("policies", "coverage"), default="policies")
    parser.add_argument("--hours", type=int, default=1000, help="simulated, of each world")
    parser.add_argument("--worlds", nargs="+", choices=tuple(WORLDS), help="all of them by default")
    parser.add_argument("--policies", nargs="+", help="all of them by default")
    parser.add_argument("--runs", type=int, default=400, help="of coverage, for each figure")
    parser.add_argument("--nice", type=int, default=10, help="niceness of this process")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser


if __name__ == "__main__":
    main()
