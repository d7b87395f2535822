"""The time that serving takes at given conditions, fitted to observations.

A step takes longer for more sequences, for more prompt tokens that share it, and for more tokens
of context that it reads. So the seconds that requests waited for their output are

    seconds = units * rate(load) + a * prompt tokens * others + b * units * context

where ``units`` are what the seconds went into (tokens, steps, or first tokens), ``load`` is the
number of requests at a time, ``others`` those that wait while a prompt is read, and ``context``
the tokens in use. ``rate`` is known for each load bin and interpolated between their mean loads;
a and b, never negative, are fitted within load bins. The shape of the costs is that of a step of
continuous batching with chunked prefill (A. Agrawal et al., *Taming Throughput-Latency Tradeoff in
LLM Inference with Sarathi-Serve*, 2024); what a step costs is measured.

The server may have become faster or slower between two episodes of measuring: earlier ones are
scaled to the level of the newest where both were at like loads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specwatch.domain.model import load_bin
from specwatch.domain.noise import Spread, spread_of
from specwatch.domain.regression import moment, solve

EPISODE = 900.0
"""Seconds without an observation after which the next is of another episode."""
LEAST_POINTS = 5
"""Observations of a load bin without which its rate is not known."""
_LEAST_SHIFT = 0.02
"""Change of the level between episodes below which they count as alike."""
_CERTAIN = 0.005
"""Error probability, of each side, at which a level counts as changed."""
_NEAR_LOAD = 1.15
"""Factor up to which a load above all known ones tells the level of an episode."""
_LEAST_FREEDOM = 8.0
"""Degrees of freedom of a rate, at least."""
_LEAST_T = 3.0
"""Standard errors by which a slope has to differ from zero to be used."""
_MOST_APART = 0.8
"""Share of a load's seconds that may be of prompts and context."""
_LOAD = 2
"""The column of the load, beside those of prompts and of context."""


class Observation(NamedTuple):
    """``seconds`` that went into ``units`` in the stretch that ended at ``at`` (Unix seconds).

    ``prefill`` is prompt tokens times the requests that waited for each, ``context`` is units
    times tokens in use; both 0 where they are not known.
    """

    at: float
    load: float
    seconds: float
    units: float
    prefill: float = 0.0
    context: float = 0.0
    length: float = 60.0
    """Seconds that the stretch lasted."""


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """Of one load bin: seconds per unit, net of prompts and context, at a mean ``load``.

    Two of them err independently of each other.
    """

    load: float
    rate: float
    variance: float
    """Of the logarithm of what it predicts."""
    freedom: float
    prefill: float = 0.0
    """The slope of prompts at this load, where each load has its own."""


class Slopes(NamedTuple):
    """Seconds per unit of ``prefill`` and of ``context``; 0 if unknown."""

    prefill: float = 0.0
    context: float = 0.0


_NO_SLOPES = Slopes()


class Prediction(NamedTuple):
    """Predicted seconds, and the rates that they rest on, by share."""

    seconds: float
    shares: tuple[tuple[Rate, float], ...]

    def rests_on(self, seconds: float) -> Iterable[tuple[Rate, float]]:
        """The rates behind it, each with its part of ``seconds``."""
        return [(rate, share * seconds) for rate, share in self.shares]

    def times(self, factor: float) -> Prediction:
        """The prediction for a part, or for a slower server."""
        return self._replace(seconds=self.seconds * factor)

    def at_level(self, factor: float) -> Prediction:
        """The prediction at a level that was measured, which includes the error of the rates."""
        return Prediction(self.seconds * factor, ())


