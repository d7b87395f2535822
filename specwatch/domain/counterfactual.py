"""The time that the work of minutes would take without speculation, by their baselines."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.baseline_points import extras
from specwatch.domain.cost import CostModel, Observation, Prediction, Rate
from specwatch.domain.model import Environment, Mode, Objective
from specwatch.domain.sample import Pace, Requests, Sample
from specwatch.domain.simultaneous import Factors

NO_LENGTHS = "the length of prompts is not known"
"""Reason for which nothing is compared with a baseline whose times depend on prompts."""
LIKE = 2.0
"""Factor by which prompts may be longer, or shorter, than those of the baseline."""
_START = attrgetter("start")
_ENOUGH_REQUESTS = 10
"""Requests of a minute that are enough for its mean prompt length."""
_NEIGHBOURHOOD = 300
"""Seconds before and after a minute whose requests count for its mean prompt length."""


@dataclass(frozen=True, slots=True)
class Minute:
    """A sample that has everything a comparison needs.

    ``steps`` is 0 if drafts are not counted: then the time of a step is unknown.
    """

    sample: Sample
    pace: Pace
    steps: float
    concurrency: float
    load_bin: int
    requests: Requests | None

    @classmethod
    def of(cls, sample: Sample, mode: Mode = Mode.ON) -> Minute | None:
        """None for a sample of another mode, or without a pace."""
        pace, steps, concurrency = sample.pace, sample.steps, sample.gauges.concurrency
        bin_ = sample.load_bin
        if not sample.usable(mode) or pace is None or concurrency is None or bin_ is None:
            return None
        return cls(sample, pace, steps or 0.0, concurrency, bin_, sample.requests)

    @property
    def middle(self) -> float:
        """Unix time of its middle."""
        return self.sample.start + self.sample.length / 2

    @property
    def tokens_per_step(self) -> float:
        """tau over all decoding steps."""
        if self.pace.by_token:
            return self.pace.tokens / self.steps
        return 1 + (self.sample.tally.accepted_tokens or 0) / self.steps

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.pace.seconds / self.pace.tokens * self.tokens_per_step

    @property
    def kept(self) -> float:
        """Share of the yielded tokens that was used: those beyond an output's end are not."""
        yielded = 1 + (self.sample.tally.accepted_tokens or 0) / self.steps
        return self.tokens_per_step / yielded

    @property
    def drafting(self) -> float:
        """Share of the steps that drafted."""
        return min((self.sample.tally.drafts or 0) / self.steps, 1.0)

    def took(self, objective: Objective) -> float:
        """Seconds of its work that count for an objective."""
        first = 0.0 if self.requests is None else self.requests.first_seconds
        if objective is Objective.TTFT:
            return first
        return self.pace.seconds + (first if objective is Objective.E2E else 0.0)

    def stepping(self) -> Observation | None:
        """The time of its steps, with their conditions; None if drafts are not counted."""
        if not self.steps or not self.pace.by_token:
            return None
        sample, asked = self.sample, self.requests
        more = (0.0, 0.0)
        if asked is not None:
            more = extras(
                self.concurrency,
                self.steps,
                asked.prompt_tokens,
                asked.prompt or 0.0,
                asked.output or 0.0,
            )
        return Observation(
            float(sample.start + sample.length),
            self.concurrency,
            self.pace.seconds,
            self.steps,
            *more,
        )


