"""Two benches compared: speedup, interval, crossing, verdict, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from specwatch.domain.experiments import ComparedLevel, Comparison, Estimate, Verdict
from specwatch.errors import ConfigError
from specwatch.loadtest import verdicts
from specwatch.loadtest.compare import compare
from tests.loadtest.benches import WORK, batches, bench, level, noise

OFF, ON = 0.02, 0.01
"""TPOT, in seconds."""


def both(
    speedups: Sequence[float],
    *,
    concurrencies: Sequence[int] = (1, 4, 16),
    spread: float = 0.03,
    count: int = 12,
) -> Comparison:
    """Levels with these true speedups of decoding, of so many noisy batches."""
    off, on = [], []
    for at, (concurrency, speedup) in enumerate(zip(concurrencies, speedups, strict=False)):
        off.append(level(concurrency, batches(OFF, noise(count, spread, f"off {at}"), 0.0)))
        on.append(level(concurrency, batches(OFF / speedup, noise(count, spread, f"on {at}"), 0.0)))
    return compare(bench("off", off), bench("on", on), version="1")


def test_the_speedup_is_that_of_whole_requests_and_decoding_has_its_own() -> None:
    """Without noise both are exact: 0.1 s to the first token do not get faster."""
    even = [1.0] * 6
    off = bench("off", [level(4, batches(OFF, even, ttft=0.1))])
    on = bench("on", [level(4, batches(ON, even, ttft=0.2), acceptance=0.7)])
    (found,) = compare(off, on, version="1").levels
    assert found.speedup.value == pytest.approx((0.1 + 100 * OFF) / (0.2 + 100 * ON))
    assert found.decode.value == pytest.approx(2.0)
    assert found.ttft.value == pytest.approx(2.0), "above 1 is slower"
    assert found.acceptance_rate == 0.7
    assert (found.tpot_p99_off, found.tpot_p99_on) == (OFF, ON)


def test_which_is_off_comes_from_the_mode() -> None:
    off = bench("off", [level(4, batches(OFF, noise(8, 0.05, 1)))])
    on = bench("on", [level(4, batches(ON, noise(8, 0.05, 2)))])
    one, other = compare(off, on, version="1"), compare(on, off, version="1")
    assert one == other
    assert (one.off.mode, one.on.mode) == ("off", "on")


def test_pairs_are_those_of_one_run_only() -> None:
    common = noise(12, 0.3, "both")
    levels = [level(4, batches(tpot, common)) for tpot in (OFF, ON)]
    off, on = (bench(mode, [each], interleaved=True) for mode, each in zip(("off", "on"), levels))  # noqa: B905
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
    assert verdicts.verdict_of(speedup) == verdict


def compared(
    concurrency: int, value: float | None, lower: float | None = None, upper: float | None = None
) -> ComparedLevel:
    """Without limits it is sure to a hundredth."""
    speedup = None
    if value is not None:
        speedup = estimate(value, lower or value - 0.01, upper or value + 0.01)
    return ComparedLevel(
        concurrency=concurrency, rate=None, speedup=speedup,
        decode=None, ttft=None, throughput_off=1, throughput_on=1, per_user_off=None,
        per_user_on=None, tpot_p99_off=None, tpot_p99_on=None, acceptance_rate=None,
        verdict="unknown",
    )  # fmt: skip


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
    found = verdicts.falling_crossing([compared(load, value) for load, value in speedups.items()])
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_crossing_is_not_taken_from_noise() -> None:
    """All later loads are below 1, and one of them surely."""
    noisy = {1: (1.4, 1.3, 1.5), 4: (0.99, 0.9, 1.1), 8: (1.2, 1.1, 1.3), 16: (0.97, 0.9, 1.05)}
    levels = [compared(load, *value) for load, value in noisy.items()]
    assert verdicts.falling_crossing(levels) is None
    sure = verdicts.falling_crossing([*levels[:3], compared(16, 0.8, 0.7, 0.9)])
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
def test_where_speculation_begins_to_pay_is_found_too(
    speedups: dict[int, float], expected: float | None
) -> None:
    found = verdicts.rising_crossing([compared(load, value) for load, value in speedups.items()])
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_whole_counts_each_level_alike() -> None:
    found = both([2.0, 1.5, 1.2])
    values = [level.speedup.value for level in found.levels if level.speedup is not None]
    assert found.speedup.value == pytest.approx(math.prod(values) ** (1 / 3))
    assert found.verdict == "ship"
    widths = [
        (level.speedup.upper or 0) / (level.speedup.lower or 1)
        for level in found.levels
        if level.speedup is not None
    ]
    own = (found.speedup.upper or 0) / (found.speedup.lower or 1)
    assert own < min(widths), "three are surer than one"


def test_sentences_say_what_to_do_and_where_it_ends() -> None:
    ships = both([3.0, 1.8, 0.8])
    assert ships.sentence.startswith("Ship it up to concurrency 4 only: there requests are 2.3")
    assert ships.crossing == pytest.approx(10.9, abs=0.5)
    assert f"From about {ships.crossing:.3g} " in ships.sentence
    assert "requests at once on it is slower" in ships.sentence
    loses = both([0.5, 0.6, 0.55])
    assert loses.verdict == "do_not"
    assert loses.sentence.startswith("Do not: speculation makes requests slower, 0.5")
    assert loses.crossing is None
    little = both([1.15, 1.1, 1.2])
    assert little.verdict == "not_worth_it"
    assert little.sentence.startswith("Not worth it: it is faster, 1.1")
    mixed = both([1.7, 1.1, 1.05])
    assert mixed.sentence.endswith("It is worth it at concurrency 1.")
    same = both([1.0, 1.0, 1.0], spread=0.1)
    assert "there is no clear difference" in same.sentence


def test_too_little_is_said_with_its_remedy() -> None:
    found = both([2.0], count=3)
    (one,) = found.levels
    assert one.speedup.lower is None
    assert (one.verdict, found.verdict) == ("unknown", "unknown")
    assert one.missing is not None
    assert "too few requests: 12 ended, in 3 rounds" in one.missing
    assert "give a longer --duration" in found.sentence


def test_a_level_with_too_little_does_not_spoil_the_others() -> None:
    good, few = noise(12, 0.02), noise(2, 0.02)
    off = bench("off", [level(1, batches(OFF, good)), level(8, batches(OFF, few))])
    on = bench("on", [level(1, batches(ON, good)), level(8, batches(ON, few))])
    found = compare(off, on, version="1")
    assert found.verdict == "ship"
    assert "No result for concurrency 8: too few requests" in found.sentence


def test_many_failures_leave_no_speedup() -> None:
    off = bench("off", [level(4, batches(OFF, noise(8, 0.02)))])
    on = bench("on", [level(4, batches(ON, noise(8, 0.02)), errors={"failed": 20})])
    found = compare(off, on, version="1")
    (one,) = found.levels
    assert (one.speedup, one.verdict) == (None, "do_not")
    assert one.missing == "20 of 52 requests failed with speculation"
    assert found.verdict == "do_not"
    assert found.sentence == f"Do not: at concurrency 4 {one.missing}."
    both_fail = bench("off", [level(4, batches(OFF, noise(8, 0.02)), errors={"failed": 9})])
    assert compare(both_fail, on, version="1").verdict == "unknown", "speculation is not to blame"


def failing(*which: int) -> Comparison:
    """Twice as fast, but for these loads, at which requests fail with speculation."""
    off = [level(at, batches(OFF, noise(12, 0.02))) for at in (1, 4, 16)]
    on = [
        level(at, batches(ON, noise(12, 0.02)), errors={"failed": 30} if at in which else None)
        for at in (1, 4, 16)
    ]
    return compare(bench("off", off), bench("on", on), version="1")


def test_nothing_is_shipped_that_loses_at_a_load() -> None:
    """Above some load it can be left off; below, there is nothing to set."""
    above = failing(16)
    assert above.verdict == "ship"
    assert above.sentence.startswith("Ship it up to concurrency 4 only: ")
    assert "num_speculative_tokens_per_batch_size" in above.sentence
    assert above.sentence.endswith("At concurrency 16 requests fail with speculation only.")
    below = failing(1)
    assert below.verdict == "not_worth_it"
    assert below.sentence.startswith("Not worth it: requests are 1.")
    assert "It is worth it at concurrency 4, concurrency 16." in below.sentence
    slow = both([0.7, 2.5, 3.0])
    assert slow.verdict == "not_worth_it"
    assert slow.rising is not None
    assert f"Below about {slow.rising:.3g} requests at once it is slower" in slow.sentence


def test_a_level_that_was_broken_off_is_not_compared() -> None:
    whole = [level(at, batches(OFF, noise(8, 0.02))) for at in (1, 4)]
    part = [level(1, batches(ON, noise(8, 0.02))), level(4, batches(ON, noise(8, 0.02)))]
    part[1] = msgspec.structs.replace(part[1], complete=False)
    found = compare(bench("off", whole), bench("on", part, complete=False), version="1")
    assert [each.concurrency for each in found.levels] == [1]
    assert "concurrency 4 was broken off, and is not compared" in found.notes
    assert "concurrency 4 was measured on one server only" not in found.notes


OTHER = msgspec.structs.replace(WORK, max_tokens=64, temperatures=(0.0, None), source="else")


def test_other_work_is_refused_by_name_unless_forced() -> None:
    off = bench("off", [level(4, batches(OFF, noise(8, 0.02)))])
    on = bench("on", [level(4, batches(ON, noise(8, 0.02)))], work=OTHER)
    with pytest.raises(ConfigError, match="did not have the same workload") as refused:
        compare(off, on, version="1")
    assert "max tokens 101 without speculation, 64 with it" in str(refused.value)
    assert "temperatures 0,0.7 without speculation, 0,default with it" in str(refused.value)
    assert "source" not in str(refused.value), "the same prompts may come from two files"
    forced = compare(off, on, version="1", force=True)
    assert "different workload: max tokens 101 without speculation, 64 with it" in forced.notes


def test_two_of_one_mode_are_refused() -> None:
    one = bench("on", [level(4, batches(ON, noise(8, 0.02)))])
    with pytest.raises(ConfigError, match="both were measured with speculation"):
        compare(one, one, version="1")


def test_other_loads_are_refused_and_lone_ones_noted() -> None:
    four, eight = (level(at, batches(OFF, noise(8, 0.02))) for at in (4, 8))
    with pytest.raises(ConfigError, match="no load was measured on both: concurrency 4 without"):
        compare(bench("off", [four]), bench("on", [eight]), version="1")
    found = compare(bench("off", [four, eight]), bench("on", [eight]), version="1")
    assert [each.concurrency for each in found.levels] == [8]
    assert "concurrency 4 was measured on one server only" in found.notes


def test_unlike_servers_are_noted() -> None:
    off = bench("off", [level(4, batches(OFF, noise(8, 0.02)))], version="0.31.0")
    on = bench("on", [level(4, batches(ON, noise(8, 0.02)))], complete=False)
    found = compare(off, on, version="1")
    assert any("engine version (0.31.0 without" in note for note in found.notes)
    assert not found.complete


def test_rates_are_compared_with_rates() -> None:
    off, on = (
        bench(mode, [level(4, batches(tpot, noise(8, 0.02)), rate=2.0)])
        for mode, tpot in (("off", OFF), ("on", ON))
    )
    found = compare(off, on, version="1")
    assert [(each.concurrency, each.rate) for each in found.levels] == [(None, 2.0)]
