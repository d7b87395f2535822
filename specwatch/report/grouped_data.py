"""The data of a report, grouped by mode, load bin and environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwatch.config.rules import Slo
from specwatch.domain.baseline import MAX_AGE, Measurement
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.experiments import Experiment
from specwatch.domain.model import (
    ALL,
    Environment,
    Mode,
    Objective,
    Segment,
    Tally,
    Window,
    load_bin,
)
from specwatch.domain.switchback import Switchback
from specwatch.guard.status import StepRecord
from specwatch.rules.decisions import Decision

Drafted = tuple[int, int, int]
"""Drafts, draft tokens and accepted tokens."""


def add_drafted(drafted: dict[Segment, Drafted], segment: Segment, counts: Drafted) -> None:
    """Add to the counts of a segment."""
    before = drafted.get(segment)
    drafted[segment] = (
        counts
        if before is None
        else (before[0] + counts[0], before[1] + counts[1], before[2] + counts[2])
    )


def drafted_of(tally: Tally) -> Drafted:
    """The counts of a tally; zeros if it has no drafts."""
    if not tally.drafts:
        return 0, 0, 0
    return tally.drafts, tally.draft_tokens or 0, tally.accepted_tokens or 0


class Beside(NamedTuple):
    """A window of all requests, and the drafts in it by segment.

    The windows of these come separately, each as a sum of many hours.
    """

    start: int
    window: Window
    drafted: Mapping[Segment, Drafted]


Recorded = Window | Beside


def model_of(recorded: Recorded) -> str:
    """The name of the model."""
    window = recorded.window if isinstance(recorded, Beside) else recorded
    return window.series.model_name


@dataclass(frozen=True, slots=True)
class ReportSources:
    """The data of the report of one target.

    ``windows`` are hours, or minutes of a short period, of all models and segments, by start.
    They begin a period earlier than the report, and are read once. If segments come as sums, each
    window of all requests comes with their drafts. ``decisions`` are changes of
    verdicts. Speedups are of ``objective``. ``max_age`` is that of a baseline, in seconds.
    ``experiments`` are those of the period by model, oldest first, ``switchback`` is the one on its
    live traffic. ``standby`` reads the minutes in standby of all requests, as old as a
    baseline may be.
    """

    target: str
    windows: Iterable[Recorded]
    measurements: Sequence[Measurement] = ()
    decisions: Sequence[Decision] = ()
    steps: Sequence[StepRecord] = ()
    slos: Sequence[Slo] = ()
    gpus: int | None = None
    draft_cost_ratio: float = DRAFT_COST_RATIO
    objective: Objective = Objective.E2E
    max_age: float = MAX_AGE
    experiments: Mapping[str, Sequence[Experiment]] = field(default_factory=dict)
    switchback: Switchback | None = None
    standby: Callable[[], Sequence[Window]] = lambda: ()


class SlicePlace(NamedTuple):
    """The key by which windows are added up; ``now`` is whether they are of the period.

    ``silent`` says which fields the server does not count; None if it has no window.
    """

    now: bool
    mode: Mode
    load_bin: int | None
    environment: Environment
    silent: tuple[bool, ...] | None


class WindowSlice(NamedTuple):
    """The windows of one start, mode, load bin and environment.

    ``wholes`` are of all requests, ``parts`` of segments, which may be sums of a longer time;
    ``drafted`` has their counts in this time.
    """

    place: SlicePlace
    wholes: Sequence[Window]
    parts: Sequence[Window]
    drafted: Mapping[Segment, Drafted]

    @property
    def first(self) -> Window:
        """The first of its windows."""
        return (self.wholes or self.parts)[0]

    @property
    def start(self) -> int:
        """Unix time."""
        return self.first.start


@dataclass(slots=True)
class _Group:
    wholes: list[Window] = field(default_factory=list)
    parts: list[Window] = field(default_factory=list)
    beside: list[Mapping[Segment, Drafted]] = field(default_factory=list)

    def drafted(self) -> Mapping[Segment, Drafted]:
        if len(self.beside) == 1:
            return self.beside[0]
        drafted: dict[Segment, Drafted] = {}
        for beside in self.beside:
            for segment, counts in beside.items():
                add_drafted(drafted, segment, counts)
        for part in () if self.beside else self.parts:
            add_drafted(drafted, part.series.segment, drafted_of(part.tally))
        return drafted


def slices_of(recorded: Sequence[Recorded], *, now: bool) -> Iterator[WindowSlice]:
    """The slices of what was recorded at one start; ``now`` says that it is of the period."""
    first = recorded[0]
    if len(recorded) == 1 and isinstance(first, Beside):  # the usual case in a week of hours
        window = first.window
        place = SlicePlace(now, window.mode, _bin_of(window), window.environment, _silent(window))
        yield WindowSlice(place, [window], [], first.drafted)
        return
    grouped: dict[tuple[Mode, int | None, Environment], _Group] = {}
    group = _Group()
    before: Window | None = None
    for window_ in recorded:
        window = window_.window if isinstance(window_, Beside) else window_
        # Mostly the same objects, with the same key.
        if (
            before is None
            or window.gauges is not before.gauges
            or window.environment is not before.environment
            or window.mode is not before.mode
        ):
            key = (window.mode, _bin_of(window), window.environment)
            group = grouped.setdefault(key, _Group())
        (group.wholes if window.series.segment == ALL else group.parts).append(window)
        if isinstance(window_, Beside):
            group.beside.append(window_.drafted)
        before = window
    for (mode, bin_, environment), group in grouped.items():
        silent = _silent(group.wholes[0]) if group.wholes else None
        # If a tap counts drafts, the server speculates, whether it says so or not.
        drafted = any(one.tally.drafts for one in (*group.wholes, *group.parts))
        if drafted and mode in (Mode.OFF, Mode.UNKNOWN):
            mode = Mode.ON
        place = SlicePlace(now, mode, bin_, environment, silent)
        yield WindowSlice(place, group.wholes, group.parts, group.drafted())


def _bin_of(window: Window) -> int | None:
    busy = window.gauges.busy_seconds
    return load_bin(window.gauges.running_seconds / busy) if busy else None


def _silent(window: Window) -> tuple[bool, ...]:
    """Of the fields that some servers do not count, but only their taps."""
    tally = window.tally
    return (
        tally.drafts is None,
        tally.generation_tokens is None,
        tally.ttft is None,
        tally.tpot is None,
    )
