"""Commands as processes: a bench that is interrupted, and a pipe that is closed."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import bare_machine, database, experiments, specwatch
from tests.cli.test_bench import QUICK
from tests.hostile import wait_for
from tests.simulated_load import COSTS, server

__all__ = ["bare_machine", "database", "specwatch"]


def test_a_process_that_is_interrupted_keeps_what_was_measured(database: str) -> None:
    """Of the load that runs; its requests are aborted."""
    with server(costs=COSTS.scaled(0.2)) as running:
        words = ("bench", "--target", running.url, "--concurrency", "2", "--database", database)
        process = subprocess.Popen(
            [sys.executable, "-m", "specwatch", *words, *QUICK, "--duration", "20s"],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for(lambda: len(running.engine.log) >= 50)
            process.send_signal(signal.SIGINT)
            out, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
        with running.synced() as engine:
            assert engine.running + engine.waiting == 0
    assert process.returncode == 1
    assert stderr.strip().endswith("interrupted: what follows was not measured")
    assert "stored as result 1" in out
    (kept,) = experiments(database)
    assert not kept.complete
    assert kept.levels[0].requests > 0


def test_a_closed_pipe_prints_no_error(specwatch: list[str]) -> None:
    page = Path(__file__).parents[2] / "data/vllm-0.32-draft-k4.2.prom"
    line = f"{shlex.join([*specwatch, 'scrape', str(page)])} | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("tiny\n", "")
