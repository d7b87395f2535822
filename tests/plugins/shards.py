"""A pytest plugin: each worker of pytest-xdist collects and runs its own share of the files.

``python -m pytest -p tests.plugins.shards --numprocesses 2``. Without it every worker imports every
file. Shares are balanced by the seconds in ``tests/seconds.json``, which ``--record-seconds``
rewrites; a table of lines and seconds by room closes the run.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import EachScheduling

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "seconds.json"
UNKNOWN = 0.2
"""Seconds of a file that is not recorded."""
SHOWN = 12
"""Tests that are named with the processor time they take."""

Costs = dict[str, list[float]]
"""By file or test: seconds that passed, and seconds of processors."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-seconds", action="store_true",
        help=f"rewrite {RECORDED.relative_to(ROOT)} with the seconds that each file took",
    )  # fmt: skip
    parser.addoption(
        "--seconds-to", metavar="FILE", help="write the seconds of each file and test as JSON"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Share(config), "share")
        config.pluginmanager.register(Meter(config), "meter")
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Totals(config), "totals")


def shares(files: Iterable[str], seconds: Mapping[str, float], count: int) -> list[set[str]]:
    """Files in so many groups that take about equally long: the longest first, each to the group
    that has the least so far."""
    parts: list[set[str]] = [set() for _ in range(count)]
    loads = [0.0] * count
    for file in sorted(files, key=lambda name: (-seconds.get(name, UNKNOWN), name)):
        least = loads.index(min(loads))
        parts[least].add(file)
        loads[least] += seconds.get(file, UNKNOWN)
    return parts


def test_files(arguments: Iterable[str], excluded: Iterable[str]) -> set[str]:
    """Paths below the checkout of the files that pytest's arguments name."""
    files = set()
    for argument in arguments:
        path = Path(argument.partition("::")[0]).resolve()
        found = path.rglob("test_*.py") if path.is_dir() else [path]
        files.update(os.path.relpath(file, ROOT) for file in found)
    return {file for file in files if not set(excluded).intersection(Path(file).parts[:-1])}


class Share:
    """In a worker: files of other workers are not collected."""

    def __init__(self, config: pytest.Config) -> None:
        assert hasattr(config, "workerinput")
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        seconds = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        files = test_files(config.args, config.getini("norecursedirs"))
        self.files = shares(files, seconds, config.workerinput["workercount"])[number]

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
            return None
        own = os.path.relpath(collection_path, ROOT) in self.files
        return None if own else True


class Meter:
    """In a worker: measures files as they are imported, and tests as they run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.imports: Costs = {}
        self.tests: Costs = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        before = now()
        report = yield
        if isinstance(collector, pytest.Module):
            self.imports[collector.nodeid] = passed(before)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = now()
        result = yield
        self.tests[item.nodeid] = passed(before)
        return result

    def pytest_sessionfinish(self) -> None:
        self.config.workeroutput["costs"] = (self.imports, self.tests)


def now() -> tuple[float, float]:
    """The clock, and seconds of processors that this process and its ended children took."""
    used = os.times()
    return time.perf_counter(), sum(used[:4])


def passed(since: tuple[float, float]) -> list[float]:
    """What has passed on both."""
    return [round(end - begin, 4) for begin, end in zip(since, now(), strict=True)]


class ShardScheduling(EachScheduling):
    """Each worker runs all that it has collected; all of them count."""

    def schedule(self) -> None:
        session: Any = self.config.pluginmanager.get_plugin("session")
        session.testscollected = sum(map(len, self.node2collection.values()))
        super().schedule()


class Totals:
    """In the process that distributes: adds up what workers measured."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.imports: Costs = {}
        self.tests: Costs = {}
        self.workers: list[float] = []

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ShardScheduling:
        return ShardScheduling(config, log)

    def pytest_testnodedown(self, node: Any) -> None:
        imports, tests = getattr(node, "workeroutput", {}).get("costs", ({}, {}))
        self.imports |= imports
        self.tests |= tests
        self.workers.append(sum(each[0] for each in (*imports.values(), *tests.values())))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = by_file(self.imports, self.tests)
        write = terminalreporter.write_line
        write(f"{'room':16} {'lines':>7} {'tests':>6} {'seconds':>8} {'processor':>9}")
        for line in room_lines(files, self.tests):
            write(line)
        busy = ", ".join(f"{seconds:.1f}" for seconds in sorted(self.workers))
        write(f"imports {sum(cost[1] for cost in self.imports.values()):.1f} s; workers {busy} s")
        for name, cost in sorted(self.tests.items(), key=lambda item: -item[1][1])[:SHOWN]:
            write(f"{cost[1]:8.2f} s  {name}")
        if target := self.config.getoption("seconds_to"):
            document = {"imports": self.imports, "tests": self.tests, "files": files}
            Path(target).write_text(json.dumps(document, indent=1, sort_keys=True))
        if self.config.getoption("record_seconds"):
            recorded = {file: round(cost[0], 1) for file, cost in files.items() if cost[0] >= 0.05}
            RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def by_file(imports: Costs, tests: Costs) -> Costs:
    """The seconds of each file with its tests."""
    files: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, cost in (*imports.items(), *tests.items()):
        total = files[name.partition("::")[0]]
        total[0] += cost[0]
        total[1] += cost[1]
    return dict(files)


def room_lines(files: Costs, tests: Costs) -> list[str]:
    """A line for each folder of tests, the most processor time first."""
    rooms: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for file, cost in files.items():
        room = rooms[room_of(file)]
        room[2] += cost[0]
        room[3] += cost[1]
    for name in tests:
        rooms[room_of(name.partition("::")[0])][1] += 1
    for room, total in rooms.items():
        folder = ROOT / "tests" / room
        sources = folder.rglob("*.py") if room else folder.glob("*.py")
        total[0] = sum(source.read_text().count("\n") for source in sources)
    ordered = sorted(rooms.items(), key=lambda item: -item[1][3])
    ordered.append(("all", [sum(column) for column in zip(*rooms.values(), strict=True)]))
    return [
        f"{room or 'tests':16} {lines:7.0f} {count:6.0f} {seconds:8.1f} {processor:9.1f}"
        for room, (lines, count, seconds, processor) in ordered
    ]


def room_of(file: str) -> str:
    """The folder of ``tests`` that a file is in; empty for those in none."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else ""
