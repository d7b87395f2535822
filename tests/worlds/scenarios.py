"""The scenarios: simulated servers that differ in when speculation pays.

Each takes a seed, which draws the requests, the noise and the hours at which things happen. The
numbers in the summaries are speedups of whole requests, on over off.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.worlds.servers import ServedWorld
from tests.worlds.traffic import (
    HOUR,
    MINUTE,
    Costs,
    Machine,
    Noise,
    RandomPeriods,
    Regime,
    Schedule,
    Traffic,
    constant,
    cycle,
    sequence,
)
from tests.worlds.world import World

COSTS = Costs()
QUIET = Noise(sigma=0.02, correlation=0.3)
"""What the hardware of every world does."""
RESTLESS = Noise(sigma=0.10, correlation=0.6)
LONGEST = 4000.0
"""Hours up to which things happen."""


def _regime(
    acceptance: float,
    *,
    costs: Costs = COSTS,
    machine: Machine = Machine(),  # noqa: B008
    k: int = 4,
    noise: Noise = QUIET,
    **traffic: Any,
) -> Regime:
    """A regime; ``acceptance`` scales that of all requests, 0.67 breaks even."""
    return Regime(Traffic(acceptance=acceptance, **traffic), costs, machine, k, noise)


def _hours(seed: int, *spans: tuple[float, float]) -> list[float]:
    """Lengths in hours drawn between each least and most, over and over until the end."""
    rng = random.Random(f"hours {seed}")
    lengths: list[float] = []
    for least, most in itertools.cycle(spans):
        lengths.append(round(rng.uniform(least, most), 2))
        if sum(lengths) > LONGEST:
            return lengths
    return lengths


def _alternating(hours: Sequence[float], regimes: Sequence[Regime]) -> Schedule:
    return sequence(list(zip(hours, itertools.cycle(regimes), strict=False)))


def _edges(hours: Sequence[float]) -> Iterator[float]:
    """When each length but the last is over, in seconds."""
    return (end * HOUR for end in itertools.accumulate(hours[:-1]))


def helps(seed: int) -> World:
    """Speculation helps all the time: 1.4."""
    return ServedWorld("helps", constant(_regime(0.971)), seed)


def hurts(seed: int) -> World:
    """Speculation hurts from the beginning: 0.75."""
    return ServedWorld("hurts", constant(_regime(0.389)), seed)


def _drops(seed: int) -> Schedule:
    return _alternating(_hours(seed, (20, 40), (12, 24)), (_regime(0.977), _regime(0.345)))


def drop(seed: int) -> World:
    """Acceptance falls suddenly and comes back many hours later: 1.41, 0.72, 1.41, ..."""
    return ServedWorld("drop", _drops(seed), seed)


def slow_restart(seed: int) -> World:
    """As drop, but a restart takes four minutes."""
    return ServedWorld("slow_restart", _drops(seed), seed, down=240.0)


def recovers(seed: int) -> World:
    """Speculation hurts (0.75) for two days, then helps (1.4) until the end."""
    (hours,) = _hours(seed, (40, 56))[:1]
    return ServedWorld("recovers", sequence([(hours, _regime(0.389)), (0, _regime(0.971))]), seed)


def drift(seed: int) -> World:
    """Acceptance drifts from 1.4 to 0.8 in three days, and back in three."""
    levels = [round(0.971 + (0.455 - 0.971) * step / 9, 3) for step in range(10)]
    parts = [(7.2, _regime(level)) for level in levels + levels[::-1]]
    return ServedWorld("drift", cycle(parts), seed)


def even(seed: int) -> World:
    """Speculation makes no difference: 1.00."""
    return ServedWorld("even", constant(_regime(0.672)), seed)


def barely(seed: int) -> World:
    """Speculation barely helps: 1.02."""
    return ServedWorld("barely", constant(_regime(0.691)), seed)


def barely_loses(seed: int) -> World:
    """Speculation barely hurts: 0.97."""
    return ServedWorld("barely_loses", constant(_regime(0.644)), seed)


def seldom_drafts(seed: int) -> World:
    """N-grams that never repeat: nothing is proposed, and still every step is slower (0.74).

    As vLLM does it, which schedules the next step while one runs only without n-grams.
    """
    costs = replace(COSTS, factor_on=1.35)
    regime = replace(_regime(1.0, costs=costs), proposes=False)
    return ServedWorld("seldom_drafts", constant(regime), seed)


def oscillation(seed: int) -> World:
    """1.05 and 0.95 by turns of an hour."""
    return ServedWorld("oscillation", cycle([(1, _regime(0.718)), (1, _regime(0.624))]), seed)


def load(seed: int) -> World:
    """Helps at low load (1.49 at night), hurts at high load (0.85 in the afternoon)."""
    profile = ((6, 0.05), (2, 0.4), (2, 0.8), (4, 1.1), (4, 1.3), (3, 0.6), (3, 0.2))
    parts = [(hours, _regime(1.0, rate=rate)) for hours, rate in profile]
    return ServedWorld("load", cycle(parts), seed)


def load_above(seed: int) -> World:
    """Helps (1.48) at the usual load of half a request, hurts (0.85) for hours at ten times it."""
    schedule = RandomPeriods(
        _regime(1.0, rate=0.1),
        [_regime(1.0, rate=1.3)],
        between=(8 * HOUR, 20 * HOUR),
        during=(2 * HOUR, 8 * HOUR),
        seed=seed,
    )
    return ServedWorld("load_above", schedule, seed)


def temperature(seed: int) -> World:
    """Cool days help (1.40), hot nights hurt (0.77); the tap sees every request."""
    cool = ((0.0, 0.5), (0.2, 0.3), (0.5, 0.2))
    hot = ((0.7, 0.2), (1.0, 0.4), (1.2, 0.4))
    day, night = (_regime(1.0, temperatures=t, temperature_slope=0.6) for t in (cool, hot))
    return ServedWorld("temperature", cycle([(12, day), (12, night)]), seed, coverage=lambda _: 1.0)


def tap_partial(seed: int) -> World:
    """Helps (1.17), though not requests at temperature 1; the tap sees 12 to 70 % of them."""
    mixture = ((0.0, 0.4), (0.3, 0.2), (0.6, 0.2), (1.0, 0.2))
    regime = _regime(1.0, temperatures=mixture, temperature_slope=0.6)
    shares = {0.0: 0.7, 0.3: 0.5, 0.6: 0.3, 1.0: 0.12}
    return ServedWorld("tap_partial", constant(regime), seed, coverage=shares.__getitem__)


def long_prompts(seed: int) -> World:
    """Prompts of 60 tokens, for some hours of 2000: helps with either (1.37, 1.36)."""
    short, long = (_regime(0.945, rate=0.15, prompt_tokens=tokens) for tokens in (60.0, 2000.0))
    hours = _hours(seed, (8, 20), (3, 8))
    return ServedWorld("long_prompts", _alternating(hours, (short, long)), seed)


def very_long_prompts(seed: int) -> World:
    """Prompts of 3000 tokens keep the server busy a third of the time: helps (1.23)."""
    costs = replace(COSTS, per_prefill_token=0.0003, draft_per_prefill_token=0.000015)
    regime = _regime(1.05, costs=costs, rate=0.35, prompt_tokens=3000.0, prompt_spread=0.2)
    return ServedWorld("very_long_prompts", constant(regime), seed)


def prefill_saturates(seed: int) -> World:
    """Tokens come faster with speculation (1.25), requests slower at peak hours (0.76).

    The drafter computes the long prompts too, and it is dear: they queue. In calm hours it helps a
    little (1.1).
    """
    costs = replace(COSTS, per_prefill_token=0.0002, draft_per_prefill_token=0.0001, free_tokens=48)
    calm, peak = (
        _regime(
            1.1,
            costs=costs,
            machine=Machine(most_batched_tokens=512),
            rate=rate,
            prompt_tokens=4000.0,
            prompt_spread=0.3,
            output_tokens=60.0,
        )
        for rate in (0.05, 0.43)
    )
    return ServedWorld("prefill_saturates", cycle([(14, calm), (10, peak)]), seed)


def throttled(seed: int) -> World:
    """The hardware is 1.5 times slower for some hours, in both modes: always helps (1.35, 1.33)."""
    schedule = RandomPeriods(
        _regime(0.94),
        [_regime(0.955, costs=replace(COSTS, factor=1.5))],
        between=(8 * HOUR, 24 * HOUR),
        during=(3 * HOUR, 10 * HOUR),
        seed=seed,
    )
    return ServedWorld("throttled", schedule, seed)


def noisy_neighbour(seed: int) -> World:
    """The hardware is up to 1.8 times slower for minutes, in both modes: helps (1.35 to 1.28)."""
    factors = (1.3, 1.4, 1.55, 1.7, 1.8)
    schedule = RandomPeriods(
        _regime(0.94),
        [_regime(0.94, costs=replace(COSTS, factor=factor)) for factor in factors],
        between=(10 * MINUTE, 90 * MINUTE),
        during=(5 * MINUTE, 40 * MINUTE),
        seed=seed,
    )
    return ServedWorld("noisy_neighbour", schedule, seed, interval=5.0)


def k_changed(seed: int) -> World:
    """Somebody deploys 8 drafted tokens for 4 and later 4 again: 1.29, 0.89, 1.29, ..."""
    hours = _hours(seed, (30, 50), (20, 40))
    schedule = _alternating(hours, (_regime(0.9), _regime(0.9, k=8)))
    return ServedWorld("k_changed", schedule, seed, deploys=list(_edges(hours)))


def redeployed(seed: int) -> World:
    """Somebody restarts the server every 20 hours or so, with speculation, which helps (1.3)."""
    deploys = list(_edges(_hours(seed, (10, 30))))
    return ServedWorld("redeployed", constant(_regime(0.907)), seed, deploys=deploys)


def redeployed_hurts(seed: int) -> World:
    """Somebody restarts the server every 20 hours or so, with speculation, which hurts (0.8)."""
    deploys = list(_edges(_hours(seed, (10, 30))))
    return ServedWorld("redeployed_hurts", constant(_regime(0.455)), seed, deploys=deploys)


_FASTER_OFF = 0.715
"""Factor on step times without speculation, after which 1.3 is 0.93."""


def engine_upgraded(seed: int) -> World:
    """A new release is deployed, faster without speculation: 1.3, then 0.93."""
    (hours,) = _hours(seed, (50, 70))[:1]
    after = _regime(0.907, costs=replace(COSTS, factor_off=_FASTER_OFF))
    schedule = sequence([(hours, _regime(0.907)), (0, after)])
    return ServedWorld("engine_upgraded", schedule, seed, deploys=[hours * HOUR])


def stale_baseline(seed: int) -> World:
    """The server becomes faster without speculation, and nothing shows it: 1.3, then 0.93."""
    (hours,) = _hours(seed, (50, 70))[:1]
    after = _regime(0.907, costs=replace(COSTS, factor_off=_FASTER_OFF))
    return ServedWorld("stale_baseline", sequence([(hours, _regime(0.907)), (0, after)]), seed)


def stale_slowly(seed: int) -> World:
    """As stale_baseline, but little by little over two days."""
    (hours,) = _hours(seed, (30, 50))[:1]
    factors = [round(1 - (1 - _FASTER_OFF) * step / 8, 4) for step in range(9)]
    parts = [(6.0, _regime(0.907, costs=replace(COSTS, factor_off=f))) for f in factors]
    parts[0] = (hours, parts[0][1])
    return ServedWorld("stale_slowly", sequence(parts), seed)


def bursts(seed: int) -> World:
    """Idle but for bursts of twelve requests every ten minutes or so: helps (1.3)."""
    costs = replace(COSTS, free_tokens=64)
    regime = _regime(0.9, costs=costs, rate=12 / 600, burst=12)
    return ServedWorld("bursts", constant(regime), seed, interval=5.0)


def sparse(seed: int) -> World:
    """A request a minute: helps (1.35)."""
    return ServedWorld("sparse", constant(_regime(0.911, rate=1 / 60)), seed)


def sparse_hurts(seed: int) -> World:
    """A request a minute: hurts (0.75)."""
    return ServedWorld("sparse_hurts", constant(_regime(0.274, rate=1 / 60)), seed)


def correlated_noise(seed: int) -> World:
    """Step times that vary by 10 % from minute to minute, correlated: helps (1.1)."""
    return ServedWorld("correlated_noise", constant(_regime(0.76, noise=RESTLESS)), seed)


def correlated_even(seed: int) -> World:
    """The same noise where speculation hardly matters (1.02)."""
    return ServedWorld("correlated_even", constant(_regime(0.692, noise=RESTLESS)), seed)


def lost_scrapes(seed: int) -> World:
    """A third of the scrapes fail, and sometimes all for ten minutes: helps (1.4)."""
    return ServedWorld("lost_scrapes", constant(_regime(0.971)), seed, lost=0.3, outages=0.02)


def nights(seed: int) -> World:
    """No request comes at night; helps by day (1.38)."""
    day = _regime(0.955)
    night = replace(day, traffic=replace(day.traffic, rate=0.0))
    return ServedWorld("nights", cycle([(14, day), (10, night)]), seed)


def varying_lengths(seed: int) -> World:
    """Outputs of 20 tokens, of 120 or of 300, for hours each: helps with all (1.33 to 1.45)."""
    parts = _hours(seed, (2, 8))
    rng = random.Random(f"lengths {seed}")
    regimes = [_regime(1.0, output_tokens=tokens) for tokens in (20.0, 120.0, 300.0)]
    schedule = sequence([(hours, rng.choice(regimes)) for hours in parts])
    return ServedWorld("varying_lengths", schedule, seed)


def queueing(seed: int) -> World:
    """Four sequences at most, and nearly too many requests without speculation: helps (1.7)."""
    regime = _regime(1.0, machine=Machine(most_sequences=4), rate=0.65)
    return ServedWorld("queueing", constant(regime), seed)


def night_batches(seed: int) -> World:
    """By day people chat, at night a batch copies texts with a small limit: helps (1.4, 2.1)."""
    day = _regime(0.971, capped=0.05)
    night = _regime(1.2, capped=0.7, temperatures=((0.0, 1.0),))
    return ServedWorld("night_batches", cycle([(14, day), (10, night)]), seed, coverage=lambda _: 1)


def changing_clients(seed: int) -> World:
    """Every few hours clients with another limit of length, between few and most of the answers
    cut: helps (1.4)."""
    rng = random.Random(f"clients {seed}")
    schedule = sequence(
        [
            (hours, _regime(0.971, capped=rng.choice((0.02, 0.1, 0.3, 0.6))))
            for hours in _hours(seed, (2, 8))
        ]
    )
    return ServedWorld("changing_clients", schedule, seed, coverage=lambda _: 1)


def hot_days(seed: int, dawn: float = 8.0) -> World:
    """Cool and calm nights help (1.9), hot and busy days hurt (0.62), at loads that are not
    calibrated: the first ``dawn`` hours are of the night."""
    cool, hot = ((0.0, 0.7), (0.3, 0.3)), ((0.7, 0.3), (1.0, 0.7))
    costs = replace(COSTS, free_tokens=32, per_token=0.0008)
    night, day = (
        _regime(1.15, costs=costs, temperatures=temperatures, temperature_slope=0.4, rate=rate)
        for temperatures, rate in ((cool, 0.6), (hot, 2.3))
    )
    return ServedWorld("hot_days", cycle([(dawn, night), (11, day), (13 - dawn, night)]), seed)


def loops(seed: int) -> World:
    """After an hour a fifth of the requests repeats itself up to its limit: helps (1.4, 2.3)."""
    schedule = sequence([(1, _regime(0.971, capped=0.05)), (0, _regime(0.971, looping=0.2))])
    return ServedWorld("loops", schedule, seed, coverage=lambda _: 1)


def _cached(name: str, acceptance: float, hits_on: float, hits_off: float, seed: int) -> World:
    """Long prompts that are mostly in the prefix cache, less so with speculation."""
    costs = replace(COSTS, per_prefill_token=0.0003, draft_per_prefill_token=0.00003)
    regime = _regime(
        acceptance,
        costs=costs,
        rate=0.35,
        prompt_tokens=6000.0,
        prompt_spread=0.3,
        hits_on=hits_on,
        hits_off=hits_off,
    )
    return ServedWorld(name, constant(regime), seed)


def cache_hurts(seed: int) -> World:
    """Speculation lowers the hits of the prefix cache from 97 to 84 %: hurts (0.92), though tokens
    come faster."""
    return _cached("cache_hurts", 0.79, 0.84, 0.967, seed)


def cache_loses(seed: int) -> World:
    """Speculation lowers the hits of the prefix cache from 92 to 71 %: hurts (0.76)."""
    return _cached("cache_loses", 0.785, 0.71, 0.92, seed)


def cold_starts(seed: int) -> World:
    """For 8 minutes after each start steps are slower, by 60 % at first: helps (1.40), then hurts
    (0.78) for half a day, then helps again."""
    costs = replace(COSTS, cold=1.6, warm_up=480.0)
    good, bad = (_regime(acceptance, costs=costs) for acceptance in (0.971, 0.43))
    return ServedWorld(
        "cold_starts", _alternating(_hours(seed, (8, 14), (10, 16)), (good, bad)), seed
    )


def documents(seed: int) -> World:
    """Short prompts help (1.8); for hours nine of ten are about long documents, whose drafts fail,
    and it hurts (0.67)."""
    chat, about = (
        _regime(1.2, rate=0.3, documents=share, document_acceptance=0.25) for share in (0.0, 0.9)
    )
    return ServedWorld("documents", _alternating(_hours(seed, (5, 9), (4, 8)), (chat, about)), seed)


def autoscaler(seed: int) -> World:
    """Other replicas come and go every 20 minutes or so, and take load away: hurts
    (0.84 to 0.94)."""
    rng = random.Random(f"replicas {seed}")
    parts = [
        (round(rng.uniform(0.2, 0.6), 2), _regime(0.62, rate=rng.choice((0.2, 0.27, 0.4))))
        for _ in range(int(LONGEST / 0.4))
    ]
    return ServedWorld("autoscaler", sequence(parts), seed)


def slow_when_busy(seed: int) -> World:
    """By day there is eight times the load, and the clocks of the hardware fall by a quarter, in
    both modes: helps by night (1.39), hurts by day (0.91)."""
    night, day = (
        _regime(0.95, rate=rate, costs=replace(COSTS, factor=factor))
        for rate, factor in ((0.1, 1.0), (0.8, 1.3))
    )
    return ServedWorld("slow_when_busy", cycle([(9, night), (10, day), (5, night)]), seed)


def weekend(seed: int) -> World:
    """From a busy Friday, which hurts (0.75), to a calm weekend, which helps (1.2)."""
    busy, calm = (_regime(0.8, rate=rate) for rate in (0.9, 0.03))
    week = [(10, busy), (14, calm)] * 4
    return ServedWorld("weekend", cycle([(10, busy), (62, calm), *week]), seed)


def faster_off(seed: int) -> World:
    """After some hours the server becomes faster without speculation: 1.3, then 0.93."""
    (hours,) = _hours(seed, (4, 8))[:1]
    after = _regime(0.907, costs=replace(COSTS, factor_off=_FASTER_OFF))
    return ServedWorld("faster_off", sequence([(hours, _regime(0.907)), (0, after)]), seed)


WORLDS: dict[str, Callable[[int], World]] = {
    scenario.__name__: scenario
    for scenario in (
        helps,
        hurts,
        drop,
        drift,
        even,
        barely,
        barely_loses,
        seldom_drafts,
        oscillation,
        load,
        temperature,
        long_prompts,
        very_long_prompts,
        throttled,
        noisy_neighbour,
        k_changed,
        engine_upgraded,
        stale_baseline,
        load_above,
        bursts,
        sparse,
        sparse_hurts,
        correlated_noise,
        correlated_even,
        lost_scrapes,
        tap_partial,
        prefill_saturates,
        nights,
        slow_restart,
        varying_lengths,
        recovers,
        redeployed,
        redeployed_hurts,
        stale_slowly,
        queueing,
        night_batches,
        changing_clients,
        loops,
        hot_days,
        cache_hurts,
        cache_loses,
        cold_starts,
        documents,
        autoscaler,
        slow_when_busy,
        weekend,
        faster_off,
    )
}
"""Every scenario by its name."""
