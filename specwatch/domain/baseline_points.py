"""Points of a baseline: the cost of serving without speculation, with the conditions."""

from __future__ import annotations

from typing import NamedTuple

from specwatch.domain.cost import Observation
from specwatch.domain.sample import Pace, Requests, Sample


class Point(NamedTuple):
    """A stretch of serving without speculation: a minute, an hour, or a slice of a benchmark.

    ``at`` is the Unix time of its end, ``concurrency`` the mean of running requests while any ran;
    ``seconds / tokens`` as in :class:`specwatch.domain.sample.Pace`. What follows is as in
    :class:`specwatch.domain.sample.Requests`, None where it is not known; ``length`` is in seconds.
    """

    at: float
    concurrency: float
    seconds: float
    tokens: float
    by_token: bool = True
    length: float = 60.0
    firsts: float | None = None
    first_seconds: float = 0.0
    prompt_tokens: float = 0.0
    arrival_load: float = 0.0
    prompt: float | None = None
    output: float | None = None

    def decoding(self, prompt: float, output: float) -> Observation:
        """Time per token at its conditions; the lengths are used if it has none."""
        more = (0.0, 0.0)
        if self.firsts is not None:
            more = extras(
                self.concurrency,
                self.tokens,
                self.prompt_tokens,
                self.prompt or prompt,
                self.output or output,
            )
        return Observation(self.at, self.concurrency, self.seconds, self.tokens, *more, self.length)

    @property
    def first(self) -> Observation | None:
        """Time to the first token at its conditions."""
        if not self.firsts:
            return None
        return Observation(
            self.at,
            self.arrival_load,
            self.first_seconds,
            self.firsts,
            self.prompt_tokens,
            length=self.length,
        )


def extras(
    running: float, units: float, prompt_tokens: float, prompt: float, output: float
) -> tuple[float, float]:
    """``prefill`` and ``context`` of an observation of decoding.

    While a prompt is read the others wait; a request has on average its prompt and half of its
    output in use.
    """
    return prompt_tokens * max(running - 1.0, 0.0), units * running * (prompt + output / 2)


def point_of(sample: Sample) -> Point | None:
    """The point of a sample; None if the sample is idle or its pace is unknown."""
    pace, concurrency = sample.pace, sample.gauges.concurrency
    if pace is None or concurrency is None:
        return None
    end = float(sample.start + sample.length)
    return point_at(end, concurrency, pace, float(sample.length), sample.requests)


def point_at(
    end: float, concurrency: float, pace: Pace, length: float, asked: Requests | None
) -> Point:
    """The point of a stretch that ended at ``end`` and took ``length`` seconds."""
    point = Point(end, concurrency, pace.seconds, pace.tokens, pace.by_token, length)
    if asked is None:
        return point
    known = asked._asdict()
    del known["population"]
    return point._replace(**known)
