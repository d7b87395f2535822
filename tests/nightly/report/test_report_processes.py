"""A report of many targets is the same however many processes share the work, and wherever it is
stored."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from specwatch.report.model import Report
from specwatch.report.reader import read_report
from specwatch.store.readers import Reader
from tests.cli import history
from tests.fixtures import OpenStore
from tests.postgres import PostgresServer

TARGETS = [f"chat-{number}" for number in range(8)]
SINCE, UNTIL = history.T0 + 8 * 3600, history.T0 + 16 * 3600
"""Too long to be read as minutes."""
SCRIPT = """
import os, sys
from specwatch.report.model import Report
from specwatch.report.reader import read_report
from specwatch.runtime import workers
from specwatch.store.readers import Reader
import msgspec

url, since, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
reader, copies, told = Reader.of(url), [], []
os.register_at_fork(after_in_parent=lambda: copies.append(1))
workers._processors = lambda: 2
report = read_report(
    reader, since=since, until=until, now=until,
    progress=lambda done, of, name: told.append((done, of)),
)
assert told == [(done, 8) for done in range(9)], told
assert len(copies) == 2, copies
# It has connections of its own again.
assert read_report(reader, since=since, until=until, now=until, targets=["chat-0"]).targets
reader.close()
sys.stdout.buffer.write(msgspec.json.encode(report))
"""
"""In a process of its own, as the one of these tests has several threads."""


def test_several_processes_make_the_report_of_one(
    postgres: PostgresServer, open_store: OpenStore, url: str
) -> None:
    """Connections to Postgres would be of no use to two processes; nor do its rows differ."""
    minutes = [
        window
        for at in range(0, 16 * 60, 120)
        for name in (TARGETS if at > 12 * 60 else TARGETS[:1])
        for window in history.minute(at, target=name)
    ]
    with postgres.lent_url() as lent:
        for database in (lent, url):
            history.fill(database, minutes)
            open_store(database, now=UNTIL).roll_up(history.T0 + 15 * 3600)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, lent, str(SINCE), str(UNTIL)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")
    by_two = msgspec.json.decode(done.stdout, type=Report)
    assert [target.target for target in by_two.targets] == TARGETS
    reader = Reader.of(url)
    assert read_report(reader, since=SINCE, until=UNTIL, now=UNTIL) == by_two
    reader.close()
