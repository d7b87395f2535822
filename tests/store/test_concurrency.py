"""Several daemons that start at once on an empty database get along."""

from __future__ import annotations

import subprocess
import sys

from .conftest import OpenStore
from .examples import read

DAEMON = """
import sys
from specwatch.edges.store import Store
from tests.store.examples import T0, batch, cursor, minute
daemon = sys.argv[2]
store = Store(sys.argv[1], daemon=daemon)
print("ready", flush=True)
sys.stdin.readline()
store.open(0)
for n in range(20):
    windows = [minute(T0 + 60 * n, daemon=daemon, target=t) for t in (daemon, "shared")]
    store.write([batch(*windows, cursor=cursor(daemon, value=n))], 0)
store.roll_up(T0 + 4000)
store.close(0)
"""


def test_four_daemons_can_start_at_once_on_an_empty_database(
    url: str, open_store: OpenStore
) -> None:
    names = [f"daemon{n}" for n in range(4)]
    daemons = [
        subprocess.Popen(
            [sys.executable, "-c", DAEMON, url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for daemon in daemons:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
    for daemon in daemons:
        assert daemon.stdin is not None
        daemon.stdin.write("go\n")
        daemon.stdin.flush()
    assert [daemon.communicate(timeout=180)[1] for daemon in daemons] == [""] * 4
    store = open_store(url)
    assert store.info().rows == {
        "runs": 5, "series": 8, "contexts": 2, "minutes": 160, "hours": 8, "cursors": 4,
        "baselines": 0, "verdicts": 0, "guards": 0, "guard_steps": 0,
        "experiments": 0,
    }  # fmt: skip
    assert len(read(store)) == 100
