"""Samples: minutes of one model, with all its requests and each segment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple, cast

import msgspec

from specwatch.domain.merge import TallySum, merge_gauges, sum_fields, sum_tallies
from specwatch.domain.model import (
    ALL,
    COUNTERS,
    HISTOGRAMS,
    TEMPERATURE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    Segment,
    Tally,
    Window,
    load_bin,
)

Divided = Mapping[str, Mapping[Segment, Tally]]
"""Counts by dimension and segment. Of each dimension they are all requests: those of several are
not added to one another."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Decoding, in time and tokens: ``seconds / tokens`` is the mean TPOT over ``tokens``.

    ``by_token`` says that every token after a request's first counts alike, at the time when it
    came; otherwise ``tokens`` are requests, counted when they ended, each with its own mean. The
    two are close, and still not to be compared with one another.
    """

    seconds: float
    tokens: float
    by_token: bool


class Requests(NamedTuple):
    """Lengths and load of the requests of a window, and their time to the first token.

    ``first_seconds`` is the sum of the times to the first token of ``firsts`` requests,
    ``prompt_tokens`` are those that had to be computed; ``population`` is the mean number of
    requests that ran or waited while any ran; ``prompt`` and ``output`` are mean lengths in tokens,
    None if unknown.

    ``arrival_load`` is the number of requests when one arrives, itself included. Random arrivals
    find the mean over all time (R. W. Wolff, *Poisson Arrivals See Time
    Averages*, 1982); in a closed loop they find those of the other clients (M. Reiser and
    S. S. Lavenberg, *Mean-Value Analysis of Closed Multichain Queuing Networks*, 1980).
    """

    firsts: int
    first_seconds: float
    prompt_tokens: float
    population: float
    arrival_load: float
    prompt: float | None
    output: float | None


class SentLengths(NamedTuple):
    """Mean lengths of requests that were sent on purpose, in tokens."""

    prompt: float
    output: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One window of one model. ``start`` is a Unix time, ``length`` is in seconds.

    ``tally`` is of all requests; what the server does not count is from its ``buckets``.

    ``sound`` as in :attr:`specwatch.domain.model.Window.sound`.
    """

    start: int
    length: int
    mode: Mode
    tally: Tally
    gauges: Gauges = field(default_factory=Gauges)
    environment: Environment = field(default_factory=Environment)
    segments: Divided = field(default_factory=dict)
    coverage: float | None = None
    sound: bool = True
    closed_loop: bool = False
    """Whether its requests were sent by a constant number of clients."""
    usual: SentLengths | None = None
    """Known lengths of its requests, used if none began or ended in it."""
    watched: float = 0.0
    """Seconds that its counts cover, outages included: an unreachable process counts on."""

    pace: Pace | None = field(init=False, compare=False)
    """How fast tokens came; None without tokens, or if the server does not report it."""
    steps: float | None = field(init=False, compare=False)
    """Decoding steps of all requests: speculative or not, each yields one token and what was
    accepted with it. None if the server does not report it."""
    load_bin: int | None = field(init=False, compare=False)
    """Index into the load bins, None while idle."""

    def __post_init__(self) -> None:
        pace = pace_of(self.tally)
        object.__setattr__(self, "pace", pace)
        object.__setattr__(self, "steps", _steps(self.tally, pace))
        object.__setattr__(self, "load_bin", load_bin(self.gauges.concurrency))

    @property
    def buckets(self) -> Mapping[Segment, Tally]:
        """Its counts by temperature, which estimates are standardised by."""
        return self.segments.get(TEMPERATURE, {})

    def usable(self, mode: Mode = Mode.ON) -> bool:
        """Whether what was timed in it counts for a mode: the one test of all comparisons."""
        return self.sound and self.mode is mode

    @property
    def requests(self) -> Requests | None:
        """Its requests; None if the server does not report them."""
        counts = requests_of(self.tally, self.gauges)
        if counts is not None and self.closed_loop:
            counts = counts._replace(arrival_load=counts.population)
        if counts is None or self.usual is None:
            return counts
        outputs = self.tally.output_length
        return counts._replace(
            prompt=self.usual.prompt if counts.prompt is None else counts.prompt,
            output=counts.output if outputs is not None and outputs.count else self.usual.output,
        )


def requests_of(counted: Tally, gauges: Gauges) -> Requests | None:
    """The requests of a window; None if the server does not report them."""
    if counted.ttft is None or counted.prompt_tokens is None or not gauges.busy_seconds:
        return None
    firsts = counted.ttft.count
    hits = min(counted.prefix_cache_hits or 0, counted.prompt_tokens)
    outputs = counted.output_length
    output = outputs.sum / outputs.count if outputs is not None and outputs.count else None
    present = gauges.running_seconds + gauges.waiting_seconds
    if output is None and firsts and counted.generation_tokens is not None:
        output = counted.generation_tokens / firsts
    return Requests(
        firsts=firsts,
        first_seconds=counted.ttft.sum,
        prompt_tokens=float(counted.prompt_tokens - hits),
        population=present / gauges.busy_seconds,
        arrival_load=1.0 + present / max(gauges.sampled_seconds, gauges.busy_seconds),
        prompt=counted.prompt_tokens / firsts if firsts else None,
        output=output,
    )


def _steps(counted: Tally, pace: Pace | None) -> float | None:
    if counted.drafts is None or pace is None:
        return None
    if not pace.by_token:
        return float(counted.drafts)
    return max(pace.tokens - (counted.accepted_tokens or 0), float(counted.drafts))


