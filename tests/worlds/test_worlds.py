"""A few hours of two worlds: what the long runs show of a thousand must show here already."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from specwatch.core.baseline import Baseline, Measurement
from specwatch.core.breakeven import Assessment, assess
from specwatch.core.interval import Interval
from specwatch.core.sample import Sample, samples_of
from specwatch.model import ALL_TEMPERATURES, Mode
from specwatch.ruling import Condition
from specwatch.simulated.profile import SimulatedProfile
from tests.worlds.cache import trace_of
from tests.worlds.coverage import baseline_of, measure, samples_in
from tests.worlds.ours import SPEEDUP_RULES, Ours, calibrated
from tests.worlds.recording import record
from tests.worlds.score import Life, Score, Truth, live, score_of, truth_of
from tests.worlds.seen import Policy, Seen
from tests.worlds.simple import SIMPLE, Gate
from tests.worlds.trace import Trace
from tests.worlds.world import HOUR, WORLDS, World

HOURS = 3
DROP = HOURS / 2 * HOUR
SUDDEN = SimulatedProfile(((0.0, 1.0), (DROP, 1.0), (DROP + 1, 0.35), (2 * DROP, 0.35)))
WORLD = World(
    "short",
    "helps for half the time, then hurts",
    dataclasses.replace(WORLDS["drop"].settings, drift=SUDDEN),
    period=2 * DROP,
    grain=DROP,
)
STEADY = WORLDS["helps"]

Traces = dict[Mode, Trace]


@pytest.fixture(scope="module")
def traces() -> Traces:
    return {mode: record(WORLD, mode, HOURS) for mode in (Mode.ON, Mode.OFF)}


@pytest.fixture(scope="module")
def measurements() -> list[Measurement]:
    return calibrated(WORLD, (0.3, 1.0, 2.0))


def score(policy: Policy, traces: Traces) -> Score:
    on, off = traces[Mode.ON], traces[Mode.OFF]
    return score_of(WORLD, policy.name, live(WORLD, policy, on, off), truth_of(WORLD, on, off))


def test_the_truth_is_what_the_engine_says(traces: Traces) -> None:
    """Helped before and hurts after, by about what step cost and acceptance come to."""
    truth = truth_of(WORLD, traces[Mode.ON], traces[Mode.OFF])
    assert truth.speedup[0] == pytest.approx(1.48, abs=0.06)
    assert truth.speedup[-1] == pytest.approx(0.73, abs=0.05)
    engine = WORLD.engine(speculating=True)
    lengths = [
        engine.true_acceptance_length(temperature)
        for temperature, _ in WORLD.settings.traffic.temperatures
    ]
    assert min(lengths) < truth.speedup[0] * engine.true_step_cost(2) < max(lengths)


def test_ours_waits_for_the_drop_and_is_off_soon_after(
    traces: Traces, measurements: list[Measurement]
) -> None:
    policy = Ours(measurements)
    found = score(policy, traces)
    assert policy.breaches[0] >= 60 * HOURS / 2
    assert (found.false_disables, found.missed, found.switches) == (0, 0, 1)
    assert 1 <= found.delays[0] <= 12
    assert found.regret < 0.04
    simple = [score(make(), traces).regret for name, make in SIMPLE.items() if name != "gate"]
    assert found.regret < min(simple)


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(Condition(metric="speedup_ratio", below=0.3), id="blind"),
        pytest.param(Condition(metric="acceptance_ratio", above=0.1), id="the wrong way round"),
    ],
)
def test_the_harness_tells_a_policy_that_is_broken(
    condition: Condition, traces: Traces, measurements: list[Measurement]
) -> None:
    """The very failures that would cost a user most must not look well here."""
    broken = SPEEDUP_RULES[0].model_copy(update={"conditions": (condition,)})
    found = score(Ours(measurements, rules=[broken]), traces)
    assert found.false_disables >= 1 or not found.delays
    assert found.regret > 0.1


def test_without_a_baseline_low_acceptance_is_all_there_is(traces: Traces) -> None:
    """Nothing is measured, so the folklore rules, with all that it gets wrong."""
    policy = Ours([])
    found = score(policy, {mode: each.upto(40) for mode, each in traces.items()})
    assert policy.reasons[0][1] == "low-acceptance"
    assert found.false_disables == 1


def test_a_gate_never_comes_back_but_with_a_new_process(traces: Traces) -> None:
    gate = Gate()
    decisions = [gate.decide(Seen(minute, traces[Mode.ON])) for minute in range(60 * HOURS)]
    assert decisions.index(False) - 60 * HOURS // 2 in range(1, 5)
    assert not any(decisions[decisions.index(False) :])
    gate.deployed()
    assert gate.decide(Seen(0, traces[Mode.ON]))


def life(modes: str) -> Life:
    on = np.array([each == "1" for each in modes])
    down = np.concatenate([[False], on[1:] != on[:-1]])
    return Life(on, down, frozenset())


@pytest.mark.parametrize(
    ("modes", "false", "delays", "missed", "regret"),
    [
        pytest.param("1111110000", 0, (1,), 0, (40 + 60) / 400, id="a minute late"),
        pytest.param("1111111000", 0, (2,), 0, (2 * 40 + 60) / 400, id="two minutes late"),
        pytest.param("1111111111", 0, (), 0, 5 * 40 / 400, id="never off"),
        pytest.param("1100000000", 1, (), 0, (3 * 20 + 60) / 400, id="off while it helps"),
    ],
)
def test_scores_are_what_they_are_said_to_be(
    modes: str, false: int, delays: tuple[int, ...], missed: int, regret: float
) -> None:
    """Five minutes at a speedup of 1.5, then five at a half, of forty seconds each."""
    speedup = np.array([1.5] * 5 + [0.5] * 5)
    best = np.full(10, 40.0)
    truth = Truth(speedup, best, best * np.maximum(1 / speedup, 1), best * np.maximum(speedup, 1))
    found = score_of(WORLD, "any", life(modes), truth)
    assert (found.false_disables, found.delays, found.missed) == (false, delays, missed)
    assert found.regret == pytest.approx(regret)


def test_windows_of_temperatures_add_up_to_those_of_all(traces: Traces) -> None:
    """But for requests under way, which a tap counts when they have ended."""
    on = traces[Mode.ON]
    samples = samples_in(on)
    seen = sum(part.drafts or 0 for each in samples for part in each.buckets.values())
    counted = sum(each.tally.drafts or 0 for each in samples)
    assert seen <= counted
    assert seen == pytest.approx(counted, rel=0.001)
    windows = on.windows(30)
    assert windows[0].series.temperature == ALL_TEMPERATURES
    pace = samples_of(windows)[0].pace
    assert pace is not None
    assert pace.seconds == pytest.approx(on.seconds[30])
    assert pace.tokens == pytest.approx(on.tokens[30])


def test_a_longer_trace_on_disk_serves_for_a_shorter_one(tmp_path: Path) -> None:
    longer = trace_of(STEADY, Mode.ON, 1, room=tmp_path).upto(30)
    asked: list[int] = []
    again = trace_of(STEADY, Mode.ON, 1, room=tmp_path, progress=asked.append).upto(30)
    assert not asked
    assert again.windows(29) == longer.windows(29)
    trace_of(WORLDS["hurts"], Mode.ON, 1, room=tmp_path, progress=asked.append)
    assert asked == [60]


@pytest.fixture(scope="module")
def steady() -> dict[Mode, list[Sample]]:
    return {mode: samples_in(record(STEADY, mode, 3)) for mode in (Mode.ON, Mode.OFF)}


def test_intervals_contain_the_truth(steady: dict[Mode, list[Sample]]) -> None:
    """The long runs say 93 to 97 %; here a hundred of ten minutes, and room for chance."""
    (found,) = [
        each
        for each in measure("steady", steady[Mode.ON], steady[Mode.OFF], lengths=(10,), runs=100)
        if each.figure == "S"
    ]
    assert found.share >= 0.86
    assert found.mean == pytest.approx(found.truth, rel=0.02)


def test_the_harness_tells_intervals_that_are_too_narrow(steady: dict[Mode, list[Sample]]) -> None:
    def boastful(samples: object, baseline: Baseline) -> Assessment:
        found = assess(samples, baseline)  # type: ignore[arg-type]
        if found.speedup is None:
            return found
        value, half = found.speedup.value, (found.speedup.upper - found.speedup.lower) / 6
        narrow = Interval(value, value - half, value + half, found.speedup.samples)
        return dataclasses.replace(found, speedup=narrow)

    (found,) = [
        each
        for each in measure(
            "steady", steady[Mode.ON], steady[Mode.OFF], lengths=(10,), runs=100, judge=boastful
        )
        if each.figure == "S"
    ]
    assert found.share < 0.8


def test_speedups_of_temperatures_add_up_to_that_of_all(steady: dict[Mode, list[Sample]]) -> None:
    """Though a step counts in full where it goes beyond the end of a short output."""
    on = steady[Mode.ON]
    found = assess(on, baseline_of(steady[Mode.OFF]))
    assert found.speedup is not None
    tokens = {
        label: sum((part.generation_tokens or 0) - sum(part.requests.values()) for part in parts)
        for label in found.buckets
        if (parts := [each.buckets[label] for each in on if label in each.buckets])
    }
    time = sum(tokens[label] / each.speedup.value for label, each in found.buckets.items())
    assert sum(tokens.values()) / time == pytest.approx(found.speedup.value, rel=0.01)
