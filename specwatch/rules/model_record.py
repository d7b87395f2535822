"""Record of one model of one target: its history, its baselines and its findings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from specwatch.config.rules import Slo
from specwatch.domain import baseline as baselines
from specwatch.domain.baseline import Baseline, BaselineKey, Measurement, Origin
from specwatch.domain.cost import CostModel, Observation
from specwatch.domain.counterfactual import Memory, Minute
from specwatch.domain.model import (
    ALL,
    HOUR,
    Environment,
    Mode,
    Objective,
    RankCounts,
    Segment,
)
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import PresentSpeedup
from specwatch.domain.switchback import Switchback
from specwatch.rules.evidence import Evidence
from specwatch.rules.history import History
from specwatch.rules.objectives import SloBook
from specwatch.rules.verdicts import Finding

Scope = tuple[str, Segment]
"""Name of a rule, and a segment."""
_Place = tuple[BaselineKey, int]
_STEPS = 60
"""Minutes kept with the time of steps, of each load bin."""
_RECENT = 30
"""Of these, the newest that are always kept."""
_UNUSUAL = 0.15
"""Share by which a usual step may take more or less than the median."""
_NAMELESS = 10
"""First minutes, in which the version may not be known yet: their measurements are dropped."""


class ModelRecord:
    """Record of one model; ``horizon`` is the longest window of the rules, in seconds."""

    def __init__(
        self,
        target: str,
        name: str,
        horizon: float,
        slos: Sequence[Slo],
        objective: Objective = Objective.E2E,
    ) -> None:
        self.objective = objective
        self.target = target
        self.name = name
        self.history = History(horizon)
        self.begin_book(slos)
        self.findings: dict[Scope, Finding] = {}
        self.environment = Environment()
        self.judged_at = 0.0
        """Unix time of the last judgement, 0 before the first."""
        self.baseline = Baseline()
        self._memory: Memory = {}
        self._same: Memory = {}
        self._steps: dict[Environment, dict[int, list[Observation]]] = {}
        """Times of steps with speculation, by load bin, nearest to when it was last off."""
        self._usual: CostModel | None = None
        self._fitted: tuple[Sequence[Observation], CostModel] | None = None
        """The times of steps that it was last fitted to, and the fit."""
        self.present = PresentSpeedup()
        self.evidence: Evidence | None = None
        """Evidence of the last judgement, while it is valid."""
        self.own: dict[_Place, Measurement] = {}
        """Measurements from its minutes without speculation."""
        self._new: dict[_Place, Measurement] = {}
        self._versions = False
        self._learned = 0
        self._seen: dict[Segment, float] = {}
        self.segments: set[Segment] = set()
        """Those that had requests recently, when it was last judged."""
        self._ranks: deque[tuple[int, Environment, Mapping[str, RankCounts]]] = deque()
        """Of the minutes with speculation of the last hour, with their ends."""

    @property
    def newest(self) -> float:
        """Unix time of the end of its last minute, 0 before the first."""
        last = self.history.newest
        return 0.0 if last is None else float(last.start + last.length)

    def remember(self, samples: Sequence[Sample]) -> None:
        """Add history: hours for the sums, and minutes that are new.

        The book may lack minutes that the history has, so each checks what is new to it.
        """
        hours = [sample for sample in samples if sample.length == HOUR]
        minutes = [sample for sample in samples if sample.length < HOUR]
        self.history.add_hours(hours)
        self.history.add_earlier(minutes)
        new = {hour.start for hour in hours} - self._booked
        self._booked |= new
        for sample in [*(hour for hour in hours if hour.start in new), *minutes]:
            self.book.add(sample.start, sample.length, sample.tally, sample.watched)
        if self.history.newest is not None:
            self.environment = self.history.newest.environment
        self.evidence = None

    def learn(self, sample: Sample) -> bool:
        """Add a new minute; true if the baseline may have changed."""
        self.book.add(sample.start, sample.length, sample.tally, sample.watched)
        environment = sample.environment
        changed = environment != self.environment
        self.environment = environment
        self._versions = self._versions or environment.engine_version is not None
        self._learned += 1
        self._learn_steps(sample)
        if sample.mode is Mode.OFF and not self._nameless():
            key = BaselineKey(
                self.target, self.name, environment.engine_version, environment.configuration
            )
            for measurement in baselines.measured(key, Origin.WINDOWS, [sample]):
                place = (measurement.key, measurement.load_bin)
                for known in (self.own, self._new):
                    older = known.get(place)
                    known[place] = baselines.join(older, measurement) if older else measurement
                changed = True
        return changed

    def add_ranks(self, sample: Sample, ranks: Mapping[str, RankCounts]) -> None:
        """Add what the ranks counted in a new minute; one without speculation does not count."""
        end = sample.start + sample.length
        if ranks and sample.usable():
            self._ranks.append((end, sample.environment, ranks))
        while self._ranks and self._ranks[0][0] <= end - HOUR:
            self._ranks.popleft()

    def recall(self, samples: Iterable[Sample]) -> None:
        """Add the times of steps of past minutes, which are not judged."""
        known = {
            point.at for bins in self._steps.values() for kept in bins.values() for point in kept
        }
        for sample in samples:
            if sample.start + sample.length not in known:
                self._learn_steps(sample)
        for bins in self._steps.values():
            for kept in bins.values():
                kept.sort()

    def _learn_steps(self, sample: Sample) -> None:
        """Keep times of steps near the newest measurement without speculation."""
        minute = Minute.of(sample)
        seen = None if minute is None else minute.stepping()
        if minute is None or seen is None:
            return
        if sample.environment not in self._steps:
            self._steps = {sample.environment: {}}  # another draft takes another time
        kept = self._steps[sample.environment].setdefault(minute.load_bin, [])
        measured = self.baseline.measured_at
        kept.append(seen)
        if len(kept) > _STEPS:
            # The newest few stay: they may be nearest to a measurement that comes now.
            kept.remove(max(kept[:-_RECENT], key=lambda point: abs(point.at - measured)))
        else:
            self._usual = None

    @property
    def usual(self) -> CostModel:
        """Time of a step with speculation when the baseline was last measured."""
        if self._usual is None:
            measured = self.baseline.measured_at
            nearest = [
                measurement
                for kept in self._steps.get(self.environment, {}).values()
                for measurement in _usual_of(
                    sorted(kept, key=lambda one: abs(one.at - measured))[: _STEPS - _RECENT]
                )
            ]
            if self._fitted is None or nearest != self._fitted[0]:
                self._fitted = nearest, CostModel.fitted(nearest)
            self._usual = self._fitted[1]
        return self._usual

    def take_new(self) -> list[Measurement]:
        """New measurements from its minutes since the last call."""
        new, self._new = self._new, {}
        return list(new.values())

    def end_breaches(self, now: float) -> list[Finding]:
        """Forget all findings; returns the ends of its breaches."""
        ended = [finding.ended(now) for finding in self.findings.values() if finding.in_breach]
        self.findings = {}
        return ended

    def begin_book(self, slos: Sequence[Slo]) -> None:
        """Begin an empty book of objectives."""
        self.book = SloBook(slos)
        self._booked: set[int] = set()
        """Hours that the book has from the store: it counts each part of an hour once."""

    def compare_with(self, stored: Iterable[Measurement], max_age: float) -> None:
        """Choose the baseline from stored measurements and those of its minutes."""
        known = []
        for measurement in stored:
            if measurement.origin is not Origin.WINDOWS:
                known.append(measurement)
                continue
            place = (measurement.key, measurement.load_bin)
            new = self._new.get(place)
            joined = measurement if new is None else baselines.join(measurement, new)
            if place not in self.own or joined.points_behind > self.own[place].points_behind:
                self.own[place] = joined
        chosen = baselines.choose(
            [*known, *self.own.values()], self.environment, now=self.newest, max_age=max_age
        )
        if chosen != self.baseline:  # else it keeps what was fitted to it
            self.baseline = chosen
        self._memory, self._same = {}, {}
        self._usual = None
        self.evidence = None

    def examine(self, now: float, experiment: Switchback | None = None) -> Evidence:
        """The evidence at ``now`` (Unix seconds), kept until the next call; ``experiment`` is that
        on the live traffic of the target.

        Minutes from before an upgrade, or with another draft, do not count.
        """
        minutes = self.history.minutes
        ran = (minute.environment for minute in reversed(minutes) if minute.mode is Mode.ON)
        present = next(ran, Environment())
        paced = self.history.paced
        # Few environments for many minutes, which share them.
        all_of_them = [minute.environment for minute in (*minutes, *paced)]
        environments = dict(zip(map(id, all_of_them), all_of_them, strict=True))
        others = {
            key
            for key, ran_in in environments.items()
            if not (ran_in.agrees(present) and ran_in.resembles(self.environment))
        }
        samples = minutes
        if others:
            samples = [
                e for e in minutes if e.mode is not Mode.ON or id(e.environment) not in others
            ]
            paced = [minute for minute in paced if id(minute.environment) not in others]
        self._same = {key: self._same[key] for key in map(id, samples) if key in self._same}
        self.evidence = Evidence(
            samples,
            paced=paced,
            memory=self._memory,
            same=self._same,
            usual=lambda: self.usual,
            baseline=self.baseline,
            reference=self.history.reference(now, present),
            finished=self.history.finished(now, present),
            now=now,
            objective=self.objective,
            experiment=experiment,
            before=self.present,
            ranks=tuple(
                (end, ranks) for end, ran_in, ranks in self._ranks if ran_in.agrees(present)
            ),
        )
        if self.newest:
            self._seen[ALL] = self.newest
        self.segments = self.history.segments
        for segment in self.segments:
            self._seen[segment] = now
        return self.evidence

    def unseen(self, segment: Segment, now: float) -> float:
        """Seconds since a segment had requests, or since the first call for it.

        For all requests: since the last minute.
        """
        return now - self._seen.setdefault(segment, now)

    def _nameless(self) -> bool:
        """Whether its version is unknown but may become known, or was known before."""
        known = self.environment.engine_version is not None
        return not known and (self._versions or self._learned <= _NAMELESS)


def _usual_of(observed: Sequence[Observation]) -> list[Observation]:
    """Observations near the median: a slowdown of some minutes is not usual."""
    middle = median(observation.seconds / observation.units for observation in observed)
    return [e for e in observed if abs(e.seconds / e.units / middle - 1) <= _UNUSUAL]
