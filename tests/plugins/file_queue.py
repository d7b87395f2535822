"""A pytest plugin: several processes take the files of one run from a common queue.

``python -m tests`` starts them, each with ``--file-queue FOLDER``. A process writes lines of JSON
to ``--file-results``: the files that it found, then a line for each that it has taken and run. It
imports no other file.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = "seconds.json"
"""In the folder of the queue: what each file took the last time."""

Cost = tuple[float, float]
"""Seconds that passed, and seconds of processors, with those of children that have ended."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--file-queue", metavar="FOLDER", help="take files from a common queue")
    parser.addoption("--file-results", type=int, metavar="FD", help="where to report each file")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("file_queue"):
        queue = FileQueue(Path(folder), config.getoption("file_results"))
        config.pluginmanager.register(queue, "file-queue")
        # Programs that tests start do not keep the run waiting.
        os.set_inheritable(config.getoption("file_results"), False)


class UnreadFile(pytest.File):
    """A file of tests that is not imported yet: one item holds its place."""

    def collect(self) -> Iterator[Place]:
        """The item that is replaced by those of the file."""
        yield Place.from_parent(self, name="tests")


class Place(pytest.Item):
    """Holds the place of the tests of an unread file, and is never run."""

    def runtest(self) -> None:
        """It is replaced before."""
        raise NotImplementedError


def longest_first(files: Iterable[str], recorded: Path) -> list[str]:
    """Files in the order in which they are taken; those not known to be short count as long."""
    seconds = json.loads(recorded.read_text()) if recorded.exists() else {}
    return sorted(files, key=lambda file: (-seconds.get(file, 1.0), file))


def take_number(taken: Path) -> int:
    """The next number, from 0, which no other process or thread has taken."""
    with taken.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Others may have written between opening and locking.
        number = file.seek(0, os.SEEK_END)
        file.write(".")
    return number


def read(session: pytest.Session, item: pytest.Item) -> Iterator[pytest.Item]:
    """The tests whose place an item holds; another item is a test itself."""
    if isinstance(item, Place):
        file = item.parent
        assert isinstance(file, UnreadFile)
        yield from session.genitems(pytest.Module.from_parent(file.parent, path=file.path))
    else:
        yield item


class FileQueue:
    """Collects and runs one file after another, until no file is left."""

    def __init__(self, folder: Path, results: int) -> None:
        self._folder = folder
        self._results = results
        self._found: dict[str, list[pytest.Item]] = {}
        self._collected = 0
        self._clock = Clock()
        self._outcomes: Counter[str] = Counter()
        self._failed: list[str] = []
        self._skipped: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> UnreadFile | None:
        """Put off the import, unless an argument names tests in the file."""
        if any("::" in argument for argument in parent.config.args):
            return None
        return UnreadFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Options choose among tests, not among files that are not read yet."""
        found = list(items)
        if not self._found:
            items.clear()
        yield
        if not self._found:
            items.extend(found)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each file that is taken; what a session shares lasts to the end.

        The file after it is collected before, since a test is followed by another one.
        """
        for item in session.items:
            self._found.setdefault(os.path.relpath(item.path, ROOT), []).append(item)
        files = self._files(session)
        current = next(files, None)
        while current is not None:
            following = next(files, None)
            file, items, imported = current
            self._run(session, file, items, imported, following[1][0] if following else None)
            current = following
        session.testscollected = self._collected
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count as the terminal does."""
        in_test = report.when == "call"
        if report.failed:
            self._failed.append(report.nodeid)
            self._outcomes["failed" if in_test else "error"] += 1
        elif in_test or report.skipped:
            self._outcomes[report.outcome] += 1
        if isinstance(report.longrepr, tuple):
            self._skipped.append(f"{report.nodeid}: {report.longrepr[2]}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is an error, too."""
        if report.failed:
            self._failed.append(report.nodeid)
            self._outcomes["error"] += 1

    def _files(self, session: pytest.Session) -> Iterator[tuple[str, list[pytest.Item], Cost]]:
        """Files with tests, as they are taken, and what importing them cost."""
        order = longest_first(self._found, self._folder / SECONDS)
        self._write({"found": order})
        while (number := take_number(self._folder / "taken")) < len(order):
            file = order[number]
            items, imported = self._read(session, file)
            if items:
                yield file, items, imported
            else:
                self._report(file, imported, {})

    def _read(self, session: pytest.Session, file: str) -> tuple[list[pytest.Item], Cost]:
        """The tests of a file, and what importing it cost."""
        self._clock.passed()
        items = [item for found in self._found[file] for item in read(session, found)]
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=items
        )
        # Modules stay to the end: no collection of garbage need look at them again.
        gc.freeze()
        self._collected += len(items)
        return items, self._clock.passed()

    def _run(
        self,
        session: pytest.Session,
        file: str,
        items: Sequence[pytest.Item],
        imported: Cost,
        successor: pytest.Item | None,
    ) -> None:
        """Run tests of a file and report them; ``successor`` is the test that follows."""
        tests = {}
        for item, following in itertools.pairwise([*items, successor]):
            assert item is not None
            self._clock.passed()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            tests[item.nodeid] = self._clock.passed()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        self._report(file, imported, tests)

    def _report(self, file: str, imported: Cost, tests: Mapping[str, Cost]) -> None:
        result = {
            "file": file,
            "imported": imported,
            "tests": tests,
            "outcomes": self._outcomes,
            "failed": self._failed,
            "skipped": self._skipped,
        }
        self._write(result)
        self._outcomes.clear()
        self._failed.clear()
        self._skipped.clear()

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._results, json.dumps(line).encode() + b"\n")


class Clock:
    """Measures what passes; ``more`` are seconds of processors that no child has taken."""

    def __init__(self, more: Callable[[], float] = lambda: 0.0) -> None:
        self._more = more
        self._since = self._now()

    def passed(self) -> Cost:
        """What has passed since the last call."""
        before, self._since = self._since, self._now()
        return round(self._since[0] - before[0], 4), round(self._since[1] - before[1], 4)

    def _now(self) -> Cost:
        return time.perf_counter(), sum(os.times()[:4]) + self._more()
