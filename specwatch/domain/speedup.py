"""The time that minutes with speculation took, compared with the time without it.

Both are at the same conditions (:mod:`specwatch.domain.cost`): the same number of concurrent
requests, prompt tokens and tokens of context. With an open stream of requests the faster mode has
fewer of them at a time, so users gain or lose more than this ratio says; it is above 1 exactly
where they gain (J. D. C. Little, *A Proof for the Queuing Formula L = lambda W*, 1961).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.cost import CostModel, Prediction, doubt
from specwatch.domain.counterfactual import (
    NO_LENGTHS,
    Baselines,
    Counterfactual,
    Memory,
    Minute,
    Plain,
    Row,
)
from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.model import MINUTE, Environment, Mode, Objective, load_bin_label
from specwatch.domain.noise import (
    MOST_DOUBT,
    Noise,
    Spread,
    noise_of,
    sequential_tail,
    spread_of,
    student,
)
from specwatch.domain.sample import Sample

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
_TAIL = (1 - CONFIDENCE) / 2
"""Error of either bound of an interval."""
_REFERENCE_TAIL = 0.005


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
    ) -> None:
        """``mode`` is that of the samples that count; ``memory`` caches predictions between
        comparisons with the same baseline.

        With ``given_loads`` the result is what was gained at the loads and in the environments that
        occurred: how they mix does not count as noise.
        """
        self._known = Counterfactual(baseline)
        if memory is None:
            rows = self._known.rows(samples, mode)
        else:
            rows = self._known.remembered(samples, mode, memory)
        self._fill(rows, objective, given_loads)

    def _fill(self, rows: Sequence[Row], asked: Objective, given_loads: bool) -> None:
        self._rows, self._asked, self._given_loads = rows, asked, given_loads
        self._figures: dict[tuple[int, Objective], _Figures | None] = {}
        """Of the newest minutes, by the number of them: shared with parts."""
        self._stretches: dict[float, tuple[Interval, ...]] = {}

    @cached_property
    def minutes(self) -> list[Minute]:
        """All minutes, in order."""
        return [row.minute for row in self._rows]

    @cached_property
    def known(self) -> list[Minute]:
        """Those whose time without speculation is known."""
        return [row.minute for row in self._rows if isinstance(row.plain, Plain)]

    @cached_property
    def plain(self) -> list[Plain]:
        """That time, of each of them."""
        return [row.plain for row in self._rows if isinstance(row.plain, Plain)]

    @cached_property
    def tokens(self) -> float:
        """Tokens of all minutes."""
        return math.fsum([row.minute.pace.tokens for row in self._rows])

    @cached_property
    def covered(self) -> float:
        """Share of the tokens generated at conditions that the baselines know."""
        known = math.fsum([minute.pace.tokens for minute in self.known])
        return known / self.tokens if self.tokens else 0.0

    @cached_property
    def objective(self) -> Objective:
        """The objective, or time per token if times to the first token are unknown."""
        return self._possible(self._asked)

    def since(self, start: float) -> Comparison:
        """That of the minutes from a time on (Unix seconds); what is noise all of them tell."""
        first = bisect_left(self._rows, start, key=lambda row: row.minute.sample.start)
        part = self._of(self._rows[first:])
        part._figures = self._figures
        part.__dict__["noise"] = self.noise
        return part

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
        if not self.minutes:
            return NOTHING
        if not any(self._known.of(minute.sample.environment) for minute in self.minutes):
            expired = any(
                self._known.of(minute.sample.environment).expired for minute in self.minutes
            )
            return f"{NO_BASELINE} young enough" if expired else NO_BASELINE
        few = len(self.known) < LEAST_SAMPLES
        unknown = [(r.minute.pace.tokens, r.plain) for r in self._rows if isinstance(r.plain, str)]
        if unknown and (few or self.covered < LEAST_SHARE):
            return max(unknown)[1]
        return TOO_FEW if few else None

    def interval(self) -> Interval | None:
        """The speedup by the objective, with its 95 % interval; None where :attr:`missing`."""
        return None if self.missing is not None else self._interval(self.objective)

    def _interval(self, objective: Objective, tail: float = _TAIL) -> Interval | None:
        asked = (len(self._rows), objective)
        if asked not in self._figures:
            over, under = self._sides(objective)
            parts = [plain.parts(objective) for plain in self.plain]
            rows = zip(self.known, over, under, parts, strict=True)
            self._figures[asked] = self._figures_of(rows)
        figures = self._figures[asked]
        return figures and figures.interval(tail)

    def _sides(self, objective: Objective) -> tuple[list[float], list[float]]:
        """Seconds without speculation and with it, of each minute that is known."""
        timed = [timed for row in self._rows if (timed := row.timed(objective)) is not None]
        return [one.over for one in timed], [one.under for one in timed]

    def of(self, objective: Objective) -> Interval | None:
        """The speedup by another objective; None if unknown."""
        if self.missing is not None or self._possible(objective) is not objective:
            return None
        return self._interval(objective)

    def stretches(self, now: float) -> tuple[Interval, ...]:
        """The speedup over each of :data:`STRETCHES`, shortest first, each with an interval that
        is valid when looking every minute."""
        if now not in self._stretches:
            self._stretches[now] = tuple(self._tested(now))
        return self._stretches[now]

    def _tested(self, now: float) -> Iterator[Interval]:
        before = 0
        tail = sequential_tail(MINUTES_BETWEEN_ERRORS)
        for minutes in STRETCHES:
            part = self.since(now - 60 * minutes)
            if part.missing is None and len(part.known) > before:
                interval = part._interval(part.objective, tail)
                if interval is not None:
                    before = interval.samples
                    yield interval

    def losing_since(self, level: float) -> float | None:
        """When the speedup fell to about ``level``, which is below 1 (Unix seconds); None if the
        last minutes are not that slow.

        It is the start of the minutes up to now that lie furthest, in sum, below the middle between
        the level and 1 (E. S. Page, *Continuous Inspection Schemes*, Biometrika 41, 1954).
        """
        middle = math.log(level) / 2
        total = lowest = 0.0
        since = None
        rows = zip(self.known, *self._sides(self.objective), strict=True)
        for minute, over, under in sorted(rows, key=lambda row: -row[0].sample.start):
            if over > 0 and under > 0:
                total += math.log(over / under) - middle
                if total < lowest:
                    lowest, since = total, float(minute.sample.start)
        return since

    def course(self, step: int) -> tuple[tuple[float, float], ...]:
        """The start (Unix seconds) and the speedup of each stretch of ``step`` seconds in which
        minutes are known, in order."""
        sums: dict[int, list[float]] = {}
        for minute, over, under in zip(self.known, *self._sides(self.objective), strict=True):
            start = minute.sample.start // step * step
            known = sums.setdefault(start, [0.0, 0.0])
            known[0] += over
            known[1] += under
        return tuple((float(start), a / b) for start, (a, b) in sorted(sums.items()) if a > 0 < b)

    @property
    def stepping(self) -> list[Minute]:
        """Minutes that give the time of a step: predicted at their load, with drafts counted."""
        rows = zip(self.known, self.plain, strict=True)
        return [minute for minute, plain in rows if minute.steps and plain.at_load]

    def rate(self, minute: Minute) -> float:
        """Seconds per token without speculation at the conditions of a minute in ``known``."""
        return self._by_minute[id(minute)].decoding.seconds / minute.pace.tokens

    def ratio(
        self, minutes: Sequence[Minute], over: Sequence[float], under: Sequence[float]
    ) -> Interval | None:
        """``over``, seconds without speculation, divided by ``under``, with the uncertainty of
        both; None for too few minutes. They count for time per token."""
        decoding = [self._by_minute[id(minute)].decoding for minute in minutes]
        parts = [
            (plain._replace(seconds=seconds),)
            for plain, seconds in zip(decoding, over, strict=True)
        ]
        figures = self._figures_of(zip(minutes, over, under, parts, strict=True))
        return figures and figures.interval(_TAIL)

    def _figures_of(
        self, given: Iterable[tuple[Minute, float, float, tuple[Prediction, ...]]]
    ) -> _Figures | None:
        """Of minutes with their seconds without speculation, as numbers and in parts."""
        rows = [row for row in given if row[1] > 0 and row[2] > 0]
        if len(rows) < LEAST_SAMPLES:
            return None
        chosen = [row[0] for row in rows]
        top, bottom = [row[1] for row in rows], [row[2] for row in rows]
        strata = [_stratum(minute) for minute in chosen] if self._given_loads else ()
        spread = spread_of(top, bottom, self.noise, strata)
        if spread is None:
            return None
        value = math.fsum(top) / math.fsum(bottom)
        parts = [(part, part.seconds) for row in rows for part in row[3]]
        reference = doubt(parts, self._known.level_variance(chosen))
        return _Figures(value, spread, reference, len(rows))

    def corrected_by(self, other: Comparison) -> Interval | None:
        """This speedup, corrected by a comparison of minutes without speculation.

        The ratio of ``other`` is what the baseline overstates. Errors of the baseline, at like
        conditions, are in both and cancel.
        """
        objective = self.objective if self.objective is other.objective else Objective.TPOT
        sides = []
        for comparison in (self, other):
            over, under = comparison._sides(objective)
            spread = spread_of(over, under, comparison.noise)
            if spread is None or len(over) < LEAST_SAMPLES:
                return None
            sides.append((math.fsum(over) / math.fsum(under), spread))
        (speedup, spread), (overstated, off) = sides
        value = speedup / overstated
        half = min(math.hypot(spread.half_width(_TAIL), off.half_width(_TAIL)), MOST_DOUBT)
        return Interval.around(value, half, min(len(self.known), len(other.known)))

    @cached_property
    def noise(self) -> Noise | None:
        """Noise of the minutes' own ratios."""
        values: list[float | None] = []
        strata: list[tuple[Environment, int] | None] = []
        end: int | None = None
        for row in self._rows:
            sample = row.minute.sample
            if end is not None and sample.start != end:
                values.append(None)
                strata.append(None)
            end = sample.start + sample.length
            timed = row.timed(self.objective)
            values.append(None if timed is None else timed.noise)
            strata.append(_stratum(row.minute) if self._given_loads else None)
        if not self._given_loads:
            return noise_of(values)
        return noise_of(_within(values, strata))

    @cached_property
    def _by_minute(self) -> dict[int, Plain]:
        return {id(m): plain for m, plain in zip(self.known, self.plain, strict=True)}

    def _possible(self, objective: Objective) -> Objective:
        """The objective, or time per token if times to the first token are unknown."""
        if objective is Objective.TPOT or not self.known:
            return objective
        timed = all(plain.first is not None for plain in self.plain)
        return objective if timed else Objective.TPOT


