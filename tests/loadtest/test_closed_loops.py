"""A closed loop does not favour short requests: two equal servers are equally fast."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from specwatch.domain.experiments import Estimate, Level
from specwatch.domain.model import Environment, Mode
from specwatch.lab.loadtest.bench import Load, Stretch, level
from specwatch.lab.loadtest.calibration import Block, Look, Stage
from specwatch.lab.loadtest.compare import compare
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.requests import Answer, Ask
from tests.loadtest.benches import bench

TOKENS = 33
CLIENTS = 4
TURNS = 6
Latency = Callable[[random.Random], float]


def even(_: random.Random) -> float:
    return 1.0


def unlike(chance: random.Random) -> float:
    """A mean of 1 as well, and a deviation of 0.8."""
    spread = math.sqrt(math.log(1 + 0.8**2))
    return chance.lognormvariate(-(spread**2) / 2, spread)


def turn(chance: random.Random, latency: Latency, seconds: float) -> Stretch:
    """Clients that begin with unlike shares of an answer, and go on until ``seconds``."""
    answers = []
    for client in range(CLIENTS):
        share, time = (client + 1) / CLIENTS, 0.0
        while time < seconds:
            ended = time + share * latency(chance)
            tokens = round(share * TOKENS)
            answers.append(
                Answer(Ask("hello", tokens), time, ended, first=time, last=ended, tokens=tokens)
            )
            share, time = 1.0, ended
    looks = [Look({}, time, time, CLIENTS * time) for time in (0.0, 1e-6, seconds, 2 * seconds)]
    results = Stretch.of(Block(tuple(looks), tuple(answers)), TOKENS)
    assert results is not None
    return results


def side(chance: random.Random, latency: Latency, seconds: float, mode: Mode) -> Level:
    stage = Stage(MeasuredModel("tiny", "tiny", mode, Environment("0.32.0", "abc")), CLIENTS)
    turns = [turn(chance, latency, seconds) for _ in range(TURNS)]
    return level(Load(concurrency=CLIENTS), stage, turns, turns=True)


def speedup(seed: str, seconds: float, off: Latency, on: Latency) -> Estimate:
    chance = random.Random(seed)
    without = side(chance, off, seconds, Mode.OFF)
    with_it = side(chance, on, seconds, Mode.ON)
    both = (
        bench("off", [without], interleaved=True),
        bench("on", [with_it], interleaved=True),
    )
    (results,) = compare(*both, version="1").levels
    assert results.speedup is not None
    return results.speedup


def test_servers_with_equal_mean_latency_have_a_speedup_of_1() -> None:
    """Also by short turns, in which long requests seldom end."""
    results = [speedup(f"2.5 {time}", 2.5, even, unlike) for time in range(12)]
    assert fmean(math.log(one.value) for one in results) == pytest.approx(0.0, abs=0.09)
    covered = sum((one.lower or 9) <= 1 <= (one.upper or 0) for one in results)
    assert covered >= 10


def test_latencies_are_those_of_all_requests() -> None:
    """Those that ended in a turn of few latencies would be the short ones among them."""
    chance = random.Random(3)
    results = [side(chance, unlike, 2.5, Mode.OFF).latency for _ in range(20)]
    assert fmean(one.mean for one in results if one is not None) == pytest.approx(1.0, abs=0.1)
