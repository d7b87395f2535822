"""An experiment on the live traffic of a real vLLM finds what a bench of two servers does."""

from __future__ import annotations

import json
import math
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartSwitched, StartVllm
from tests.e2e.processes import DaemonProcess, specwatch
from tests.e2e.switching import Traffic, ask, seconds_per_token
from tests.e2e.waiting import eventually
from tests.lab.vllm_server import VllmServer

EPISODES = 6
"""Of the experiment: the fewest that have an interval. An arm that certainly loses before is
dropped, and no episode follows."""
TURNS, TURN_SECONDS = 6, 3.0
"""Of the bench on each server, and how long one of them asks."""
ARM = 1
TWICE_THE_ERROR = 2.6
"""Standard errors of a mean of six: the quantile of Student's t for 95 %."""


def turn(server: VllmServer) -> float:
    """Logarithm of the time per token of one turn."""
    before = seconds_per_token(server)
    with Traffic(server.url, clients=2).running():
        time.sleep(TURN_SECONDS)
    seconds, tokens = (a - b for a, b in zip(seconds_per_token(server), before, strict=True))
    return math.log(seconds / tokens)


def bench(arm: VllmServer, launch: VllmServer) -> tuple[float, float]:
    """Log speedup of a server against another one, and its half width at 95 %: one asks at a
    time, in turns whose order changes."""
    differences = []
    for number in range(TURNS):
        pair = [arm, launch] if number % 2 else [launch, arm]
        paces = {server.url: turn(server) for server in pair}
        differences.append(paces[launch.url] - paces[arm.url])
    error = statistics.stdev(differences) / math.sqrt(TURNS)
    return statistics.fmean(differences), TWICE_THE_ERROR * error


@pytest.mark.parametrize("draft", ["draft-good"])
def test_it_finds_what_a_bench_in_turns_finds(
    start_switched: StartSwitched, start_vllm: StartVllm, tmp_path: Path, draft: str
) -> None:
    database = f"sqlite:///{tmp_path}/specwatch.db"
    with ExitStack() as stack:
        switched = stack.enter_context(start_switched(draft))
        other = stack.enter_context(start_vllm(speculation=draft, k=ARM))
        experiment = {"arms": [ARM], "block": "8s", "share": "50%", "regret": "100%"}
        config = {"targets": [switched.target | {"experiments": experiment}]}
        daemon = stack.enter_context(DaemonProcess.configured(tmp_path, database, config))
        with Traffic(switched.server.url, clients=2).running() as traffic:

            def status() -> dict[str, Any]:
                known: dict[str, Any] = daemon.status()["targets"][0]["experiment"] or {}
                return known

            def enough() -> bool:
                known = status()
                found = known.get("speedups", {}).get(str(ARM))
                return known.get("episodes", 0) >= EPISODES or bool(found and found["upper"] < 1)

            eventually(enough, what="enough episodes", within=600, every=1.0, evidence=status)
            at_the_end = status()
            done = specwatch(
                "experiment", "stop", "chat", "--database", database, "--reason", "a bench"
            )
            assert done.returncode == 0, done.stderr
            eventually(
                lambda: ask(switched.server, "GET")[1]["draft_tokens"] is None,
                what="vLLM is back at its launch",
                within=30,
            )
        traffic.check()
        daemon.stop()
        log_speedup, half = bench(other, switched.server)
    shown = specwatch("experiment", "results", "chat", "--database", database, "--json")
    (arm,) = json.loads(shown.stdout)["arms"]
    found = arm["speedup"]
    print(
        f"{draft}, {ARM} against 4 draft tokens: {at_the_end['episodes']} episodes say"
        f" {found['lower']:.3f} to {found['upper']:.3f}, {TURNS} turns on two servers"
        f" {math.exp(log_speedup - half):.3f} to {math.exp(log_speedup + half):.3f}"
    )
    assert found["lower"] < math.exp(log_speedup + half)
    assert math.exp(log_speedup - half) < found["upper"]
