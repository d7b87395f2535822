"""One pass over the windows of a model: their sums, and the pace of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

from specwatch.domain.merge import sum_fields
from specwatch.domain.model import (
    ALL,
    TEMPERATURE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    Segment,
    Tally,
    Window,
)
from specwatch.domain.sample import (
    Pace,
    Requests,
    Sample,
    completed,
    divided,
    pace_of,
    requests_of,
)
from specwatch.report.grouped_data import Drafted, SlicePlace, WindowSlice, add_drafted

_Any = TypeVar("_Any")
_MOST_AT_ONCE = 64
"""Tallies that are kept before they are added up: a month of them would fill the memory."""
_SUMMED = (
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "accepted_per_position",
    "prompt_tokens",
    "generation_tokens",
    "requests",
    "ttft",
    "tpot",
    "request_acceptance",
)
"""Fields of a tally that the report shows."""
_BEFORE = (
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "generation_tokens",
    "requests",
    "ttft",
    "tpot",
)
"""Fields that it shows of the period before."""
_OF_DRAFTS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")


@dataclass(slots=True)
class LedgerCell:
    """The windows of one key: tallies by segment, sampled gauges in seconds."""

    place: SlicePlace
    tallies: dict[Segment, Tally]
    observed: float = 0.0
    busy: float = 0.0
    running: float = 0.0

    @property
    def all(self) -> Tally:
        """All requests; empty if the server has no window."""
        return self.tallies.get(ALL, _NOTHING)


class LedgerMinute(NamedTuple):
    """A sound window of all requests with its pace, and what its segments drafted."""

    start: int
    length: int
    pace: Pace
    counted: Tally
    gauges: Gauges
    segments: Mapping[Segment, Drafted]
    requests: Requests | None


Kind = tuple[Mode, int, Environment, bool, bool]
"""Mode, load bin, environment, how the pace was counted, and whether drafts are."""


class RunningSum:
    """Some fields of tallies, added up a few dozen tallies at once."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._waiting: list[Tally] = []

    def add(self, tally: Tally) -> None:
        """Add one tally."""
        if len(self._waiting) > _MOST_AT_ONCE:
            self._waiting = [self.total()]
        self._waiting.append(tally)

    def total(self) -> Tally:
        """The sum of all of them."""
        return Tally(**sum_fields(self._waiting, self._names))


