"""Each metric is read off the samples that it is of, and says why where there is none."""

from __future__ import annotations

import functools
import math
from dataclasses import astuple, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules.metrics import MEASURES
from specwatch.domain import switchback_results
from specwatch.domain.baseline import Baseline, Origin
from specwatch.domain.model import Histogram, Mode
from specwatch.domain.switchback import Moments, Switchback, SwitchbackDesign, SwitchbackState
from specwatch.rules.readings import read
from tests.domain.samples import (
    LENGTH_BOUNDS,
    RATE_BOUNDS,
    START,
    TPOT_BOUNDS,
    TTFT_BOUNDS,
    baseline,
    evidence,
    finished_hours,
    gauges,
    minute,
    observed,
    tally,
)
from tests.segments import segment

HOUR = 3600.0
HOT = ">1"
VLLM_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2)
RATIOS = [name for name in MEASURES if name.startswith(("ttft", "tpot")) and name.endswith("ratio")]


def busy(n: int = 0, rate: float = 0.6, tpot: float = 0.02):
    """A minute of which everything is known, with two temperatures."""
    greedy = tally(
        rate=0.8,
        drafts=600,
        tpot=0.018,
        requests=60,
        endings={"loop": 6, "usual": 54},
        request_acceptance=observed([x / 100 + 0.005 for x in range(100)], RATE_BOUNDS),
    )
    hot = tally(
        rate=0.3,
        drafts=300,
        tpot=0.024,
        requests=40,
        endings={"usual": 40},
        request_acceptance=observed([0.12] * 100, RATE_BOUNDS),
    )
    whole = tally(
        rate=rate,
        drafts=1000,
        tpot=tpot,
        requests=100,
        preemptions=2,
        output_length=observed([3, 15, 20, 21, 400], LENGTH_BOUNDS),
        accepted_per_position=(800, 700, 500, 400),
    )
    finished = {"stop": 17, "length": 20, "tool_calls": 3}
    return minute(
        n,
        whole,
        buckets={"0": greedy, HOT: msgspec.structs.replace(hot, requests=finished)},
        coverage=0.9,
        gauges=gauges(4.0, waiting_seconds=90.0, kv_cache_usage_max=0.5 + n / 1000),
    )


REFERENCE = {
    "all": tally(rate=0.65, drafts=50_000),
    "0": tally(rate=0.9, drafts=30_000),
    HOT: tally(rate=0.3, drafts=20_000),
}
_CALLING = msgspec.structs.replace(tally(), requests={"stop": 40, "length": 40, "tool_calls": 20})
FINISHED = finished_hours(
    {"all": tally(requests=900), "0": tally(requests=600), HOT: _CALLING},
    [{"all": tally(requests=900), "0": tally(requests=600), HOT: _CALLING}],
)
HOURLY = [busy(n) for n in range(60)]


@functools.cache
def hourly(*, measured=True):
    if not measured:
        return evidence(HOURLY, reference=REFERENCE, finished=FINISHED)
    return full(HOURLY, experiment(START + HOUR))


def full(samples, known=None):
    return evidence(
        samples, baseline=baseline(), reference=REFERENCE, experiment=known, finished=FINISHED
    )


def experiment(until: float, episodes: int = 42) -> Switchback:
    """With arms that are 0.8 and 1.2 times as fast as the launch, up to a Unix time."""
    return Switchback(
        target="chat",
        design=SwitchbackDesign(arms=("launch", "0", "2"), usual="launch", seed=1),
        state=SwitchbackState(
            environment="e",
            began=until - HOUR,
            counted=until,
            arm="launch",
            usual="launch",
            differences={
                "all": {
                    "0": {"launch": Moments(episodes, -math.log(0.8), 0.1)},
                    "2": {"launch": Moments(episodes, -math.log(1.2), 0.1)},
                }
            },
        ),
    )


