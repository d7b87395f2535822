"""The time that minutes with speculation took, compared with the time without it.

Both are at the same conditions (:mod:`specwatch.domain.cost`): the same number of concurrent
requests, prompt tokens and tokens of context. With an open stream of requests the faster mode has
fewer of them at a time, so users gain or lose more than this ratio says; it is above 1 exactly
where they gain (J. D. C. Little, *A Proof for the Queuing Formula L = lambda W*, 1961).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.cost import CostModel, Doubt
from specwatch.domain.counterfactual import (
    NO_LENGTHS,
    Baselines,
    Counterfactual,
    Memory,
    Minute,
    Plain,
    Row,
    Timed,
)
from specwatch.domain.interval import LEAST_SAMPLES, Interval
from specwatch.domain.model import MINUTE, Environment, Mode, Objective
from specwatch.domain.noise import MOST_DOUBT, Noise, noise_of, sequential_tail, spread_of
from specwatch.domain.sample import Sample
from specwatch.domain.uncertainty import TAIL, Figures, NewestDoubt, within

NOTHING = "nothing was generated with speculation"
NO_BASELINE = "no baseline"
TOO_FEW = "too few minutes of traffic"
NOT_READ = "baselines were not read from the database yet"
NOT_SEEN = "no minute was seen since"
NO_STANDBY = "no whole minute in standby was seen"
"""Reasons for which nothing is compared, in addition to unknown conditions."""
LEAST_SHARE = 0.5
"""Share of the work that must have been done at conditions that the baseline covers."""
MINUTES_BETWEEN_ERRORS = 60_000.0
"""Mean time between false alarms, looking every minute: a thousand hours."""
STRETCHES = (5, 7, 10, 14, 20, 28, 40, 60)
"""Lengths in minutes of the stretches ending now that are tested for a gain or a loss: the shortest
with a certain answer decides."""
PRESENT = 6 * MINUTE
"""Seconds of what is shown as the speedup now."""

_START = attrgetter("minute.sample.start")


def mended_by_calibration(missing: str) -> bool:
    """Whether a calibration at the present conditions would remove the reason for which nothing is
    compared (:attr:`Comparison.missing`)."""
    return missing not in (NOTHING, TOO_FEW, NO_LENGTHS, NOT_READ, NOT_SEEN, NO_STANDBY)


class Comparison:
    """Minutes with speculation compared with the baselines of their environments."""

    def __init__(
        self,
        samples: Sequence[Sample],
        baseline: Baseline | Baselines,
        *,
        objective: Objective = Objective.E2E,
        given_loads: bool = False,
        mode: Mode = Mode.ON,
        memory: Memory | None = None,
        same: Memory | None = None,
    ) -> None:
        """``mode`` is that of the samples that count; ``memory`` caches predictions between
        comparisons of minutes with the same baseline, ``same`` those of other samples.

        With ``given_loads`` the result is what was gained at the loads and in the environments that
        occurred: how they mix does not count as noise.
        """
        self._known = Counterfactual(baseline)
        if memory is not None:
            rows = self._known.remembered(samples, mode, memory)
        elif same is not None:
            rows = self._known.same_rows(samples, mode, same)
        else:
            rows = self._known.rows(samples, mode)
        self._fill(rows, objective, given_loads)

    def _fill(self, rows: Sequence[Row], asked: Objective, given_loads: bool) -> None:
        self._rows, self._asked, self._given_loads = rows, asked, given_loads
        self._doubts: dict[Objective, NewestDoubt] = {}
        self._figures: dict[tuple[int, Objective], Figures | None] = {}
        """Of the newest minutes that are known, by the number of them: shared with parts, like
        their doubts."""
        self._times: dict[Objective, Sequence[Timed]] = {}

    @cached_property
    def _compared(self) -> Sequence[Row]:
        """The rows whose time without speculation is known."""
        return [row for row in self._rows if isinstance(row.plain, Plain)]

    @cached_property
    def minutes(self) -> list[Minute]:
        """All minutes, in order."""
        return [row.minute for row in self._rows]

    @cached_property
    def known(self) -> list[Minute]:
        """Those whose time without speculation is known."""
        return [row.minute for row in self._compared]

    @cached_property
    def plain(self) -> list[Plain]:
        """That time, of each of them."""
        return [row.plain for row in self._compared if isinstance(row.plain, Plain)]

    @cached_property
    def tokens(self) -> float:
        """Tokens of all minutes."""
        return math.fsum([row.minute.pace.tokens for row in self._rows])

    @cached_property
    def covered(self) -> float:
        """Share of the tokens generated at conditions that the baselines know."""
        known = math.fsum([row.minute.pace.tokens for row in self._compared])
        return known / self.tokens if self.tokens else 0.0

    @cached_property
    def objective(self) -> Objective:
        """The objective, or time per token if times to the first token are unknown."""
        return self._possible(self._asked)

    def since(self, start: float) -> Comparison:
        """That of the minutes from a time on (Unix seconds); what is noise all of them tell."""
        rows, compared = self._rows, self._compared
        part = self._of(rows[_first(rows, start) :])
        place = _first(compared, start)
        part._figures, part._doubts = self._figures, self._doubts
        part._times = {of: times[place:] for of, times in self._times.items()}
        part.__dict__.update(
            noise=self.noise, _compared=compared[place:], objective=self._objective_from(place)
        )
        return part

    def _objective_from(self, place: int) -> Objective:
        """The objective of the minutes from a place among the known ones on."""
        known = self._compared[place:]
        timed = not known or known[0].minute.sample.start > self._untimed
        return self._asked if timed else Objective.TPOT

    @cached_property
    def _untimed(self) -> float:
        """Start of the newest minute without a time to the first token that is asked for."""
        if self.objective is self._asked:
            return -math.inf
        rows = zip(reversed(self._compared), reversed(self.plain), strict=True)
        return next(row.minute.sample.start for row, plain in rows if plain.first is None)

    def adjusted(self, usual: CostModel) -> Comparison:
        """That with the server as fast as it was when the baseline was measured.

        ``usual`` is what a step with speculation took then. Where it takes longer now, at the same
        conditions, the server is slower for a reason that has nothing to do with acceptance: a
        neighbour, a throttled clock. That this would slow it down without speculation too is
        assumed, until it is measured.
        """
        return self._of([row.adjusted(usual) for row in self._rows])

    def _of(self, rows: Sequence[Row]) -> Comparison:
        """That of other minutes, or of others' times, with the same baselines."""
        part = Comparison.__new__(Comparison)
        part._known = self._known
        part._fill(rows, self._asked, self._given_loads)
        return part

    @cached_property
    def missing(self) -> str | None:
        """Why nothing can be compared, as words; None where it can."""
        few = len(self._compared) < LEAST_SAMPLES
        if not few and len(self._compared) == len(self._rows):
            return None
        if not self._rows:
            return NOTHING
        if not any(self._known.of(minute.sample.environment) for minute in self.minutes):
            expired = any(
                self._known.of(minute.sample.environment).expired for minute in self.minutes
            )
            return f"{NO_BASELINE} young enough" if expired else NO_BASELINE
        unknown = [(r.minute.pace.tokens, r.plain) for r in self._rows if isinstance(r.plain, str)]
        if unknown and (few or self.covered < LEAST_SHARE):
            return max(unknown)[1]
        return TOO_FEW if few else None

    def interval(self) -> Interval | None:
        """The speedup by the objective, with its 95 % interval; None where :attr:`missing`."""
        return None if self.missing is not None else self._interval(self.objective)

    def _interval(self, objective: Objective, tail: float = TAIL) -> Interval | None:
        figures = self._newest(len(self._compared), objective)
        return figures and figures.interval(tail)

    def _newest(self, count: int, objective: Objective) -> Figures | None:
        """Figures of the newest ``count`` minutes that are known, which are remembered."""
        asked = (count, objective)
        if asked not in self._figures:
            self._figures[asked] = self._figures_of_newest(count, objective)
        return self._figures[asked]

    def times(self, objective: Objective) -> Sequence[Timed]:
        """The seconds of each minute that is known."""
        if objective not in self._times:
            timed = [row.timed(objective) for row in self._compared]
            self._times[objective] = [one for one in timed if one is not None]
        return self._times[objective]

    def of(self, objective: Objective) -> Interval | None:
        """The speedup by another objective; None if unknown."""
        if self.missing is not None or self._possible(objective) is not objective:
            return None
        return self._interval(objective)

    def stretches(self, now: float) -> tuple[Interval, ...]:
        """The speedup over each of :data:`STRETCHES`, shortest first, each with an interval that
        is valid when looking every minute."""
        return tuple(self.tested(now))

    def tested(self, now: float) -> Iterator[Interval]:
        """As :meth:`stretches`, each computed when it is asked for."""
        before = 0
        tail = sequential_tail(MINUTES_BETWEEN_ERRORS)
        rows, compared = self._rows, self._compared
        for minutes in STRETCHES:
            start = now - 60 * minutes
            place = _first(compared, start)
            count = len(compared) - place
            if count <= before or count < LEAST_SAMPLES:
                continue
            if count < len(rows) - _first(rows, start) and self.since(start).missing is not None:
                continue
            figures = self._newest(count, self._objective_from(place))
            if figures is not None:
                before = figures.samples
                yield figures.interval(tail)

    def losing_since(self, level: float) -> float | None:
        """When the speedup fell to about ``level``, which is below 1 (Unix seconds); None if the
        last minutes are not that slow.

        It is the start of the minutes up to now that lie furthest, in sum, below the middle between
        the level and 1 (E. S. Page, *Continuous Inspection Schemes*, Biometrika 41, 1954).
        """
        middle = math.log(level) / 2
        rows = zip(self.known, self.times(self.objective), strict=True)
        return _lowest_since(
            (minute.sample.start, math.log(timed.over / timed.under) - middle)
            for minute, timed in rows
            if timed.over > 0 and timed.under > 0
        )

    def unknown_since(self) -> float | None:
        """Since when most of the traffic, by tokens, cannot be compared (Unix seconds): the start
        of the minutes up to now in which what cannot be exceeds what can by most. None if the
        newest can, or too few cannot to say so."""
        if len(self._rows) - len(self._compared) < LEAST_SAMPLES:
            return None
        return _lowest_since(
            (
                row.minute.sample.start,
                row.minute.pace.tokens * (1 if isinstance(row.plain, Plain) else -1),
            )
            for row in self._rows
        )

    def course(self, step: int) -> tuple[tuple[float, float], ...]:
        """The start (Unix seconds) and the speedup of each stretch of ``step`` seconds in which
        minutes are known, in order."""
        sums: dict[int, list[float]] = {}
        for minute, timed in zip(self.known, self.times(self.objective), strict=True):
            start = minute.sample.start // step * step
            known = sums.setdefault(start, [0.0, 0.0])
            known[0] += timed.over
            known[1] += timed.under
        return tuple((float(start), a / b) for start, (a, b) in sorted(sums.items()) if a > 0 < b)

    @property
    def stepping(self) -> list[Minute]:
        """Minutes that give the time of a step: predicted at their load, with drafts counted."""
        rows = zip(self.known, self.plain, strict=True)
        return [minute for minute, plain in rows if minute.steps and plain.at_load]

    def rate(self, minute: Minute) -> float:
        """Seconds per token without speculation at the conditions of a minute in ``known``."""
        plain, slower = self._by_minute[id(minute)]
        return plain.decoding.seconds * slower / minute.pace.tokens

    def ratio(
        self, minutes: Sequence[Minute], over: Sequence[float], under: Sequence[float]
    ) -> Interval | None:
        """``over``, seconds without speculation, divided by ``under``, with the uncertainty of
        both; None for too few minutes. They count for time per token."""
        minutes, over, under = _positive(minutes, over, under)
        doubt, known = Doubt(), self._by_minute
        doubt.add(
            (seconds, known[id(minute)][0].decoding.rests_on(seconds))
            for minute, seconds in zip(minutes, over, strict=True)
        )
        figures = self._figures_of(minutes, over, under, doubt)
        return figures and figures.interval(TAIL)

    def _figures_of_newest(self, count: int, objective: Objective) -> Figures | None:
        first = len(self._compared) - count
        times, minutes = self.times(objective)[first:], self.known[first:]
        doubts = self._doubts.get(objective)
        if doubts is None or doubts.count > count:
            doubts = self._doubts[objective] = NewestDoubt()
        doubts.add(times)
        over, under = [timed.over for timed in times], [timed.under for timed in times]
        return self._figures_of(*_positive(minutes, over, under), doubts.doubt)

    def _figures_of(
        self,
        minutes: Sequence[Minute],
        over: Sequence[float],
        under: Sequence[float],
        doubt: Doubt,
    ) -> Figures | None:
        """Of minutes with their seconds without speculation and with it, none of them 0."""
        if len(over) < LEAST_SAMPLES:
            return None
        strata = [_stratum(minute) for minute in minutes] if self._given_loads else ()
        spread = spread_of(over, under, self.noise, strata)
        if spread is None:
            return None
        reference = doubt.spread(self._known.level_variance(minutes))
        return Figures(math.fsum(over) / math.fsum(under), spread, reference, len(over))

    def corrected_by(self, other: Comparison) -> Interval | None:
        """This speedup, corrected by a comparison of minutes without speculation.

        The ratio of ``other`` is what the baseline overstates. Errors of the baseline, at like
        conditions, are in both and cancel.
        """
        objective = self.objective if self.objective is other.objective else Objective.TPOT
        sides = []
        for comparison in (self, other):
            times = comparison.times(objective)
            over, under = [timed.over for timed in times], [timed.under for timed in times]
            spread = spread_of(over, under, comparison.noise)
            if spread is None or len(over) < LEAST_SAMPLES:
                return None
            sides.append((math.fsum(over) / math.fsum(under), spread))
        (speedup, spread), (overstated, off) = sides
        value = speedup / overstated
        half = min(math.hypot(spread.half_width(TAIL), off.half_width(TAIL)), MOST_DOUBT)
        return Interval.around(value, half, min(len(self.known), len(other.known)))

    @cached_property
    def noise(self) -> Noise | None:
        """Noise of the minutes' own ratios."""
        objective = self.objective
        times: Sequence[Timed | None] = self.times(objective)
        if len(times) < len(self._rows):
            times = [row.timed(objective) for row in self._rows]
        values = [None if timed is None else timed.noise for timed in times]
        strata: list[Hashable] = []
        if self._given_loads:
            strata += [_stratum(row.minute) for row in self._rows]
        for place in self._gaps:
            values.insert(place, None)
            if strata:
                strata.insert(place, None)
        return noise_of(within(values, strata) if strata else values)

    @cached_property
    def _gaps(self) -> list[int]:
        """Places of minutes before which others are missing, last first."""
        samples = [row.minute.sample for row in self._rows]
        ends = [sample.start + sample.length for sample in samples]
        return [
            place
            for place in range(len(samples) - 1, 0, -1)
            if samples[place].start != ends[place - 1]
        ]

    @cached_property
    def _by_minute(self) -> dict[int, tuple[Plain, float]]:
        rows = zip(self._compared, self.plain, strict=True)
        return {id(row.minute): (plain, row.slower) for row, plain in rows}

    def _possible(self, objective: Objective) -> Objective:
        """The objective, or time per token if times to the first token are unknown."""
        if objective is Objective.TPOT or not self._compared:
            return objective
        timed = all(plain.first is not None for plain in self.plain)
        return objective if timed else Objective.TPOT


