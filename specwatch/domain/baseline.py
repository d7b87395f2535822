"""What serving costs without speculation, by load: what speculation is compared with."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import msgspec

from specwatch.domain import histogram
from specwatch.domain.baseline_points import Point, point_of
from specwatch.domain.cost import LEAST_POINTS, CostModel, Observation
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import MINUTE, Environment, Histogram, Mode, load_bin
from specwatch.domain.sample import Sample
from specwatch.domain.simultaneous import Level, Levels, Pace

MAX_AGE = 30 * 86400.0
"""Age in seconds at which a measurement expires, unless configured otherwise."""
MOST_POINTS = 240
"""Points kept of a load bin and origin: the newest."""


_MANY = 30
"""Points of own traffic from which on it ranks above a fixed workload."""
_STALE = 7 * 86400.0
"""Seconds by which own traffic may be older than a fixed workload and still rank above it."""


class Origin(enum.StrEnum):
    """Where a baseline comes from, best first."""

    WINDOWS = "windows"
    """The target's own traffic while speculation was off."""
    HOLDOUT = "holdout"
    """Another member of its group that serves without speculation now; never stored."""
    CALIBRATION = "calibrate"
    """A fixed workload, sent on purpose."""
    IMPORTED = "import"
    """A benchmark result from elsewhere."""


