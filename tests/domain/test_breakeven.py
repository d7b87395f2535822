"""The cost of a step, the speedup and the line between gain and loss follow from the minutes."""

from __future__ import annotations

import functools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.breakeven import (
    Assessment,
    SegmentSpeedup,
    assess,
    prior_speedup,
    speedup_of,
)
from specwatch.domain.model import Gauges, Mode, Tally
from tests.domain import minutes
from tests.domain.minutes import baseline, off, on, per_request
from tests.segments import segment

PLAIN = [off(n) for n in range(6)]
"""50 ms a token, at 4 requests."""
WIDE = [off(n, load=load, tpot=tpot) for load, tpot in ((4, 0.05), (12, 0.07)) for n in range(5)]


def ends(interval) -> tuple[float, float, float]:
    assert interval is not None
    return interval.value, interval.lower, interval.upper


def exactly(value: float):
    """Of minutes that are all alike."""
    return pytest.approx((value, value, value), rel=1e-6)


def varied(count: int = 12, seed: int = 3) -> list:
    """Minutes with speculation of unlike pace, traffic, acceptance and load."""
    generator = np.random.default_rng(seed)
    return [
        on(
            n,
            tpot=float(generator.uniform(0.03, 0.05)),
            drafts=int(generator.integers(300, 900)),
            accepted=int(generator.integers(200, 1200)),
            load=float(generator.choice([4.0, 5.0, 12.0])),
            buckets={"0": (150, int(generator.integers(200, 500))), ">1": (100, 60)},
        )
        for n in range(count)
    ]


def in_requests(samples):
    return [per_request(sample) for sample in samples]


GAINING = [on(n, tpot=0.04) for n in range(6)]


@pytest.mark.parametrize(
    ("samples", "plain", "length", "cost", "line"),
    [
        # o = 40 ms x 2.5 / 50 ms, alpha* = (2 - 1) / 4
        pytest.param(GAINING, PLAIN, 2.5, 2.0, 0.25, id="every step drafts"),
        # tau = 1 + 2/3 x 1.5, o = 40 x 2 / 50, alpha* = 0.6 / (4 x 2/3)
        pytest.param(
            [on(n, tpot=0.04, plain_steps=200) for n in range(6)],
            PLAIN,
            2.0,
            1.6,
            0.225,
            id="two steps of three draft",
        ),
        pytest.param(
            in_requests(GAINING), in_requests(PLAIN), 2.5, 2.0, 0.25, id="TPOT of requests"
        ),
    ],
)
def test_exact_values_of_minutes_that_are_alike(samples, plain, length, cost, line):
    assessment = assess(samples, baseline(plain))
    assert ends(assessment.speedup) == exactly(1.25)
    (load,) = assessment.bins
    assert (load.load_bin, load.share, load.acceptance_length) == (2, 1.0, length)
    assert ends(load.speedup) == exactly(1.25)
    assert ends(load.step_cost) == exactly(cost)
    assert ends(load.acceptance) == exactly(line)
    assert (assessment.samples, assessment.covered) == (6, 1.0)
    assert (assessment.measured, assessment.missing) == (True, None)


@pytest.mark.parametrize(
    ("samples", "plain"),
    [(in_requests(GAINING), PLAIN), (GAINING, in_requests(PLAIN))],
    ids=["requests with tokens", "tokens with requests"],
)
def test_unlike_counts_are_not_compared(samples, plain):
    assessment = assess(samples, baseline(plain))
    assert (assessment.speedup, assessment.covered) == (None, 0.0)
    assert assessment.missing == "no baseline at the load that there was"


