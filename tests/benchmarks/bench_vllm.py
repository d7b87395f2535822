"""Throughput of the real vLLM with and without the tap and an idle switch, in turns.

Needs the lab (``make lab``). All servers run all the while; only one of them has work at a time.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.figure import Figure
from tests.e2e.switching import prepare
from tests.lab import vllm_install as lab
from tests.lab.traffic import requests_at, send_all
from tests.lab.vllm_server import VllmServer, speculation_flags

_ROUNDS = 16
_REQUESTS = 64
_TOKENS = 48
_CONCURRENCY = 4
_BARE = "without the tap"
_T = 2.13
"""Student's t of 15 degrees of freedom, 95 %."""


def run() -> list[Figure]:
    """Tokens a second of a closed loop of streams, in turn without the tap, with it, and with the
    switch as well."""
    if not lab.is_installed():
        raise RuntimeError(f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it")
    lab.add_checkout(lab.vllm_folder())
    models = lab.tiny_models(lab.vllm_folder())
    with tempfile.TemporaryDirectory() as folder:
        speculation = speculation_flags(models, "draft-good", 4)
        switch, environment = prepare(Path(folder), speculation)
        servers = {
            name: VllmServer(
                lab.vllm_folder(), models, Path(folder) / f"{number}.log", *flags,
                environment=environment if flags is switch else None,
            )
            for number, (name, flags) in enumerate({
                _BARE: speculation,
                "the tap": [*speculation, "--middleware", "specwatch.tap.Tap"],
                "tap and idle switch": switch,
            }.items())
        }  # fmt: skip
        try:
            for server in servers.values():
                server.start()
            for server in servers.values():
                server.wait_healthy()
                _run(server)
            return _compare(servers)
        finally:
            for server in servers.values():
                server.stop()


def _compare(servers: Mapping[str, VllmServer]) -> list[Figure]:
    names = list(servers)
    rounds: list[dict[str, _Run]] = []
    for number in range(_ROUNDS):
        order = names if number % 2 else names[::-1]
        rounds.append({name: _run(servers[name]) for name in order})
    figures = []
    for quantity, unit in _UNITS.items():
        what = "throughput" if quantity == "throughput" else f"mean {quantity.upper()}"
        bare = [getattr(run[_BARE], quantity) for run in rounds]
        figures.append(Figure(f"real vLLM: {what} {_BARE}", statistics.median(bare), unit))
        for name in names[1:]:
            ratios = [
                math.log(getattr(run[name], quantity) / of_bare)
                for run, of_bare in zip(rounds, bare, strict=True)
            ]
            middle = statistics.mean(ratios)
            error = _T * statistics.stdev(ratios) / math.sqrt(_ROUNDS)
            for label, log in (("", middle), (", from", middle - error), (", to", middle + error)):
                figures.append(Figure(f"  more with {name}{label}", 100 * math.expm1(log), "%"))
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
