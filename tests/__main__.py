"""The fast tests, in processes side by side: ``python -m tests [pytest options]``.

As many pytests as there are processors take files from a common queue, the longest first. A table
of lines and seconds by room closes the run, then the number of tests. The exit status is 0 if all
passed. ``--processes N`` sets their number, ``--seconds-to FILE`` keeps what each test took,
``--nightly`` adds the tests of ``tests/nightly``. With ``--second-look`` up to three tests that
fail run again, alone, and are named: each is a race in a test or in the product.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.plugins.file_queue import SECONDS
from tests.postgres import folder_in_memory

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache"
SLOWEST = 10
"""Tests that are named with what they took."""
MOST_AGAIN = 3
"""So many failed tests may be the machine's; more are a fault."""
_FAILED = 1
_NOTHING_CHOSEN = 5
"""What pytest returns when its options choose no test."""


class Process:
    """One pytest of the run; its output is shown when it ends, unless all went well."""

    def __init__(self, number: int, queue: Path, options: Sequence[str]) -> None:
        self.output = queue / f"output-{number}"
        reading, writing = os.pipe()
        # With "=", or pytest would take a folder for the one whose settings it is to read.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.plugins.no_skips",
            "-p",
            "tests.plugins.file_queue",
            f"--file-queue={queue}",
            f"--file-results={writing}",
            f"--basetemp={queue}/process-{number}",
            "-o",
            f"cache_dir={CACHE}/process-{number}",
            *options,
        ]
        with self.output.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
            )
        os.close(writing)
        self.results = os.fdopen(reading, "rb")


class Progress:
    """What files came to, as they are through."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.outcomes: Counter[str] = Counter()
        self._found: set[str] = set()
        self._reports: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._shown = 0
        self._lock = threading.Lock()

    def follow(self, process: Process) -> None:
        """Take in what a process reports, until it ends."""
        with process.results as results:
            for line in results:
                with self._lock:
                    self.add(json.loads(line))

    def add(self, line: Mapping[str, Any]) -> None:
        """What a process found, or a file that is through."""
        if "found" in line:
            self._found.update(line["found"])
        else:
            self._add(line)

    @property
    def not_once(self) -> dict[str, int]:
        """Files that were not run once, and how often they were."""
        return {file: times for file in sorted(self._found) if (times := self._reports[file]) != 1}

    def _add(self, result: Mapping[str, Any]) -> None:
        self._reports[result["file"]] += 1
        self.files[result["file"]] = result
        self.outcomes.update(result["outcomes"])
        for name in result["failed"]:
            print(f"FAILED {name}", flush=True)
        for reason in result["skipped"]:
            print(f"SKIPPED {reason}", flush=True)
        if (tests := sum(self.outcomes.values())) >= self._shown + 500:
            self._shown = tests
            print(f"{self.seconds:6.0f} s: {tests} tests of {len(self.files)} files", flush=True)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun


def main(arguments: Sequence[str]) -> int:
    """Run the tests; the exit status."""
    parser = argparse.ArgumentParser("tests", description=__doc__, add_help=False)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds-to", type=Path)
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--second-look", action="store_true")
    own, options = parser.parse_known_args(arguments)
    if own.nightly:
        options += ["-o", "norecursedirs=.* e2e benchmarks", "tests"]
    # Who interrupts reaches every process; each reports how far it came.
    signal.signal(signal.SIGINT, lambda *_: None)
    progress = Progress()
    # A test of a SQLite file on a disk waits for the disk most of the time.
    memory = folder_in_memory()
    with tempfile.TemporaryDirectory(prefix="specwatch-tests-", dir=memory) as folder:
        queue = Path(folder)
        recorded = CACHE / SECONDS
        if recorded.exists():
            (queue / SECONDS).write_bytes(recorded.read_bytes())
        processes = [Process(number, queue, options) for number in range(own.processes)]
        readers = [threading.Thread(target=progress.follow, args=[each]) for each in processes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        statuses = [process.popen.wait() for process in processes]
        for process, status in zip(processes, statuses, strict=True):
            if status not in (0, _NOTHING_CHOSEN):
                print(process.output.read_text(errors="replace"), flush=True)
    remember(progress, recorded)
    if own.seconds_to:
        own.seconds_to.write_text(json.dumps(progress.files))
    print(*table(progress.files), sep="\n")
    status = status_of(statuses)
    if status == 0 and progress.not_once:
        print("FAILED: files that ran more or less than once:", progress.not_once, flush=True)
        return _FAILED
    if own.second_look and {*statuses} <= {0, _FAILED, _NOTHING_CHOSEN}:
        status = second_look(progress, status)
    words = [f"{count} {outcome}" for outcome, count in sorted(progress.outcomes.items())]
    print(f"==== {', '.join(words) or 'no test'} in {progress.seconds:.2f}s ====", flush=True)
    return status


def second_look(progress: Progress, status: int) -> int:
    """The status after tests that failed have run again with nothing beside them."""
    failed = {name for result in progress.files.values() for name in result["failed"]}
    if not 0 < len(failed) <= MOST_AGAIN or not all("::" in name for name in failed):
        return status
    print("== FAILED AT FIRST, RUN TWICE:", *sorted(failed), sep="\n   ", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.plugins.no_skips", "-q"]
    return subprocess.run([*command, *sorted(failed)], cwd=ROOT, check=False).returncode


def remember(progress: Progress, recorded: Path) -> None:
    """Keep the seconds of each file for the order of the next run, and failures for ``--lf``."""
    known = json.loads(recorded.read_text()) if recorded.exists() else {}
    known |= {file: round(cost_of(result)[0], 2) for file, result in progress.files.items()}
    recorded.parent.mkdir(exist_ok=True)
    recorded.write_text(json.dumps({file: known[file] for file in known if (ROOT / file).exists()}))
    failed = {name: True for result in progress.files.values() for name in result["failed"]}
    last_failed = CACHE / "v/cache/lastfailed"
    last_failed.parent.mkdir(parents=True, exist_ok=True)
    last_failed.write_text(json.dumps(failed))


def cost_of(result: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds, and seconds of processors, of a file with its tests."""
    costs = [result["imported"], *result["tests"].values()]
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)


