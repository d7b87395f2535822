"""The files of end-to-end tests in groups, in the order in which they begin; who takes the next.

``python -m pytest -p tests.e2e.groups --file-queue FOLDER --file-results FD --lane NAME``: one of
several processes that take groups from a common queue. Files of a group use the same servers and
run in one process, one after another. A group that is not begun is taken by whoever has nothing
else.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins import file_queue
from tests.plugins.file_queue import Clock, FileQueue

HERE = Path(__file__).parent
WORKS, WAITS = "works", "waits"
Group = tuple[str, ...]

GROUPS: dict[str, list[Group]] = {
    # What measures latency comes first, beside what hardly takes any time of a processor.
    WORKS: [
        ("test_calibrate.py", "test_bench.py", "test_probe.py", "test_advise.py", "test_lab.py"),
        ("test_experiment.py",),
        ("test_queries.py",),
        ("test_tap.py", "test_tap_proxy.py"),
        ("test_switch.py",),
        ("test_tap_clients.py",),
        ("test_tap_servers.py",),
        ("test_report_pages.py",),
        ("test_supervised.py",),
    ],
    WAITS: [
        ("test_guard.py",),
        ("test_switch_guard.py",),
        ("test_watching.py",),
        ("test_backfill.py",),
        ("test_standby.py",),
        ("test_alert_routing.py",),
        ("test_tap_daemon.py",),
        ("test_group_restarts.py",),
        (
            "test_kubernetes.py",
            "test_workloads.py",
            "test_leader_worker_set.py",
            "test_kubernetes_files.py",
            "test_discovery.py",
        ),
        ("test_demo.py",),
        ("test_stores.py",),
        ("test_llama.py",),
        ("test_guard_failures.py",),
        ("test_guard_helper.py",),
        ("test_guard_killed.py",),
        ("test_guard_stopped.py",),
    ],
}
"""By what they do most of the time. Files that are not named are short, work, and come last."""


def groups() -> dict[str, list[Group]]:
    """All files, by what they do."""
    files = {file.name for file in HERE.glob("test_*.py")}
    named = {file for kind in GROUPS.values() for group in kind for file in group}
    if unknown := named - files:
        raise SystemExit(f"{__file__} names files that are not there: {', '.join(sorted(unknown))}")
    short = [(file,) for file in sorted(files - named)]
    return {WORKS: [*GROUPS[WORKS], *short], WAITS: [*GROUPS[WAITS]]}


def share_servers(file: str, other: str) -> bool:
    """Whether two files are of one group."""
    return any(file in group and other in group for kind in groups().values() for group in kind)


def pytest_addoption(parser: pytest.Parser) -> None:
    file_queue.pytest_addoption(parser)
    parser.addoption("--lane", choices=(WORKS, WAITS), help="the kind of group to take first")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("file_queue"):
        queue = GroupQueue(Path(folder), config.getoption("file_results"), config.getoption("lane"))
        config.pluginmanager.register(queue, "file-queue")
        os.set_inheritable(config.getoption("file_results"), False)


WORK: list[Callable[[], float]] = []
"""Seconds of processors that servers have taken which a fork server has started."""


class GroupQueue(FileQueue):
    """Collects and runs one group of files after another, until none is left.

    What takes minutes is not taken before it can begin.
    """

    def __init__(self, folder: Path, results: int, lane: str) -> None:
        super().__init__(folder, results)
        self._clock = Clock(lambda: sum(work() for work in WORK))
        self._lane = lane

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each file that is taken; what a session shares lasts to the end."""
        for item in session.items:
            self._found.setdefault(item.path.name, []).append(item)
        while group := take(self._folder / "groups", self._lane):
            files = [file for file in group if file in self._found]
            # It never runs: it says that no fixture of a file is used any more.
            others = (found[0] for file, found in self._found.items() if file not in group)
            elsewhere = next(others, None)
            for file, following in itertools.pairwise([*files, ""]):
                items, imported = self._read(session, file)
                if items:
                    session.items = items
                    successor = self._found[following][0] if following else elsewhere
                    self._run(session, file, items, imported, successor)
        session.testscollected = self._collected
        return True


def fill(queue: Path) -> None:
    """Write a queue with all groups."""
    queue.write_text(json.dumps(groups()))


def take(queue: Path, kind: str) -> Group:
    """The next group of that kind, or of another, which no other process takes; empty at the
    end."""
    with open(queue, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        left: dict[str, list[list[str]]] = json.load(file)
        chosen = left[kind] or next((found for found in left.values() if found), [])
        if not chosen:
            return ()
        group = tuple(chosen.pop(0))
        file.seek(0)
        json.dump(left, file)
        file.truncate()
    return group
