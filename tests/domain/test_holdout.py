"""A holdout is a baseline of the very minutes, where what a cost model holds constant drifts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from specwatch.domain.baseline import BaselineKey, Measurement, Origin, choose, measured
from specwatch.domain.cost import CostModel
from specwatch.domain.counterfactual import Minute
from specwatch.domain.holdout import as_baseline, pace_of
from specwatch.domain.interval import Interval
from specwatch.domain.model import MINUTE, Environment, Mode, Objective
from specwatch.domain.sample import Sample
from specwatch.domain.simultaneous import Pace
from specwatch.domain.speedup import Comparison
from tests.domain.test_speedup import SHORT, minute, running_on, unlike

SPEEDUP = 0.97
AGED = measured(BaselineKey("chat", "tiny"), Origin.WINDOWS, SHORT)
BEFORE = running_on(-2100, unlike(9, 60, prompt=500.0), speedup=SPEEDUP)
"""Minutes with speculation when the aged baseline was measured."""


class Drift(NamedTuple):
    """What changes within the hour, by its minute: factors of the time without speculation and with
    it, and the length of prompts."""

    plain: Callable[[int], float] = lambda _: 1.0
    speculating: Callable[[int], float] = lambda _: 1.0
    prompt: Callable[[int], float] = lambda _: 500.0


def slower(n: int) -> float:
    return 1 + 0.3 * n / 60


DRIFTS = {
    "nothing": Drift(),
    "the clock of the hardware": Drift(slower, slower),
    "the baseline alone": Drift(plain=slower),
    "speculation alone": Drift(speculating=slower),
    "the prompts": Drift(prompt=lambda n: 500.0 + 400 * n / 60),
}


class World(NamedTuple):
    """An hour of a server that speculates, of one that does not, and the true speedup."""

    own: list[Sample]
    holdout: list[Sample]
    truth: float


def world(drift: Drift, seed: int, *, broken: float = 1.0, busier: float = 1.0) -> World:
    """``broken`` is how much slower the holdout is, ``busier`` how many more requests it has."""

    def given(other: int) -> list[dict]:
        shapes = unlike(seed + other, 60)
        return [shape | {"prompt": drift.prompt(n)} for n, shape in enumerate(shapes)]

    own = [
        minute(n, **shape | {"noise": shape["noise"] * drift.speculating(n)}, speedup=SPEEDUP)
        for n, shape in enumerate(given(0))
    ]
    holdout = [
        minute(
            n,
            mode=Mode.OFF,
            **shape
            | {
                "noise": shape["noise"] * drift.plain(n) * broken,
                "running": shape["running"] * busier,
            },
        )
        for n, shape in enumerate(given(1000))
    ]
    took = [sample.pace.seconds for sample in own]
    ratios = [SPEEDUP * drift.plain(n) / drift.speculating(n) for n in range(60)]
    truth = math.fsum(s * r for s, r in zip(took, ratios, strict=True)) / math.fsum(took)
    return World(own, holdout, truth)


@functools.cache
def usual() -> CostModel:
    steps = (known.stepping() for sample in BEFORE if (known := Minute.of(sample)))
    return CostModel.fitted(step for step in steps if step is not None)


def speedup(
    own: Sequence[Sample], measurements: Sequence[Measurement], *, adjusted: bool = True
) -> Interval:
    known = choose(measurements, Environment(), now=0.0)
    compared = Comparison(own, known, objective=Objective.TPOT)
    interval = (compared.adjusted(usual()) if adjusted else compared).interval()
    assert interval is not None
    return interval


def error(interval: Interval, truth: float) -> float:
    return abs(math.log(interval.value / truth))


def with_holdout(one: World, pace: Pace | None = None) -> list[Measurement]:
    return [*AGED, *as_baseline("chat", "tiny", "chat-3", one.holdout, pace)]


def check_holdout(name: str, seeds: range) -> None:
    errors, widths, outside = [], [], 0
    for seed in seeds:
        one, interval = drifted(name, seed)
        errors.append(error(interval, one.truth))
        outside += interval.below(one.truth) or interval.above(one.truth)
        widths.append(math.log(interval.upper / interval.lower) / 2)
    assert sum(errors) / len(errors) < 0.01
    assert sorted(widths)[len(widths) // 2] < 0.04
    assert outside <= 0.1 * len(errors)


@pytest.mark.parametrize("name", ["the baseline alone", "the prompts"])
def test_the_error_with_a_holdout_does_not_depend_on_what_drifts(name: str) -> None:
    check_holdout(name, range(4))


def check_aged(name: str, adjusted: bool, factor: float, seeds: range) -> None:
    aged = with_it = 0.0
    for seed in seeds:
        one, interval = drifted(name, seed)
        aged += error(speedup(one.own, AGED, adjusted=adjusted), one.truth)
        with_it += error(interval, one.truth)
    assert aged > factor * with_it


@pytest.mark.parametrize("adjusted", [True, False])
def test_an_aged_baseline_errs_more_where_something_drifts(adjusted: bool) -> None:
    """With and without the assumption that what slows steps slows plain ones too."""
    check_aged("the baseline alone", adjusted, 15, range(4))


@functools.cache
def drifted(name: str, seed: int) -> tuple[World, Interval]:
    """A world, and its speedup by the holdout."""
    one = world(DRIFTS[name], seed)
    return one, speedup(one.own, with_holdout(one))


def test_a_holdout_is_a_baseline_where_nothing_was_measured_before() -> None:
    one = world(DRIFTS["the baseline alone"], 1)
    interval = speedup(one.own, as_baseline("chat", "tiny", "chat-3", one.holdout, None))
    assert interval.lower <= one.truth <= interval.upper
    assert interval.value == pytest.approx(one.truth, rel=0.03)


def before(seed: int, broken: float = 1.0) -> list[Sample]:
    """The hour before a holdout was switched off."""
    shapes = [shape | {"noise": shape["noise"] * broken} for shape in unlike(seed, 60)]
    return running_on(-60, shapes, prompt=500.0, speedup=SPEEDUP)


@pytest.mark.parametrize("broken", [1.0, 1.6, 0.8])
def test_a_broken_holdout_is_known_by_the_hour_before_and_does_not_count_as_a_gain(
    broken: float,
) -> None:
    one = world(Drift(), 2, broken=broken)
    pace = pace_of(before(5, broken), before(6))
    assert pace is not None
    assert pace.ratio.lower <= broken <= pace.ratio.upper
    assert pace.ratio.upper / pace.ratio.lower < 1.06
    interval = speedup(one.own, with_holdout(one, pace))
    assert interval.lower <= one.truth <= interval.upper
    unknown = speedup(one.own, with_holdout(one))
    assert unknown.value == pytest.approx(one.truth * broken, rel=0.03), "a limit"
    assert math.log(interval.upper / interval.lower) > math.log(unknown.upper / unknown.lower)


def test_the_pace_of_too_few_minutes_is_not_known() -> None:
    assert pace_of(before(5)[:4], before(6)) is None
    assert pace_of(before(5), before(6)[:4]) is None
    assert pace_of([], []) is None


def simultaneous(own: Sequence[Sample], measurements: Sequence[Measurement]) -> float:
    compared = Comparison(own, choose(measurements, Environment(), now=0.0))
    return sum(plain.level is not None for plain in compared.plain) / len(compared.plain)


def test_a_holdout_at_other_loads_gives_no_level() -> None:
    """Where a router sends it more, or less, because it answers at another pace."""
    alike, busier = world(Drift(), 3), world(Drift(), 3, busier=4.0)
    assert simultaneous(alike.own, with_holdout(alike)) > 0.95
    assert simultaneous(alike.own, with_holdout(busier)) < 0.3
    assert speedup(alike.own, with_holdout(busier)).value == pytest.approx(SPEEDUP, rel=0.03)


def test_a_level_needs_minutes_around_and_their_noise() -> None:
    one = world(Drift(), 4)
    half = one._replace(holdout=one.holdout[:30])
    assert simultaneous(one.own[:30], with_holdout(half)) > 0.9
    assert simultaneous(one.own[34:], with_holdout(half)) == 0.0
    few = one._replace(holdout=one.holdout[:20])
    assert simultaneous(one.own[:20], with_holdout(few)) == 0.0


def test_a_level_is_that_of_first_tokens_too() -> None:
    one = world(DRIFTS["the baseline alone"], 4)
    levels = choose(with_holdout(one), Environment(), now=0.0).levels.levels
    assert [level.first_took for level in levels] == [s.tally.ttft.sum for s in one.holdout]
    early, late = (
        sum(e.first_took / e.first_expected for e in es) for es in (levels[:9], levels[-9:])
    )
    assert late / early == pytest.approx(slower(55) / slower(4), rel=0.1)


def test_holdouts_of_another_configuration_or_of_the_past_give_no_level() -> None:
    one = world(Drift(), 4)
    other = [measured(BaselineKey("chat", "tiny", None, "other"), Origin.HOLDOUT, one.holdout)][0]
    known = choose([*AGED, *other], Environment(None, "mine-4"), now=0.0)
    assert known.levels.levels == ()
    known = choose(with_holdout(one), Environment(), now=0.0)
    assert len(known.levels.levels) == 60
    assert known.before(30.0 * MINUTE).levels.levels == ()


def main() -> None:
    """Print the mean error of each kind of baseline under each drift, in percent."""
    print(f"{'what drifts in an hour':28}{'aged':>8}{'adjusted':>10}{'holdout':>9}{'covered':>9}")
    for name, drift in DRIFTS.items():
        worlds = [world(drift, seed) for seed in range(150)]
        aged, adjusted, paired = (
            [(speedup(one.own, kind(one), adjusted=usual), one.truth) for one in worlds]
            for kind, usual in ((_aged, False), (_aged, True), (with_holdout, True))
        )
        means = [
            100 * sum(error(*known) for known in some) / len(some)
            for some in (aged, adjusted, paired)
        ]
        inside = sum(i.lower <= truth <= i.upper for i, truth in paired) / len(paired)
        print(f"{name:28}{means[0]:8.1f}{means[1]:10.1f}{means[2]:9.1f}{inside:9.0%}")


def _aged(_one: World) -> list[Measurement]:
    return AGED


if __name__ == "__main__":
    main()