def table(files: Mapping[str, Any]) -> list[str]:
    """A line for each room of tests, the most expensive first, and the slowest tests."""
    rooms: defaultdict[str, list[Any]] = defaultdict(list)
    for file, result in files.items():
        rooms[room_of(file)].append(result)
    rows = []
    for room, results in rooms.items():
        seconds, processor = map(sum, zip(*map(cost_of, results), strict=True))
        tests = sum(len(result["tests"]) for result in results)
        rows.append((room, lines_of(room), tests, seconds, processor))
    rows.sort(key=lambda row: -row[-1])
    if len(rows) > 1:
        rows.append(("all", *map(sum, zip(*(row[1:] for row in rows), strict=True))))
    lines = [f"{'room':16} {'lines':>7} {'tests':>6} {'seconds':>8} {'processor':>9}"]
    for room, count, tests, seconds, processor in rows:
        lines.append(f"{room:16} {count:7} {tests:6} {seconds:8.1f} {processor:9.1f}")
    imports = sum(result["imported"][1] for result in files.values())
    lines.append(f"imports: {imports:.1f} s of processors; the slowest tests:")
    tests = [test for result in files.values() for test in result["tests"].items()]
    tests.sort(key=lambda test: -test[1][0])
    return lines + [f"{cost[0]:8.2f} s  {name}" for name, cost in tests[:SLOWEST]]


def room_of(file: str) -> str:
    """The folder of ``tests`` that a file is in."""
    return file.split("/")[1] if file.count("/") > 1 else "tests"


def lines_of(room: str) -> int:
    """Lines of Python in a room, helpers included."""
    folder = ROOT / "tests"
    sources = folder.glob("*.py") if room == "tests" else (folder / room).rglob("*.py")
    return sum(source.read_text().count("\n") for source in sources)


def status_of(statuses: Sequence[int]) -> int:
    """Of the whole: 0 when all went well, though there may have been nothing for some to do."""
    failed = [status for status in statuses if status not in (0, _NOTHING_CHOSEN)]
    return 1 if failed else min(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
