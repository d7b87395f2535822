"""``specwatch calibrate`` against simulated servers over HTTP, one of them with the tap."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run, bare_machine, database, run
from tests.cli.test_calibrate import QUICK, inside
from tests.simulated_load import server

__all__ = ["bare_machine", "database", "run"]


def test_a_tap_separates_concurrent_temperatures(run: Run, database: str) -> None:
    with server() as off, server(speculates=True, middleware=("specwatch_tap.Tap",)) as tapped:
        done = run(
            "calibrate",
            "--off",
            off.url,
            "--on",
            tapped.url,
            "--concurrency",
            2,
            "--json",
            "--temperature",
            "0,1.2",
            "--dry-run",
            "--database",
            database,
            *QUICK,
            "--max-tokens",
            "40",
            "--duration",
            "1500ms",
        )
        truth = [tapped.engine.true_speedup(temperature, 2) for temperature in (0.0, 1.2)]
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    cold, hot = report["comparison"]["buckets"]
    assert (cold["temperature"], hot["temperature"]) == ("0", ">1")
    assert cold["speedup"]["lower"] > hot["speedup"]["upper"]
    # This machine may be busy with others; how exact it is, virtual time tells.
    assert inside(cold["speedup"], truth[0], 0.3)
    assert inside(hot["speedup"], truth[1], 0.3)
    assert report["stored"] is None
    assert not Path(database.removeprefix("sqlite:///")).exists()