def test_each_bucket_has_the_cost_of_the_batch_and_an_acceptance_of_its_own():
    """tau of 3.25 and 1.75 over o = 2: what gains on the whole loses above 1."""
    buckets = {"0": (200, 450), ">1": (200, 150), "unknown": (0, 0)}
    assessment = assess([on(n, tpot=0.04, buckets=buckets) for n in range(6)], baseline(PLAIN))
    assert list(assessment.segments) == [segment("0"), segment(">1")]
    cold, hot = assessment.segments[segment("0")], assessment.segments[segment(">1")]
    assert (cold.speedup.value, hot.speedup.value) == pytest.approx((1.625, 0.875))
    assert (cold.share, cold.acceptance_rate, cold.loses) == (0.5, 0.5625, False)
    assert (hot.share, hot.acceptance_rate, hot.loses) == (0.5, 0.1875, True)


def test_a_bucket_has_its_part_of_the_steps_that_did_not_draft():
    samples = [on(n, tpot=0.04, plain_steps=200, buckets={"0": (200, 300)}) for n in range(6)]
    assessment = assess(samples, baseline(PLAIN))
    assert assessment.segments[segment("0")].speedup.value == pytest.approx(1.25)


def test_a_few_drafts_that_are_alike_by_chance_are_not_certain():
    """Of minutes that are alike the interval is at least that of independent tokens."""

    def of(drafts: int) -> SegmentSpeedup | None:
        minutes = [on(n, tpot=0.04, buckets={"0": (drafts, drafts)}) for n in range(6)]
        return assess(minutes, baseline(PLAIN)).segments.get(segment("0"))

    assert of(3) is None
    some, many = of(20), of(200)
    assert some is not None
    assert many is not None
    assert some.speedup.value == many.speedup.value == pytest.approx(1.0)
    # 120 drafts yield 240 tokens, of 480 drafted with a deviation of 9.5.
    assert some.speedup.up == pytest.approx(1.96 * 9.5 / 240, rel=0.01)
    assert many.speedup.up == pytest.approx(some.speedup.up / 10**0.5, rel=0.02)


def test_traffic_weighs_the_loads():
    """1.25 at 4 requests, 0.7 at 12, where three quarters of the time went."""
    samples = [on(n, tpot=0.04) for n in range(5)]
    samples += [on(n, tpot=0.1, drafts=480, accepted=720, load=12.0) for n in range(5, 10)]
    assessment = assess(samples, baseline(WIDE))
    assert [line.load_bin for line in assessment.bins] == [2, 4]
    assert [line.speedup.value for line in assessment.bins] == pytest.approx([1.25, 0.7])
    assert [line.share for line in assessment.bins] == pytest.approx([1000 / 2200, 1200 / 2200])
    assert assessment.speedup is not None
    assert assessment.speedup.value == pytest.approx((1000 * 0.05 + 1200 * 0.07) / (40 + 120))


def test_tokens_at_unknown_loads_are_left_out_up_to_half():
    known = [on(n, tpot=0.04) for n in range(6)]
    strange = [on(n, tpot=9.0, load=60.0) for n in range(6, 12)]
    assessment = assess(known + strange, baseline(PLAIN))
    assert (ends(assessment.speedup), assessment.covered) == (exactly(1.25), 0.5)
    assessment = assess(known[1:] + strange, baseline(PLAIN))
    assert assessment.speedup is None
    assert assessment.missing == "no baseline at the load that there was"


def test_without_a_comparison_there_is_only_its_reason():
    """Other reasons are tested with comparisons."""
    samples = [on(n) for n in range(4)]
    assessment = assess(samples, baseline(PLAIN))
    assert assessment == Assessment(4, 4000.0, 1.0, missing="too few minutes of traffic")
    assert not assessment.measured
    assert speedup_of(samples, baseline(PLAIN)) is None


