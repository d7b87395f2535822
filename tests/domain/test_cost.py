"""What serving takes is found again from what it took, at loads and conditions that were seen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.cost import EPISODE, LEAST_POINTS, CostModel, Observation, Rate, doubt
from specwatch.domain.model import load_bin

PREFILL, CONTEXT = 2e-4, 3e-7
"""Seconds per prompt token that another waits for, and per unit and token of context."""
DAY = 86400.0


def rate(load: float) -> float:
    """Seconds per unit, without prompts or context."""
    return 0.02 + 0.001 * load


def observation(
    time: float,
    load: float,
    *,
    units: float = 1000.0,
    prefill: float = 0.0,
    context: float = 0.0,
    factor: float = 1.0,
    pace: Callable[[float], float] = rate,
) -> Observation:
    """Of the minute that ended at minute number ``at``, which took what the truth says."""
    seconds = factor * (units * pace(load) + PREFILL * prefill + CONTEXT * context)
    return Observation(60.0 * time, load, seconds, units, prefill, context)


def alike(load: float, count: int = 9, *, first: float = 0.0, factor: float = 1.0):
    """Minutes in a row at one load."""
    return [observation(first + n, load, factor=factor) for n in range(count)]


def fitted(*groups: Iterable[Observation]) -> CostModel:
    return CostModel.fitted([observation for group in groups for observation in group])


def varied(count: int, noise: float, seed: int = 5, **others) -> list[Observation]:
    """Minutes of traffic with prompts and contexts of all kinds, each off by some noise."""
    chance = random.Random(seed)
    observations = []
    for n in range(count):
        load, units = chance.uniform(3.0, 30.0), chance.uniform(500.0, 2000.0)
        observations.append(
            observation(
                n,
                load,
                units=units,
                factor=math.exp(chance.gauss(0.0, noise)),
                prefill=chance.uniform(0.0, 2e4) * (load - 1),
                context=units * load * chance.uniform(200.0, 3000.0),
                **others,
            )
        )
    return observations


@pytest.mark.parametrize(("count", "noise", "error"), [(200, 0.0, 0.01), (2000, 0.05, 0.1)])
def test_slopes_are_found_again_and_predicted(count, noise, error):
    known = CostModel.fitted(varied(count, noise))
    assert known.slopes.prefill == pytest.approx(PREFILL, rel=error)
    assert known.slopes.context == pytest.approx(CONTEXT, rel=error)
    for load, prefill, context in ((5.0, 0.0, 0.0), (12.0, 1e5, 4e6), (25.0, 4e5, 5e7)):
        truth = observation(0, load, prefill=prefill, context=context).seconds
        prediction = known.predict(load, 1000.0, prefill, context)
        assert prediction is not None
        assert prediction.seconds == pytest.approx(truth, rel=0.05)


def test_the_load_itself_is_not_taken_for_context():
    """More requests have more in use: within a bin the two go together, and only the load costs."""
    chance = random.Random(6)
    model = CostModel.fitted(
        observation(n, load, factor=math.exp(chance.gauss(0.0, 0.01)))._replace(
            context=1e6 * load * chance.uniform(0.9, 1.1)
        )
        for n in range(300)
        for load in [chance.uniform(9.0, 16.0)]
    )
    assert model.slopes.context == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_costs_that_vary_only_with_the_load_are_attributed_to_it(seed):
    """Requests that are all alike: prompts and context grow with the load, and with it alone."""
    chance = random.Random(seed)
    minutes = [
        observation(n, load, prefill=500.0 * 30 * (load - 1), context=1000.0 * load * 600)._replace(
            seconds=1000.0 * rate(load) * math.exp(chance.gauss(0.0, 0.1))
        )
        for n in range(15)
        for load in [chance.uniform(6.0, 8.0)]
    ]
    model = CostModel.fitted(minutes)
    assert model.slopes == (0.0, 0.0)
    assert set(model.rates) == {3}


def test_a_slope_is_never_negative():
    """Chance, or something else that goes with them: a slope is never negative."""
    quick = [
        observation._replace(seconds=observation.seconds - (PREFILL + 1e-5) * observation.prefill)
        for observation in varied(300, 0.0)
    ]
    model = CostModel.fitted(quick)
    assert model.slopes.prefill == 0.0
    assert model.slopes.context > 0.0
    assert model.predict(12.0, 1000.0, prefill=1e5) == model.predict(12.0, 1000.0)


amounts = st.floats(0.0, 1e6)


@given(
    st.lists(
        st.builds(
            Observation,
            st.floats(0.0, 1e6),
            st.floats(0.6, 100.0),
            st.floats(1.0, 1e3),
            st.floats(1.0, 1e4),
            amounts,
            amounts,
            st.floats(1.0, 3600.0),
        ),
        max_size=30,
    )
)
def test_whatever_was_seen_no_slope_and_no_rate_is_negative(seen):
    model = CostModel.fitted(seen)
    assert all(slope >= 0 for slope in model.slopes)
    assert all(token_rate.rate > 0 for token_rate in model.rates.values())
    assert all(
        token_rate.variance >= 0 and token_rate.freedom >= 8 for token_rate in model.rates.values()
    )


def test_constant_conditions_have_no_slope():
    one = [observation(n, 4.0, prefill=5e4, context=3e6) for n in range(20)]
    assert CostModel.fitted(one).slopes == (0.0, 0.0)


def test_a_load_with_few_observations_has_no_rate():
    assert set(fitted(alike(4.0, LEAST_POINTS), alike(12.0, LEAST_POINTS - 1)).rates) == {2}
    assert not fitted(alike(4.0, LEAST_POINTS - 1))
    assert not CostModel.fitted([])
    nothing = [observation._replace(units=0.0) for observation in alike(4.0)]
    assert not CostModel.fitted(nothing)


@pytest.mark.parametrize(
    ("measured", "load", "weights"),
    [
        ((4.0, 8.0), 5.0, {2: 0.75, 3: 0.25}),
        ((4.0, 8.0), 4.4, {2: 0.9, 3: 0.1}),
        ((4.0, 8.0), 4.0, {2: 1.0}),
        ((4.0, 8.0), 8.0, {3: 1.0, 2: 0.0}),
        ((4.0, 8.0), 3.0, {2: 1.0}),
        ((4.0, 8.0), 8.4, {3: 1.0}),
        ((4.0, 8.0), 2.0, None),
        ((4.0, 8.0), 12.0, None),
        ((4.0, 8.0), 0.0, None),
        ((4.0, 12.0), 6.0, {2: 0.75, 4: 0.25}),
        ((4.0,), 6.0, None),
        ((), 4.0, None),
    ],
    ids=str,
)
def test_a_load_is_known_in_a_measured_bin_or_between_two(measured, load, weights):
    model = fitted(*(alike(level) for level in measured))
    assert model.weights(load) == (weights and pytest.approx(weights))
    prediction = model.predict(load, 100.0)
    assert (prediction is None) is (weights is None)
    if prediction is not None and len(weights or {}) == 2:
        assert prediction.seconds == pytest.approx(100.0 * rate(load))
        assert sum(share for _, share in prediction.shares) == pytest.approx(1.0)


@given(st.sets(st.sampled_from([1.0, 2.0, 3.4, 6.5, 11.0, 30.0, 64.0, 99.0])), st.floats(0.6, 200))
def test_weights_are_shares_of_neighbours_that_give_back_the_load(loads, load):
    model = fitted(*(alike(level) for level in loads))
    weights = model.weights(load)
    if weights is None:
        assert load_bin(load) not in model.rates
        return
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(-1e-9 <= weight <= 1 + 1e-9 for weight in weights.values())
    if len(weights) == 2:
        load_now = sum(weight * model.rates[bin_].load for bin_, weight in weights.items())
        assert load_now == pytest.approx(load)


@pytest.mark.parametrize("order", [1, -1])
def test_earlier_episodes_are_scaled_to_the_level_of_the_newest(order):
    """The server has become a fifth slower since 12 requests at a time were measured."""
    before = [*alike(4.0), *alike(12.0, first=9)]
    now = alike(4.0, first=DAY / 60, factor=1.2)
    model = fitted([*before, *now][::order])
    assert model.rates[2].rate == pytest.approx(1.2 * rate(4.0))
    assert model.rates[4].rate == pytest.approx(1.2 * rate(12.0))


def test_slopes_are_scaled_to_the_newest_level_too():
    """What a prompt costs was measured before all became half as fast."""
    now = [
        observation(DAY / 60 + n, load, factor=2.0) for n, load in enumerate([4.0, 7.0, 12.0] * 9)
    ]
    model = fitted(varied(300, 0.0), now)
    assert model.slopes.prefill == pytest.approx(2 * PREFILL, rel=0.02)
    assert model.slopes.context == pytest.approx(2 * CONTEXT, rel=0.02)


def test_a_level_that_is_alike_or_may_be_so_by_chance_is_left():
    far = DAY / 60
    little = fitted(alike(4.0), alike(4.0, first=far, factor=1.01), alike(12.0, first=20))
    assert little.rates[4].rate == pytest.approx(rate(12.0))
    assert little.rates[2].rate == pytest.approx(1.005 * rate(4.0))
    chance = random.Random(7)
    wild = [
        observation(far + n, 4.0, factor=1.1 * math.exp(chance.gauss(0.0, 0.3))) for n in range(9)
    ]
    assert fitted(alike(4.0), alike(12.0, first=20), wild).rates[4].rate == pytest.approx(
        rate(12.0)
    )


def test_minutes_without_a_long_gap_are_of_one_episode():
    """A change of the level within one is noise of it."""
    gap = EPISODE / 60
    slow = alike(4.0, first=9 + gap, factor=1.2)
    together = fitted(alike(4.0), alike(12.0), slow)
    assert together.rates[4].rate == pytest.approx(rate(12.0))
    apart = fitted(alike(4.0), alike(12.0), [e._replace(at=e.at + 120) for e in slow])
    assert apart.rates[4].rate == pytest.approx(1.2 * rate(12.0))


def test_an_episode_of_other_loads_cannot_tell_the_level():
    model = fitted(alike(4.0), alike(30.0, first=DAY / 60, factor=1.2))
    assert model.rates[2].rate == pytest.approx(rate(4.0))
    assert model.rates[5].rate == pytest.approx(1.2 * rate(30.0))


def noisy(load: float, seed: int, first: float) -> Sequence[Observation]:
    chance = random.Random(seed)
    return [
        observation(first + n, load, factor=math.exp(chance.gauss(0.0, 0.1))) for n in range(30)
    ]


def test_doubt_is_that_of_the_rates_by_what_rests_on_them():
    model = fitted(noisy(4.0, 1, 0), noisy(12.0, 2, 40))
    low, high = model.rates[2], model.rates[4]
    alone = model.predict(4.0, 500.0)
    assert alone is not None
    variance, freedom = doubt([(alone, alone.seconds)] * 2)
    assert variance == pytest.approx(low.variance, rel=1e-6), "the same error twice"
    assert freedom == pytest.approx(low.freedom, rel=1e-6)
    other = model.predict(high.load, 500.0 * low.rate / high.rate)
    assert other is not None
    both, more = doubt([(alone, alone.seconds), (other, other.seconds)])
    share = alone.seconds / (alone.seconds + other.seconds)
    expected = share**2 * low.variance + (1 - share) ** 2 * high.variance
    assert both == pytest.approx(expected, rel=0.01)
    assert more > max(low.freedom, high.freedom)
    assert doubt([]) == (0.0, math.inf)


def test_a_slope_leaves_a_part_of_each_loads_seconds_to_its_units():
    """Else a load would cost nothing, or less, and be taken for unknown."""
    cheap = [observation(n, 2.0, prefill=4e5, pace=lambda _: 0.0) for n in range(9)]
    steep = [
        Observation(60.0 * (20 + n), 6.0, 50.0 + 1e-3 * prefill, 1000.0, prefill)
        for n, prefill in enumerate(range(0, 90_000, 10_000))
    ]
    model = fitted(cheap, steep)
    assert set(model.rates) == {load_bin(2.0), load_bin(6.0)}
    assert all(token_rate.rate > 0 for token_rate in model.rates.values())


def test_where_prompts_queue_each_load_has_its_own_cost_of_a_prompt():
    """A prompt that waits for others takes the longer the more there are."""
    true = {2.0: 2e-4, 6.0: 1e-3}
    seen = [
        Observation(60.0 * n, load, 10 * 0.05 + slope * prompts, 10.0, float(prompts))
        for load, slope in true.items()
        for n, prompts in enumerate(range(1000, 9000, 800))
    ]
    model = CostModel.fitted(seen, queued=True)
    for load, slope in true.items():
        predicted = model.predict(load, 5.0, 20_000.0)
        assert predicted is not None
        assert predicted.seconds == pytest.approx(5 * 0.05 + slope * 20_000)
    alone = CostModel.fitted(
        [Observation(60.0 * n, 2.0, 3e-4 * p - 0.01, 1.0, p) for n, p in enumerate((900.0,) * 5)],
        queued=True,
    )
    assert alone.rates[1].rate >= 0, "prompts all alike tell no slope"


@pytest.mark.parametrize(
    ("measured", "nearest"),
    [
        ((2, 3, 4), {3: 1.0}),
        ((2, 4), {2: 0.5, 4: 0.5}),
        ((4,), {4: 1.0}),
        ((2, 5), {2: 1.0}),
        ((1,), {1: 1.0}),
        ((5,), {5: 1.0}),
        ((1, 5), {1: 1.0}),
        ((0, 6), None),
    ],
    ids=str,
)
def test_a_load_that_is_not_known_is_taken_for_the_nearest_of_two_on_either_side(
    measured: tuple[int, ...], nearest: dict[int, float] | None
) -> None:
    """Bin 3 is asked for, in the middle between its neighbours."""
    loads = {0: 1.0, 1: 2.0, 2: 4.0, 3: 7.0, 4: 10.0, 5: 24.0, 6: 48.0}
    model = CostModel({bin_: Rate(loads[bin_], 0.02, 1e-4, 9.0) for bin_ in measured})
    assert load_bin(7.0) == 3
    bins = model.nearest(7.0)
    assert bins is None if nearest is None else bins is not None
    assert {bin_: weight for bin_, weight in (bins or {}).items() if weight} == (nearest or {})
    assert (model.predict(7.0, 100.0, nearest=True) is None) is (nearest is None)
    assert model.nearest(0.0) is None
