"""A report of many targets is the same however many processes share the work."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from specwatch.report.model import Report
from specwatch.store.repository import Store
from tests.cli import history

TARGETS = [f"chat-{number}" for number in range(9)]
SINCE, UNTIL = history.T0 + 26 * 3600, history.T0 + 52 * 3600
"""Hours, of which the period before is longer than a day, too."""
SCRIPT = """
import os, sys
from specwatch.cli.report import made
from specwatch.runtime import workers
import msgspec

url, since, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
copies, reports = [], []
os.register_at_fork(after_in_parent=lambda: copies.append(1))
for processors, forked in (2, 2), (1, 2):
    workers._processors = lambda: processors
    told = []
    reports.append(made(
        url, None, since=since, until=until, now=until,
        progress=lambda done, of, name: told.append((done, of)),
    ))
    assert told == [(done, 9) for done in range(10)], told
    assert len(copies) == forked, copies
    # It has connections of its own again.
    assert made(url, None, since=since, targets=["chat-0"]).targets
sys.stdout.buffer.write(msgspec.json.encode(reports))
"""
"""In a process of its own, as the one of these tests has several threads."""


def reports(url: str) -> list[Report]:
    """By two processes, and by one."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, str(SINCE), str(UNTIL)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return msgspec.json.decode(done.stdout, type=list[Report])


def test_several_processes_make_the_report_of_one(url: str) -> None:
    minutes = [
        window
        for at in range(0, 52 * 60, 60)
        for name in TARGETS
        for window in history.minute(at, target=name)
    ]
    history.fill(url, minutes)
    store = Store(url, daemon="left")
    store.open(UNTIL)
    store.roll_up(UNTIL + 3600)
    store.close(UNTIL)
    by_two, by_one = reports(url)
    assert [target.target for target in by_two.targets] == TARGETS
    assert by_two == by_one