class Plain(NamedTuple):
    """Predicted time of a minute's work without speculation: tokens and first tokens."""

    decoding: Prediction
    first: Prediction | None
    at_load: bool = True
    """Whether predicted at the same load; at the same demand the time of a step is unknown."""
    level: Factors | None = None
    """How fast holdouts were at that time, which the predictions include; None if not known."""

    def parts(self, objective: Objective) -> tuple[Prediction, ...]:
        """The predictions that count for an objective."""
        if objective is Objective.TPOT or self.first is None:
            return (self.decoding,)
        return (self.first,) if objective is Objective.TTFT else (self.decoding, self.first)

    def seconds(self, objective: Objective) -> float:
        """The time without speculation by an objective."""
        return math.fsum(part.seconds for part in self.parts(objective))

    def modelled(self, objective: Objective) -> float:
        """As :meth:`seconds` by the cost model alone, without the level of that time."""
        if self.level is None:
            return self.seconds(objective)
        plain = self._replace(
            decoding=self.decoding.times(1 / self.level.decoding),
            first=self.first and self.first.times(1 / self.level.first),
        )
        return plain.seconds(objective)


class Lengths(NamedTuple):
    """Mean lengths of the requests around a minute, in tokens."""

    prompt: float | None = None
    output: float | None = None


_NOT_USED = Lengths()


class Timed(NamedTuple):
    """Seconds of a minute by one objective, without speculation and with it; ``noise`` is the
    logarithm of their ratio by the cost model alone, None where one of them is 0. ``rests_on`` are
    the rates behind ``over``, each with its seconds of it."""

    over: float
    under: float
    noise: float | None
    rests_on: tuple[tuple[Rate, float], ...]


@dataclass(slots=True, eq=False)
class Row:
    """A minute, and its time without speculation or the reason why that is unknown.

    ``slower`` is the factor by which the server is slower than when the baseline was measured.
    What was computed for it last is kept, as most rows are those of the minute before.
    """

    minute: Minute
    plain: Plain | str
    lengths: Lengths | None = None
    """Those that ``plain`` was predicted with, where it is remembered and they may change."""
    slower: float = 1.0
    _objective: Objective | None = None
    _timed: Timed | None = None
    _usual: CostModel | None = None
    _adjusted: Row | None = None

    def timed(self, objective: Objective) -> Timed | None:
        """Its seconds; None where those without speculation are unknown."""
        if self._objective is not objective:
            self._objective, self._timed = objective, self._seconds(objective)
        return self._timed

    def _seconds(self, objective: Objective) -> Timed | None:
        plain, slower = self.plain, self.slower
        if isinstance(plain, str):
            return None
        took, seconds = self.minute.took(objective), plain.seconds(objective)
        modelled = (seconds if plain.level is None else plain.modelled(objective)) * slower
        noise = math.log(modelled / took) if took > 0 and modelled > 0 else None
        rests_on = tuple(
            one for part in plain.parts(objective) for one in part.rests_on(part.seconds * slower)
        )
        return Timed(seconds * slower, took, noise, rests_on)

    def adjusted(self, usual: CostModel) -> Row:
        """That with the server as fast as when a step took what is usual."""
        if self._usual is not usual:
            self._usual, self._adjusted = usual, self._at_usual(usual)
        return self._adjusted or self

    def _at_usual(self, usual: CostModel) -> Row | None:
        plain, seen = self.plain, self.minute.stepping()
        if seen is None or isinstance(plain, str) or plain.level is not None:
            return None
        expected = usual.predict(seen.load, seen.units, seen.prefill, seen.context)
        if expected is None or expected.seconds <= 0:
            return None
        return Row(self.minute, plain, slower=seen.seconds / expected.seconds)


Memory = dict[int, Row]
"""Rows computed before, by the start of the minute; see also :meth:`Counterfactual.same_rows`."""

Baselines = Callable[[Environment], Baseline]
"""The baseline of each environment."""