@dataclass(frozen=True, slots=True)
class CostModel:
    """Fitted costs; ``rates`` by load bin."""

    rates: Mapping[int, Rate]
    slopes: Slopes = _NO_SLOPES

    @classmethod
    def fitted(
        cls,
        observations: Iterable[Observation],
        *,
        queued: bool = False,
    ) -> CostModel:
        """Fitted to observations in any order.

        If prompts wait for one another (``queued``), a prompt costs more at a higher load: each
        load has its own slope.
        """
        ordered = sorted(
            observation
            for observation in observations
            if observation.units > 0 and observation.seconds > 0
        )
        if queued:
            return cls(_queued_rates(ordered))
        slopes = _slopes(ordered)
        leveled: list[Observation] = []
        changed = False
        for episode in _episodes(ordered):
            shift = _shift(cls(_rates(leveled, slopes), slopes), episode) if leveled else 1.0
            if shift != 1.0:
                changed = True
                leveled = [block._replace(seconds=block.seconds * shift) for block in leveled]
            leveled += episode
        if changed:  # a slope is in seconds, too
            slopes = _slopes(leveled)
        return cls(_rates(leveled, slopes), slopes)

    def __bool__(self) -> bool:
        return bool(self.rates)

    def weights(self, load: float) -> dict[int, float] | None:
        """Weights of the load bins whose weighted rate is that at a load; None if unknown.

        A bin that was not measured has a rate only if both its neighbours have.
        """
        own = load_bin(load)
        if own is None:
            return None
        if own in self.rates:
            low, high = (own, own + 1) if load > self.rates[own].load else (own - 1, own)
        else:
            low, high = own - 1, own + 1
        if low in self.rates and high in self.rates:
            below, above = self.rates[low].load, self.rates[high].load
            share = (load - below) / (above - below)
            return {low: 1.0 - share, high: share}
        return {own: 1.0} if own in self.rates else None

    def nearest(self, load: float) -> dict[int, float] | None:
        """As :meth:`weights`; if unknown, the nearest of the two bins on either side."""
        weights, own = self.weights(load), load_bin(load)
        if weights is not None or own is None:
            return weights
        near = [bin_ for bin_ in (own - 1, own + 1, own - 2, own + 2) if bin_ in self.rates]
        return {near[0]: 1.0} if near else None

    def predict(
        self,
        load: float,
        units: float,
        prefill: float = 0.0,
        context: float = 0.0,
        *,
        nearest: bool = False,
    ) -> Prediction | None:
        """Seconds for ``units`` at some conditions; None at an unknown load, or with ``nearest`` at
        one far from all known ones."""
        weights = self.nearest(load) if nearest else self.weights(load)
        if weights is None:
            return None
        parts = [
            (rate, weight * (units * rate.rate + rate.prefill * prefill))
            for rate, weight in ((self.rates[bin_], weight) for bin_, weight in weights.items())
        ]
        seconds = math.fsum(part for _, part in parts)
        seconds += self.slopes.prefill * prefill
        seconds += self.slopes.context * context
        # Without units and prompts the prediction is 0.
        shares = tuple((rate, part / seconds) for rate, part in parts if seconds > 0)
        return Prediction(seconds, shares)