@pytest.mark.parametrize(
    ("metric", "temperature", "value"),
    [
        ("speedup_ratio", "all", 1.5),
        ("experiment_speedup_ratio", "all", 1.2),
        ("acceptance_ratio", "all", 0.6),
        ("acceptance_ratio", HOT, 0.3),
        ("acceptance_change", "all", -0.1 * 2 / 3),
        ("acceptance_length", "all", 3.4),
        ("acceptance_length", "0", 4.2),
        ("request_acceptance_p10", "0", 0.1),
        ("request_acceptance_p50", "0", 0.5),
        ("request_acceptance_p10", HOT, 0.105),
        ("losing_draft_share", "all", 1 / 3),
        ("ttft_p50", "all", 0.1),
        ("ttft_p90_ratio", "all", 1.0),
        ("tpot_p50", "all", 0.02),
        ("tpot_p50", HOT, 0.024),
        ("tpot_p50_ratio", "all", 0.02 / 0.03),
        ("tpot_tail", "all", 0.0298 / 0.02),
        ("tpot_tail_ratio", "all", 0.0298 / 0.02 / (0.0493 / 0.03)),
        ("kv_cache_usage", "all", 0.559),
        ("preemptions", "all", 120.0),
        ("running", "all", 4.0),
        ("waiting", "all", 1.5),
        ("short_output_share", "all", 0.6),
        ("loop_share", "all", 0.06),
        ("loop_share", "0", 0.1),
        ("loop_share", HOT, 0.0),
        ("coverage_ratio", "all", 0.9),
    ],
)
def test_a_metric_has_the_value_of_its_samples(metric, temperature, value):
    reading = read(metric, hourly(), window=HOUR, segment=segment(temperature))
    assert reading.value == pytest.approx(value, rel=0.03)
    assert reading.missing is None


def test_why_no_share_of_drafts_is_known_to_lose():
    assert read("losing_draft_share", hourly(measured=False), window=HOUR).missing == "no baseline"
    whole = [minute(n, tally(rate=0.6, tpot=0.02, requests=100)) for n in range(60)]
    reading = read("losing_draft_share", full(whole), window=HOUR)
    assert reading.missing == "no measured speedup of any temperature"


@pytest.mark.parametrize(
    ("metric", "share"),
    [("length_finish_excess", 0.4 * (0.5 - 0.4)), ("tool_call_shortfall", 0.4 * (0.2 - 0.075))],
)
def test_a_difference_to_minutes_without_speculation_is_the_least_that_is_certain(metric, share):
    reading = read(metric, hourly(), window=HOUR)
    assert 0 < reading.value < share
    assert reading.note == f"by estimate {share if metric.endswith('excess') else -share:+.1%}"
    assert read(metric, hourly(), window=60).value < reading.value, "of fewer requests"


@pytest.mark.parametrize(
    ("metric", "samples", "finished", "missing"),
    [
        ("loop_share", [minute(n) for n in range(9)], FINISHED, "no tap counts loops"),
        ("length_finish_excess", HOURLY, FINISHED[:-2], "speculation was not off within a day"),
        ("tool_call_shortfall", [minute(n) for n in range(9)], FINISHED, "no tap sees tool calls"),
        (
            "length_finish_excess",
            HOURLY,
            FINISHED[-3:],
            "too few earlier hours to tell how much the share varies by itself within a day",
        ),
    ],
)
def test_what_cannot_be_compared_does_not_keep_the_other_readings_from_deciding(
    metric, samples, finished, missing
):
    reading = read(metric, evidence(samples, finished=finished), window=HOUR)
    assert (reading.value, reading.missing, reading.moot) == (None, missing, True)


def test_a_few_loops_that_a_tap_saw_of_many_requests_prove_nothing():
    samples = [minute(n, tally(requests=100, endings={"loop": 2})) for n in range(9)]
    reading = read("loop_share", evidence(samples), window=HOUR)
    assert (reading.value, reading.requests) == (None, 900)
    assert reading.missing == "too few requests with an exact record of their acceptance"


def test_a_metric_has_an_interval_if_the_table_says_so():
    for metric, measure in MEASURES.items():
        reading = read(metric, hourly(measured=not measure.instead_of), window=HOUR)
        assert (reading.interval is not None) is measure.has_interval, metric
        if reading.interval is not None:
            assert reading.interval.lower <= reading.value <= reading.interval.upper, metric


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [
            minute(
                n, msgspec.structs.replace(tally(), drafts=None), mode=Mode.OFF, gauges=gauges(0)
            )
            for n in range(9)
        ],
        [minute(n, mode=Mode.MIXED, sound=False) for n in range(9)],
    ],
    ids=["nothing", "off", "mixed"],
)
def test_without_speculation_there_is_no_value_and_a_reason(samples):
    known = full(samples)
    for metric in MEASURES:
        reading = read(metric, known, window=HOUR)
        if metric in ("running", "waiting") and samples and samples[0].sound:
            assert reading.value == 0, metric
            continue
        if metric == "unjudged":
            assert reading.value == 0, "there is nothing to judge"
            continue
        assert (reading.value, reading.interval) == (None, None), metric
        assert reading.missing, metric