class Counterfactual:
    """Predicts from baselines what minutes would take without speculation."""

    def __init__(self, baseline: Baseline | Baselines) -> None:
        self._baseline = baseline
        self._cache: dict[Environment, Baseline] = {}

    def of(self, environment: Environment) -> Baseline:
        """The baseline of an environment."""
        known = self._baseline
        if isinstance(known, Baseline):
            return known
        if environment not in self._cache:
            self._cache[environment] = known(environment)
        return self._cache[environment]

    def rows(self, samples: Sequence[Sample], mode: Mode) -> list[Row]:
        """The minutes of a mode in order of time, each with its predicted time."""
        known = (minute for sample in samples if (minute := Minute.of(sample, mode)) is not None)
        minutes = sorted(known, key=lambda minute: minute.sample.start)
        pairs = zip(minutes, _lengths(minutes), strict=True)
        return [Row(minute, self._plain(minute, lengths)) for minute, lengths in pairs]

    def same_rows(self, samples: Sequence[Sample], mode: Mode, memory: Memory) -> list[Row]:
        """As :meth:`rows`, of the very samples of before and some others; ``memory`` keeps all."""
        minutes = []
        for sample in samples:
            before = memory.get(id(sample))
            minute = before.minute if before else Minute.of(sample, mode)
            if minute is not None:
                minutes.append(minute)
        minutes.sort(key=lambda minute: minute.sample.start)
        rows = []
        for minute, lengths in zip(minutes, _lengths(minutes), strict=True):
            row = memory.get(id(minute.sample))
            used = self._used(minute, lengths)
            if row is None or row.lengths != used:
                row = Row(minute, self._plain(minute, lengths), used)
                memory[id(minute.sample)] = row
            rows.append(row)
        return rows

    def remembered(self, samples: Sequence[Sample], mode: Mode, memory: Memory) -> list[Row]:
        """As :meth:`rows`; rows that ``memory`` has are taken from it."""
        ordered = sorted(samples, key=_START)
        starts = [sample.start for sample in ordered]
        known = [memory.get(start) for start in starts]
        fresh = [place for place, row in enumerate(known) if row is None or row.lengths is not None]
        if fresh:
            since = bisect_left(starts, starts[fresh[0]] - _NEIGHBOURHOOD)
            near = [
                row.minute if row is not None else Minute.of(sample, mode)
                for row, sample in zip(known[since:], ordered[since:], strict=True)
            ]
            minutes = [minute for minute in near if minute is not None]
            # The lengths of a minute depend on the requests of minutes after it.
            settled = starts[-1] - _NEIGHBOURHOOD
            self._remember(minutes, starts[fresh[0]], settled, memory)
            known = [memory.get(start) for start in starts]
        oldest = starts[0] if starts else math.inf
        for start in [start for start in memory if start < oldest]:
            del memory[start]
        return [row for row in known if row is not None]

    def _remember(
        self, minutes: Sequence[Minute], first: int, settled: int, memory: Memory
    ) -> None:
        """Put the rows of the minutes from ``first`` on into ``memory``; those before ``settled``
        will not change, so that their lengths are not needed any more. Times are Unix seconds."""
        place = bisect_left(minutes, first, key=lambda minute: minute.sample.start)
        for minute, lengths in zip(minutes[place:], _lengths(minutes, place), strict=True):
            start, used = minute.sample.start, self._used(minute, lengths)
            row = memory.get(start)
            if row is None or row.lengths not in (None, used):
                row = memory[start] = Row(minute, self._plain(minute, lengths), used)
            if start < settled:
                row.lengths = None

    def _used(self, minute: Minute, lengths: Lengths) -> Lengths:
        """Lengths that the time of a minute's work rests on: none where its own requests tell how
        long prompts are and the baseline's times do not depend on that."""
        known, asked = self.of(minute.sample.environment), minute.requests
        if asked is None or asked.prompt is None or asked.firsts < _ENOUGH_REQUESTS:
            return lengths
        decoding = known.by_token if minute.pace.by_token else known.by_request
        return lengths if any(decoding.slopes) else _NOT_USED

    def _plain(self, minute: Minute, lengths: Lengths) -> Plain | str:
        """The time of a minute's work without speculation, or the reason why it is unknown."""
        known = self.of(minute.sample.environment)
        decoding = known.by_token if minute.pace.by_token else known.by_request
        asked = minute.requests
        unlike = self._unlike(minute, lengths)
        if unlike is not None:
            return unlike
        more = (0.0, 0.0)
        if asked is None or lengths.prompt is None:
            if any(decoding.slopes):
                return NO_LENGTHS
        else:
            more = extras(
                minute.concurrency,
                minute.pace.tokens,
                asked.prompt_tokens,
                lengths.prompt,
                lengths.output or 0.0,
            )
        prediction = decoding.predict(minute.concurrency, minute.pace.tokens, *more)
        if prediction is None:
            return self._at_demand(minute) or "no baseline at the load that there was"
        first = None
        if asked is not None and minute.pace.by_token and known.first:
            # Fewer minutes have first tokens than have others.
            first = known.first.predict(
                asked.arrival_load, float(asked.firsts), asked.prompt_tokens, nearest=True
            )
            if first is None:
                same = self._at_demand(minute)
                first = same and same.first
            if first is None:
                return "no time to the first token in the baseline at the load that there was"
        level = known.levels.at(minute.middle, minute.load_bin)
        if level is None:
            return Plain(prediction, first)
        return Plain(
            prediction.at_level(level.decoding), first and first.at_level(level.first), level=level
        )

    def level_variance(self, minutes: Sequence[Minute]) -> float:
        """Variance of the logarithm of the mean level of minutes, by the newest environment."""
        levels = self.of(minutes[-1].sample.environment).levels
        if not levels.levels:
            return 0.0
        middles = [minute.middle for minute in minutes]
        return levels.variance_within(min(middles), max(middles))

    def _at_demand(self, minute: Minute) -> Plain | None:
        """At the same demand in place of the same load: where speculation is slow, so many
        concurrent requests never occur without it."""
        known, asked = self.of(minute.sample.environment), minute.requests
        demand = known.demand(minute.pace.tokens, float(minute.sample.length))
        if demand is None or asked is None or not minute.pace.by_token:
            return None
        prediction = known.by_demand.predict(demand, minute.pace.tokens)
        if prediction is None:
            return None
        first = known.first_by_demand.predict(demand, float(asked.firsts), asked.prompt_tokens)
        return Plain(prediction, first, at_load=False)

    def _unlike(self, minute: Minute, lengths: Lengths) -> str | None:
        """How prompts differ in length from those of the baseline; None if they do not."""
        known, asked = self.of(minute.sample.environment).prompts, minute.requests
        prompt = lengths.prompt
        if asked is not None and asked.prompt is not None and asked.firsts >= _ENOUGH_REQUESTS:
            prompt = asked.prompt
        if known is None or prompt is None:
            return None
        if prompt > LIKE * known.high:
            factor, how = prompt / known.high, "longer"
        elif prompt < known.low / LIKE:
            factor, how = known.low / prompt, "shorter"
        else:
            return None
        return f"prompts are {factor:.0f} times {how} than those of the baseline"


def _lengths(minutes: Sequence[Minute], first: int = 0) -> list[Lengths]:
    """Mean lengths around each minute from the one at ``first`` on, which itself may have no
    requests."""
    starts = [minute.sample.start for minute in minutes]
    counted = [
        (asked.firsts, asked.prompt * asked.firsts, (asked.output or 0.0) * asked.firsts)
        if (asked := minute.requests) is not None and asked.prompt is not None
        else (0, 0.0, 0.0)
        for minute in minutes
    ]
    lengths = []
    low = high = 0
    for start in starts[first:]:
        while starts[low] < start - _NEIGHBOURHOOD:
            low += 1
        while high < len(starts) and starts[high] <= start + _NEIGHBOURHOOD:
            high += 1
        firsts, prompts, outputs = zip(*counted[low:high], strict=True)
        number = sum(firsts)
        lengths.append(
            Lengths(math.fsum(prompts) / number, math.fsum(outputs) / number)
            if number
            else Lengths()
        )
    return lengths