class Doubt:
    """Uncertainty of a sum of predictions, to which more can be added."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._amounts: defaultdict[Rate, float] = defaultdict(float)

    def add(self, parts: Iterable[tuple[float, Iterable[tuple[Rate, float]]]]) -> None:
        """Add seconds of the sum, and the rates that they rest on, each with its part of them."""
        amounts = self._amounts
        for seconds, rests_on in parts:
            self._seconds += seconds
            for rate, amount in rests_on:
                amounts[rate] += amount

    def spread(self, more: float = 0.0) -> Spread:
        """That of what was added; ``more`` is the variance of the logarithm that the predictions
        have in common."""
        whole = self._seconds
        if whole <= 0:
            return Spread(0.0, math.inf)
        terms = [
            ((amount / whole) ** 2 * rate.variance, max(rate.freedom, 1.0))
            for rate, amount in self._amounts.items()
        ]
        terms.append((more, _LEAST_FREEDOM))
        total = math.fsum([variance for variance, _ in terms])
        left = math.fsum([variance**2 / freedom for variance, freedom in terms])
        return Spread(total, total**2 / left if left > 0 else math.inf)


def doubt(parts: Iterable[tuple[Prediction, float]]) -> Spread:
    """Uncertainty of a sum of predictions, each with its seconds in that sum."""
    known = Doubt()
    known.add((seconds, prediction.rests_on(seconds)) for prediction, seconds in parts)
    return known.spread()


def _episodes(ordered: Sequence[Observation]) -> list[list[Observation]]:
    episodes: list[list[Observation]] = []
    for observation in ordered:
        if not episodes or observation.at - observation.length - episodes[-1][-1].at > EPISODE:
            episodes.append([])
        episodes[-1].append(observation)
    return episodes


def _shift(known: CostModel, episode: Sequence[Observation]) -> float:
    """Time of an episode over the time predicted for it; 1 if the difference may be chance."""
    over, under, parts = [], [], []
    most = max((rate.load for rate in known.rates.values()), default=0.0)
    for observation in episode:
        expected = known.predict(
            observation.load, observation.units, observation.prefill, observation.context
        )
        # Beyond all known loads the nearest rate is too low: the level need not have changed.
        if expected is not None and observation.load <= most * _NEAR_LOAD:
            over.append(observation.seconds)
            under.append(expected.seconds)
            parts.append((expected, expected.seconds))
    if len(over) < LEAST_POINTS:
        return 1.0
    spread = spread_of(over, under)
    if spread is None:
        return 1.0
    shift = math.fsum(over) / math.fsum(under)
    least = math.hypot(spread.half_width(_CERTAIN), 2.576 * math.sqrt(doubt(parts).variance))
    return shift if abs(math.log(shift)) > max(least, _LEAST_SHIFT) else 1.0


def _rates(observations: Sequence[Observation], slopes: Slopes) -> dict[int, Rate]:
    rates = {}
    for bin_, group in _by_bin(observations).items():
        net = [_net(observation, slopes) for observation in group]
        units = [observation.units for observation in group]
        if math.fsum(net) > 0:
            rates[bin_] = _rate(group, net, units, math.fsum(net) / math.fsum(units))
    return rates


def _queued_rates(observations: Sequence[Observation]) -> dict[int, Rate]:
    """By load bin seconds per unit and per prompt token, neither of them negative."""
    rates = {}
    for bin_, group in _by_bin(observations).items():
        whole, seconds = (
            math.fsum(getattr(observation, name) for observation in group)
            for name in ("units", "seconds")
        )
        prompts = math.fsum(observation.prefill for observation in group)
        spread = math.fsum(
            (observation.prefill / observation.units - prompts / whole) ** 2 * observation.units
            for observation in group
        )
        together = math.fsum(
            (observation.prefill / observation.units - prompts / whole)
            * (observation.seconds / observation.units - seconds / whole)
            * observation.units
            for observation in group
        )
        slope = together / spread if spread > 1e-9 * prompts**2 / whole else 0.0
        slope = min(max(slope, 0.0), seconds / prompts if prompts else 0.0)
        rate = (seconds - slope * prompts) / whole
        expected = [rate * observation.units + slope * observation.prefill for observation in group]
        took = [observation.seconds for observation in group]
        rates[bin_] = replace(_rate(group, took, expected, rate), prefill=slope)
    return rates


def _by_bin(observations: Sequence[Observation]) -> dict[int, list[Observation]]:
    grouped: dict[int, list[Observation]] = {}
    for observation in observations:
        bin_ = load_bin(observation.load)
        if bin_ is not None:
            grouped.setdefault(bin_, []).append(observation)
    return {bin_: group for bin_, group in sorted(grouped.items()) if len(group) >= LEAST_POINTS}


def _rate(
    group: Sequence[Observation], over: Sequence[float], under: Sequence[float], rate: float
) -> Rate:
    """Of one load bin; the noise of ``over`` by ``under`` is the doubt of it."""
    variance, freedom = spread_of(over, under) or (0.0, math.inf)
    units = math.fsum(observation.units for observation in group)
    load = math.fsum(observation.load * observation.units for observation in group) / units
    # Points of one stage are few and alike: of their variance alone little would be known.
    return Rate(load, rate, variance, max(freedom, _LEAST_FREEDOM))


def _net(one: Observation, slopes: Slopes) -> float:
    return one.seconds - slopes.prefill * one.prefill - slopes.context * one.context


def _slopes(observations: Sequence[Observation]) -> Slopes:
    """Least squares of seconds per unit within load bins and episodes, by weight of units.

    The load itself is a nuisance: it varies within a bin, and context with it.
    """
    groups: dict[tuple[int, int], list[Observation]] = {}
    for number, episode in enumerate(_episodes(observations)):
        for observation in episode:
            bin_ = load_bin(observation.load)
            if bin_ is not None:
                groups.setdefault((number, bin_), []).append(observation)
    rows: list[tuple[float, tuple[float, float, float], float]] = []
    freedom = 0
    for group in groups.values():
        whole = math.fsum(observation.units for observation in group)
        columns = [
            (
                observation.prefill / observation.units,
                observation.context / observation.units,
                observation.load,
            )
            for observation in group
        ]
        paces = [observation.seconds / observation.units for observation in group]
        weights = [observation.units / whole for observation in group]
        means = [
            math.fsum(w * c[column] for w, c in zip(weights, columns, strict=True))
            for column in range(3)
        ]
        mean = math.fsum(w * p for w, p in zip(weights, paces, strict=True))
        freedom += len(group) - 1
        for weight, row, pace in zip(weights, columns, paces, strict=True):
            # Relative to the pace, so that slow loads do not drown fast ones.
            scale = weight * len(group) / mean**2
            apart = (row[0] - means[0], row[1] - means[1], row[2] - means[2])
            rows.append((scale, apart, pace - mean))
    used = [0, 1, _LOAD]
    while used:
        solved = solve(rows, used, freedom)
        if solved is None:
            # A column that varies only with the load, or with prompts, cannot be separated from it.
            still = [column for column in used if not moment(rows, column)]
            others = [column for column in used if column != _LOAD]
            used.remove((still or others[-1:] or used)[0])
            continue
        worst = min(
            (column for column in used if column != _LOAD),
            key=lambda column: solved[column][0] / solved[column][1],
            default=_LOAD,
        )
        if worst == _LOAD or solved[worst][0] >= _LEAST_T * solved[worst][1]:
            slopes = (solved[column][0] if column in solved else 0.0 for column in (0, 1))
            return _possible(Slopes(*slopes), observations)
        used.remove(worst)
    return _NO_SLOPES


def _possible(slopes: Slopes, observations: Sequence[Observation]) -> Slopes:
    """Slopes limited so that a part of each load's seconds is left for the units themselves: short
    slices are so uneven that chance alone may give steeper ones."""
    factor = 1.0
    for group in _by_bin(observations).values():
        seconds = math.fsum(observation.seconds for observation in group)
        apart = seconds - math.fsum(_net(observation, slopes) for observation in group)
        if apart > _MOST_APART * seconds:
            factor = min(factor, _MOST_APART * seconds / apart)
    return Slopes(*(slope * factor for slope in slopes))
