"""The time that minutes with speculation took, beside what their work takes without it.

Compared is at the same conditions (:mod:`specwatch.core.cost`): as many requests at a time, as
many prompt tokens to read meanwhile, as much context. With an open stream of requests the faster
mode has fewer of them at a time, so that what users gain is more than this ratio, and what they
lose is, too; it is above 1 exactly where they gain (J. D. C. Little, *A Proof for the Queuing
Formula L = lambda W*, 1961).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specwatch.core.baseline import Baseline, extras
from specwatch.core.cost import CostModel, Observation, Prediction
from specwatch.core.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.core.noise import (
    MOST_DOUBT,
    Noise,
    Spread,
    noise_of,
    sequential_tail,
    spread_of,
    student,
)
from specwatch.core.sample import Pace, Requests, Sample
from specwatch.model import Environment, Mode, Objective

LEAST_SHARE = 0.5
"""Share of the work that must have been done at conditions that the baseline knows."""
MINUTES_BETWEEN_ERRORS = 60_000.0
"""Mean time between false alarms of somebody who looks every minute: a thousand hours."""
STRETCHES = (5, 7, 10, 14, 20, 28, 40, 60)
"""Minutes that end now, over which it is asked whether speculation pays: the shortest that tells
for certain decides."""
LIKE = 2.0
"""Factor by which prompts may be longer, or shorter, than those of the baseline."""
_NEIGHBOURHOOD = 300
"""Seconds before and after a minute whose requests tell how long prompts were."""
_REFERENCE_TAIL = 0.005

Memory = dict[int, "tuple[Minute, Plain | str]"]
"""Minutes by their start, and what they take without speculation, or why that is not known."""

Baselines = Callable[[Environment], Baseline]
"""The baseline of each environment: what ran in another is no measure."""


@dataclass(frozen=True, slots=True)
class Minute:
    """A sample of which all is known that a comparison needs.

    ``steps`` is 0 where drafts are not counted: then nothing can be said of a step.
    """

    sample: Sample
    pace: Pace
    steps: float
    concurrency: float
    load_bin: int
    requests: Requests | None

    @classmethod
    def of(cls, sample: Sample, mode: Mode = Mode.ON) -> Minute | None:
        """None for a sample of another mode, or that says nothing of the pace."""
        pace, steps, concurrency = sample.pace, sample.steps, sample.gauges.concurrency
        bin_ = sample.load_bin
        if sample.mode is not mode or not sample.sound or pace is None:
            return None
        if concurrency is None or bin_ is None:
            return None
        return cls(sample, pace, steps or 0.0, concurrency, bin_, sample.requests)

    @property
    def tokens_per_step(self) -> float:
        """tau over all decoding steps."""
        if self.pace.by_token:
            return self.pace.tokens / self.steps
        return 1 + (self.sample.tally.accepted_tokens or 0) / self.steps

    @property
    def step_seconds(self) -> float:
        """What a step took."""
        return self.pace.seconds / self.pace.tokens * self.tokens_per_step

    @property
    def kept(self) -> float:
        """Share of what the steps yielded: an output that ends within one throws the rest away."""
        yielded = 1 + (self.sample.tally.accepted_tokens or 0) / self.steps
        return self.tokens_per_step / yielded

    @property
    def drafting(self) -> float:
        """Share of the steps that drafted."""
        return min((self.sample.tally.drafts or 0) / self.steps, 1.0)


class Plain(NamedTuple):
    """What the work of a minute takes without speculation: its tokens, and its first tokens."""

    decoding: Prediction
    first: Prediction | None
    at_load: bool = True
    """Whether at the same load; at the same demand it says nothing of a step."""

    def times(self, factor: float) -> Plain:
        """On a server that is slower by a factor."""
        return self._replace(
            decoding=self.decoding.times(factor), first=self.first and self.first.times(factor)
        )


class Lengths(NamedTuple):
    """Mean lengths of the requests around a minute, in tokens."""

    prompt: float | None
    output: float | None


class Comparison:
    """Minutes with speculation beside the baselines of their environments."""

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
        """``mode`` is that of the samples that count; ``memory`` remembers what minutes take, of
        comparisons with the same baseline.

        With ``given_loads`` it is asked what was gained in the very time that each load, and each
        environment, had: it is no noise how they mix.
        """
        self._given_loads = given_loads
        self._baseline = baseline
        self._cache: dict[Environment, Baseline] = {}
        self._asked = objective
        if memory is None:
            self._fill(self._computed(_minutes(samples, mode)))
        else:
            self._fill(self._remembered(samples, mode, memory))

    def _fill(self, rows: Sequence[tuple[Minute, Plain | str]]) -> None:
        self._rows = rows
        self.minutes = [minute for minute, _ in rows]
        self.known = [minute for minute, plain in rows if isinstance(plain, Plain)]
        self.plain = [plain for _, plain in rows if isinstance(plain, Plain)]
        self.tokens = math.fsum(each.pace.tokens for each in self.minutes)
        known = math.fsum(each.pace.tokens for each in self.known)
        self.covered = known / self.tokens if self.tokens else 0.0
        """Share of the tokens generated at conditions that the baselines know."""
        self.objective = self._possible(self._asked)

    def since(self, start: float) -> Comparison:
        """That of the minutes from a time on (Unix seconds); what is noise all of them tell."""
        part = Comparison((), self._baseline, objective=self._asked, given_loads=self._given_loads)
        part._fill([row for row in self._rows if row[0].sample.start >= start])
        part.__dict__["noise"] = self.noise
        return part

    def adjusted(self, usual: CostModel) -> Comparison:
        """That with the server as fast as it was when the baseline was measured.

        ``usual`` is what a step with speculation took then. Where it takes longer now, at the same
        conditions, the server is slower for a reason that has nothing to do with acceptance: a
        neighbour, a throttled clock. That this would slow it down without speculation too is
        assumed, until it is measured.
        """
        part = Comparison((), self._baseline, objective=self._asked, given_loads=self._given_loads)
        part._fill([(minute, _adjusted(minute, plain, usual)) for minute, plain in self._rows])
        return part

    def _computed(self, minutes: Sequence[Minute]) -> list[tuple[Minute, Plain | str]]:
        pairs = zip(minutes, _lengths(minutes), strict=True)
        return [(minute, self._plain(minute, lengths)) for minute, lengths in pairs]

    def _remembered(
        self, samples: Sequence[Sample], mode: Mode, memory: Memory
    ) -> list[tuple[Minute, Plain | str]]:
        """The minutes and what they take; of those remembered nothing is computed anew."""
        ordered = sorted(samples, key=lambda each: each.start)
        fresh = [each for each in ordered if each.start not in memory]
        since = fresh[0].start - 2 * _NEIGHBOURHOOD if fresh else math.inf
        near = _minutes([each for each in ordered if each.start >= since], mode)
        found = {row[0].sample.start: row for row in self._computed(near)}
        rows = [
            row
            for each in ordered
            if (row := memory.get(each.start) or found.get(each.start)) is not None
        ]
        # Requests of the minutes after it belong to what is known of a minute.
        settled = ordered[-1].start - _NEIGHBOURHOOD if ordered else 0
        memory.update(
            (start, row) for start, row in found.items() if start < settled and start not in memory
        )
        for start in [start for start in memory if start < ordered[0].start]:
            del memory[start]
        return rows

    @cached_property
    def missing(self) -> str | None:
        """Why nothing can be compared, as words; None where it can."""
        if not self.minutes:
            return "nothing was generated with speculation"
        if not any(self._of(each.sample.environment) for each in self.minutes):
            return "no baseline"
        if self.covered < LEAST_SHARE:
            return max((m.pace.tokens, why) for m, why in self._rows if isinstance(why, str))[1]
        return None if len(self.known) >= LEAST_SAMPLES else "too few minutes of traffic"

    def interval(self) -> Interval | None:
        """The speedup by the objective, with its 95 % interval; None where :attr:`missing`."""
        return None if self.missing is not None else self._interval()

    def _interval(self, tail: float = (1 - CONFIDENCE) / 2) -> Interval | None:
        over = [self._seconds(plain, self.objective) for plain in self.plain]
        under = [_took(minute, self.objective) for minute in self.known]
        return self.ratio(self.known, over, under, tail)

    def of(self, objective: Objective) -> Interval | None:
        """The speedup by another objective; None where it is not known."""
        if self.missing is not None or self._possible(objective) is not objective:
            return None
        over = [self._seconds(plain, objective) for plain in self.plain]
        under = [_took(minute, objective) for minute in self.known]
        return self.ratio(self.known, over, under)

    def stretches(self, now: float) -> tuple[Interval, ...]:
        """The speedup over each of :data:`STRETCHES`, shortest first, each with an interval that
        holds for somebody who looks every minute."""
        found: list[Interval] = []
        tail = sequential_tail(MINUTES_BETWEEN_ERRORS)
        for minutes in STRETCHES:
            part = self.since(now - 60 * minutes)
            if part.missing is None and (not found or len(part.known) > found[-1].samples):
                interval = part._interval(tail)
                if interval is not None:
                    found.append(interval)
        return tuple(found)

    @property
    def stepping(self) -> list[Minute]:
        """Those that tell what a step takes: known at their own load, with drafts counted."""
        rows = zip(self.known, self.plain, strict=True)
        return [minute for minute, plain in rows if minute.steps and plain.at_load]

    def rate(self, minute: Minute) -> float:
        """Seconds per token without speculation at the conditions of a minute that is known."""
        return self._by_minute[id(minute)].decoding.seconds / minute.pace.tokens

    def ratio(
        self,
        minutes: Sequence[Minute],
        over: Sequence[float],
        under: Sequence[float],
        tail: float = (1 - CONFIDENCE) / 2,
    ) -> Interval | None:
        """``over``, which are seconds without speculation, by ``under``, with the doubt of both;
        None for too few minutes. ``tail`` is the error of either bound."""
        rows = [row for row in zip(minutes, over, under, strict=True) if row[1] > 0 and row[2] > 0]
        if len(rows) < LEAST_SAMPLES:
            return None
        chosen = [row[0] for row in rows]
        top, bottom = [row[1] for row in rows], [row[2] for row in rows]
        strata = [_stratum(each) for each in chosen] if self._given_loads else ()
        spread = spread_of(top, bottom, self.noise, strata)
        if spread is None:
            return None
        value = math.fsum(top) / math.fsum(bottom)
        half = _half_width(spread, self._doubt(chosen, top), tail)
        return Interval(
            value, value * math.exp(-half), value * math.exp(half), len(rows), 1 - 2 * tail
        )

    def corrected_by(
        self, other: Comparison, tail: float = (1 - CONFIDENCE) / 2
    ) -> Interval | None:
        """This speedup where what another says of the same baseline is the measure.

        ``other`` are minutes without speculation: their ratio is what the baseline overstates. Its
        own errors, at like conditions, are in both and cancel.
        """
        objective = self.objective if self.objective is other.objective else Objective.TPOT
        sides = []
        for each in (self, other):
            over = [each._seconds(plain, objective) for plain in each.plain]
            under = [_took(minute, objective) for minute in each.known]
            spread = spread_of(over, under, each.noise)
            if spread is None or len(over) < LEAST_SAMPLES:
                return None
            sides.append((math.fsum(over) / math.fsum(under), spread))
        (speedup, spread), (overstated, doubt) = sides
        value = speedup / overstated
        half = min(math.hypot(spread.half_width(tail), doubt.half_width(tail)), MOST_DOUBT)
        return Interval(
            value, value * math.exp(-half), value * math.exp(half),
            min(len(self.known), len(other.known)), 1 - 2 * tail,
        )  # fmt: skip

    @cached_property
    def noise(self) -> Noise | None:
        """That of the minutes' own ratios."""
        values: list[float | None] = []
        strata: list[tuple[Environment, int] | None] = []
        end: int | None = None
        for minute, plain in self._rows:
            if end is not None and minute.sample.start != end:
                values.append(None)
                strata.append(None)
            end = minute.sample.start + minute.sample.length
            if isinstance(plain, Plain):
                took = _took(minute, self.objective)
                seconds = self._seconds(plain, self.objective)
                values.append(math.log(seconds / took) if took > 0 and seconds > 0 else None)
            else:
                values.append(None)
            strata.append(_stratum(minute) if self._given_loads else None)
        return noise_of(_within(values, strata))

    @cached_property
    def _by_minute(self) -> dict[int, Plain]:
        return {id(m): plain for m, plain in zip(self.known, self.plain, strict=True)}

    def _possible(self, objective: Objective) -> Objective:
        """Time per token where the rest is not known."""
        if objective is Objective.TPOT or not self.known:
            return objective
        told = all(plain.first is not None for plain in self.plain)
        return objective if told else Objective.TPOT

    @staticmethod
    def _seconds(plain: Plain, objective: Objective) -> float:
        first = 0.0 if plain.first is None else plain.first.seconds
        if objective is Objective.TTFT:
            return first
        return plain.decoding.seconds + (first if objective is Objective.E2E else 0.0)

    def _of(self, environment: Environment) -> Baseline:
        if environment not in self._cache:
            known = self._baseline
            self._cache[environment] = known if isinstance(known, Baseline) else known(environment)
        return self._cache[environment]

    def _models(self, minute: Minute) -> tuple[CostModel, CostModel]:
        known = self._of(minute.sample.environment)
        return known.by_token if minute.pace.by_token else known.by_request, known.first

    def _plain(self, minute: Minute, lengths: Lengths) -> Plain | str:
        """What the work of a minute takes without speculation, or why that is not known."""
        decoding, firsts = self._models(minute)
        asked = minute.requests
        unlike = self._unlike(minute, lengths)
        if unlike is not None:
            return unlike
        more = (0.0, 0.0)
        if asked is None or lengths.prompt is None:
            if any(decoding.slopes):
                return "nothing tells how long prompts were"
        else:
            more = extras(
                minute.concurrency, minute.pace.tokens, asked.prompt_tokens, lengths.prompt,
                lengths.output or 0.0,
            )  # fmt: skip
        found = decoding.predict(minute.concurrency, minute.pace.tokens, *more)
        if found is None:
            return self._at_demand(minute) or "no baseline at the load that there was"
        first = None
        if asked is not None and minute.pace.by_token and firsts:
            # Fewer minutes tell of first tokens than of others.
            first = firsts.predict(
                asked.population, float(asked.firsts), asked.prompt_tokens, nearest=True
            )
            if first is None:
                same = self._at_demand(minute)
                first = same and same.first
            if first is None:
                return "no time to the first token in the baseline at the load that there was"
        return Plain(found, first)

    def _at_demand(self, minute: Minute) -> Plain | None:
        """At the same demand in place of the same load: where speculation is slow, so many
        requests at a time are never seen without it."""
        known, asked = self._of(minute.sample.environment), minute.requests
        demand = known.demand(minute.pace.tokens, float(minute.sample.length))
        if demand is None or asked is None or not minute.pace.by_token:
            return None
        found = known.by_demand.predict(demand, minute.pace.tokens)
        if found is None:
            return None
        first = known.first_by_demand.predict(demand, float(asked.firsts), asked.prompt_tokens)
        return Plain(found, first, at_load=False)

    def _unlike(self, minute: Minute, lengths: Lengths) -> str | None:
        """How requests differ from those of the baseline; None where they do not."""
        known = self._of(minute.sample.environment).prompts
        if known is None or lengths.prompt is None:
            return None
        if lengths.prompt > LIKE * known.high:
            factor, how = lengths.prompt / known.high, "longer"
        elif lengths.prompt < known.low / LIKE:
            factor, how = known.low / lengths.prompt, "shorter"
        else:
            return None
        return f"prompts are {factor:.0f} times {how} than those of the baseline"

    def _doubt(self, minutes: Sequence[Minute], over: Sequence[float]) -> Spread:
        """Of the baselines: independent parts add up."""
        whole = math.fsum(over)
        parts: dict[int, list[Prediction]] = {}
        for minute, seconds in zip(minutes, over, strict=True):
            plain = self._by_minute[id(minute)]
            of_all = self._seconds(plain, self.objective) or 1.0
            for part in (plain.decoding, plain.first):
                if part is not None and part.seconds > 0:
                    share = seconds / max(of_all, part.seconds)
                    parts.setdefault(id(part.model), []).append(part.times(share))
        total, doubt = 0.0, 0.0
        for predictions in parts.values():
            variance, freedom = predictions[0].model.variance(predictions)
            weighted = (math.fsum(each.seconds for each in predictions) / whole) ** 2 * variance
            total += weighted
            doubt += weighted**2 / freedom
        return Spread(total, total**2 / doubt if doubt > 0 else math.inf)