WRONG = {
    "a restart or a gap": replace(on(0, tpot=9.0), sound=False),
    "a change of mode": replace(on(0, tpot=9.0), mode=Mode.MIXED),
    "no speculation": off(0, tpot=9.0),
    "idle": replace(on(0, tpot=9.0), gauges=Gauges(60.0, 0.0, 0.0)),
    "unknown load": replace(on(0, tpot=9.0), gauges=Gauges()),
    "no tokens": replace(on(0), tally=Tally(drafts=0, draft_tokens=0, accepted_tokens=0)),
    "says nothing": replace(on(0), tally=Tally()),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_unusable_minutes_never_count(wrong):
    samples = varied()
    expected = assess(samples, baseline(WIDE))
    assert assess([*samples, wrong], baseline(WIDE)) == expected
    assert assess([wrong] * 9, baseline(WIDE)).speedup is None


def figures(assessment: Assessment) -> list[float]:
    """Every number of an assessment that is not a count."""
    assert assessment.speedup is not None
    assert assessment.best_k is not None
    intervals = [
        assessment.speedup,
        *(bucket.speedup for _, bucket in sorted(assessment.segments.items())),
    ]
    for line in assessment.bins:
        intervals += [line.speedup, line.step_cost, line.acceptance]
    return [number for interval in intervals for number in ends(interval)] + [
        *assessment.best_k.speedups
    ]


def with_positions(samples):
    return [
        replace(
            sample,
            tally=msgspec.structs.replace(sample.tally, accepted_per_position=(300, 200, 80, 20)),
        )
        for sample in samples
    ]


@functools.cache
def usual_assessment() -> Assessment:
    return assess(with_positions(varied()), baseline(WIDE))


@given(st.permutations(range(12)), st.permutations(WIDE))
def test_the_order_of_minutes_does_not_matter(order, plain):
    samples = with_positions(varied())
    assessment = assess([samples[n] for n in order], baseline(plain))
    expected = usual_assessment()
    assert assessment.speedup == expected.speedup
    assert figures(assessment) == pytest.approx(figures(expected), rel=1e-9)


def slower(samples, factor: float):
    def of(sample):
        between = sample.tally.inter_token
        scaled = msgspec.structs.replace(between, sum=between.sum * factor)
        return replace(sample, tally=msgspec.structs.replace(sample.tally, inter_token=scaled))

    return [of(sample) for sample in samples]


@given(st.floats(0.01, 100.0))
def test_a_constant_factor_on_all_latencies_changes_nothing(factor):
    samples = with_positions(varied())
    assessment = assess(slower(samples, factor), baseline(slower(WIDE, factor)))
    assert figures(assessment) == pytest.approx(figures(usual_assessment()), rel=1e-6)


def test_twice_the_time_per_token_is_half_the_speedup():
    doubled = assess(slower(varied(), 2.0), baseline(WIDE)).speedup
    usual = usual_assessment().speedup
    assert doubled is not None
    assert usual is not None
    assert doubled.value == pytest.approx(usual.value / 2)


@given(st.lists(st.tuples(st.floats(0.03, 0.06), st.integers(0, 1600)), min_size=5, max_size=9))
def test_speedup_step_cost_and_line_agree(minutes_of):
    """S = tau / o where tau is weighed by time, and alpha* = (o - 1) / k."""
    samples = [on(n, tpot=tpot, accepted=kept) for n, (tpot, kept) in enumerate(minutes_of)]
    assessment = assess(samples, baseline(PLAIN))
    (line,) = assessment.bins
    steps = [(1 + kept / 400) * tpot for tpot, kept in minutes_of]
    assert line.step_cost.value == pytest.approx(sum(steps) / len(steps) / 0.05)
    assert line.acceptance.value == pytest.approx((line.step_cost.value - 1) / minutes.K)
    assert line.speedup.value == pytest.approx(line.acceptance_length / line.step_cost.value)


def best(positions: tuple[int, ...], *, tpot: float = 0.04, plain_steps: int = 0):
    samples = [on(n, tpot=tpot, accepted=sum(positions), plain_steps=plain_steps) for n in range(6)]
    counted = [msgspec.structs.replace(e.tally, accepted_per_position=positions) for e in samples]
    samples = [replace(e, tally=tally) for e, tally in zip(samples, counted, strict=True)]
    return assess(samples, baseline(PLAIN)).best_k


def test_the_best_k_of_known_positions():
    """A step of 4 costs 2, one of k costs 1 + k / 4; the first k yield 1.75, 2.25, 2.45, 2.5."""
    best_k = best((300, 200, 80, 20))
    assert best_k.speedups == pytest.approx((1.0, 1.75 / 1.25, 2.25 / 1.5, 2.45 / 1.75, 2.5 / 2))
    assert best_k.k == 2
    assert best((40, 10, 5, 0), tpot=0.09).k == 0, "drafts cost too much"
    assert best((400, 400, 400, 400), tpot=0.01).k == 4, "drafts cost nothing and are kept"


def test_the_best_k_of_a_lookup_counts_the_steps_that_did_not_draft():
    """f = 2/3: a step costs 1.6 and yields 1 + 2/3 x the share kept."""
    best_k = best((300, 200, 80, 20), plain_steps=200)
    lengths = [1 + 2 / 3 * kept / 400 for kept in (0, 300, 500, 580, 600)]
    expected = [length / (1 + 0.6 * k / 4) for k, length in enumerate(lengths)]
    assert best_k.speedups == pytest.approx(expected)


def test_without_positions_there_is_no_best_k():
    assessment = assess([on(n) for n in range(6)], baseline(PLAIN))
    assert assessment.measured
    assert (assessment.best_k, assessment.best_k_unknown) == (None, "no_positions")


def mixed(*lengths: tuple[int, int, tuple[int, ...]]):
    """Minutes with so many drafts of each length, and what each position accepted, all together."""
    drafts = sum(count for count, _, _ in lengths)
    drafted = sum(count * k for count, k, _ in lengths)
    kept = tuple(sum(column) for column in zip(*(counts for _, _, counts in lengths), strict=True))
    samples = [on(n, tpot=0.04, drafts=drafts, accepted=sum(kept)) for n in range(6)]
    tallies = [
        msgspec.structs.replace(e.tally, draft_tokens=drafted, accepted_per_position=kept)
        for e in samples
    ]
    return assess(
        [replace(e, tally=tally) for e, tally in zip(samples, tallies, strict=True)],
        baseline(PLAIN),
    )


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(
            ((200, 4, (180, 160, 140, 120)), (200, 1, (180, 0, 0, 0))), id="half end after one"
        ),
        pytest.param(((400, 2, (300, 200, 0, 0)),), id="a schedule is at 2 of 4"),
    ],
)
def test_where_the_draft_length_varies_the_best_k_is_not_known(lengths):
    assessment = mixed(*lengths)
    assert assessment.measured
    assert (assessment.best_k, assessment.best_k_unknown) == (None, "varying_length")


