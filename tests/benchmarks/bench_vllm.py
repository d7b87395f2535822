"""Throughput of the real vLLM with and without the tap, and with an idle switch, in turns.

Needs the lab (``make lab``). One server serves both with the tap and without it, by the key of a
request: two equal servers differ by more than the tap costs, as the second one without it shows.
All servers run all the while; only one has work at a time, in many short turns, whose order is
reversed each time. Before each turn the same arm has some work that does not count: a server that
was idle is slower at first. Seeds make all turns draft and accept alike. Beside it the CPU time of
the API server, on which other work on the machine has less influence.
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
from tests.benchmarks.optional_tap import WITHOUT, OptionalTap
from tests.e2e.switching import prepare
from tests.lab import vllm_install as lab
from tests.lab.traffic import requests_at, send_all
from tests.lab.vllm_server import VllmServer, speculation_flags

_ROUNDS = 60
_REQUESTS = 24
_TOKENS = 48
_CONCURRENCY = 4
_WARM_UP = 8
"""Requests before each turn that do not count."""
_BARE = "without the tap"
_CHECKOUT = Path(__file__).parents[2]
_T = 2.0
"""Student's t of 59 degrees of freedom, 95 %."""


def run() -> list[Figure]:
    """Tokens a second of a closed loop of streams, in turn without the tap, with it, and with the
    switch as well."""
    if not lab.is_installed():
        raise RuntimeError(f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it")
    lab.add_tap(lab.vllm_folder())
    models = lab.tiny_models(lab.vllm_folder())
    with tempfile.TemporaryDirectory() as folder:
        speculation = speculation_flags(models, "draft-good", 4)
        switch, environment = prepare(Path(folder), speculation)
        tap = ["--middleware", f"{OptionalTap.__module__}.{OptionalTap.__name__}"]
        path = {"PYTHONPATH": str(_CHECKOUT)}
        first, switched, second = servers = [
            VllmServer(
                lab.vllm_folder(),
                models,
                Path(folder) / f"{number}.log",
                *flags,
                environment=variables,
            )
            for number, (flags, variables) in enumerate(
                [
                    ([*speculation, *tap], path),
                    (switch, environment),
                    ([*speculation, *tap], path),
                ]
            )
        ]
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_healthy()
                _run(server, None, _REQUESTS)
            return _compare(
                {
                    _BARE: (first, WITHOUT),
                    "the tap": (first, None),
                    "tap and idle switch": (switched, None),
                    "a second server without either": (second, WITHOUT),
                }
            )
        finally:
            for server in servers:
                server.stop()


def _compare(arms: Mapping[str, tuple[VllmServer, str | None]]) -> list[Figure]:
    names = list(arms)
    rounds: list[dict[str, _Run]] = []
    for number in range(_ROUNDS):
        order = names if number % 2 else names[::-1]
        rounds.append({name: _turn(*arms[name]) for name in order})
    figures = []
    for quantity, unit in _UNITS.items():
        what = _NAMES.get(quantity, f"mean {quantity.upper()}")
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
    """What one closed loop of streams measured, on the clients' clocks; the API server's CPU time
    of a request."""

    throughput: float
    ttft: float
    tpot: float
    cpu: float


_UNITS = {"throughput": "tokens/s", "ttft": "s", "tpot": "s", "cpu": "ms"}
_NAMES = {"throughput": "throughput", "cpu": "CPU time of a request in the API server"}


def _turn(server: VllmServer, key: str | None) -> _Run:
    _run(server, key, _WARM_UP)
    return _run(server, key, _REQUESTS)


def _run(server: VllmServer, key: str | None, count: int) -> _Run:
    requests = requests_at(
        (0.0, 0.7, 1.2), count, stream=True, max_tokens=_TOKENS, more={"seed": 1}
    )
    clock = (~server.pid << 3) | 2  # what clock_getcpuclockid(3) gives
    began, used = time.perf_counter(), time.clock_gettime(clock)
    outcomes = send_all(server.url, requests, _CONCURRENCY, key=key)
    seconds, used = time.perf_counter() - began, time.clock_gettime(clock) - used
    failed = [outcome.error for outcome in outcomes if not outcome.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first with: {failed[0]}")
    return _Run(
        count * _TOKENS / seconds,
        statistics.mean(outcome.ttft or 0.0 for outcome in outcomes),
        statistics.mean(
            ((outcome.last_token or 0.0) - (outcome.ttft or 0.0)) / (_TOKENS - 1)
            for outcome in outcomes
        ),
        1e3 * used / count,
    )