class Ledger:
    """Of one model; slices come in the order of time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sums: dict[SlicePlace, dict[Segment, RunningSum]] = {}
        self._sampled: dict[SlicePlace, list[float]] = {}
        self.minutes: dict[Kind, list[LedgerMinute]] = {}
        """Of the period with speculation, and of both periods without."""
        self.present: Environment | None = None
        """Of the newest window in which speculation ran."""
        self.stopped_since: float | None = None
        """Begin of the windows up to the newest in which the engine had switched it off."""

    def take(self, slices: Iterable[WindowSlice]) -> None:
        """Add slices of the period, or of the one before."""
        for piece in slices:
            self._add(piece)

    def cells(self) -> list[LedgerCell]:
        """All sums; what servers do not count is taken from their temperatures."""
        return [self._cell(place, sums) for place, sums in self._sums.items()]

    def samples(self, most: int) -> list[Sample]:
        """The period with speculation as samples, of each kind at most so many stretches."""
        return [
            _sample(kind, stretch, _by_segment(stretch))
            for kind, minutes in self.minutes.items()
            if kind[0] is Mode.ON
            for stretch in stretches(minutes, most)
        ]

    def samples_in(self, step: int, since: int) -> list[Sample]:
        """The same as a sample of each kind and ``step`` seconds from ``since`` on, without
        segments."""
        return [
            _sample(kind, list(inside), {})
            for kind, minutes in self.minutes.items()
            if kind[0] is Mode.ON
            for _, inside in groupby(minutes, key=lambda one: (one.start - since) // step)
        ]

    def _cell(self, place: SlicePlace, sums: dict[Segment, RunningSum]) -> LedgerCell:
        tallies = {segment: added.total() for segment, added in sums.items()}
        whole = tallies.pop(ALL, None)
        if whole is not None:
            buckets = [each for of, each in tallies.items() if of.dimension == TEMPERATURE]
            tallies = {ALL: completed(whole, buckets), **tallies}
        return LedgerCell(place, tallies, *self._sampled.get(place, ()))

    def _add(self, one: WindowSlice) -> None:
        sums = self._sums.setdefault(one.place, {})
        for window in (*one.wholes, *one.parts):
            segment = window.series.segment
            if segment not in sums:
                sums[segment] = RunningSum(_SUMMED if one.place.now else _BEFORE)
            sums[segment].add(window.tally)
        if not one.wholes:
            return
        sampled = self._sampled.setdefault(one.place, [0.0, 0.0, 0.0])
        for window in one.wholes:
            sampled[0] += window.observed_seconds
            sampled[1] += window.gauges.busy_seconds
            sampled[2] += window.gauges.running_seconds
        if one.place.mode is Mode.ON:
            self.present = one.place.environment
        if one.place.mode is not Mode.STOPPED:
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = min(window.start for window in one.wholes)
        if one.place.mode is Mode.OFF or (one.place.mode is Mode.ON and one.place.now):
            for window in one.wholes:
                self._time(one, window)

    def _time(self, one: WindowSlice, window: Window) -> None:
        place = one.place
        if place.load_bin is None or not window.sound:
            return
        counted = window.tally
        if place.silent and any(place.silent):
            by_temperature = (e for e in one.parts if e.series.segment.dimension == TEMPERATURE)
            counted = completed(counted, [part.tally for part in by_temperature])
        pace = pace_of(counted)
        if pace is None:
            return
        drafted = {segment: counts for segment, counts in one.drafted.items() if counts[0]}
        kind = (
            place.mode,
            place.load_bin,
            place.environment,
            pace.by_token,
            counted.drafts is not None,
        )
        self.minutes.setdefault(kind, []).append(
            LedgerMinute(
                window.start,
                window.length,
                pace,
                counted,
                window.gauges,
                drafted,
                requests_of(counted, window.gauges),
            )
        )


_NOTHING = Tally()


def stretches(ordered: Sequence[_Any], most: int) -> list[Sequence[_Any]]:
    """A sequence as at most ``most`` runs of neighbours, of about one length.

    Fewer are quicker to compare, and keep correlated neighbours together.
    """
    count = min(len(ordered), most)
    ends = [len(ordered) * index // count for index in range(count + 1)] if count else []
    return [ordered[begin:end] for begin, end in pairwise(ends)]


def _by_segment(minutes: Iterable[LedgerMinute]) -> dict[Segment, Tally]:
    """The drafts of each segment, added up."""
    drafted: dict[Segment, Drafted] = {}
    for minute in minutes:
        for segment, counts in minute.segments.items():
            add_drafted(drafted, segment, counts)
    return {segment: Tally(*counts) for segment, counts in drafted.items()}


def _sample(
    kind: Kind, minutes: Sequence[LedgerMinute], drafted: Mapping[Segment, Tally]
) -> Sample:
    mode, _, environment, by_token, _ = kind
    first, last = minutes[0], minutes[-1]
    seconds, tokens, sampled, busy, running = _totals(
        (one.pace.seconds, one.pace.tokens, of.sampled_seconds, of.busy_seconds, of.running_seconds)
        for one in minutes
        for of in [one.gauges]
    )
    asked = [
        (
            of.firsts,
            of.first_seconds,
            (of.prompt or 0.0) * of.firsts,
            of.prompt_tokens,
            (of.output or 0.0) * of.firsts,
            of.population * one.gauges.busy_seconds - one.gauges.running_seconds,
        )
        for one in minutes
        if (of := one.requests) is not None
    ]
    firsts, first_seconds, prompts, computed, outputs, waiting = (
        _totals(asked) if len(asked) == len(minutes) else (0,) * 6
    )
    count = int(firsts)
    timed = Histogram((), (round(tokens),), seconds)
    counted = Tally(
        **sum_fields((one.counted for one in minutes), _OF_DRAFTS),
        generation_tokens=round(tokens) + count if by_token else None,
        prompt_tokens=round(prompts) if count else None,
        prefix_cache_hits=round(prompts - computed) if count else None,
        ttft=Histogram((), (count,), first_seconds) if count else None,
        output_length=Histogram((), (count,), outputs) if count else None,
        inter_token=timed if by_token else None,
        tpot=None if by_token else timed,
    )
    return Sample(
        start=first.start,
        length=last.start + last.length - first.start,
        mode=mode,
        tally=counted,
        gauges=Gauges(sampled, busy, running, max(waiting, 0.0) if count else 0.0),
        environment=environment,
        segments=divided(drafted),
    )


def _totals(rows: Iterable[tuple[float, ...]]) -> Iterable[float]:
    """The sum of each column, in the order of the rows."""
    return map(sum, zip(*rows, strict=True))