def test_a_single_empty_minute_is_no_data():
    """Counts that are there and zero divide nothing."""
    nothing = Histogram(TPOT_BOUNDS, (0,) * (len(TPOT_BOUNDS) + 1), 0.0)
    empty = tally(drafts=0, requests=0, output_length=nothing, request_acceptance=nothing)
    known = full([minute(0, empty, buckets={"0": empty})])
    for metric in MEASURES:
        reading = read(metric, known, window=60)
        assert reading.value is None or metric in ("running", "waiting", "unjudged"), metric
        assert (reading.drafts, reading.requests) == (0, 0), metric


def test_traffic_is_that_of_the_window_and_the_temperature():
    known = full([busy(n) for n in range(10)])
    for metric, measure in MEASURES.items():
        reading = read(metric, known, window=300, segment=segment(HOT))
        traffic = (1500, 200) if measure.by else (5000, 500)
        assert (reading.drafts, reading.requests) == traffic, metric


def test_an_assumption_counts_without_a_baseline_or_beyond_its_loads():
    """Else a loss at loads that nobody measured would be missed for ever."""
    elsewhere = evidence(HOURLY, baseline=baseline(running=(40.0,)), reference=REFERENCE)
    for known in (hourly(measured=False), elsewhere):
        reading = read("acceptance_ratio_unmeasured", known, window=HOUR)
        assert (reading.value, reading.basis, reading.moot) == (0.6, "assumed", False)
    few = full(HOURLY[:3])
    assert few.compared(HOUR).interval() is None, "the window is too short for a speedup"
    for known in (hourly(), few):
        reading = read("acceptance_ratio_unmeasured", known, window=HOUR)
        assert (reading.value, reading.moot) == (None, True)
        assert reading.missing == "there is a baseline to measure by"


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.MIXED])
@pytest.mark.parametrize("measured", [True, False])
def test_metrics_of_speculation_have_no_value_once_it_is_off(mode, measured):
    """The window still has the minutes of before; what runs in any mode is of now all the same."""
    known = baseline() if measured else None
    kept = {"baseline": known, "reference": REFERENCE, "finished": FINISHED}
    ended = [*HOURLY, minute(60, mode=mode, sound=mode is Mode.OFF)]
    off, on_again = evidence(ended, **kept), evidence([*ended, minute(61)], **kept)
    for metric, measure in MEASURES.items():
        if measured is bool(measure.instead_of):
            continue
        reading = read(metric, off, window=HOUR)
        if metric in ("experiment_speedup_ratio", "outlier_ranks"):
            assert reading.moot, metric
            continue
        if metric in ("running", "waiting", "unjudged"):
            assert reading.value is not None, metric
            continue
        assert (reading.value, reading.interval, reading.open_ended) == (None, None, False), metric
        assert reading.missing == "speculation was off in the newest minute", metric
        assert read(metric, on_again, window=HOUR).value is not None, metric


def test_the_speedup_by_experiment_is_that_of_the_arm_that_is_certainly_the_fastest():
    reading = read("experiment_speedup_ratio", hourly(), window=60)
    assert (reading.basis, reading.note) == ("measured", "of 2 draft tokens")
    single = switchback_results.speedup(experiment(0).state, "2", "launch")
    assert reading.interval.lower < single.lower < 1.2 < single.upper < reading.interval.upper
    off = [*HOURLY, minute(60, mode=Mode.OFF)]
    assert read("experiment_speedup_ratio", full(off, experiment(START + HOUR)), window=60).value


@pytest.mark.parametrize(
    ("known", "missing", "moot"),
    [
        (None, "the target has no experiment", True),
        (experiment(START - 1), "the experiment does not run", True),
        (experiment(START + HOUR, 5), "the experiment has too few episodes", False),
    ],
)
def test_without_a_present_experiment_it_has_no_value(known, missing, moot):
    reading = read("experiment_speedup_ratio", full(HOURLY, known), window=60)
    assert (reading.value, reading.missing, reading.moot) == (None, missing, moot)