def _lowest_since(steps: Iterable[tuple[int, float]]) -> float | None:
    """The start of the steps up to the newest whose sum is lowest; None if none is below 0."""
    total = lowest = 0.0
    since = None
    for start, step in sorted(steps, reverse=True):
        total += step
        if total < lowest:
            lowest = total
            since = float(start)
    return since


def _first(rows: Sequence[Row], start: float) -> int:
    """The place of the first of the rows that is not before a time."""
    return bisect_left(rows, start, key=_START)


def _positive(
    minutes: Sequence[Minute], over: Sequence[float], under: Sequence[float]
) -> tuple[Sequence[Minute], Sequence[float], Sequence[float]]:
    """Without minutes of which one of the times is 0."""
    if min(over, default=0.0) > 0 < min(under, default=0.0):
        return minutes, over, under
    given = zip(minutes, over, under, strict=True)
    chosen = [row for row in given if row[1] > 0 < row[2]]
    return [row[0] for row in chosen], [row[1] for row in chosen], [row[2] for row in chosen]


class Stretches:
    """Intervals, of which each is computed once it is looked at; for one thread at a time."""

    def __init__(self, computed: Iterator[Interval]) -> None:
        self._rest = computed
        self._known: list[Interval] = []

    def __iter__(self) -> Iterator[Interval]:
        place = 0
        while place < len(self._known) or self._more():
            yield self._known[place]
            place += 1

    def _more(self) -> bool:
        """Compute another; false at the end."""
        before = len(self._known)
        self._known += islice(self._rest, 1)
        return len(self._known) > before

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


class Unjudged(NamedTuple):
    """Traffic with speculation that cannot be compared, now: since when (Unix seconds), and why."""

    since: float
    missing: str


class PresentSpeedup(NamedTuple):
    """The speedup of the last :data:`PRESENT` seconds, None if it is not known.

    ``losing_since`` is the Unix time since when speculation certainly loses; None if it does not.
    ``course`` is that of the last hour: see :meth:`Comparison.course`.
    """

    speedup: Interval | None = None
    losing_since: float | None = None
    course: tuple[tuple[float, float], ...] = ()
    unjudged: Unjudged | None = None


def _stratum(minute: Minute) -> tuple[Environment, int]:
    """Environment and load, which the pace depends on."""
    return minute.sample.environment, minute.load_bin