def pace_of(counted: Tally) -> Pace | None:
    """The pace of a tally: from the time between tokens if known, else from TPOT.

    The time between outputs adds up to the time from the first token to the last, however many
    tokens came at once; the first token of each request does not count.
    """
    between, tokens = counted.inter_token, counted.generation_tokens
    if between is not None and tokens is not None:
        after_first = tokens - (counted.ttft.count if counted.ttft else 0)
        if between.count and after_first > 0 and between.sum > 0:
            return Pace(between.sum, float(after_first), by_token=True)
        return None
    tpot = counted.tpot
    if tpot is not None and tpot.count and tpot.sum > 0:
        return Pace(tpot.sum, float(tpot.count), by_token=False)
    return None


def samples_of(windows: Iterable[Window]) -> list[Sample]:
    """Samples from windows of one model, by start.

    Windows of a start without one of all requests are left out. An hour may have several windows of
    one start, in several modes and load bins: those of segments belong to the one of their mode and
    bin.
    """
    wholes: dict[tuple[int, Mode, int | None, Environment], list[Window]] = {}
    parts: dict[tuple[int, Mode, int | None, Environment], list[Window]] = {}
    for window in windows:
        key = (window.start, window.mode, window.load_bin, window.environment)
        (wholes if window.series.segment == ALL else parts).setdefault(key, []).append(window)
    samples = [
        _sample(window, parts.get(key, ())) for key, group in wholes.items() for window in group
    ]
    return sorted(samples, key=lambda sample: (sample.start, sample.mode, sample.load_bin or -1))


def merged(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with those of one mode, load, environment and soundness merged.

    Coverage is that of the last.
    """
    alike: dict[tuple[Mode, int | None, Environment, bool], list[Sample]] = {}
    for sample in samples:
        key = (sample.mode, sample.load_bin, sample.environment, sample.sound)
        alike.setdefault(key, []).append(sample)
    joined = [_joined(group) if len(group) > 1 else group[0] for group in alike.values()]
    return sorted(joined, key=lambda sample: sample.start)


def _joined(samples: Sequence[Sample]) -> Sample:
    first, last = samples[0], samples[-1]
    return replace(
        last,
        start=first.start,
        length=last.start + last.length - first.start,
        tally=total(samples),
        gauges=reduce(merge_gauges, (sample.gauges for sample in samples)),
        segments={
            dimension: _totals(sample.segments.get(dimension, {}) for sample in samples)
            for dimension in dict.fromkeys(name for sample in samples for name in sample.segments)
        },
        watched=sum(sample.watched for sample in samples),
    )


def total(samples: Sequence[Sample]) -> Tally:
    """All requests of all samples, added up."""
    return sum_tallies(sample.tally for sample in samples)


def tally_of(samples: Sequence[Sample], segment: Segment) -> Tally:
    """A segment of all samples, added up."""
    return cast("Tally", TallySum([counted_in(sample, segment) for sample in samples]))


def counted_in(sample: Sample, segment: Segment) -> Tally:
    """As :func:`tally_of`, of one sample."""
    if segment == ALL:
        return sample.tally
    return sample.segments.get(segment.dimension, {}).get(segment, _NOTHING)


_NOTHING = Tally()


def _totals(divided: Iterable[Mapping[Segment, Tally]]) -> dict[Segment, Tally]:
    parts: dict[Segment, list[Tally]] = {}
    for by_segment in divided:
        for segment, counted in by_segment.items():
            parts.setdefault(segment, []).append(counted)
    return {segment: sum_tallies(tallies) for segment, tallies in parts.items()}


def divided(tallies: Mapping[Segment, Tally]) -> Divided:
    """Counts of segments, by dimension."""
    by_dimension: dict[str, dict[Segment, Tally]] = {}
    for segment, counted in tallies.items():
        by_dimension.setdefault(segment.dimension, {})[segment] = counted
    return by_dimension


def _sample(window: Window, parts: Sequence[Window]) -> Sample:
    segments = divided({part.series.segment: _trimmed(part.tally) for part in parts})
    by_temperature = (one for one in parts if one.series.segment.dimension == TEMPERATURE)
    tally = completed(_trimmed(window.tally), segments.get(TEMPERATURE, {}).values())
    # If the server does not report speculation, drafts counted by its tap show it.
    silent = window.mode in (Mode.OFF, Mode.UNKNOWN)
    mode = Mode.ON if silent and tally.drafts else window.mode
    return Sample(
        start=window.start,
        length=window.length,
        mode=mode,
        tally=tally,
        gauges=window.gauges,
        environment=window.environment,
        segments=segments,
        coverage=next((one.coverage for one in by_temperature), None),
        sound=window.sound,
        watched=window.observed_seconds + window.down_seconds,
    )


_FIELDS = (*COUNTERS, *HISTOGRAMS)


def completed(counted: Tally, buckets: Collection[Tally]) -> Tally:
    """A tally whose fields that the server does not count are taken from its buckets."""
    unknown = [name for name in _FIELDS if getattr(counted, name) is None]
    if counted.accepted_per_position is None:
        unknown.append("accepted_per_position")
    unknown += [name for name in ("requests", "endings") if not getattr(counted, name)]
    return (
        msgspec.structs.replace(counted, **sum_fields(buckets, unknown))
        if buckets and unknown
        else counted
    )


def _trimmed(counted: Tally) -> Tally:
    """Without fields that no decision reads, to save memory."""
    between = counted.inter_token
    if between is not None and between.bounds:
        between = Histogram((), (between.count,), between.sum)
    return msgspec.structs.replace(counted, inter_token=between, uncovered={}, records={})