def _half_width(own: Spread, reference: Spread, tail: float) -> float:
    """Of a logarithm. A look each minute makes errors of the minutes more frequent, but none of
    the baseline, which is the same at every look."""
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


def _took(minute: Minute, objective: Objective) -> float:
    asked = minute.requests
    first = 0.0 if asked is None else asked.first_seconds
    if objective is Objective.TTFT:
        return first
    return minute.pace.seconds + (first if objective is Objective.E2E else 0.0)


def stepping(minute: Minute) -> Observation | None:
    """What the steps of a minute took, at its conditions; None where drafts are not counted."""
    if not minute.steps or not minute.pace.by_token:
        return None
    sample, asked = minute.sample, minute.requests
    more = (0.0, 0.0)
    if asked is not None:
        more = extras(
            minute.concurrency, minute.steps, asked.prompt_tokens, asked.prompt or 0.0,
            asked.output or 0.0,
        )  # fmt: skip
    return Observation(
        float(sample.start + sample.length), minute.concurrency, minute.pace.seconds,
        minute.steps, *more,
    )  # fmt: skip


def _adjusted(minute: Minute, plain: Plain | str, usual: CostModel) -> Plain | str:
    seen = stepping(minute)
    if seen is None or isinstance(plain, str):
        return plain
    expected = usual.predict(seen.load, seen.units, seen.prefill, seen.context)
    if expected is None or expected.seconds <= 0:
        return plain
    return plain.times(seen.seconds / expected.seconds)


