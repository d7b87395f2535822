"""What latencies are compared with is what is shown as the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.domain import histogram
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import Mode
from specwatch.rules.readings import read
from tests.domain.samples import baseline, evidence, minute, tally

HOUR = 3600.0
FAST = [minute(n, tally(tpot=0.02, requests=200)) for n in range(10)]
SLOW = [minute(n + 10, tally(tpot=0.08, requests=100), running=40.0) for n in range(10)]


@pytest.mark.parametrize("metric", ["ttft", "tpot"])
@pytest.mark.parametrize(("rank", "q"), [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)])
def test_a_ratio_is_that_of_the_latency_now_and_the_one_shown(metric, rank, q):
    """At two loads, of which one has twice the requests."""
    measured = baseline(tpot=0.03, running=[4.0]).bins | baseline(tpot=0.1, running=[40.0]).bins
    known = evidence([*FAST, *SLOW], baseline=Baseline(measured, measured))
    shown = histogram.quantile(known.baseline_latencies()[metric], q)
    now = read(f"{metric}_{rank}", known, window=HOUR).value
    ratio = read(f"{metric}_{rank}_ratio", known, window=HOUR).value
    assert now / shown.value == pytest.approx(ratio)


def test_there_is_none_for_loads_that_were_not_measured():
    assert evidence(SLOW, baseline=baseline()).baseline_latencies() == {}


def test_there_is_none_without_traffic_that_speculates():
    off = [replace(sample, mode=Mode.OFF) for sample in FAST]
    for samples in ([], off):
        assert evidence(samples, baseline=baseline()).baseline_latencies() == {}


def test_baseline_latencies_stay_for_an_hour_after_speculation_went_off():
    """So that one sees that latencies come to what they are without."""
    off = [minute(n + 10, tally(tpot=0.03), mode=Mode.OFF) for n in range(3)]
    known = evidence([*FAST, *off], baseline=baseline())
    assert known.baseline_latencies() == evidence(FAST, baseline=baseline()).baseline_latencies()


def test_one_metric_may_be_known_without_the_other():
    before = baseline()
    bare = {bin_: replace(sample, ttft=None) for bin_, sample in before.bins.items()}
    known = evidence(FAST, baseline=Baseline(before.bins, bare))
    assert set(known.baseline_latencies()) == {"tpot"}
