"""Daemons, each a process, that start at once on an empty database get along."""

from __future__ import annotations

import subprocess
import sys

from tests.fixtures import OpenStore
from tests.store.examples import read

DAEMONS = """
import os, sys
from specwatch.store.repository import Store
from tests.store.examples import T0, batch, cursor, minute
url, *names = sys.argv[1:]

def live(daemon):
    store = Store(url, daemon=daemon)
    store.open(0)
    for n in range(20):
        windows = [minute(T0 + 60 * n, daemon=daemon, target=t) for t in (daemon, "shared")]
        store.write([batch(*windows, cursor=cursor(daemon, value=n))], 0)
    store.roll_up(T0 + 4000)
    store.close(0)

together, start = os.pipe()
daemons = []
for name in names:
    process = os.fork()
    if not process:
        os.close(start)
        os.read(together, 1)
        live(name)
        sys.exit()
    daemons.append(process)
os.close(start)
sys.exit(any([os.waitpid(daemon, 0)[1] for daemon in daemons]))
"""
"""Each is a process of its own, forked once everything is loaded: they begin at one moment."""


def test_four_daemons_can_start_at_once_on_an_empty_database(
    empty_url: str, open_store: OpenStore
) -> None:
    names = [f"daemon{n}" for n in range(4)]
    done = subprocess.run(
        [sys.executable, "-c", DAEMONS, empty_url, *names],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    store = open_store(empty_url)
    assert store.info().rows == {
        "runs": 5,
        "series": 8,
        "contexts": 1,
        "layouts": 1,
        "minute_counts": 160,
        "hour_counts": 8,
        "cursors": 4,
        "baselines": 0,
        "verdicts": 0,
        "guards": 0,
        "guard_steps": 0,
        "experiments": 0,
        "members": 0,
        "watched_targets": 0,
    }
    assert len(read(store)) == 100
