"""Evidence that rules are judged on: the minutes of one model up to one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from specwatch.domain import draft_lengths
from specwatch.domain.acceptance import lengths_vary
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import Assessment, assess
from specwatch.domain.cost import CostModel
from specwatch.domain.counterfactual import Memory
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.finishes import FinishedHour
from specwatch.domain.interval import Interval
from specwatch.domain.model import (
    ALL,
    HOUR,
    Environment,
    Mode,
    Objective,
    RankCounts,
    Segment,
    Tally,
)
from specwatch.domain.ranks import Rank, ranks_of
from specwatch.domain.sample import Sample, tally_of
from specwatch.domain.speedup import (
    PRESENT,
    TOO_FEW,
    Comparison,
    PresentSpeedup,
    Stretches,
    Unjudged,
)
from specwatch.domain.switchback import Switchback
from specwatch.rules.equal_load import BaselineLatencies, EqualLoad, at_equal_load, by_load
from specwatch.rules.history import BLOCK, PACED

LATELY = 600.0
"""Age in seconds of the newest minute up to which a speedup is current."""
LONGEST_SILENCE = 180.0
"""Seconds since the last sound sample after which evidence is stale."""


class Evidence:
    """Minutes of one model and their baseline; everything is computed once.

    Results do not depend on the order of the samples of a window.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        baseline: Baseline,
        reference: Mapping[Segment, Tally],
        now: float,
        paced: Sequence[Sample] | None = None,
        memory: Memory | None = None,
        same: Memory | None = None,
        usual: Callable[[], CostModel] = lambda: CostModel({}),
        objective: Objective = Objective.E2E,
        experiment: Switchback | None = None,
        finished: Sequence[FinishedHour] = (),
        ranks: Sequence[tuple[int, Mapping[str, RankCounts]]] = (),
        before: PresentSpeedup | None = None,
    ) -> None:
        """``samples`` are minutes, oldest first, as far back as the longest window.

        ``reference`` has the sums of an earlier period, of all requests and by temperature; ``now``
        is a Unix time in seconds, the end of the newest minute. ``paced`` are single minutes with
        speculation, where ``samples`` are longer; ``memory`` is kept as long as the baseline, as is
        ``same``, for ``samples``.
        ``usual`` gives the time of steps when the baseline was measured. ``experiment`` is that on
        the live traffic of the target. ``finished`` are the requests of the earlier period by hour,
        with speculation and without. ``ranks`` are what the data-parallel ranks of the server
        counted in minutes of the last hour, by their ends. ``before`` is what was present a minute
        ago: it remembers what began before the minutes in memory.
        """
        self._usual = usual
        self._memory = memory
        self._same = same
        self._paced = samples if paced is None else paced
        self.baseline = baseline
        self.reference = reference
        self.now = now
        self._samples = samples
        self.objective = objective
        self.experiment = experiment
        self.finished = finished
        self._ranks = ranks
        self._before = before or PresentSpeedup()
        self._windows: dict[float, Sequence[Sample]] = {}
        self._speculative: dict[tuple[float, bool], list[Sample]] = {}
        self._tallies: dict[tuple[float, Segment, bool], Tally] = {}
        self._by_load: dict[float, dict[int | None, list[Sample]]] = {}
        self._latencies: dict[tuple[str, float], EqualLoad | str] = {}
        self._assessments: dict[float, Assessment] = {}
        self._comparisons: dict[tuple[float, bool], Comparison] = {}
        self._stretches: dict[tuple[float, bool], Stretches] = {}

    @cached_property
    def stale(self) -> bool:
        """Whether there was no sound sample for :data:`LONGEST_SILENCE`."""
        oldest = self.now - LONGEST_SILENCE
        return not any(
            sample.sound and oldest < sample.start + sample.length <= self.now
            for sample in reversed(self._samples)
        )

    @cached_property
    def speculating(self) -> bool:
        """Whether speculation was on throughout the newest minute; false without minutes."""
        ended = (e for e in reversed(self._samples) if e.start + e.length <= self.now)
        newest = next(ended, None)
        return newest is not None and newest.mode is Mode.ON

    @cached_property
    def draft_lengths(self) -> DraftLengths | None:
        """Why drafts vary in length, by the newest minute with speculation, or as counted in the
        last hour; None if they do not."""
        ran = (e.environment for e in reversed(self._samples) if e.mode is Mode.ON)
        shown = draft_lengths.shown_by(next(ran, Environment()))
        if shown is None and lengths_vary(self.tally(HOUR, ALL)):
            return DraftLengths.UNEXPLAINED
        return shown

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The data-parallel ranks over the last hour; none of a server that has one. Where drafts
        vary in length, none stands out: they do by the load of each rank."""
        known = ranks_of([ranks for end, ranks in self._ranks if self.now - HOUR < end <= self.now])
        if self.draft_lengths is None:
            return known
        return tuple(rank._replace(stands_out=False) for rank in known)

    def window(self, seconds: float) -> Sequence[Sample]:
        """The samples that end in ``(now - seconds, now]``."""
        if seconds not in self._windows:
            since = self.now - seconds
            self._windows[seconds] = tuple(
                sample
                for sample in self._samples
                if since < sample.start + sample.length <= self.now
            )
        return self._windows[seconds]

    def speculative(self, seconds: float, *, sound: bool = False) -> list[Sample]:
        """Samples of a window with speculation on; with ``sound``, only usable ones.

        Drafts of unsound samples are exact counts too.
        """
        if (seconds, sound) not in self._speculative:
            self._speculative[seconds, sound] = [
                sample
                for sample in self.window(seconds)
                if (sample.usable() if sound else sample.mode is Mode.ON)
            ]
        return self._speculative[seconds, sound]

    @cached_property
    def _all(self) -> Comparison:
        return Comparison(self._paced, self.baseline, objective=self.objective, memory=self._memory)

    @cached_property
    def _adjusted(self) -> Comparison:
        return self._all.adjusted(self._usual())

    def tally(self, seconds: float, segment: Segment, *, sound: bool = False) -> Tally:
        """The sum of a segment over :meth:`speculative`."""
        key = (seconds, segment, sound)
        if key not in self._tallies:
            samples = self.speculative(seconds, sound=sound)
            self._tallies[key] = tally_of(samples, segment)
        return self._tallies[key]

    def at_equal_load(self, metric: str, seconds: float) -> EqualLoad | str:
        """See :func:`specwatch.rules.equal_load.at_equal_load`, over a window."""
        key = (metric, seconds)
        if key not in self._latencies:
            if seconds not in self._by_load:
                self._by_load[seconds] = by_load(self.speculative(seconds, sound=True))
            by_bin = self._by_load[seconds]
            self._latencies[key] = at_equal_load(by_bin, self.baseline.own, metric)
        return self._latencies[key]

    def baseline_latencies(self) -> BaselineLatencies:
        """Those of the last hour without speculation at equal load."""
        known = {metric: self.at_equal_load(metric, HOUR) for metric in ("ttft", "tpot")}
        return {name: both.baseline for name, both in known.items() if not isinstance(both, str)}

    def assessment(self, seconds: float) -> Assessment:
        """The measured effect of speculation over a window."""
        if seconds not in self._assessments:
            comparison = assess(
                self.window(seconds),
                self.baseline,
                objective=self.objective,
                usual=self._usual(),
                by_minute=self.compared(seconds),
                same=self._same,
            )
            if comparison.until is not None and comparison.until < self.now - LATELY:
                comparison = replace(comparison, missing_lately=self.compared(LATELY).missing)
            self._assessments[seconds] = comparison
        return self._assessments[seconds]

    @cached_property
    def present(self) -> PresentSpeedup:
        """The speedup now.

        It loses while the shortest of :meth:`specwatch.domain.speedup.Comparison.stretches` with a
        certain answer says so and the newest minutes do not contradict it.
        """
        course = self.compared(HOUR).course(BLOCK)
        if not self.speculating:
            return PresentSpeedup(course=course)
        speedup = self.compared(PRESENT).interval()
        return PresentSpeedup(speedup, self._losing_since(speedup), course, self.unjudged)

    def _losing_since(self, speedup: Interval | None) -> float | None:
        before = self._before.losing_since
        stretches = self.stretches(HOUR)
        certain = next((one for one in stretches if one.below(1) or one.above(1)), None)
        if certain is None or certain.above(1) or next(iter(stretches)).value >= 1:
            # Without an answer, what was certain before holds while it still looks like that.
            holds = certain is None and speedup is not None and speedup.value < 1
            return before if holds else None
        began = self._adjusted.losing_since(certain.value) or self.now - PRESENT
        return self._began(began, before)

    @cached_property
    def unjudged(self) -> Unjudged | None:
        """Since when the traffic with speculation cannot be judged, and why; None if it can, or
        none came lately."""
        lately = self.compared(LATELY).minutes
        began = self._adjusted.unknown_since() if self.speculating and lately else None
        if began is None:
            return None
        why = self._adjusted.since(began).missing or TOO_FEW
        before = self._before.unjudged
        return Unjudged(self._began(began, before and before.since), why)

    def _began(self, began: float, before: float | None) -> float:
        """When something began that did so at ``began`` by the minutes in memory, which may lack
        the first ones."""
        if before is not None and began <= self._paced[0].start:
            return min(began, before)
        return began

    def stretches(self, seconds: float, *, adjusted: bool = True) -> Stretches:
        """Those of :meth:`compared`."""
        key = (seconds, adjusted)
        if key not in self._stretches:
            compared = self.compared(seconds, adjusted=adjusted)
            self._stretches[key] = Stretches(compared.tested(self.now))
        return self._stretches[key]

    def compared(self, seconds: float, *, adjusted: bool = True) -> Comparison:
        """Minutes of a window compared with the baseline; ``adjusted`` for changes of the server's
        own speed since it was measured: see :meth:`specwatch.domain.speedup.Comparison.adjusted`.
        """
        key = (seconds, adjusted)
        if key not in self._comparisons:
            if seconds > PACED:
                window = self.window(seconds)
                comparison = Comparison(window, self.baseline, objective=self.objective)
                comparison = comparison.adjusted(self._usual()) if adjusted else comparison
            else:
                comparison = (self._adjusted if adjusted else self._all).since(self.now - seconds)
            self._comparisons[key] = comparison
        return self._comparisons[key]
