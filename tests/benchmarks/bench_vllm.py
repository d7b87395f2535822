"""Throughput of the real vLLM with and without the tap, as interleaved pairs.

Needs the lab (``make lab``). Both servers run all the while; only one of them has work at a time.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.figure import Figure
from tests.lab import vllm_install as lab
from tests.lab.traffic import requests_at, send_all
from tests.lab.vllm_server import VllmServer

_PAIRS = 16
_REQUESTS = 64
_TOKENS = 48
_CONCURRENCY = 4
_T = 2.13
"""Student's t of 15 degrees of freedom, 95 %."""


def run() -> list[Figure]:
    """Tokens a second of a closed loop of streams, in turn with and without the tap."""
    if not lab.is_installed():
        raise RuntimeError(f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it")
    lab.add_checkout(lab.vllm_folder())
    models = lab.tiny_models(lab.vllm_folder())
    with tempfile.TemporaryDirectory() as folder:
        servers = [
            VllmServer(
                lab.vllm_folder(), models, Path(folder) / f"{name}.log", *flags,
                speculation="draft-good",
            )
            for name, flags in (
                ("bare", ()), ("tapped", ("--middleware", "specwatch.tap.Tap")),
            )
        ]  # fmt: skip
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_healthy()
                _run(server)
            return _compare(*servers)
        finally:
            for server in servers:
                server.stop()


def _compare(bare: VllmServer, tapped: VllmServer) -> list[Figure]:
    runs: list[dict[VllmServer, _Run]] = []
    for pair in range(_PAIRS):
        order = (bare, tapped) if pair % 2 else (tapped, bare)
        runs.append({server: _run(server) for server in order})
    figures = []
    for name, unit in _UNITS.items():
        of_bare = [getattr(run[bare], name) for run in runs]
        ratios = [math.log(getattr(run[tapped], name) / getattr(run[bare], name)) for run in runs]
        middle = statistics.mean(ratios)
        error = _T * statistics.stdev(ratios) / math.sqrt(_PAIRS)
        what = (
            "real vLLM: throughput" if name == "throughput" else f"real vLLM: mean {name.upper()}"
        )
        figures.append(Figure(f"{what} without the tap", statistics.median(of_bare), unit))
        for label, at in (("", middle), (", from", middle - error), (", to", middle + error)):
            figures.append(Figure(f"  more with the tap{label}", 100 * math.expm1(at), "%"))
    return figures


class _Run(NamedTuple):
    """What one closed loop of streams measured, on the clients' clocks."""

    throughput: float
    ttft: float
    tpot: float


_UNITS = {"throughput": "tokens/s", "ttft": "s", "tpot": "s"}


def _run(server: VllmServer) -> _Run:
    requests = requests_at((0.0, 0.7, 1.2), _REQUESTS, stream=True, max_tokens=_TOKENS)
    began = time.perf_counter()
    outcomes = send_all(server.url, requests, _CONCURRENCY)
    seconds = time.perf_counter() - began
    failed = [outcome.error for outcome in outcomes if not outcome.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first with: {failed[0]}")
    return _Run(
        _REQUESTS * _TOKENS / seconds,
        statistics.mean(outcome.ttft or 0.0 for outcome in outcomes),
        statistics.mean(
            ((outcome.last_token or 0.0) - (outcome.ttft or 0.0)) / (_TOKENS - 1)
            for outcome in outcomes
        ),
    )
