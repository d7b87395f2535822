"""CPU time of the client that ``specwatch bench`` is, beside that of ``vllm bench serve``.

Both put the same load on a simulated server in its own process, in turn: 32 streams at once,
the same model of answers, a short and a long run each. What a run costs beyond its start is the
difference of the two, by the tokens that the server counted. Needs the lab (``make lab``).
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.figure import Figure
from tests.e2e.processes import SimulatedVllm
from tests.lab import vllm_install as lab
from tests.lab.http_get import page
from tests.lab.load_tools import OFFLINE, vllm_bench

_ROOT = Path(__file__).parents[2]
_ROUNDS = 3
_CONCURRENCY = 32
_TOKENS = 64
_SHORT, _LONG = 2, 14
"""Seconds of specwatch's runs; the peer gets as many tokens."""
_STEP = "0.01"
"""Seconds in which the simulated server generates a token of each request."""
_MILLION = 1e6


def run() -> list[Figure]:
    """Microseconds a token and seconds of a start, of both."""
    if not lab.is_installed():
        raise RuntimeError(f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it")
    tokenizer = lab.tiny_models(lab.vllm_folder()) / "target"
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        SimulatedVllm(Path(folder) / "log", "--simulated-step-time", _STEP) as server,
    ):
        server.wait_ready()
        url = server.url
        for _ in range(_ROUNDS):
            runs = [_specwatch(url, seconds) for seconds in (_SHORT, _LONG)]
            ours.append(_apart(runs))
            counts = [round(tokens / _TOKENS) for tokens, _ in runs]
            theirs.append(_apart([_vllm(url, count, tokenizer, folder) for count in counts]))
    mine, peer = (
        [statistics.median(each[at] for each in found) for at in (0, 1)] for found in (ours, theirs)
    )
    what = f"bench: {_CONCURRENCY} streams; peer: vllm bench serve"
    return [
        Figure(f"{what}; a token", mine[0], "µs", peer[0], 1.0, 0.8, of_peer=True),
        Figure(f"{what}; start and end", mine[1], "s", peer[1], 1.0, 0.5, of_peer=True),
    ]


def _apart(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of two runs of so many tokens and CPU seconds: what a token costs (µs), and the rest (s)."""
    (few, short), (many, long) = runs
    each = (long - short) / (many - few)
    return _MILLION * each, short - few * each


def _specwatch(url: str, seconds: float) -> tuple[float, float]:
    return _measured(
        url,
        [
            sys.executable,
            "-m",
            "specwatch",
            "bench",
            "--target",
            url,
            "--dry-run",
            "--concurrency",
            str(_CONCURRENCY),
            "--duration",
            f"{seconds}s",
            "--warm-up",
            "100ms",
            "--max-tokens",
            str(_TOKENS),
            "--temperature",
            "0.7",
        ],
    )


def _vllm(url: str, requests: int, tokenizer: Path, folder: str) -> tuple[float, float]:
    command = vllm_bench(
        lab.vllm_folder(),
        url,
        tokenizer,
        requests=requests,
        concurrency=_CONCURRENCY,
        temperature=0.7,
    )
    more = ("--dataset-name", "random", "--random-input-len", "20", "--result-dir", folder)
    return _measured(url, [*command, *more, "--random-output-len", str(_TOKENS)])


def _measured(url: str, command: Sequence[str]) -> tuple[float, float]:
    """Tokens that the server generated meanwhile, and CPU seconds of the process."""
    before = _tokens(url)
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env={**os.environ, **OFFLINE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with status {process.returncode}")
    return _tokens(url) - before, usage.ru_utime + usage.ru_stime


def _tokens(url: str) -> float:
    pattern = r"^vllm:generation_tokens_total{.*} (\S+)$"
    return sum(map(float, re.findall(pattern, page(f"{url}/metrics"), re.MULTILINE)))
