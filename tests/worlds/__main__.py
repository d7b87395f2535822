"""``python -m tests.worlds``: how policies look after simulated servers, as a table or JSON.

For orientation, never an assertion: a thousand hours of all worlds take hours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from specwatch.daemon import guard_service
from specwatch.store import guard_records
from tests.worlds.daemon import Specwatch
from tests.worlds.life import Policy, Score, live
from tests.worlds.policies import SIMPLE
from tests.worlds.scenarios import WORLDS
from tests.worlds.world import World, Worlds

OURS: Mapping[str, Callable[[World], Policy]] = {
    "specwatch": partial(Specwatch, max_actions_per_day=24, explore={"budget": "1%"}),
    "specwatch-defaults": partial(Specwatch, name="specwatch-defaults"),
}
"""The product, in its configurations."""
POLICIES = (*OURS, *SIMPLE)

_HEADINGS = (
    "world",
    "policy",
    "seed",
    "hours",
    "S truly",
    "false",
    "longest",
    "undone",
    "missed",
    "delay",
    "restarts",
    "regret",
    "on",
    "end",
)
_WIDTHS = (18, 14, 4, 6, 11, 5, 8, 6, 8, 7, 8, 8, 5, 12)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for, telling how far it is on stderr."""
    asked = _parser().parse_args(arguments)
    os.nice(asked.nice)
    names = asked.worlds or list(_worlds(asked.plugin) if asked.plugin else WORLDS)
    jobs = [
        (asked.plugin, name, policy, seed, asked.hours)
        for name in names
        for seed in range(1, asked.seeds + 1)
        for policy in asked.policy or POLICIES
    ]
    if not asked.json:
        print(_line(_HEADINGS), flush=True)
    for score in _scores(jobs, asked.jobs):
        print(json.dumps(score.row()) if asked.json else _score_line(score), flush=True)
        if asked.log:
            print("\n".join(f"    {line}" for line in score.log), file=sys.stderr, flush=True)


def _scores(
    jobs: Sequence[tuple[str | None, str, str, int, float]], processes: int
) -> Iterator[Score]:
    if processes == 1:
        yield from map(_live, jobs)
        return
    with multiprocessing.get_context("fork").Pool(processes, initializer=_quiet) as pool:
        yield from pool.imap(_live, jobs)


def _live(job: tuple[str | None, str, str, int, float]) -> Score:
    plugin, name, policy, seed, hours = job
    worlds: Worlds = _worlds(plugin) if plugin else dict(WORLDS)
    world = worlds[name](seed)
    world.name = name
    chosen: Policy = OURS[policy](world) if policy in OURS else SIMPLE[policy]()
    return live(
        world,
        chosen,
        hours=hours,
        seed=seed,
        progress=partial(_tell, f"{name}, {policy}, seed {seed}", hours, [0.0]),
    )


def _worlds(plugin: str) -> Worlds:
    """The ``WORLDS`` of a Python file."""
    spec = importlib.util.spec_from_file_location("plugin", plugin)
    if spec is None or spec.loader is None:
        raise SystemExit(f"--plugin: {plugin} cannot be loaded; give a Python file with WORLDS")
    module = importlib.util.module_from_spec(spec)
    sys.modules["plugin"] = module
    spec.loader.exec_module(module)
    worlds: Worlds = module.WORLDS
    return worlds


def _tell(what: str, hours: float, printed: list[float], done: float) -> None:
    if sys.stderr.isatty() and time.monotonic() - printed[0] > 0.5:
        printed[0] = time.monotonic()
        print(f"\r\033[K{what}: {done:.0f} of {hours:g} h", end="\r", file=sys.stderr, flush=True)


def _quiet() -> None:
    # Leases last by the real clock, and a simulated minute takes some milliseconds.
    guard_records.LEASE_SECONDS = guard_service._RENEW_SECONDS = 1e9
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _line(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _score_line(score: Score) -> str:
    low, high = score.speedup_low, score.speedup_high
    return _line(
        (
            score.world,
            score.policy,
            str(score.seed),
            f"{score.hours:g}",
            f"{low:.2f}" if high - low < 0.005 else f"{low:.2f}-{high:.2f}",
            f"{score.false_disables}+{score.short_false_disables}",
            f"{score.longest_false_disable_minutes:.0f}m",
            str(score.undone_disables),
            f"{score.missed_minutes:.0f}m",
            "-" if score.delay_s is None else f"{score.delay_s / 60:.1f}m",
            str(score.restarts),
            f"{score.regret_percent:.2f}%",
            f"{100 * score.share_on:.0f}%",
            "held" if score.held else score.final_state,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--plugin", help="a Python file with WORLDS, instead of our worlds")
    parser.add_argument("--worlds", nargs="+", help="names; all of them by default")
    parser.add_argument("--hours", type=float, default=1000, help="simulated, of each world")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 1 on")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, help="all of them by default")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--log", action="store_true", help="what the guard did, on stderr")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--nice", type=int, default=5, help="niceness of this process")
    return parser


if __name__ == "__main__":
    _quiet()
    main()
