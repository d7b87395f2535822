"""What speculation would do now, told by what it did at other loads and temperatures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from specwatch.domain.baseline import Baseline
from specwatch.domain.interval import Interval
from specwatch.domain.model import Environment, Tally
from specwatch.domain.prediction import Experience, RememberedMinutes, worth_it
from specwatch.domain.sample import Sample
from tests.domain import minutes
from tests.domain.samples import baseline_of_paces
from tests.segments import in_segments, segment

PLAIN = 0.1
"""Seconds of a step without speculation, at any load."""


def baseline(*concurrencies: float) -> Baseline:
    """The same pace at each of some loads."""
    return baseline_of_paces(dict.fromkeys(concurrencies, PLAIN))


def on(start: int, running: float, cost: float, lengths: Mapping[str, float]) -> Sample:
    """A minute with a thousand drafts of each temperature, at so many tokens a step."""
    steps = 1000 * len(lengths)
    accepted = {label: round(1000 * (length - 1)) for label, length in lengths.items()}
    total = sum(accepted.values())
    return minutes.on(
        start // 60,
        tpot=cost * PLAIN * steps / (steps + total),
        drafts=steps,
        accepted=total,
        load=running,
        buckets={label: (1000, kept) for label, kept in accepted.items()},
    )


def off(start: int, running: float, tokens: Mapping[str, int]) -> Sample:
    """A minute without speculation at a load so high that it is never idle."""
    sample = minutes.off(start // 60, tpot=PLAIN, tokens=sum(tokens.values()), load=running)
    buckets = {label: Tally(generation_tokens=count) for label, count in tokens.items()}
    return replace(sample, segments=in_segments(buckets))


HOT_AND_COLD = {"0": 4.0, ">1": 2.0}


def remembered(*loads: tuple[float, float]) -> list[Sample]:
    """Ten minutes at each of some loads, with the cost of a step there."""
    return [
        on(600 * n + 60 * minute, running, cost, HOT_AND_COLD)
        for n, (running, cost) in enumerate(loads)
        for minute in range(10)
    ]


def present(running: float, **tokens: int) -> list[Sample]:
    """Ten minutes later on."""
    return [off(100_000 + 60 * n, running, tokens) for n in range(10)]


KNOWN = Experience.of(remembered((12.0, 2.0), (24.0, 3.0)), baseline(12.0, 24.0))


@pytest.mark.parametrize(
    ("mix", "length"),
    [
        ({"0": 900}, 4.0),
        ({">1": 900}, 2.0),
        ({"0": 800, ">1": 800}, 8 / 3),
    ],
)
def test_the_predicted_length_is_that_of_the_present_mix(
    mix: dict[str, int], length: float
) -> None:
    running = 12.0 * length / 2.0  # so that with speculation twelve would run
    interval = KNOWN.speedup([off(100_000 + 60 * n, running, mix) for n in range(10)])
    assert interval is not None
    assert interval.value == pytest.approx(length / 2.0, rel=0.01)


def test_the_mix_is_of_tokens_after_the_first_of_each_request() -> None:
    sample = off(100_000, 16.0, {"0": 800, ">1": 800})
    brief = Tally(generation_tokens=8800, requests={"stop": 8000})
    mixed = replace(sample, segments=in_segments({"0": sample.buckets[segment("0")], ">1": brief}))
    interval = KNOWN.speedup([replace(mixed, start=mixed.start + 60 * n) for n in range(10)])
    assert interval is not None
    assert interval.value == pytest.approx(8 / 3 / 2.0, rel=0.01)


def test_the_load_is_that_which_speculation_would_lead_to() -> None:
    """27 run without it: at a speedup of 1.5 those are 18, halfway between 12 and 24."""
    experience = Experience.of(
        [on(60 * n, 12.0, 2.0, {"0": 3.75}) for n in range(10)]
        + [on(6000 + 60 * n, 24.0, 3.0, {"0": 3.75}) for n in range(10)],
        baseline(12.0, 24.0),
    )
    interval = experience.speedup([off(100_000 + 60 * n, 27.0, {"0": 900}) for n in range(10)])
    assert interval is not None
    assert interval.value == pytest.approx(1.5, rel=0.01)


def test_the_interval_is_open_beyond_the_known_loads() -> None:
    higher = KNOWN.speedup(present(300.0, **{"0": 900}))
    lower = KNOWN.speedup(present(4.0, **{"0": 900}))
    assert higher is not None
    assert lower is not None
    assert (higher.lower, math.isfinite(higher.upper)) == (0.0, True)
    assert (lower.upper, lower.lower > 1) == (math.inf, True)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="nothing"),
        pytest.param(present(12.0, **{"0": 900})[:4], id="too few minutes"),
        pytest.param(present(12.0, **{"(0.3,0.7]": 900}), id="a temperature never speculated for"),
        pytest.param(remembered((12.0, 2.0)), id="minutes with speculation"),
    ],
)
def test_too_little_known_of_the_present_predicts_nothing(samples: list[Sample]) -> None:
    assert KNOWN.speedup(samples) is None


def test_without_a_baseline_nothing_is_predicted() -> None:
    experience = Experience.of(remembered((12.0, 2.0)), Baseline())
    assert experience.speedup(present(12.0, **{"0": 900})) is None


def test_a_draft_that_got_worse_is_predicted_from_its_newest_minutes() -> None:
    """tau comes from the newest minutes, however many good ones came before."""
    good = [on(60 * n, 12.0, 2.0, {"0": 4.0}) for n in range(50)]
    bad = [on(60 * n, 12.0, 2.0, {"0": 1.5}) for n in range(50, 55)]
    memory = RememberedMinutes()
    for sample in good + bad:
        memory.add(sample)
    experience = Experience.of(memory.samples, baseline(12.0))
    assert experience.lengths[segment("0")].value == pytest.approx(1.5)
    interval = experience.speedup(present(9.0, **{"0": 900}))
    assert interval is not None
    assert interval.below(1.0)


def test_temperatures_and_loads_long_ago_are_remembered_among_newer_ones() -> None:
    memory = RememberedMinutes()
    for sample in remembered((12.0, 2.0)):
        memory.add(sample)
    for n in range(100):
        memory.add(on(10_000 + 60 * n, 24.0, 3.0, {">1": 2.0}))
    experience = Experience.of(memory.samples, baseline(12.0, 24.0))
    assert experience.lengths[segment("0")].value == pytest.approx(4.0)
    assert [round(cost.concurrency) for cost in experience.costs] == [12, 24]
    assert len(memory.samples) <= 70


def test_minutes_of_another_configuration_are_forgotten() -> None:
    memory = RememberedMinutes()
    for sample in remembered((12.0, 2.0)):
        memory.add(sample)
    other = replace(on(50_000, 12.0, 2.0, {"0": 2.0}), environment=Environment("0.33"))
    memory.add(other)
    assert memory.samples == [other]


@pytest.mark.parametrize(
    ("interval", "speculating", "worth"),
    [
        ((0.7, 0.8, 0.9), True, True),
        ((0.7, 0.8, 0.99), True, False),
        ((1.2, 1.3, 1.4), True, False),
        ((1.2, 1.3, 1.4), False, True),
        ((1.01, 1.3, 1.6), False, False),
        ((0.7, 0.8, 0.9), False, False),
        ((0.0, 1.3, 1.6), False, False),
    ],
)
def test_a_switch_has_to_pay_for_the_restart_even_at_the_bound_next_to_one(
    interval: tuple[float, float, float], speculating: bool, worth: bool
) -> None:
    """A minute of restart within an hour: 1.67 % have to be gained for certain."""
    lower, value, upper = interval
    speedup = Interval(value, lower, upper, 10)
    assert worth_it(speedup, speculating=speculating, horizon=3600.0, restart_seconds=60.0) is worth
