"""What a simulated server is up against: its requests, its hardware, its drafter, over time."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

MINUTE = 60.0
HOUR = 3600.0
_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Costs:
    """What an engine step takes, in seconds; the factors multiply whole steps."""

    base: float = 0.040
    per_sequence: float = 0.0003
    per_context_token: float = 4e-7
    per_prefill_token: float = 0.00008
    per_token: float = 0.0015
    """Each verified or decoded token beyond the free ones."""
    free_tokens: int = 8
    draft_base: float = 0.006
    """One pass of the drafter; it makes as many passes a step as it proposes tokens."""
    draft_per_sequence: float = 0.00008
    draft_per_prefill_token: float = 0.000005
    factor: float = 1.0
    """Of both modes: throttling, neighbours."""
    factor_on: float = 1.0
    factor_off: float = 1.0
    cold: float = 1.0
    """Factor of the first step of a process, which falls evenly to 1 within ``warm_up``."""
    warm_up: float = 0.0
    """Seconds."""


@dataclass(frozen=True)
class Machine:
    """Limits of the engine; the cache is in blocks of 16 tokens."""

    most_sequences: int = 64
    most_batched_tokens: int = 2048
    blocks_on: int = 6000
    blocks_off: int = 6600
    filling: float = 600.0
    """Seconds in which the prefix cache of a new process comes to 63 % of its hits."""


@dataclass(frozen=True)
class Traffic:
    """Requests: their rate per second and what they ask for; tokens are means.

    ``spread`` is the standard deviation of the logarithm. ``temperatures`` and ``classes`` are
    (value, weight) pairs; the value of a class of prompts is the acceptance at temperature 0.
    """

    rate: float = 0.2
    prompt_tokens: float = 200.0
    prompt_spread: float = 0.5
    output_tokens: float = 120.0
    output_spread: float = 0.5
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.4), (0.3, 0.2), (0.7, 0.3), (1.0, 0.1))
    classes: tuple[tuple[float, float], ...] = ((0.8, 0.5), (0.6, 0.5))
    burst: int = 1
    """Requests that come together each time."""
    acceptance: float = 1.0
    """Factor on the acceptance of all classes."""
    temperature_slope: float = 0.2
    """What share of the acceptance a temperature of 1 costs."""
    capped: float = 0.0
    """Share of requests that end at their limit of length."""
    looping: float = 0.0
    """Share of requests whose text repeats itself until it ends at a limit of 1500 tokens."""
    hits_on: float = 0.0
    """Share of the tokens of prompts that is in the prefix cache with speculation."""
    hits_off: float = 0.0
    """The same without: Eagle and MTP lower it."""
    documents: float = 0.0
    """Share of requests that are about a document, at the end of their prompts."""
    document_tokens: float = 3000.0
    document_acceptance: float = 0.5
    """Factor on the acceptance of requests about documents."""


@dataclass(frozen=True)
class Noise:
    """First-order autoregressive noise on the logarithm of step times, a value per minute."""

    sigma: float
    correlation: float


@dataclass(frozen=True)
class Regime:
    """Everything that the speedup depends on."""

    traffic: Traffic = Traffic()
    costs: Costs = Costs()
    machine: Machine = Machine()
    k: int = 4
    noise: Noise | None = None
    proposes: bool = True
    """False of a drafter that finds nothing to propose: n-grams of text that never repeats."""


Schedule = Callable[[float], tuple[Regime, float]]
"""The regime at a time in seconds since the start of a world, and until when it lasts."""


def constant(regime: Regime) -> Schedule:
    """The same regime all the time."""
    return lambda _: (regime, math.inf)


def cycle(parts: Sequence[tuple[float, Regime]]) -> Schedule:
    """Regimes one after the other, each for its hours, over and over."""
    ends = list(itertools.accumulate(hours * HOUR for hours, _ in parts))

    def at(time: float) -> tuple[Regime, float]:
        rounds, within = divmod(time, ends[-1])
        index = min(bisect.bisect_right(ends, within), len(parts) - 1)
        until = rounds * ends[-1] + ends[index]
        if until <= time:  # the last digit of a float
            until = time + 1e-3
        return parts[index][1], until

    return at


def sequence(parts: Sequence[tuple[float, Regime]]) -> Schedule:
    """Regimes one after the other, each for its hours; the last one stays."""
    ends = list(itertools.accumulate(hours * HOUR for hours, _ in parts[:-1]))

    def at(time: float) -> tuple[Regime, float]:
        index = bisect.bisect_right(ends, time)
        return parts[index][1], ends[index] if index < len(ends) else math.inf

    return at


class RandomPeriods:
    """A usual regime, interrupted at random by one of several others."""

    def __init__(
        self,
        usual: Regime,
        others: Sequence[Regime],
        between: tuple[float, float],
        during: tuple[float, float],
        seed: int,
    ) -> None:
        """``between`` and ``during`` are least and most seconds, drawn evenly."""
        self._usual, self._others = usual, others
        self._between, self._during = between, during
        self._random = random.Random(f"periods {seed}")
        self._ends: list[float] = []
        self._regimes: list[Regime] = []

    def __call__(self, time: float) -> tuple[Regime, float]:
        while not self._ends or self._ends[-1] <= time:
            end = self._ends[-1] if self._ends else 0.0
            usual = len(self._ends) % 2 == 0
            self._ends.append(
                end + self._random.uniform(*(self._between if usual else self._during))
            )
            self._regimes.append(self._usual if usual else self._random.choice(self._others))
        index = bisect.bisect_right(self._ends, time)
        return self._regimes[index], self._ends[index]


class Conditions:
    """The regime in force and the factor of the noise, by time."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._schedule = schedule
        self._random = random.Random(f"noise {seed}")
        self._values: list[float] = []

    def at(self, time: float) -> tuple[Regime, float, float]:
        """Regime, factor on step times, and until when both stay as they are."""
        regime, until = self._schedule(time)
        if regime.noise is None:
            return regime, 1.0, until
        minute = int(time // MINUTE)
        edge = MINUTE * (minute + 1)
        return regime, self._factor(minute, regime.noise), min(until, edge)

    def _factor(self, minute: int, noise: Noise) -> float:
        values = self._values
        while len(values) <= minute:
            innovation = self._random.gauss(0.0, 1.0)
            if values:
                share = noise.correlation
                innovation = share * values[-1] + math.sqrt(1 - share * share) * innovation
            values.append(innovation)
        return math.exp(noise.sigma * values[minute] - noise.sigma * noise.sigma / 2)


@dataclass(slots=True, eq=False)
class Request:
    """One request; the engine keeps its progress here. Times are in seconds."""

    arrival: float
    prompt: int
    output: int
    temperature: float
    acceptance: float
    tapped: bool = False
    reason: str = "stop"
    # Progress.
    left: int = 0
    """Prompt tokens still to be computed."""
    begun: bool = False
    """Whether some of them have been."""
    blocks: int = 0
    first: float = 0.0
    """When its first token came."""
    joined: int = 0
    """The engine's count of steps when it began to decode."""
    steps: int = 0
    """Decoding steps that it takes altogether."""
    flushed: int = 0
    """Decoding steps counted so far."""
    growth: float = 1.0
    """Tokens a step, on average."""
    kept: np.ndarray = field(default_factory=lambda: _NOTHING, repr=False)
    """Accepted tokens of each step."""
    ends: np.ndarray = field(default_factory=lambda: _NOTHING, repr=False)
    """Tokens after each step, without the first one."""


class OpenLoop:
    """Requests that come by themselves, the same ones whatever the server does."""

    def __init__(
        self,
        schedule: Schedule,
        seed: int,
        coverage: Callable[[float], float] = lambda _: 0.0,
        end: float = math.inf,
    ) -> None:
        """``coverage``: the share of requests that a tap sees, by temperature."""
        self._schedule, self._coverage, self._end = schedule, coverage, end
        self._random = random.Random(f"requests {seed}")
        self._pending: list[float] = []
        self._choices: dict[Traffic, tuple[list[float], list[float], list[float], list[float]]] = {}
        self.time = 0.0
        """When the next request comes."""
        self._draw(0.0)

    def take(self) -> Request:
        """The next request."""
        time = self.time
        traffic = self._schedule(time)[0].traffic
        rng = self._random
        temperatures, t_weights, classes, c_weights = self._choice(traffic)
        temperature = temperatures[bisect.bisect_right(t_weights, rng.random())]
        acceptance = classes[bisect.bisect_right(c_weights, rng.random())] * traffic.acceptance
        acceptance *= 1.0 - traffic.temperature_slope * temperature
        acceptance += rng.gauss(0.0, 0.04)
        prompt = _tokens(rng, traffic.prompt_tokens, traffic.prompt_spread)
        output = _tokens(rng, traffic.output_tokens, traffic.output_spread)
        if traffic.documents and rng.random() < traffic.documents:
            prompt += _tokens(rng, traffic.document_tokens, traffic.prompt_spread)
            acceptance *= traffic.document_acceptance
        tapped = rng.random() < self._coverage(temperature)
        if self._pending:
            self.time = self._pending.pop()
        else:
            self._draw(time)
        accepted = min(0.97, max(0.02, acceptance))
        request = Request(time, prompt, output, temperature, accepted, tapped)
        if traffic.capped and rng.random() < traffic.capped:
            request.reason = "length"
        if traffic.looping and rng.random() < traffic.looping:
            request.reason, request.output, request.acceptance = "length", 1500, 0.999
        return request

    def finished(self, time: float) -> None:
        """Nobody waits for a request before sending the next one."""

    def _choice(
        self, traffic: Traffic
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        choices = self._choices.get(traffic)
        if choices is None:
            choices = (*_cumulative(traffic.temperatures), *_cumulative(traffic.classes))
            self._choices[traffic] = choices
        return choices

    def _draw(self, time: float) -> None:
        while True:
            if time >= self._end:
                self.time = math.inf
                return
            regime, until = self._schedule(time)
            rate = regime.traffic.rate / regime.traffic.burst
            gap = self._random.expovariate(rate) if rate > 0 else math.inf
            if time + gap < until:
                break
            time = until
        self.time = time + gap
        if self.time >= self._end:
            self.time = math.inf
        burst = self._schedule(self.time)[0].traffic.burst if self.time < math.inf else 1
        if burst > 1:
            gaps = [self._random.expovariate(5.0) for _ in range(burst - 1)]
            times = list(itertools.accumulate(gaps, initial=self.time))[1:]
            self._pending = times[::-1]


class ClosedLoop:
    """So many requests at a time, all of one size: the next comes when one is done."""

    def __init__(self, load: int, prompt: int, output: int, start: float) -> None:
        self._prompt, self._output = prompt, output
        self._due = [start] * load

    @property
    def time(self) -> float:
        """When the next request comes."""
        return self._due[0] if self._due else math.inf

    def take(self) -> Request:
        """The next request."""
        return Request(self._due.pop(0), self._prompt, self._output, 0.0, 0.5, reason="length")

    def finished(self, time: float) -> None:
        """A request is done: the next one follows."""
        self._due.append(time)


def _tokens(rng: random.Random, mean: float, spread: float) -> int:
    drawn = rng.lognormvariate(math.log(mean) - spread * spread / 2, spread)
    return max(1, min(8 * int(mean), round(drawn)))


def _cumulative(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    total = sum(weight for _, weight in pairs)
    ends = [end / total for end in itertools.accumulate(weight for _, weight in pairs)]
    return [value for value, _ in pairs], ends[:-1]
