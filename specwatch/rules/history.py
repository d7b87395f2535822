"""Recent history of one model: minutes as far back as rules look, and sums of the day before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from specwatch.domain.finishes import FinishedHour
from specwatch.domain.merge import merge_tallies, sum_tallies
from specwatch.domain.model import (
    ALL,
    HOUR,
    MINUTE,
    Environment,
    Histogram,
    Segment,
    Tally,
)
from specwatch.domain.sample import Sample, merged

REFERENCE_SECONDS = 24 * HOUR
"""Length of the earlier period that acceptance is compared with."""
BLOCK = 5 * MINUTE
"""Length of the blocks that older minutes are merged into, to save memory."""
FRESH = 6 * MINUTE
"""How long single minutes are kept."""
PACED = 2 * HOUR
"""How long the pace of single minutes is kept: noise is estimated from many minutes."""


class History:
    """Minutes of one model in the order of time, and hourly sums of acceptance and finish reasons
    by temperature, with speculation and without.

    Minutes older than :data:`FRESH` are merged by :data:`BLOCK`, as far as they are alike.
    """

    def __init__(self, horizon: float) -> None:
        """``horizon`` is the longest window of any rule, in seconds."""
        self.horizon = max(horizon, float(HOUR))
        self._minutes: deque[Sample] = deque()
        self._blocks: deque[Sample] = deque()
        self._paced: deque[Sample] = deque()
        self._hours: dict[int, dict[tuple[Environment, bool], dict[Segment, Tally]]] = {}
        """By start, then environment and whether it was without speculation, then temperature."""
        self._whole_hours: set[int] = set()
        self._first: int | None = None
        """Start of the first minute that was ever taken."""
        self._summed: tuple[tuple[float, Environment], dict[Segment, Tally]] | None = None

    @property
    def newest(self) -> Sample | None:
        """The last minute, None before the first."""
        return self._minutes[-1] if self._minutes else None

    @property
    def minutes(self) -> Sequence[Sample]:
        """All minutes in memory, oldest first; old ones are merged into blocks."""
        return (*self._blocks, *self._minutes)

    @property
    def paced(self) -> Sequence[Sample]:
        """The minutes with speculation of the last two hours, oldest first, with only the fields
        that a speedup needs."""
        return tuple(self._paced)

    @property
    def segments(self) -> set[Segment]:
        """Those that had requests recently."""
        return {
            segment
            for sample in self.minutes
            for of_dimension in sample.segments.values()
            for segment in of_dimension
        }

    def add(self, sample: Sample) -> bool:
        """Add a minute; false, and nothing is done, unless it is later than the last."""
        newest = self.newest
        if newest is not None and sample.start <= newest.start:
            return False
        if self._first is None:
            self._first = sample.start
        if newest is not None and sample.environment == newest.environment:
            # One object for all minutes: it saves memory, and is found by its identity.
            sample = replace(sample, environment=newest.environment)
        sample = _kept(sample)
        self._minutes.append(sample)
        if _has_pace(sample):
            self._paced.append(_paced(sample))
        self._count(sample)
        self._settle(sample.start + sample.length)
        self._forget(sample.start + sample.length)
        return True

    def add_earlier(self, samples: Sequence[Sample]) -> list[Sample]:
        """Add minutes from before the first one; returns those that were new."""
        known, first = self.minutes, self._first
        new = [
            sample for sample in samples if first is None or sample.start + sample.length <= first
        ]
        for sample in new:
            self._count(sample)
        if new:
            self._first = min(sample.start for sample in new)
            ordered = [*sorted(map(_kept, new), key=lambda sample: sample.start), *known]
            self._minutes = deque(sample for sample in ordered if sample.length == MINUTE)
            self._blocks = deque(sample for sample in ordered if sample.length != MINUTE)
            now = ordered[-1].start + ordered[-1].length
            # Blocks have no pace of single minutes.
            paced = [_paced(e) for e in ordered[: len(new)] if e.length == MINUTE and _has_pace(e)]
            self._paced.extendleft(reversed(paced))
            self._settle(now)
            self._blocks = deque(sorted(self._blocks, key=lambda sample: sample.start))
            self._forget(now)
        return new

    def add_hours(self, samples: Sequence[Sample]) -> list[Sample]:
        """Add roll-ups, which replace the sums of minutes of the same hours.

        All parts of an hour have to come at once; returns those of new hours.
        """
        new = [sample for sample in samples if sample.start not in self._whole_hours]
        for start in {sample.start for sample in new}:
            self._whole_hours.add(start)
            self._hours.pop(start, None)
        for sample in new:
            self._count_into(sample.start, sample)
        self._summed = None
        return new

    def reference(self, now: float, environment: Environment) -> Mapping[Segment, Tally]:
        """Drafts and tokens of all requests and by temperature, over the 24 h before the last one.

        In whole hours of the clock, and only of what ran in an environment.
        """
        last = (now - HOUR) // HOUR * HOUR
        asked = (last, environment)
        if self._summed is None or self._summed[0] != asked:
            self._summed = (asked, self._sums(last, environment))
        return self._summed[1]

    def _sums(self, last: float, environment: Environment) -> dict[Segment, Tally]:
        parts: dict[Segment, list[Tally]] = {}
        for start, by_environment in self._hours.items():
            if last - REFERENCE_SECONDS <= start < last:
                for (other, without), by_label in by_environment.items():
                    if not without and other.agrees(environment):
                        for label, counted in by_label.items():
                            parts.setdefault(label, []).append(counted)
        return {label: sum_tallies(tallies) for label, tallies in parts.items()}

    def finished(self, now: float, environment: Environment) -> list[FinishedHour]:
        """Finished requests by hour over the 24 h before the last hour, and without speculation up
        to now, of what was configured as an environment."""
        last = (now - HOUR) // HOUR * HOUR
        return [
            FinishedHour(start, without, by_label)
            for start, by_environment in self._hours.items()
            for (other, without), by_label in by_environment.items()
            if last - REFERENCE_SECONDS <= start
            and (without or start < last)
            and other.resembles(environment)
        ]

    def _count(self, sample: Sample) -> None:
        hour = sample.start - sample.start % HOUR
        if hour not in self._whole_hours:
            self._count_into(hour, sample)

    def _count_into(self, hour: int, sample: Sample) -> None:
        without = sample.mode.speculates is False
        if not without and not sample.tally.drafts:
            return
        sums = self._hours.setdefault(hour, {}).setdefault((sample.environment, without), {})
        for label, counted in {ALL: sample.tally, **sample.buckets}.items():
            kept = msgspec.structs.replace(_only(counted, _HOURLY), requests=counted.requests)
            sums[label] = merge_tallies(sums.get(label, Tally()), kept)

    def _settle(self, now: int) -> None:
        """Merge the minutes of the oldest block, once all of it has become old."""
        while self._minutes:
            end = self._minutes[0].start // BLOCK * BLOCK + BLOCK
            if end > now - FRESH:
                return
            old = []
            while self._minutes and self._minutes[0].start < end:
                old.append(self._minutes.popleft())
            self._blocks.extend(merged(old))

    def _forget(self, now: int) -> None:
        while self._blocks and self._blocks[0].start < now - self.horizon:
            self._blocks.popleft()
        while self._paced and self._paced[0].start < now - PACED:
            self._paced.popleft()
        oldest = now - REFERENCE_SECONDS - 2 * HOUR
        for hour in [hour for hour in self._hours if hour < oldest]:
            del self._hours[hour]
            self._whole_hours.discard(hour)


def _has_pace(sample: Sample) -> bool:
    return sample.usable() and sample.pace is not None


def _kept(sample: Sample) -> Sample:
    """Without fields that no rule reads."""
    return replace(sample, tally=msgspec.structs.replace(sample.tally, e2e=None))


_ACCEPTANCE = ("drafts", "draft_tokens", "accepted_tokens")
_HOURLY = (*_ACCEPTANCE, "prompt_tokens", "generation_tokens")
_PACE = (*_HOURLY, "prefix_cache_hits")
_PACE_TIMES = ("ttft", "tpot", "inter_token", "output_length")


def _only(counted: Tally, counters: Sequence[str], sums: Sequence[str] = ()) -> Tally:
    """Some counters of a tally, and count and sum alone of some histograms."""
    fields: dict[str, Any] = {name: getattr(counted, name) for name in counters}
    for name in sums:
        observed = getattr(counted, name)
        fields[name] = observed and Histogram((), (observed.count,), observed.sum)
    return Tally(**fields)


def _paced(sample: Sample) -> Sample:
    return replace(sample, tally=_only(sample.tally, _PACE, _PACE_TIMES), segments={})
