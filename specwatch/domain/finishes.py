"""How requests finish, compared with minutes without speculation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specwatch.domain.interval import CONFIDENCE, Interval
from specwatch.domain.model import ALL, HOUR, UNKNOWN_TEMPERATURE, Segment, Tally
from specwatch.domain.noise import student
from specwatch.domain.sample import Sample, counted_in, tally_of
from specwatch.domain.shares import Share, share_of
from specwatch.domain.speedup import LEAST_SHARE

LEAST_REQUESTS = 30
"""Requests that a temperature needs now, and without speculation."""
LEAST_HOURS = 6
"""Earlier hours with speculation from which it is known how much a share varies by itself."""
LEAST_SPAN = 20 * HOUR
"""Seconds from the first to the last of them: less would not know the nights."""
MOST_UNLIKE = 1.5
"""Ratio of the mean lengths of prompts from which on the traffic is another."""


class FinishedHour(NamedTuple):
    """The requests of an hour, from its ``start`` (Unix seconds), by temperature, ``all`` among
    them; ``without`` speculation or with it."""

    start: int
    without: bool
    by_temperature: Mapping[Segment, Tally]

    def of(self, temperature: Segment) -> Tally:
        """The requests of a temperature."""
        return self.by_temperature.get(temperature, Tally())


class _Stratum(NamedTuple):
    now: Share
    change: float
    variance: float
    """Of both shares, as if the traffic never changed."""
    drift: float
    """Standard deviation from hour to hour."""
    hours: int
    longer: float
    """Mean tokens of an answer now less those without speculation; 0 if they are not known."""


def finish_change(
    reason: str, samples: Sequence[Sample], hours: Sequence[FinishedHour]
) -> Interval | str:
    """The share of requests that finished for ``reason`` less that without speculation, at the
    present mix of temperatures; words why there is no result.

    Traffic changes by itself from hour to hour, with the clients that are there. So the interval
    has the variance between earlier hours with speculation too, and prompts of another length are
    not compared. Nor are more ends at the limit of length without longer answers: what no longer
    ends by itself is longer, so that the limit has become lower.
    """
    off = [hour for hour in hours if hour.without]
    before = [hour for hour in hours if not hour.without]
    present = tally_of(samples, ALL)
    prompt = _mean("prompt_tokens", [present])
    prompt_off = _mean("prompt_tokens", [hour.of(ALL) for hour in off])
    if prompt and prompt_off and max(prompt / prompt_off, prompt_off / prompt) > MOST_UNLIKE:
        return (
            f"another traffic: its prompts have {prompt:.0f} tokens, those without speculation had"
            f" {prompt_off:.0f}"
        )
    uncompared = {ALL, UNKNOWN_TEMPERATURE}
    labels = {label for sample in samples for label in sample.buckets} - uncompared
    known = {label for hour in off for label in hour.by_temperature} - uncompared
    chosen = sorted(labels & known) if labels and known else [ALL]
    strata = [_stratum(reason, label, samples, before, off) for label in chosen]
    compared = [stratum for stratum in strata if stratum is not None]
    requests = sum(stratum.now.of for stratum in compared)
    if not compared or requests < LEAST_SHARE * sum(present.requests.values()):
        return "too few requests at temperatures that were there without speculation"
    least = min(stratum.hours for stratum in compared)
    starts = [hour.start for hour in before]
    if least < LEAST_HOURS or max(starts) - min(starts) < LEAST_SPAN:
        return "too few earlier hours to tell how much the share varies by itself within a day"
    weighted = [(stratum.now.of / requests, stratum) for stratum in compared]
    value = math.fsum(weight * stratum.change for weight, stratum in weighted)
    drift = math.fsum(weight * stratum.drift for weight, stratum in weighted)
    variance = math.fsum(weight**2 * stratum.variance for weight, stratum in weighted)
    variance += drift**2 * (1 + 1 / len({hour.start for hour in off}))
    away = student((1 + CONFIDENCE) / 2, least - 1) * math.sqrt(variance)
    longer = math.fsum(weight * stratum.longer for weight, stratum in weighted)
    if reason == "length" and value > away and longer < 0:
        return (
            f"another traffic: its answers have {-longer:.0f} tokens less than those without"
            " speculation, so that limits of length are lower"
        )
    return Interval(value, value - away, value + away, least)


def _mean(field: str, tallies: Sequence[Tally]) -> float | None:
    """Mean tokens of a request, of its prompt or its answer; None if they are not known."""
    requests = sum(sum(counted.requests.values()) for counted in tallies)
    tokens = sum(getattr(counted, field) or 0 for counted in tallies)
    return tokens / requests if tokens and requests else None


def _stratum(
    reason: str,
    label: Segment,
    samples: Sequence[Sample],
    before: Sequence[FinishedHour],
    off: Sequence[FinishedHour],
) -> _Stratum | None:
    """None with too few requests now, or without speculation."""
    now = share_of([_counts(counted_in(sample, label), reason) for sample in samples])
    then = share_of([_counts(hour.of(label), reason) for hour in off])
    if now is None or then is None or min(now.of, then.of) < LEAST_REQUESTS:
        return None
    output = _mean("generation_tokens", [tally_of(samples, label)])
    output_off = _mean("generation_tokens", [hour.of(label) for hour in off])
    earlier = [_counts(hour.of(label), reason) for hour in before]
    shares = [count / of for count, of in earlier if of >= LEAST_REQUESTS]
    return _Stratum(
        now,
        now.value - then.value,
        now.variance + now.effect * then.variance,
        statistics.stdev(shares) if len(shares) > 1 else 0.0,
        len(shares),
        output - output_off if output and output_off else 0.0,
    )


def _counts(counted: Tally, reason: str) -> tuple[int, int]:
    return counted.requests.get(reason, 0), sum(counted.requests.values())