def test_the_assumed_speedup_is_one_at_the_draft_cost_of_the_target():
    """3.4 tokens of steps that cost 1 + 4 x c; a tenth of the requests accept 12 %."""
    known = hourly(measured=False)
    for cost, speedup in ((0.1, 3.4 / 1.4), (0.6, 1.0), (0.9, 3.4 / 4.6)):
        reading = read("speedup_ratio_assumed", known, window=HOUR, draft_cost_ratio=cost)
        assert reading.value == pytest.approx(speedup)
        assert (reading.basis, reading.moot) == ("assumed", False)
    low = read("request_speedup_p10_assumed", known, window=HOUR, segment=segment(HOT))
    assert low.value == pytest.approx((1 + 4 * 0.105) / 1.4, rel=1e-3)
    assert read("request_speedup_p10_assumed", hourly(), window=HOUR, segment=segment(HOT)).moot


@pytest.mark.parametrize(
    ("metric", "known", "temperature", "missing"),
    [
        ("speedup_ratio", hourly(measured=False), "all", "no baseline"),
        ("speedup_ratio", full(HOURLY[:3]), "all", "too few minutes of traffic"),
        (
            "speedup_ratio",
            hourly(),
            "(0,0.3]",
            "too few minutes of traffic at this temperature",
        ),
        (
            "speedup_ratio_assumed",
            evidence([minute(0, msgspec.structs.replace(tally(), drafts=None))]),
            "all",
            "no drafts",
        ),
        (
            "acceptance_ratio",
            evidence([minute(0, tally(drafts=0, generation_tokens=500))]),
            "all",
            "no drafts, although tokens were generated",
        ),
        *(
            (
                metric,
                evidence(
                    [
                        minute(
                            0,
                            msgspec.structs.replace(
                                tally(), draft_tokens=None, accepted_tokens=None
                            ),
                        )
                    ]
                ),
                "all",
                "the engine counts no draft tokens",
            )
            for metric in ("acceptance_ratio", "acceptance_length", "speedup_ratio_assumed")
        ),
        (
            "tpot_p99",
            evidence([minute(0, msgspec.structs.replace(tally(), tpot=Histogram((), (20,), 0.4)))]),
            "all",
            "no TPOT",
        ),
    ],
)
def test_a_metric_that_has_no_value_says_why(metric, known, temperature, missing):
    reading = read(metric, known, window=HOUR, segment=segment(temperature))
    assert (reading.value, reading.missing) == (None, missing)


def test_a_quantile_beyond_the_last_bound_says_that_it_is_greater():
    reading = read("ttft_p99", evidence([minute(0, tally(ttft=20.0))]), window=60)
    assert (reading.value, reading.open_ended) == (TTFT_BOUNDS[-1], True)
    assert reading.note == "greater than the last bound of the histogram"


def test_latency_is_compared_within_load_bins_as_traffic_weighs_them_now():
    """At 4 running the baseline is fast, at 40 slow: as much traffic of each is half and half."""
    measured = baseline(tpot=0.01, running=[4.0]).bins | baseline(tpot=0.1, running=[40.0]).bins
    both = Baseline(measured, measured)
    fast = [minute(n, tally(tpot=0.01, requests=200)) for n in range(10)]
    slow = [minute(n + 10, tally(tpot=0.1, requests=200), running=40.0) for n in range(10)]
    for samples in ([*fast, *slow], [*fast, *slow[:1]], [*fast[:1], *slow]):
        reading = read("tpot_p99_ratio", evidence(samples, baseline=both), window=HOUR)
        assert reading.value == pytest.approx(1.0, abs=0.02)


def test_a_load_without_baseline_is_left_out_while_it_is_the_lesser_part():
    here = [minute(n, tally(tpot=0.03, requests=200)) for n in range(10)]
    there = [minute(n + 10, tally(tpot=0.4, requests=200), running=40.0) for n in range(11)]
    reading = read(
        "tpot_p99_ratio", evidence([*here, *there[:9]], baseline=baseline()), window=HOUR
    )
    assert reading.value == pytest.approx(1.0, abs=0.02)
    reading = read("tpot_p99_ratio", evidence([*here, *there], baseline=baseline()), window=HOUR)
    assert reading.value is None
    assert reading.missing == "no TPOT without speculation at the load that there was"


