"""Two benches compared: speedup, interval, crossing, verdict, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from specwatch.domain.experiments import Bench, ComparedLevel, Comparison, Estimate, Verdict
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.compare import compare
from specwatch.wording import experiment_verdicts
from tests.loadtest.benches import WORK, batches, bench, level, noise

OFF, ON = 0.02, 0.01
"""TPOT, in seconds."""


FEW, SOME, MANY = noise(2, 0.02), noise(8, 0.02), noise(12, 0.02)


def pair(
    off: Mapping[int, Sequence[float]], on: Mapping[int, Sequence[float]], **more: Any
) -> tuple[Bench, Bench]:
    """Benches with the noise of the batches of each concurrency; speculation is twice as fast."""
    return (
        bench("off", [level(load, batches(OFF, own)) for load, own in off.items()], **more),
        bench("on", [level(load, batches(ON, own)) for load, own in on.items()], **more),
    )


def both(speedups: Sequence[float], *, spread: float = 0.03, count: int = 12) -> Comparison:
    """Levels with these true speedups of decoding, of so many noisy batches."""
    off, on = [], []
    for index, (concurrency, speedup) in enumerate(zip((1, 4, 16), speedups, strict=False)):
        off.append(level(concurrency, batches(OFF, noise(count, spread, f"off {index}"), 0.0)))
        on.append(
            level(concurrency, batches(OFF / speedup, noise(count, spread, f"on {index}"), 0.0))
        )
    return compare(bench("off", off), bench("on", on), version="1")


def test_the_speedup_is_that_of_whole_requests_and_decoding_has_its_own() -> None:
    """Without noise both are exact: 0.1 s to the first token do not get faster."""
    even = [1.0] * 6
    off = bench("off", [level(4, batches(OFF, even, ttft=0.1))])
    on = bench("on", [level(4, batches(ON, even, ttft=0.2), acceptance=0.7)])
    (compared,) = compare(off, on, version="1").levels
    assert compared.speedup.value == pytest.approx((0.1 + 100 * OFF) / (0.2 + 100 * ON))
    assert compared.decode.value == pytest.approx(2.0)
    assert compared.ttft.value == pytest.approx(2.0), "above 1 is slower"
    assert compared.acceptance_rate == 0.7
    assert (compared.tpot_p99_off, compared.tpot_p99_on) == (OFF, ON)


def test_the_order_of_the_benches_does_not_matter_but_their_modes_differ() -> None:
    off, on = pair({4: SOME}, {4: SOME})
    comparison = compare(off, on, version="1")
    assert comparison == compare(on, off, version="1")
    assert (comparison.off.mode, comparison.on.mode) == ("off", "on")
    assert comparison.benches == (off, on)
    with pytest.raises(ConfigError, match="both were measured with speculation"):
        compare(on, on, version="1")


def test_pairs_are_those_of_one_run_only() -> None:
    off, on = pair({4: noise(12, 0.3)}, {4: noise(12, 0.3)}, interleaved=True)
    together = compare(off, on, version="1")
    apart = compare(off, msgspec.structs.replace(on, began=2000.0), version="1")
    assert (together.interleaved, apart.interleaved) == (True, False)
    (one,), (other,) = together.levels, apart.levels
    assert one.decode.lower == pytest.approx(one.decode.upper), "the same noise on both"
    assert other.decode.upper > 1.2 * other.decode.lower


def estimate(value: float, lower: float | None = None, upper: float | None = None) -> Estimate:
    return Estimate(value=value, lower=lower, upper=upper)


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [
        (estimate(1.5, 1.3, 1.7), "ship"),
        (estimate(1.5, 1.29, 1.7), "unknown"),
        (estimate(1.2, 1.1, 1.29), "not_worth_it"),
        (estimate(1.0, 0.9, 1.1), "not_worth_it"),
        (estimate(0.9, 0.8, 0.99), "do_not"),
        (estimate(1.1, 0.9, 1.4), "unknown"),
        (estimate(1.9), "unknown"),
        (None, "unknown"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(
    speedup: Estimate | None, verdict: Verdict
) -> None:
    assert experiment_verdicts.verdict_of(speedup) == verdict


def compared(
    concurrency: int, value: float | None, lower: float | None = None, upper: float | None = None
) -> ComparedLevel:
    """Without limits it is sure to a hundredth."""
    speedup = None
    if value is not None:
        speedup = estimate(value, lower or value - 0.01, upper or value + 0.01)
    return ComparedLevel(
        concurrency=concurrency,
        rate=None,
        speedup=speedup,
        decode=None,
        ttft=None,
        throughput_off=1,
        throughput_on=1,
        per_user_off=None,
        per_user_on=None,
        tpot_p99_off=None,
        tpot_p99_on=None,
        acceptance_rate=None,
        verdict="unknown",
    )


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ({1: 2.0, 16: 0.5}, 4.0),
        ({1: 2.0, 4: 1.0, 16: 0.5}, 4.0),
        ({1: 2.0, 4: None, 16: 0.5}, 4.0),
        ({16: 0.5, 1: 2.0}, 4.0),
        ({1: 2.0, 16: 1.5}, None),
        ({1: 0.9, 16: 0.5}, None),
        ({1: 0.9, 16: 1.5}, None),
        ({4: 0.5}, None),
    ],
)
def test_the_crossing_lies_between_two_loads_on_the_logarithm(
    speedups: dict[int, float | None], expected: float | None
) -> None:
    load = experiment_verdicts.falling_crossing(
        [compared(load, value) for load, value in speedups.items()]
    )
    assert load == (None if expected is None else pytest.approx(expected))


def test_a_crossing_is_not_taken_from_noise() -> None:
    """All later loads are below 1, and one of them surely."""
    noisy = {1: (1.4, 1.3, 1.5), 4: (0.99, 0.9, 1.1), 8: (1.2, 1.1, 1.3), 16: (0.97, 0.9, 1.05)}
    levels = [compared(load, *value) for load, value in noisy.items()]
    assert experiment_verdicts.falling_crossing(levels) is None
    sure = experiment_verdicts.falling_crossing([*levels[:3], compared(16, 0.8, 0.7, 0.9)])
    assert 8 < sure < 16, "not where it was below by chance"


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ({1: 0.5, 16: 2.0}, 4.0),
        ({1: 2.0, 16: 0.5}, None),
        ({1: 0.5, 4: 1.2, 16: 0.5}, None),
        ({1: 0.5, 4: 0.8}, None),
    ],
)
def test_the_load_above_which_speculation_pays_is_computed_too(
    speedups: dict[int, float], expected: float | None
) -> None:
    load = experiment_verdicts.rising_crossing(
        [compared(load, value) for load, value in speedups.items()]
    )
    assert load == (None if expected is None else pytest.approx(expected))


def test_all_levels_count_alike() -> None:
    comparison = both([2.0, 1.5, 1.2])
    speedups = [one.speedup for one in comparison.levels]
    assert comparison.speedup.value == pytest.approx(
        math.prod(one.value for one in speedups) ** (1 / 3)
    )
    assert comparison.verdict == "ship"
    own = comparison.speedup.upper / comparison.speedup.lower
    assert own < min(one.upper / one.lower for one in speedups), "three are surer than one"


@pytest.mark.parametrize(
    ("speedups", "verdict", "sentence"),
    [
        (
            [3.0, 1.8, 0.8],
            "ship",
            r"Speculation pays up to 4 requests at once: 2\.3\dx \(2\.\d\d to 2\.\d\d\); from about"
            r" 10\.\d on it loses\. Send more to a separate server .*",
        ),
        (
            [3.0, 1.8, 1.4],
            "ship",
            r"Speculation pays: 1\.9.*\) over all loads, least at 16 requests at once: 1\..*",
        ),
        ([0.5, 0.6, 0.55], "do_not", r"Speculation loses: 0\.5.*\. Switch it off\."),
        ([1.15, 1.1, 1.2], "not_worth_it", r"Speculation pays too little: 1\.1.* 1\.3x is needed."),
        ([1.7, 1.1, 1.05], "not_worth_it", r".* It pays at 1 request at once\."),
        ([0.7, 2.5, 3.0], "not_worth_it", r".* It loses below about 1\.\d* requests at once, .*"),
        ([1.0, 1.0, 1.0], "not_worth_it", r"Speculation makes no clear difference: (1\.0|0\.9).*"),
    ],
    ids=[
        "it pays at low loads",
        "it always pays",
        "it never pays",
        "it pays too little",
        "it pays at one load",
        "it pays at high loads",
        "it makes no difference",
    ],
)
def test_the_sentence_says_what_to_do_and_at_which_loads(
    speedups: Sequence[float], verdict: Verdict, sentence: str
) -> None:
    comparison = both(speedups)
    assert comparison.verdict == verdict
    assert re.fullmatch(sentence, comparison.sentence), comparison.sentence


def test_too_few_requests_are_reported_with_a_remedy() -> None:
    comparison = both([2.0], count=3)
    (one,) = comparison.levels
    assert one.speedup.lower is None
    assert (one.verdict, comparison.verdict) == ("unknown", "unknown")
    assert "too few requests: 12 ended, in 3 rounds" in one.missing
    assert "give a longer --duration" in comparison.sentence
    others = compare(*pair({1: MANY, 8: FEW}, {1: MANY, 8: FEW}), version="1")
    assert others.verdict == "ship", "other levels count"
    assert "No result for 8 requests at once: too few requests" in others.sentence


def failing(*which: int, loads: Sequence[int] = (1, 4, 16)) -> Comparison:
    """Twice as fast, but for the loads at which requests fail with speculation."""
    off = [level(load, batches(OFF, MANY)) for load in loads]
    on = [
        level(load, batches(ON, MANY), errors={"failed": 30} if load in which else None)
        for load in loads
    ]
    return compare(bench("off", off), bench("on", on), version="1")


def test_many_failures_leave_no_speedup() -> None:
    comparison = failing(4, loads=[4])
    (one,) = comparison.levels
    assert (one.speedup, one.verdict, comparison.verdict) == (None, "do_not", "do_not")
    assert one.missing == "30 of 78 requests failed with speculation"
    assert comparison.sentence == f"Speculation fails: at 4 requests at once {one.missing}."
    both_fail = [
        bench(mode, [level(4, batches(OFF, SOME), errors={"failed": 9})]) for mode in ("off", "on")
    ]
    assert compare(*both_fail, version="1").verdict == "unknown", "not because of speculation"


def test_speculation_that_fails_at_a_load_is_not_shipped_there() -> None:
    """Above some load it can be switched off; below, there is no such setting."""
    above = failing(16)
    assert above.verdict == "ship"
    assert above.sentence.startswith("Speculation pays up to 4 requests at once: ")
    assert "num_speculative_tokens_per_batch_size" in above.sentence
    assert "Requests fail with speculation only at 16 requests at once." in above.sentence
    below = failing(1)
    assert below.verdict == "not_worth_it"
    assert below.sentence.startswith("Speculation does not pay at all loads: 1.")
    assert "It pays at 4, 16 requests at once." in below.sentence


OTHER = msgspec.structs.replace(WORK, max_tokens=64, temperatures=(0.0, None), source="else")


def test_different_workloads_are_refused_unless_forced() -> None:
    off, on = pair({4: SOME}, {4: SOME})
    on = msgspec.structs.replace(on, workload=OTHER)
    with pytest.raises(ConfigError, match="did not have the same workload") as refused:
        compare(off, on, version="1")
    assert "max tokens 101 without speculation, 64 with it" in str(refused.value)
    assert "temperatures 0,0.7 without speculation, 0,default with it" in str(refused.value)
    assert "source" not in str(refused.value), "the same prompts may come from two files"
    forced = compare(off, on, version="1", force=True)
    assert "different workload: max tokens 101 without speculation, 64 with it" in forced.notes


def test_only_loads_that_both_measured_completely_are_compared() -> None:
    with pytest.raises(ConfigError, match="no load was measured on both: concurrency 4 without"):
        compare(*pair({4: SOME}, {8: SOME}), version="1")
    off, on = pair({1: SOME, 4: SOME, 8: SOME}, {1: SOME, 4: SOME})
    partial = msgspec.structs.replace(on.levels[1], complete=False)
    on = msgspec.structs.replace(on, levels=(on.levels[0], partial), complete=False)
    comparison = compare(off, on, version="1")
    assert [one.concurrency for one in comparison.levels] == [1]
    assert not comparison.complete
    assert [note for note in comparison.notes if "concurrency" in note] == [
        "concurrency 4 was broken off, and is not compared",
        "concurrency 8 was measured on one server only",
    ]


def test_different_engine_versions_are_noted() -> None:
    off, _ = pair({4: SOME}, {4: SOME}, version="0.31.0")
    _, on = pair({4: SOME}, {4: SOME})
    notes = compare(off, on, version="1").notes
    assert any("engine version (0.31.0 without" in note for note in notes)


def test_rates_are_compared_with_rates() -> None:
    off, on = (
        bench(mode, [level(4, batches(tpot, SOME), rate=2.0)])
        for mode, tpot in (("off", OFF), ("on", ON))
    )
    (one,) = compare(off, on, version="1").levels
    assert (one.concurrency, one.rate) == (None, 2.0)