class _Figures(NamedTuple):
    """A speedup with the uncertainty of its minutes and that of the baselines."""

    value: float
    own: Spread
    reference: Spread
    samples: int

    def interval(self, tail: float) -> Interval:
        """``tail`` is the error of either bound."""
        half = _half_width(self.own, self.reference, tail)
        return Interval.around(self.value, half, self.samples, 1 - 2 * tail)


class PresentSpeedup(NamedTuple):
    """The speedup of the last :data:`PRESENT` seconds, None if it is not known.

    ``losing_since`` is the Unix time since when speculation certainly loses; None if it does not.
    ``course`` is that of the last hour: see :meth:`Comparison.course`.
    """

    speedup: Interval | None = None
    losing_since: float | None = None
    course: tuple[tuple[float, float], ...] = ()


class StandbyCost(NamedTuple):
    """Time in standby over time without speculation at the same conditions, above 1 where the
    drafter costs time; None if unknown, and ``missing`` says why, as words."""

    cost: Interval | None
    missing: str | None = None


def standby_cost(
    samples: Iterable[Sample],
    baseline: Baseline | Baselines,
    objective: Objective = Objective.TPOT,
    *,
    mode: Mode = Mode.STANDBY,
    loads: Collection[str] | None = None,
) -> StandbyCost:
    """The standby cost, from minutes in standby of the newest environment among ``samples`` and its
    baseline; of deep standby with that as ``mode``. It holds at the loads of these minutes, which
    are those in the bins ``loads`` or all; its interval includes the uncertainty of both.
    """
    standby = [
        sample
        for sample in samples
        if sample.usable(mode)
        and sample.pace
        and sample.load_bin is not None
        and (loads is None or load_bin_label(sample.load_bin) in loads)
    ]
    if not standby:
        return StandbyCost(None, NO_STANDBY)
    newest = max(standby, key=lambda sample: sample.start).environment
    alike = [sample for sample in standby if sample.environment == newest]
    compared = Comparison(alike, baseline, objective=objective, mode=mode)
    speedup = compared.interval()
    return StandbyCost(None if speedup is None else speedup.inverse(), compared.missing)