@dataclass(frozen=True, slots=True)
class BaselineKey:
    """What a baseline is valid for: another version or configuration makes it invalid.

    ``configuration`` is the part of the fingerprint without speculation. None (unknown) matches
    everything.
    """

    target: str
    model_name: str
    engine_version: str | None = None
    configuration: str | None = None

    def holds_for(self, environment: Environment) -> bool:
        """Whether a window of that environment may be compared with it."""
        return Environment(self.engine_version, self.configuration).resembles(environment)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The baseline of one load bin, from one origin; latencies in seconds."""

    key: BaselineKey
    load_bin: int
    origin: Origin
    points: tuple[Point, ...]
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    points_behind: int = 0
    """Number of points that the latencies come from, including points dropped since."""
    holdout: str = ""
    """The server that it was measured on, where that is another one."""
    pace: Pace | None = None
    """How slow that one is; its points are corrected by it. None if that is not known."""

    @property
    def at(self) -> float:
        """Unix time of its newest point, 0 without any."""
        return max((point.at for point in self.points), default=0.0)

    @property
    def enough(self) -> bool:
        """Whether it has enough points to be compared with."""
        return len(self.points) >= LEAST_SAMPLES


class Range(NamedTuple):
    """First and ninth decile over the points of a baseline."""

    low: float
    high: float


@dataclass(frozen=True)
class Baseline:
    """The measurements of one model without speculation that hold now, by load bin."""

    bins: Mapping[int, Measurement] = field(default_factory=dict)
    own: Mapping[int, Measurement] = field(default_factory=dict)
    """Measurements of the target's own traffic only: these have its mix of requests."""
    expired: bool = False
    """Whether all measurements are too old."""
    others: tuple[Measurement, ...] = ()
    """Measurements of other origins for the same bins: more data for the cost models."""
    holdouts: tuple[Measurement, ...] = ()
    """Those of them that are of holdouts: they give the level of each minute."""

    def __bool__(self) -> bool:
        return bool(self.bins)

    @property
    def known(self) -> bool:
        """Whether there was ever one, expired or not: then nothing is assumed in its place."""
        return bool(self.bins) or self.expired

    def before(self, time: float) -> Baseline:
        """The baseline as it was at a time (Unix seconds), without the levels of single minutes."""

        def cut(one: Measurement) -> Measurement:
            return replace(one, points=tuple(point for point in one.points if point.at <= time))

        bins = {bin_: cut(points) for bin_, points in self.bins.items()}
        return replace(self, bins=bins, others=tuple(map(cut, self.others)), holdouts=())

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The points of all measurements."""
        measurements = (*self.bins.values(), *self.others)
        return tuple(sorted({point for one in measurements for point in one.points}, key=_order))

    @cached_property
    def measured_at(self) -> float:
        """Unix time of the newest point, 0 without any."""
        return max((point.at for point in self.points), default=0.0)

    @cached_property
    def by_token(self) -> CostModel:
        """Time per token, counted as tokens came."""
        return self._decoding(by_token=True)

    @cached_property
    def by_request(self) -> CostModel:
        """Time per token, counted as requests ended."""
        return self._decoding(by_token=False)

    @cached_property
    def first(self) -> CostModel:
        """Time to the first token."""
        known = [first for point in self.points if (first := point.first) is not None]
        return CostModel.fitted(known, queued=True)

    @cached_property
    def levels(self) -> Levels:
        """How fast holdouts were, minute by minute."""
        paces = [measurement.pace for measurement in self.holdouts if measurement.pace is not None]
        variance = max((pace.variance for pace in paces), default=0.0)
        points = (point for measurement in self.holdouts for point in measurement.points)
        return Levels.of((level for point in points if (level := self._level(point))), variance)

    def _level(self, point: Point) -> Level | None:
        model = self.by_token if point.by_token else self.by_request
        conditions = point.decoding(point.prompt or 0.0, point.output or 0.0)
        expected = model.predict(
            conditions.load, conditions.units, conditions.prefill, conditions.context
        )
        bin_ = load_bin(point.concurrency)
        if expected is None or bin_ is None:
            return None
        level = Level(point.at - point.length / 2, bin_, point.seconds, expected.seconds)
        first = point.first
        predicted = first and self.first.predict(
            first.load, first.units, first.prefill, nearest=True
        )
        if first is None or predicted is None:
            return level
        return level._replace(first_took=first.seconds, first_expected=predicted.seconds)

    def demand(self, tokens: float, seconds: float) -> float | None:
        """Concurrency needed for so many tokens in so many seconds, if each request ran as fast as
        at the fastest load; None if unknown, or if the time is so long that part of it may have
        been idle."""
        rates = [token_rate.rate for token_rate in self.by_token.rates.values()]
        return min(rates) * tokens / seconds if rates and 0 < seconds <= MINUTE else None

    @cached_property
    def by_demand(self) -> CostModel:
        """Time per token at a demand: for loads that occur only with speculation, because it is so
        much slower there."""
        return CostModel.fitted(self._demanded(first=False))

    @cached_property
    def first_by_demand(self) -> CostModel:
        """Time to the first token at a demand."""
        return CostModel.fitted(self._demanded(first=True), queued=True)

    def _demanded(self, *, first: bool) -> Iterable[Observation]:
        for point in self.points:
            demand = self.demand(point.tokens, point.length) if point.by_token else None
            if demand is None or point.firsts is None:
                continue
            if first and point.firsts:
                yield Observation(
                    point.at,
                    demand,
                    point.first_seconds,
                    point.firsts,
                    point.prompt_tokens,
                    length=point.length,
                )
            elif not first:
                yield Observation(
                    point.at, demand, point.seconds, point.tokens, length=point.length
                )

    @cached_property
    def prompts(self) -> Range | None:
        """Lengths of prompts, in tokens; None where they are not known."""
        known = sorted(point.prompt for point in self.points if point.prompt is not None)
        last = len(known) - 1
        return Range(known[round(0.1 * last)], known[round(0.9 * last)]) if known else None

    def _decoding(self, *, by_token: bool) -> CostModel:
        points = [point for point in self.points if point.by_token is by_token]
        known = [point for point in points if point.firsts is not None]
        # Points of earlier versions lack the conditions: beside points that have them they mislead.
        points = known if len(known) >= LEAST_POINTS else points
        prompts, outputs = (
            [value for point in points if (value := getattr(point, name)) is not None]
            for name in ("prompt", "output")
        )
        prompt, output = (
            math.fsum(lengths) / len(lengths) if lengths else 0.0 for lengths in (prompts, outputs)
        )
        return CostModel.fitted(point.decoding(prompt, output) for point in points)

    def age(self, now: float) -> float | None:
        """Seconds since the oldest of its bins was measured; None without bins."""
        return max((now - measurement.at for measurement in self.bins.values()), default=None)


def choose(
    measurements: Iterable[Measurement],
    environment: Environment,
    *,
    now: float,
    max_age: float = MAX_AGE,
) -> Baseline:
    """The best measurement of each load bin that holds for an environment and has not expired.

    Half an hour or more of the target's own traffic, at most a week older, ranks above a holdout,
    which ranks above a fixed workload; less of it ranks above an imported benchmark.
    """
    measurements = list(measurements)
    young = [_younger(measurement, now - max_age) for measurement in measurements]
    valid = [e for e in young if e.enough and e.key.holds_for(environment)]
    bins: dict[int, Measurement] = {}
    for measurement in sorted(valid, key=lambda one: (_rank(one, valid), -one.at)):
        bins.setdefault(measurement.load_bin, measurement)
    own = {e.load_bin: e for e in sorted(valid, key=attrgetter("at")) if e.origin is Origin.WINDOWS}
    others = tuple(e for e in valid if e not in bins.values() and e.origin is not Origin.IMPORTED)
    holdouts = tuple(e for e in valid if e.origin is Origin.HOLDOUT)
    known = any(e.enough and e.key.holds_for(environment) for e in measurements)
    return Baseline(bins, own, expired=known and not bins, others=others, holdouts=holdouts)


_OTHER_RANKS = {Origin.HOLDOUT: 1, Origin.CALIBRATION: 2, Origin.IMPORTED: 4}


def _rank(one: Measurement, among: Sequence[Measurement]) -> int:
    """Rank of a measurement among others, best 0."""
    if one.origin is not Origin.WINDOWS:
        return _OTHER_RANKS[one.origin]
    others = [e.at for e in among if e.load_bin == one.load_bin and e.origin is not one.origin]
    stale = one.at < max(others, default=one.at) - _STALE
    return 3 if stale or len(one.points) < _MANY else 0


def measured(key: BaselineKey, origin: Origin, samples: Iterable[Sample]) -> list[Measurement]:
    """Measurements from samples without speculation, one for each load bin.

    Samples that are not sound, not ``off``, or without tokens are left out.
    """
    grouped: dict[int, list[Sample]] = {}
    for sample in samples:
        bin_ = sample.load_bin
        if sample.usable(Mode.OFF) and sample.pace and bin_ is not None:
            grouped.setdefault(bin_, []).append(sample)
    measurements = []
    for bin_, group in sorted(grouped.items()):
        known = (point for sample in group if (point := point_of(sample)) is not None)
        points = sorted(known, key=_order)
        ttft, tpot = (
            histogram.merge_all(
                observed
                for sample in group
                if (observed := getattr(sample.tally, metric)) is not None
            )
            for metric in ("ttft", "tpot")
        )
        newest = tuple(points[-MOST_POINTS:])
        measurements.append(Measurement(key, bin_, origin, newest, ttft, tpot, len(points)))
    return measurements


def join(older: Measurement, newer: Measurement) -> Measurement:
    """Two measurements of one key, load bin and origin as one, of the newest points.

    The latencies fade too: whenever twice as many points as are kept went into them, their counts
    are halved.
    """
    points = tuple(sorted({*older.points, *newer.points}, key=_order)[-MOST_POINTS:])
    if set(points) == set(older.points):  # known already, or older than all that is kept
        return older
    behind = older.points_behind + newer.points_behind
    ttft, tpot = (
        histogram.merge_all(observed for observed in pair if observed is not None)
        for pair in ((older.ttft, newer.ttft), (older.tpot, newer.tpot))
    )
    while behind > 2 * MOST_POINTS:
        behind, ttft, tpot = behind // 2, _halved(ttft), _halved(tpot)
    return replace(older, points=points, ttft=ttft, tpot=tpot, points_behind=behind)


def _halved(whole: Histogram | None) -> Histogram | None:
    if whole is None:
        return None
    # Odd counts are rounded up and down alternately, so that neither end fades faster.
    counts = tuple((count + index % 2) // 2 for index, count in enumerate(whole.counts))
    return msgspec.structs.replace(whole, counts=counts, sum=whole.sum / 2)


def _younger(measurement: Measurement, oldest: float) -> Measurement:
    points = tuple(point for point in measurement.points if point.at >= oldest)
    if len(points) == len(measurement.points):
        return measurement
    return replace(measurement, points=points)


def _order(point: Point) -> tuple[float, float, float, float]:
    return point[:4]