def _stratum(minute: Minute) -> tuple[Environment, int]:
    """What its pace depends on."""
    return minute.sample.environment, minute.load_bin


def _within(values: Sequence[float | None], strata: Sequence[Hashable]) -> list[float | None]:
    """Values less the mean of their stratum: what is unlike between strata is no noise."""
    grouped: dict[Hashable, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        if value is not None:
            grouped.setdefault(stratum, []).append(value)
    means = {stratum: math.fsum(each) / len(each) for stratum, each in grouped.items()}
    return [
        None if value is None else value - means[stratum]
        for value, stratum in zip(values, strata, strict=True)
    ]


def _minutes(samples: Sequence[Sample], mode: Mode) -> list[Minute]:
    found = [each for sample in samples if (each := Minute.of(sample, mode)) is not None]
    return sorted(found, key=lambda each: each.sample.start)


def _lengths(minutes: Sequence[Minute]) -> list[Lengths]:
    """Of requests around each minute, which may have seen none."""
    asked = [(each.sample.start, each.requests) for each in minutes]
    found = []
    low = high = 0
    for start, _ in asked:
        while asked[low][0] < start - _NEIGHBOURHOOD:
            low += 1
        while high < len(asked) and asked[high][0] <= start + _NEIGHBOURHOOD:
            high += 1
        near = [each for _, each in asked[low:high] if each is not None and each.prompt is not None]
        firsts = sum(each.firsts for each in near)
        if not firsts:
            found.append(Lengths(None, None))
            continue
        prompt = math.fsum((each.prompt or 0.0) * each.firsts for each in near) / firsts
        output = math.fsum((each.output or 0.0) * each.firsts for each in near) / firsts
        found.append(Lengths(prompt, output))
    return found
