"""All end-to-end tests, in processes side by side: ``python -m tests.e2e [pytest options]``.

Two have the tests that wait most of the time: one for timeouts and for restarts, the other for
whole minutes of what it watches. They yield the processor a little to the third, which has those
that work and measure. The exit status is 0 if all passed; the last line counts the tests. An
interrupt ends all, in order.

Two processors are few for so many servers and their clients, and a few tests measure: up to
``_SECOND_LOOK`` tests or fixtures that fail run again, with nothing beside them, and what fails
again has failed. They are named in any case: each is a race in a test or in the product.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.lab import vllm_install as lab

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
WORKS = "works"
WAITING = {
    # The first beside what measures latency: they hardly take any time of a processor.
    "waits": (
        "test_alertmanager.py", "test_systemd.py", "test_guard.py", "test_guard_failures.py",
        "test_guard_helper.py", "test_systemd_words.py", "test_guard_killed.py",
        "test_supervised.py", "test_switch_guard.py", "test_experiment.py",
    ),
    "watches": (
        "test_stores.py", "test_report_timer.py", "test_backfill.py", "test_tap_daemon.py",
        "test_watching.py", "test_demo.py", "test_kubernetes.py", "test_fleet.py",
        "test_group_restarts.py", "test_llama.py",
        # These work, and keep all three as long as one another.
        "test_report_pages.py", "test_dashboard_schema.py", "test_strip.py", "test_wheel.py",
        "test_kubernetes_files.py", "test_discovery.py", "test_workloads.py",
    ),
}  # fmt: skip
SHARING = (
    # What measures first; who shares a server with another comes after it.
    "test_calibrate.py", "test_alert_routing.py", "test_lab.py",
    "test_tap_clients.py", "test_queries.py",
    "test_tap.py", "test_tap_proxy.py",
)  # fmt: skip
"""Of the others those that come first."""
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


def lanes() -> dict[str, list[str]]:
    """The files of each process, in their order; every file is in one."""
    files = {file.name for file in HERE.glob("test_*.py")}
    named = {*SHARING}.union(*WAITING.values())
    if unknown := named - files:
        raise SystemExit(f"{__file__} names files that are not there: {', '.join(sorted(unknown))}")
    waiting = {name: list(own) for name, own in WAITING.items()}
    return {WORKS: [*SHARING, *sorted(files - named)], **waiting}


class Lane:
    """One pytest, whose output is passed on line by line under its name."""

    def __init__(self, name: str, tests: Sequence[str], options: Sequence[str]) -> None:
        self.name = name
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        """Tests by their outcome, in pytest's words."""
        self.failures: list[str] = []
        """pytest's line for each test that failed."""
        niceness = _YIELDS if name in WAITING else 0
        # Its own session: an interrupt comes once, from us. When we are killed, it ends too.
        command = [
            "setpriv", "--pdeathsig", "INT", "nice", "-n", str(niceness),
            sys.executable, "-u", "-m", "pytest", "-p", "tests.plugins.no_skips",
            "-o", f"cache_dir=.pytest_cache/e2e-{name}", *tests, *options,
        ]  # fmt: skip
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
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
    lab.add_checkout(lab.install())
    running = [
        Lane(name, [f"tests/e2e/{file}" for file in files], options)
        for name, files in lanes().items()
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
        again = Lane("again", [failed_test(line) for line in failures], options)
        running.append(again)
        # No test to run again would be a failure that nobody looked at.
        ended = [_FAILED if (status := again.wait()) == _NOTHING_CHOSEN else status]
    print(summary(running, interrupted=interrupted.is_set()), flush=True)
    return status_of(ended)


def failed_test(line: str) -> str:
    """The test that a line of pytest's summary says failed."""
    return line.partition(" ")[2].partition(" - ")[0].strip()


def deserve_a_second_look(failures: Sequence[str], ended: Sequence[int]) -> bool:
    """Whether so few tests failed, and nothing else went wrong, that each runs again."""
    return {*ended} <= {0, _NOTHING_CHOSEN, _FAILED} and 0 < causes(failures) <= _SECOND_LOOK


def causes(failures: Sequence[str]) -> int:
    """How many things went wrong: where a fixture fails, each test that needs it says the same."""
    errors = {line.partition("::")[0] + line.partition(" - ")[2]
              for line in failures if line.startswith("ERROR ")}  # fmt: skip
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
