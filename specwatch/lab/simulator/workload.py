"""The traffic of the simulated vLLM: requests, their distributions and their arrivals."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

from specwatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """Piecewise linear factor over virtual seconds; constant before the first and after the last.

    ``points`` are (seconds, factor) in ascending order of seconds.
    """

    points: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def __post_init__(self) -> None:
        times = [time for time, _ in self.points]
        if not times or times != sorted(times) or any(factor < 0 for _, factor in self.points):
            raise ConfigError(
                f"profile {self.points!r}: expected at least one point, times ascending and"
                " factors not negative, for example 0:1,60:0.4"
            )

    def at(self, time: float) -> float:
        """The factor at ``time`` (virtual seconds)."""
        points = self.points
        if len(points) == 1:
            return points[0][1]
        index = bisect.bisect_right(points, (time, float("inf")))
        if index == 0:
            return points[0][1]
        if index == len(points):
            return points[-1][1]
        (before, low), (after, high) = points[index - 1], points[index]
        return low + (high - low) * (time - before) / (after - before)

    @property
    def maximum(self) -> float:
        """The largest factor at any time."""
        return max(factor for _, factor in self.points)


CONSTANT = SimulatedProfile()
PAIRS = "NUMBER:NUMBER pairs separated by commas, for example 0:0.4,0.7:0.6"


def pairs(text: str) -> tuple[tuple[float, float], ...]:
    """``0:0.4,0.7:0.6`` as ((0.0, 0.4), (0.7, 0.6)); ValueError unless it is :data:`PAIRS`."""
    parts = (part.partition(":") for part in text.split(","))
    return tuple((float(left), float(right) if colon else 1.0) for left, colon, right in parts)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """What one client asks for.

    ``stop_after`` is the output length, in tokens, at which the model ends by itself (None: never);
    ``cached_tokens`` is the part of the prompt that the prefix cache may hold.
    """

    prompt_tokens: int
    max_tokens: int
    temperature: float = 0.0
    stop_after: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedTraffic:
    """Parameters of built-in traffic.

    ``rate`` is in requests per virtual second (Poisson arrivals, times ``rate_profile``);
    ``concurrency`` keeps that many requests in flight instead, or besides. Lengths are log-normal
    with the given mean and shape, in tokens. ``temperatures`` are (temperature, weight).
    """

    rate: float = 0.0
    rate_profile: SimulatedProfile = CONSTANT
    concurrency: int = 0
    prompt_tokens: float = 200.0
    output_tokens: float = 120.0
    length_shape: float = 0.7
    max_tokens: int = 512
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.4), (0.7, 0.4), (1.0, 0.2))
    shared_prefix: float = 0.3
    """Share of the requests whose first half is a prompt that others used before."""

    def __post_init__(self) -> None:
        if self.rate < 0 or self.concurrency < 0:
            raise ConfigError(
                f"rate {self.rate} and concurrency {self.concurrency}: expected zero or more"
            )
        if self.prompt_tokens < 1 or self.output_tokens < 1 or self.max_tokens < 1:
            raise ConfigError("prompt, output and maximum tokens: expected at least 1")
        if sum(weight for _, weight in self.temperatures) <= 0 or any(
            temperature < 0 or weight < 0 for temperature, weight in self.temperatures
        ):
            raise ConfigError(
                f"temperatures {self.temperatures!r}: expected TEMPERATURE:WEIGHT pairs, none"
                " negative and at least one weight above zero, for example 0:0.4,0.7:0.6"
            )


class SimulatedWorkload:
    """Draws requests from a seed: the same seed gives the same traffic."""

    def __init__(self, traffic: SimulatedTraffic, seed: int | str, longest: int) -> None:
        """``longest`` is the model's context in tokens: no prompt takes more than half of it."""
        self.traffic = traffic
        self._random = random.Random(f"workload/{seed}")
        self._longest = longest
        self._temperatures = [temperature for temperature, _ in traffic.temperatures]
        self._weights = [weight for _, weight in traffic.temperatures]
        self.next_arrival = math.inf
        """Virtual time of the next arrival of the open loop; infinite without a rate."""
        self.start(0.0)

    def start(self, now: float) -> None:
        """Forget arrivals that would have come before ``now``."""
        self.next_arrival = self._arrival_after(now)

    def arrive(self) -> SimulatedRequest:
        """The request that arrives at ``next_arrival``, which then moves on."""
        request = self.draw()
        self.next_arrival = self._arrival_after(self.next_arrival)
        return request

    def draw(self) -> SimulatedRequest:
        """A request drawn from the distributions."""
        traffic = self.traffic
        prompt = min(self._length(traffic.prompt_tokens), max(1, self._longest // 2))
        shared = self._random.random() < traffic.shared_prefix
        return SimulatedRequest(
            prompt_tokens=prompt,
            max_tokens=min(traffic.max_tokens, self._longest - prompt),
            temperature=self._random.choices(self._temperatures, self._weights)[0],
            stop_after=self.output_length(),
            cached_tokens=prompt // 2 if shared else 0,
        )

    def output_length(self) -> int:
        """Tokens after which a model would end its answer by itself."""
        return self._length(self.traffic.output_tokens)

    def _length(self, mean: float) -> int:
        shape = self.traffic.length_shape
        drawn = self._random.lognormvariate(math.log(mean) - shape * shape / 2, shape)
        return max(1, round(drawn))

    def _arrival_after(self, time: float) -> float:
        # Thinning: draw at the highest rate, keep in proportion to the rate of that moment.
        traffic = self.traffic
        highest = traffic.rate_profile.maximum
        if traffic.rate * highest <= 0:
            return math.inf
        while True:
            time += self._random.expovariate(traffic.rate * highest)
            factor = traffic.rate_profile.at(time)
            if self._random.random() * highest < factor:
                return time
            if factor <= 0 and time >= traffic.rate_profile.points[-1][0]:
                return math.inf
