"""What the simulated engine does is what its truth methods say."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from specwatch.lab.simulator.acceptance import SimulatedAcceptance, acceptance_rate
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedProfile, SimulatedTraffic

TEMPERATURES = (0.0, 0.2, 0.4, 0.7, 0.8, 1.0, 1.3)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def engine_with(batch: int, temperature: float, k: int = 4) -> SimulatedEngine:
    """Always ``batch`` requests with short prompts and long answers at one temperature."""
    traffic = SimulatedTraffic(
        concurrency=batch,
        prompt_tokens=4.0,
        output_tokens=400.0,
        length_shape=0.1,
        temperatures=((temperature, 1.0),),
    )
    return SimulatedEngine(
        SimulatedSettings(
            speculation=SimulatedSpeculation(k), max_num_seqs=256, traffic=traffic, keep_log=True
        )
    )


@pytest.mark.parametrize(
    ("temperature", "reported"), [(0.0, 0.81), (0.4, 0.71), (0.8, 0.52), (1.0, 0.38)]
)
@pytest.mark.parametrize("k", [4, 5])
def test_acceptance_comes_near_the_rates_that_the_field_reports(
    temperature: float, reported: float, k: int
) -> None:
    probability = SimulatedAcceptance().probability(temperature)
    assert acceptance_rate(probability, k) == pytest.approx(reported, abs=0.035)


def test_true_speedup_falls_with_temperature_and_with_the_batch() -> None:
    engine = engine_with(1, 0.0)
    speedups = [
        [engine.true_speedup(temperature, batch) for batch in BATCHES]
        for temperature in TEMPERATURES
    ]
    for row in (*speedups, *zip(*speedups, strict=True)):
        assert all(better > worse for better, worse in pairwise(row))


@pytest.mark.parametrize(("batch", "temperature"), [(1, 0.0), (4, 0.7), (16, 1.0)])
def test_measured_cost_and_acceptance_are_the_true_ones(batch: int, temperature: float) -> None:
    """o(b) = TPOT_on * tau_on / TPOT_off, as the product will compute it, within 4 %."""
    tokens_per_second = {}
    engine = engine_with(batch, temperature)
    tau = 0.0
    for speculation in (True, False):
        engine.restart(speculation=speculation)
        # Past the first wave, whose requests all end at the same time.
        start = engine.now
        engine.advance(start + 40.0)
        tally = engine.tally()
        tokens_per_second[speculation] = (tally.generation_tokens or 0) / 40.0
        if tally.drafts:
            tau = 1 + (tally.accepted_tokens or 0) / tally.drafts
    assert tau == pytest.approx(engine.true_acceptance_length(temperature), rel=0.04)
    speedup = tokens_per_second[True] / tokens_per_second[False]
    assert tau / speedup == pytest.approx(engine.true_step_cost(batch), rel=0.04)
    assert speedup == pytest.approx(engine.true_speedup(temperature, batch), rel=0.06)


def test_tpot_of_the_histogram_shows_the_true_speedup() -> None:
    means = {}
    for speculation in (True, False):
        engine = engine_with(8, 0.0)
        engine.restart(speculation=speculation)
        engine.advance(60.0)
        tpot = engine.tally().tpot
        assert tpot is not None
        means[speculation] = tpot.sum / tpot.count
    assert means[False] / means[True] == pytest.approx(engine.true_speedup(0.0, 8), rel=0.06)


def test_drift_changes_acceptance_over_time() -> None:
    base = engine_with(4, 0.0).settings
    drift = SimulatedProfile(((0.0, 1.0), (100.0, 1.0), (101.0, 0.3)))
    engine = SimulatedEngine(dataclasses.replace(base, drift=drift))
    rates = []
    for until in (100.0, 201.0):
        before = engine.tally()
        engine.advance(until)
        after = engine.tally()
        drafted = (after.draft_tokens or 0) - (before.draft_tokens or 0)
        rates.append(((after.accepted_tokens or 0) - (before.accepted_tokens or 0)) / drafted)
    assert rates[0] == pytest.approx(0.82, abs=0.03)
    assert rates[1] == pytest.approx(0.26, abs=0.03)
    assert rates[1] == pytest.approx(engine.true_acceptance_rate(0.0), abs=0.03)


def test_without_speculation_there_is_no_true_speedup() -> None:
    engine = SimulatedEngine(SimulatedSettings())
    with pytest.raises(ValueError, match="no speculation is configured"):
        engine.true_speedup(0.0, 1)
    with pytest.raises(ValueError, match="cannot be switched on"):
        engine.restart(speculation=True)
