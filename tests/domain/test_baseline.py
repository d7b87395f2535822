"""A baseline is made of what ran without speculation, holds for its like, and ages."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.domain.baseline import (
    MAX_AGE,
    MOST_POINTS,
    Baseline,
    BaselineKey,
    Measurement,
    Origin,
    choose,
    join,
    measured,
)
from specwatch.domain.baseline_points import Point, point_of
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import MINUTE, Environment, Gauges, Histogram, Mode, Tally, load_bin
from tests.domain import minutes
from tests.domain.minutes import KEY, off


def measurement(load: float = 4.0, *, at: float = 0.0, count: int = 9, **more) -> Measurement:
    """So many points at one load, the newest at ``at``."""
    points = tuple(Point(at - n, load, 50.0, 1000.0) for n in range(count))
    bin_ = load_bin(load)
    assert bin_ is not None
    return Measurement(
        **{"key": KEY, "load_bin": bin_, "origin": Origin.WINDOWS, **more}, points=points
    )


def chosen(*measurements: Measurement, now: float = 0.0, **environment) -> Baseline:
    return choose(measurements, Environment(**environment), now=now)


@given(st.permutations([off(n, load=load, tokens=n + 9) for n, load in enumerate([1, 4, 3, 9, 4])]))
@settings(max_examples=20)
def test_minutes_are_grouped_by_load_in_any_order(samples):
    measurements = measured(KEY, Origin.WINDOWS, samples)
    assert [measurement.load_bin for measurement in measurements] == [0, 2, 4]
    assert [point.tokens for point in measurements[1].points] == [10, 11, 13]
    assert measurements[1].at == 5 * MINUTE


@pytest.mark.parametrize(
    "sample",
    [
        replace(off(0), sound=False),
        replace(off(0), mode=Mode.MIXED),
        minutes.on(0),
        replace(off(0), gauges=Gauges()),
        replace(off(0), gauges=Gauges(60, 0, 0)),
        replace(off(0), tally=Tally()),
    ],
)
def test_only_sound_minutes_without_speculation_are_measured(sample):
    assert measured(KEY, Origin.WINDOWS, [sample]) == []


def test_a_point_is_the_pace_of_a_minute_at_its_load():
    assert point_of(off(1, tpot=0.05, tokens=100, load=3)) == Point(120.0, 3.0, 5.0, 100.0)
    assert point_of(minutes.per_request(off(1, tpot=0.05), 20)) == Point(
        120.0, 4.0, pytest.approx(1.0), 20.0, by_token=False
    )
    assert point_of(replace(off(0), gauges=Gauges())) is None
    assert point_of(replace(off(0), tally=Tally())) is None


def test_the_newest_points_are_kept_and_their_latencies_added_up():
    ttft = Histogram((1.0,), (2, 1), 1.5)
    samples = [off(n) for n in range(MOST_POINTS + 10)]
    samples = [
        replace(sample, tally=msgspec.structs.replace(sample.tally, ttft=ttft))
        for sample in samples
    ]
    (measurements,) = minutes.measurements(samples)
    assert len(measurements.points) == MOST_POINTS
    assert measurements.points[0].at == 11 * MINUTE
    assert measurements.ttft == Histogram((1.0,), tuple(250 * n for n in (2, 1)), 375.0)


def test_another_version_or_configuration_invalidates_it_and_another_draft_does_not():
    key = replace(KEY, engine_version="0.32", configuration="ab12")
    holds = key.holds_for
    assert holds(Environment("0.32", "ab12-4"))
    assert holds(Environment("0.32", "ab12-7"))
    assert holds(Environment("0.32", "ab12"))
    assert not holds(Environment("0.33", "ab12-4"))
    assert not holds(Environment("0.32", "cd34-4"))
    assert holds(Environment(None, None))
    assert BaselineKey("chat", "tiny").holds_for(Environment("0.33", "cd34-4"))
    assert not chosen(measurement(key=key), engine_version="0.33")


def test_own_traffic_ranks_first_and_the_newest_of_equals():
    best = measurement(at=-500.0, count=30)
    others = [
        measurement(origin=Origin.IMPORTED),
        measurement(origin=Origin.CALIBRATION),
        measurement(at=-900.0, count=30),
        measurement(origin=Origin.HOLDOUT, count=30),
    ]
    for order in ([best, *others], [*others, best]):
        assert chosen(*order).bins == {2: best}


def test_little_or_old_traffic_ranks_below_a_fixed_workload_only():
    week = 7 * 86400.0
    fixed, imported = measurement(origin=Origin.CALIBRATION), measurement(origin=Origin.IMPORTED)
    for weak in (measurement(count=29), measurement(at=-week - 1, count=40)):
        assert chosen(weak, fixed, imported).bins == {2: fixed}
        assert chosen(weak, imported).bins == {2: weak}
    assert chosen(measurement(at=-week, count=40), fixed).bins[2].origin is Origin.WINDOWS


def test_known_points_are_not_counted_twice():
    latencies = Histogram((1.0,), (3, 0), 1.5)
    known = measurement(count=9, ttft=latencies, points_behind=9)
    again = replace(known, points=known.points[:1], points_behind=1)
    assert join(known, again) is known
    full = measurement(count=240, ttft=latencies, points_behind=240)
    ancient = measurement(at=-1000.0, count=1, ttft=latencies, points_behind=1)
    assert join(full, ancient) is full
    new = measurement(at=5.0, count=1, ttft=latencies, points_behind=1)
    assert join(known, new).ttft == Histogram((1.0,), (6, 0), 3.0)


def test_too_few_points_are_not_compared_with_and_give_way():
    scant = measurement(count=LEAST_SAMPLES - 1)
    fallback = measurement(origin=Origin.IMPORTED, count=LEAST_SAMPLES)
    assert not chosen(scant)
    assert chosen(scant, fallback).bins == {2: fallback}


def test_points_expire_one_by_one():
    """The newest point may be of the very age that is allowed; an older one may not."""
    old = measurement(at=0.0, count=7)
    assert len(chosen(old, now=MAX_AGE - 6).bins[2].points) == 7
    assert len(chosen(old, now=MAX_AGE - 4).bins[2].points) == LEAST_SAMPLES
    assert not chosen(old, now=MAX_AGE - 3)
    assert choose([old], Environment(), now=MAX_AGE - 3, max_age=2 * MAX_AGE)


def test_an_expired_baseline_is_distinguished_from_none():
    old = measurement(at=0.0)
    assert chosen(old, now=2 * MAX_AGE).expired
    assert not chosen(old).expired
    assert not chosen(old, measurement(1, at=2 * MAX_AGE), now=2 * MAX_AGE).expired
    assert not chosen(measurement(count=LEAST_SAMPLES - 1), now=2 * MAX_AGE).expired
    assert not Baseline().expired


def test_the_age_is_that_of_the_oldest_bin():
    assert chosen(measurement(at=0.0), measurement(1, at=-50.0)).age(100.0) == 150.0
    assert Baseline().age(100.0) is None


def test_joined_are_the_newest_points_each_once():
    first, second = measurement(at=100.0, count=80), measurement(at=150.0, count=80)
    both = join(first, second)
    assert [point.at for point in both.points] == [float(n) for n in range(21, 151)]
    long = join(measurement(at=0.0, count=200), measurement(at=300.0, count=100))
    assert len(long.points) == MOST_POINTS
    assert long.points[-1].at == 300.0


def test_demand_is_what_would_run_at_the_pace_of_the_fastest_load():
    chosen_baseline = minutes.baseline(
        [off(n, tpot=0.02, load=4.0) for n in range(9)]
        + [off(n, tpot=0.05, load=12.0) for n in range(9, 18)]
    )
    assert chosen_baseline.demand(6000.0, 60.0) == pytest.approx(0.02 * 6000 / 60)
    assert chosen_baseline.demand(3000.0, 30.0) == pytest.approx(2.0)
    assert chosen_baseline.demand(6000.0, 60.1) is None, "there may be idle stretches in it"
    assert chosen_baseline.demand(6000.0, 0.0) is None
    assert Baseline().demand(6000.0, 60.0) is None
    assert Baseline().measured_at == 0.0


def test_latencies_fade_once_twice_as_many_points_as_are_kept_stand_behind_them():
    ttft = Histogram((0.1, 1.0), (5, 4, 3), 9.0)
    one = measurement(at=100.0, ttft=ttft, points_behind=2 * MOST_POINTS - 9)
    other = measurement(at=200.0, points_behind=9)
    kept = join(one, other)
    assert (kept.ttft, kept.tpot, kept.points_behind) == (ttft, None, 2 * MOST_POINTS)
    faded = join(one, replace(other, points_behind=10))
    assert faded.ttft == Histogram((0.1, 1.0), (2, 2, 1), 4.5)
    assert faded.points_behind == MOST_POINTS
    assert faded.tpot is None


def test_an_earlier_baseline_has_only_earlier_points():
    chosen_baseline = chosen(measurement(at=100.0, count=20), now=100.0)
    assert len(chosen_baseline.before(95.0).points) == 15
    assert chosen_baseline.before(95.0).measured_at == 95.0
    assert not chosen_baseline.before(0.0).points