def test_a_few_drafts_that_are_cut_at_the_ends_of_requests_change_nothing():
    """vLLM's phantom drafts have the full length: they are drafts that nothing is kept of."""
    cut = mixed((397, 4, (300, 200, 80, 20)), (3, 1, (0, 0, 0, 0)))
    assert cut.best_k == best((300, 200, 80, 20))
    padded = mixed((360, 4, (300, 200, 80, 20)), (40, 4, (0, 0, 0, 0)))
    assert padded.best_k == best((300, 200, 80, 20))


@given(st.integers(1, 12), st.floats(0.01, 1.0))
def test_the_assumed_break_even_is_where_the_assumed_speedup_is_one(k, cost):
    """Whatever k: one cost of a draft token makes both."""
    assert prior_speedup(1 + k * cost, k, cost) == pytest.approx(1.0)
    assert prior_speedup(1 + k * cost * 1.1, k, cost) > 1.0


def test_a_bucket_loses_only_with_the_whole_of_its_interval():
    """Minutes of speedups on both sides of 1, with a mean below it."""
    samples = [on(n, tpot=0.03 + 0.06 * (n % 2), buckets={"0": (400, 600)}) for n in range(6)]
    cold = assess(samples, baseline(PLAIN)).segments[segment("0")]
    assert cold.speedup.value < 1 < cold.speedup.upper
    assert not cold.loses