@pytest.mark.parametrize("origin", [Origin.CALIBRATION, Origin.IMPORTED])
def test_latencies_of_traffic_are_not_compared_with_a_fixed_workload(origin):
    """Its prompts and lengths are others, and so are its first tokens and its tail."""
    own = baseline(ttft=0.02)
    fixed = Baseline({bin_: replace(sample, origin=origin) for bin_, sample in own.bins.items()})
    alone = evidence(HOURLY, baseline=fixed)
    beside = evidence(HOURLY, baseline=Baseline(fixed.bins, own.bins))
    for metric in RATIOS:
        reading = read(metric, alone, window=HOUR)
        assert reading.value is None, metric
        assert reading.missing == "the server's own traffic was never measured without speculation"
        assert read(metric, beside, window=HOUR).value is not None, metric


@pytest.mark.parametrize("requests", [1, 30])
def test_a_p99_of_few_requests_proves_no_regression(requests):
    """Twice as slow, but of so few requests that its interval reaches far down or up."""
    samples = [minute(n, tally(tpot=0.035, requests=requests)) for n in range(6)]
    few = baseline(tpot=0.03, requests=20)
    reading = read("tpot_p99_ratio", evidence(samples, baseline=few), window=HOUR)
    assert reading.interval.lower == 0


def test_a_regression_is_seen_with_the_whole_interval():
    samples = [minute(n, tally(tpot=0.06, requests=200)) for n in range(30)]
    reading = read("tpot_p99_ratio", evidence(samples, baseline=baseline()), window=HOUR)
    assert reading.value == pytest.approx(2, rel=0.05)
    assert reading.interval.lower > 1.1


def test_a_p99_that_has_just_crossed_a_bound_is_no_regression():
    """It reads as a third more for being a fiftieth slower."""
    fast = observed([0.0101] * 2400 + [0.0249] * 100, VLLM_BOUNDS)
    slow = observed([0.0101] * 2400 + [0.0251] * 100, VLLM_BOUNDS)
    before = baseline()
    (bin_,) = before.bins
    before = Baseline(before.bins, {bin_: replace(before.bins[bin_], tpot=fast)})
    samples = [minute(n, msgspec.structs.replace(tally(), tpot=slow)) for n in range(30)]
    reading = read("tpot_p99_ratio", evidence(samples, baseline=before), window=HOUR)
    assert reading.value > 1.3
    assert reading.interval.lower < 1.1


def test_a_ratio_to_a_baseline_beyond_its_last_bound_is_not_known():
    known = evidence(HOURLY, baseline=baseline(tpot=3.0, ttft=30.0))
    for metric in RATIOS:
        reading = read(metric, known, window=HOUR)
        missing = "beyond the last bound of the histogram"
        assert (reading.value, reading.missing) == (None, missing), metric


counts = st.tuples(st.sampled_from([0.3, 0.6, 0.9]), st.sampled_from([0, 7, 2000]))


@given(made=st.lists(counts, min_size=1, max_size=4), seed=st.randoms(use_true_random=False))
def test_the_order_of_minutes_changes_no_reading_and_none_is_nan(made, seed):
    contents = [
        minute(
            0,
            tally(rate=rate, drafts=drafts, tpot=0.01 + rate / 20, requests=drafts // 10),
            buckets={"0": tally(rate=rate, drafts=drafts // 2)},
        )
        for rate, drafts in made
    ]
    shuffled = list(contents)
    seed.shuffle(shuffled)
    first, second = (
        full([replace(sample, start=sample.start + 60 * n) for n, sample in enumerate(order)])
        for order in (contents, shuffled)
    )
    for metric in MEASURES:
        one, other = (read(metric, part, window=HOUR) for part in (first, second))
        alone = {"stretches": (), "interval": None}
        assert one._replace(**alone) == other._replace(**alone)
        assert (one.interval is None) == (other.interval is None)
        if one.interval is not None:
            assert _numbers(one) == pytest.approx(_numbers(other))
        # Shorter ones than the longest have other minutes.
        for ours, theirs in zip([*one.stretches][-1:], [*other.stretches][-1:], strict=True):
            assert astuple(ours) == pytest.approx(astuple(theirs))
        numbers = [one.value] if one.interval is None else [*_numbers(one)]
        assert all(number is None or math.isfinite(number) for number in numbers)


def _numbers(reading):
    return reading.value, reading.interval.lower, reading.interval.upper