def _half_width(own: Spread, reference: Spread, tail: float) -> float:
    """Half-width of a logarithm. Looking every minute makes errors of the minutes more frequent,
    but not errors of the baseline, which is the same at every look."""
    if tail >= _REFERENCE_TAIL:
        variance = own.variance + reference.variance
        if variance <= 0:
            return 0.0
        freedom = variance**2 / (
            own.variance**2 / max(own.freedom, 1.0)
            + reference.variance**2 / max(reference.freedom, 1.0)
        )  # B. L. Welch, Biometrika 34, 1947
        return min(student(1 - tail, freedom) * math.sqrt(variance), MOST_DOUBT)
    return min(own.half_width(tail) + reference.half_width(_REFERENCE_TAIL), MOST_DOUBT)


def _stratum(minute: Minute) -> tuple[Environment, int]:
    """Environment and load, which the pace depends on."""
    return minute.sample.environment, minute.load_bin


def _within(values: Sequence[float | None], strata: Sequence[Hashable]) -> list[float | None]:
    """Values less the mean of their stratum: differences between strata do not count as noise."""
    grouped: dict[Hashable, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        if value is not None:
            grouped.setdefault(stratum, []).append(value)
    means = {stratum: math.fsum(group) / len(group) for stratum, group in grouped.items()}
    return [
        None if value is None else value - means[stratum]
        for value, stratum in zip(values, strata, strict=True)
    ]
