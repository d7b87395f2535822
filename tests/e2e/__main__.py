"""All end-to-end tests, in processes side by side: ``python -m tests.e2e [pytest options]``.

They take groups of files from a common queue: two of them first those that work and measure, the
others those that wait most of the time, for timeouts, restarts and whole minutes of what is
watched. The latter yield the processor a little. The exit status is 0 if all passed; the seconds of
each file close the run, and the last line counts the tests. An interrupt ends all, in order.

Two processors are few for so many servers and their clients, and a few tests measure: up to
``_SECOND_LOOK`` tests or fixtures that fail run again, with nothing beside them, and what fails
again has failed. They are named in any case: each is a race in a test or in the product.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

from tests.e2e import groups
from tests.e2e.groups import HERE, WAITS, WORKS
from tests.lab import vllm_install as lab
from tests.lab.vllm_server import FORKS, fork_server

CHECKOUT = HERE.parents[1]
LANES = {
    "works": WORKS,
    "waits-1": WAITS,
    "waits-2": WAITS,
    "waits-3": WAITS,
}
"""The processes, and the kind of group that each takes first."""
_YIELDS = 2
"""Niceness of those that wait: more would starve them where the processors are slow."""
_NOTHING_CHOSEN = 5
"""What pytest returns when its options choose no test."""
_FAILED = 1
"""What it returns when tests failed."""
_SECOND_LOOK = 3
"""So many failed tests and fixtures may be the machine's; more are a fault."""
_COUNT = re.compile(r"(\d+) (\w+)")
_FAILURES = ("FAILED ", "ERROR ")


class Lane:
    """One pytest, whose output is passed on line by line under its name."""

    def __init__(self, name: str, options: Sequence[str], passed_on: Sequence[int] = ()) -> None:
        self.name = name
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        """Tests by their outcome, in pytest's words."""
        self.failures: list[str] = []
        """pytest's line for each test that failed."""
        niceness = _YIELDS if LANES.get(name) == WAITS else 0
        # Its own session: an interrupt comes once, from us. When we are killed, it ends too.
        command = [
            "setpriv",
            "--pdeathsig",
            "INT",
            "nice",
            "-n",
            str(niceness),
            sys.executable,
            "-u",
            "-m",
            "pytest",
            "-p",
            "tests.plugins.no_skips",
            "-o",
            f"cache_dir=.pytest_cache/e2e-{name}",
            # Stories last as long as they have to, and have limits of their own.
            "-o",
            "faulthandler_timeout=0",
            *options,
        ]
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=passed_on,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def interrupt(self) -> None:
        """Have it end its test, clean up and report."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Its status, once it has ended and its output is passed on."""
        status = self._process.wait()
        self._reading.join(10.0)
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        last = ""
        for line in self._process.stdout:
            print(f"{self.name} | {line}", end="", flush=True)
            last = line.strip() or last
            if line.startswith(_FAILURES):
                self.failures.append(line)
        self.seconds = time.monotonic() - self._begun
        if last.startswith("="):
            counted = last.strip("= ").partition(" in ")[0]
            self.counts.update({word.rstrip("s"): int(n) for n, word in _COUNT.findall(counted)})


def main(options: Sequence[str]) -> int:
    """Run all of it; the exit status."""
    # Before anybody uses them: pip would change what others are just loading.
    lab.add_tap(lab.install())
    with (
        tempfile.TemporaryDirectory(prefix="specwatch-e2e-") as folder,
        fork_server(lab.vllm_folder(), Path(folder)) as forks,
    ):
        os.environ[FORKS] = str(forks)
        return run(Path(folder), options)


def run(folder: Path, options: Sequence[str]) -> int:
    """Run them, with the queue and the results in a folder."""
    groups.fill(folder / "groups")
    began, busy_before = time.monotonic(), busy_seconds()
    with (folder / "results").open("ab") as results:
        descriptor = results.fileno()
        running = [
            Lane(
                name,
                [
                    "-p",
                    "tests.e2e.groups",
                    f"--file-queue={folder}",
                    f"--lane={kind}",
                    "--file-results",
                    str(descriptor),
                    str(HERE),
                    *options,
                ],
                [descriptor],
            )
            for name, kind in LANES.items()
        ]
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not interrupted.is_set():
            interrupted.set()
            for lane in running:
                lane.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    ended = [lane.wait() for lane in running]
    failures = [line for lane in running for line in lane.failures]
    print(*failures, sep="", end="")
    if not interrupted.is_set() and deserve_a_second_look(failures, ended):
        print(f"== again, alone: {len(failures)}", flush=True)
        again = Lane("again", [*map(failed_test, failures), *options])
        running.append(again)
        # No test to run again would be a failure that nobody looked at.
        ended = [_FAILED if (status := again.wait()) == _NOTHING_CHOSEN else status]
    print(*by_file((folder / "results").read_text().splitlines()), sep="\n")
    seconds, busy = time.monotonic() - began, busy_seconds() - busy_before
    print(f"processors: busy for {busy:.0f} s of {os.cpu_count()} times {seconds:.0f} s")
    print(summary(running, interrupted=interrupted.is_set()), flush=True)
    return status_of(ended)


def by_file(results: Iterable[str]) -> list[str]:
    """A line for each file: its seconds, those of processors, and its tests. What ended before its
    last test is in the second figure, and each vLLM, but no service of a machine with systemd."""
    files = []
    for result in map(json.loads, results):
        costs = [result["imported"], *result["tests"].values()]
        seconds, processor = map(sum, zip(*costs, strict=True))
        files.append((seconds, processor, len(result["tests"]), Path(result["file"]).name))
    return [
        f"{seconds:7.1f} s, processors {processor:6.1f} s, {tests:3} tests  {name}"
        for seconds, processor, tests, name in sorted(files, reverse=True)
    ]


def busy_seconds() -> float:
    """For how long processors of this machine have worked, all of them together."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def failed_test(line: str) -> str:
    """The test that a line of pytest's summary says failed."""
    return line.partition(" ")[2].partition(" - ")[0].strip()


def deserve_a_second_look(failures: Sequence[str], ended: Sequence[int]) -> bool:
    """Whether so few tests failed, and nothing else went wrong, that each runs again."""
    return {*ended} <= {0, _NOTHING_CHOSEN, _FAILED} and 0 < causes(failures) <= _SECOND_LOOK


def causes(failures: Sequence[str]) -> int:
    """How many things went wrong: where a fixture fails, each test that needs it says the same."""
    errors = {
        line.partition("::")[0] + line.partition(" - ")[2]
        for line in failures
        if line.startswith("ERROR ")
    }
    return len(errors) + sum(line.startswith("FAILED ") for line in failures)


def status_of(ended: Sequence[int]) -> int:
    """Of the whole: 0 when all went well, though the options may have left nothing to some."""
    if any(status not in (0, _NOTHING_CHOSEN) for status in ended):
        return 1
    return min(ended)


def summary(running: Sequence[Lane], *, interrupted: bool) -> str:
    """The last line; tests that failed and passed when they ran again count as both."""
    counts: Counter[str] = sum((lane.counts for lane in running), Counter())
    words = [f"{counts[word]} {word}" for word in ("failed", "error", "passed") if counts[word]]
    seconds = "; ".join(f"{lane.name}: {lane.seconds:.0f} s" for lane in running)
    begun = "interrupted: " if interrupted else ""
    return f"== {begun}{', '.join(words) or 'no test'} ({seconds})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
