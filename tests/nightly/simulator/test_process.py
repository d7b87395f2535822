"""``specwatch simulate`` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import requests

ROOT = Path(__file__).parents[3]


def test_the_command_serves_until_sigterm_and_leaves_with_0() -> None:
    code = "from specwatch.cli.simulate import command; command()"
    arguments = ["M", "--port", "0", "--spec-method", "ngram", "--spec-tokens", "3", "--dtype", "x"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = next(line for line in process.stdout if "simulated vLLM at" in line).split()[-1]
        text = requests.get(f"{url}/metrics", timeout=10).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert 'position="2"' in text
    assert 'position="3"' not in text
