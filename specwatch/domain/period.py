"""A stretch of minutes with speculation, summed so that two of them can be compared.

With u = the time that a minute's decoding steps would take without speculation at its load,

    tau = sum(u * tokens per step) / sum(u)      cost = sum(seconds) / sum(u)
    sum(tokens * plain pace) / sum(seconds) = tau / cost

which is the speedup. Where there is no baseline u counts the steps, the cost is in seconds and the
quotient is the tokens per second of a request; where times are not known the cost is 1 and
the quotient is tau. So all three come apart in one way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.interval import Interval, ratio_interval
from specwatch.domain.model import Segment
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import LEAST_SHARE, Comparison

SPEEDUP = "speedup_ratio"
PACE = "tokens_per_second"
LENGTH = "acceptance_length"


class Part(NamedTuple):
    """A load bin or a temperature bucket of a period: its share, and the figure within it."""

    share: float
    figure: float


class ComparedMinute(NamedTuple):
    """A sample that counts: ``plain`` is u, ``length`` tau of its steps, ``cost`` is what they
    took, in the unit that the comparison has."""

    sample: Sample
    plain: float
    length: float
    cost: float


@dataclass(frozen=True, slots=True)
class Period:
    """The sums. ``value`` is ``length / cost``; ``drafted`` is draft tokens per decoding step.

    ``loads`` has the share of u and the cost in each load bin; ``mix`` the share of the draft
    tokens and the acceptance rate of each temperature bucket, None where temperatures are not
    known.
    """

    value: float
    length: float
    cost: float
    drafted: float
    acceptance: float
    concurrency: float
    loads: Mapping[int, Part]
    mix: Mapping[Segment, Part] | None
    interval: Interval | None


def comparable(
    now: Sequence[Sample], reference: Sequence[Sample], baseline: Baseline
) -> tuple[str, Period, Period] | None:
    """The best metric that two periods can be compared by, and their sums, the reference last.

    None if speculation did not run, or nothing was counted, in one of them.
    """
    for metric, minute in _ways(baseline):
        sides = [_chosen(side, minute) for side in (now, reference)]
        if all(sides):
            return metric, _period(sides[0]), _period(sides[1])
    return None


_Way = Callable[[Sample], ComparedMinute | None]


def _ways(baseline: Baseline) -> Iterable[tuple[str, _Way]]:
    for by_token in (True, False):
        if baseline.by_token if by_token else baseline.by_request:
            yield SPEEDUP, partial(_at_baseline, baseline, by_token)
    for by_token in (True, False):
        yield PACE, partial(_timed, by_token, 1.0)
    yield LENGTH, _untimed


def _at_baseline(baseline: Baseline, by_token: bool, sample: Sample) -> ComparedMinute | None:
    compared = Comparison([sample], baseline)
    if not compared.known:
        return None
    return _timed(by_token, compared.rate(compared.known[0]), sample)


def _timed(by_token: bool, plain: float, sample: Sample) -> ComparedMinute | None:
    pace, steps = sample.pace, sample.steps
    if pace is None or pace.by_token is not by_token or not steps or plain <= 0:
        return None
    accepted = sample.tally.accepted_tokens or 0
    length = pace.tokens / steps if by_token else 1 + accepted / steps
    return ComparedMinute(sample, plain * pace.tokens / length, length, pace.seconds)


def _untimed(sample: Sample) -> ComparedMinute | None:
    counted = sample.tally
    if not counted.drafts or counted.accepted_tokens is None:
        return None
    length = 1 + counted.accepted_tokens / counted.drafts
    return ComparedMinute(sample, float(counted.drafts), length, float(counted.drafts))


def _chosen(samples: Sequence[Sample], minute: _Way) -> list[ComparedMinute]:
    """The minutes that count; empty if they have less than half of the drafts."""
    ran = [sample for sample in samples if sample.usable() and sample.load_bin is not None]
    minutes = [counted for sample in ran if (counted := minute(sample)) is not None]
    drafts = sum(counted.sample.tally.drafts or 0 for counted in minutes)
    if not drafts or drafts < LEAST_SHARE * sum(sample.tally.drafts or 0 for sample in ran):
        return []
    return minutes


def _period(minutes: Sequence[ComparedMinute]) -> Period:
    plain = math.fsum(minute.plain for minute in minutes)
    length = math.fsum(minute.plain * minute.length for minute in minutes) / plain
    cost = math.fsum(minute.cost for minute in minutes) / plain
    samples = [minute.sample for minute in minutes]
    drafted_per_step = (
        minute.plain
        * ((sample.tally.draft_tokens or 0) / (sample.steps or sample.tally.drafts or 1))
        for minute, sample in zip(minutes, samples, strict=True)
    )
    drafted = math.fsum(drafted_per_step) / plain
    # Both periods share the uncertainty of the baseline, which is left out.
    rows = sorted((m.sample.start, m.plain * m.length, m.cost) for m in minutes)
    acceptance = max(length - 1, 0.0) / drafted if drafted else 0.0
    running = math.fsum(sample.gauges.running_seconds for sample in samples)
    busy = math.fsum(sample.gauges.busy_seconds for sample in samples)
    return Period(
        value=length / cost,
        length=length,
        cost=cost,
        drafted=drafted,
        acceptance=acceptance,
        concurrency=running / busy,
        loads=_loads(minutes, plain),
        mix=_mix(samples, acceptance),
        interval=ratio_interval([over for _, over, _ in rows], [cost for _, _, cost in rows]),
    )


def _loads(minutes: Sequence[ComparedMinute], plain: float) -> dict[int, Part]:
    grouped: dict[int, list[ComparedMinute]] = {}
    for minute in minutes:
        if (bin_ := minute.sample.load_bin) is not None:
            grouped.setdefault(bin_, []).append(minute)
    parts = {}
    for bin_, group in sorted(grouped.items()):
        inside = math.fsum(minute.plain for minute in group)
        parts[bin_] = Part(inside / plain, math.fsum(minute.cost for minute in group) / inside)
    return parts


def _mix(samples: Sequence[Sample], acceptance: float) -> dict[Segment, Part] | None:
    """Buckets, scaled so that their weighted acceptance is that of the server.

    What the tap did not see is assumed to be like what it saw; None if it saw less than half.
    """
    drafted: dict[Segment, int] = {}
    accepted: dict[Segment, int] = {}
    for sample in samples:
        for label, counted in sample.buckets.items():
            if counted.draft_tokens:
                drafted[label] = drafted.get(label, 0) + counted.draft_tokens
                accepted[label] = accepted.get(label, 0) + (counted.accepted_tokens or 0)
    tokens, kept = sum(drafted.values()), sum(accepted.values())
    if not tokens or tokens < LEAST_SHARE * sum(
        sample.tally.draft_tokens or 0 for sample in samples
    ):
        return None
    scale = acceptance * tokens / kept if kept else 0.0
    return {
        label: Part(
            drafted[label] / tokens,
            scale * accepted[label] / drafted[label] if kept else acceptance,
        )
        for label in sorted(drafted)
    }
