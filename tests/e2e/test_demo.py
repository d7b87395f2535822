"""The demo shows, in a short run, what it is there to show."""

from __future__ import annotations

import json

from tests.e2e.processes import specwatch


def test_the_demo_shows_acceptance_and_finds_the_truth_by_an_experiment() -> None:
    done = specwatch("demo", "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    predictable, creative, experiment, without = result["phases"]
    assert (predictable["speculation"], without["speculation"]) == ("on", "off")
    # On a slow machine the experiment begins in the second phase.
    assert creative["speculation"] in ("on", "standby")
    assert creative["acceptance_rate"] < 0.3 < predictable["acceptance_rate"]
    assert without["acceptance_rate"] is None
    assert 0 < result["drafts_stored"] <= result["drafts_counted_by_engine"]
    # The tap counts a request when it ends, the engine while it runs: one that began before the
    # phase puts a short phase above 1.
    assert 0.5 < predictable["coverage"] < 1.2
    # On a slow machine few requests end in the time, and not at every temperature.
    rates = [row["acceptance_rate"] for row in predictable["temperatures"] if row["requests"]]
    assert len(rates) > 1
    assert rates[0] > rates[-1]

    # A machine that is too busy to look twice a second leaves episodes out.
    assert experiment["requests"] > creative["requests"]
    answer = result["experiment"]
    speedup, truth = answer["speedup"], answer["true_speedup"]
    assert (answer["arm"], answer["episodes"] >= 6) == ("0", True)
    assert 1.15 < truth < 1.3
    assert speedup["lower"] < truth < speedup["upper"]
    assert "times as fast as the launch" in done.stderr
    assert f"The truth of the simulation is {truth:.2f}." in done.stderr


def test_a_short_demo_says_that_its_experiment_is_not_done() -> None:
    done = specwatch("demo", "--json", "--duration", "15")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["experiment"]["speedup"] is None
    assert "not known yet: " in done.stderr
