"""Judge of one target, which gets its windows as they close."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from specwatch.config.rules import Rule, Slo
from specwatch.domain.baseline import MAX_AGE, Baseline, Measurement
from specwatch.domain.breakeven import DRAFT_COST_RATIO, Assessment
from specwatch.domain.buckets import order_of
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import (
    ALL,
    HOUR,
    MINUTE,
    Objective,
    RankCounts,
    Segment,
    Window,
)
from specwatch.domain.ranks import Rank
from specwatch.domain.sample import Sample, samples_of
from specwatch.domain.speedup import PresentSpeedup
from specwatch.domain.switchback import Switchback
from specwatch.rules.equal_load import BaselineLatencies
from specwatch.rules.evidence import Evidence
from specwatch.rules.model_record import ModelRecord
from specwatch.rules.objectives import Goodput, SloStatus
from specwatch.rules.verdicts import Finding, Verdict, judge

GONE = 24.0 * HOUR
"""Seconds without a minute after which a model, or a segment, is dropped."""
MOST_MODELS = 64
"""Models of one target in memory; one more replaces the one not seen for longest."""
_STALE = 2.5 * MINUTE
"""Seconds without a window after which a model is judged on no data."""


class Judge:
    """Judges one target; pure, and for one thread at a time.

    Time is that of the windows: a minute is judged when it is added, as of its end.
    """

    def __init__(
        self,
        target: str,
        rules: Sequence[Rule],
        slos: Sequence[Slo],
        *,
        max_age: float = MAX_AGE,
        objective: Objective = Objective.E2E,
        draft_cost_ratio: float = DRAFT_COST_RATIO,
    ) -> None:
        """``max_age``, in seconds, is the age at which a baseline expires.

        ``draft_cost_ratio`` is the target's, for assumptions until there is a baseline.
        """
        self._objective = objective
        self.target = target
        self.draft_cost_ratio = draft_cost_ratio
        self._rules = self._applying(rules)
        self._slos = tuple(slos)
        self._max_age = max_age
        self.experiment: Switchback | None = None
        """That on the live traffic of the target, as it is stored."""
        self._measurements: tuple[Measurement, ...] = ()
        self._models: dict[str, ModelRecord] = {}
        self._left: list[Measurement] = []
        """New measurements of models that were dropped."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules that apply to this target; setting them drops findings of other rules."""
        return self._rules

    @rules.setter
    def rules(self, rules: Sequence[Rule]) -> None:
        self._rules = self._applying(rules)
        for model in self._models.values():
            model.history.horizon = max(self._horizon(), float(HOUR))
            model.findings = {
                scope: finding
                for scope, finding in model.findings.items()
                if finding.rule in self._rules
            }

    @property
    def objective(self) -> Objective:
        """What has to become faster; setting it applies to all models."""
        return self._objective

    @objective.setter
    def objective(self, objective: Objective) -> None:
        if objective is self._objective:
            return
        self._objective = objective
        for model in self._models.values():
            model.objective = objective
            model.evidence = None

    @property
    def measurements(self) -> Sequence[Measurement]:
        """Baselines from the store; they are used as soon as they are set."""
        return self._measurements

    @measurements.setter
    def measurements(self, measurements: Iterable[Measurement]) -> None:
        self._measurements = tuple(e for e in measurements if e.key.target == self.target)
        for model in self._models.values():
            self._choose(model)

    def set_objectives(self, slos: Sequence[Slo], *, max_age: float = MAX_AGE) -> None:
        """Judge by other objectives, whose books begin empty: :meth:`load` fills them."""
        self._slos, self._max_age = tuple(slos), max_age
        for model in self._models.values():
            model.begin_book(slos)
            self._choose(model)

    def load(self, windows: Iterable[Window]) -> None:
        """Remember windows of the past without judging them, hours and minutes.

        All of an hour has to come in one call. What is known already is passed over.
        """
        for name, own in _by_model(windows):
            if self._room_for(name):
                model = self._model(name)
                model.remember(samples_of(own))
                self._choose(model)

    def recall(self, windows: Iterable[Window]) -> None:
        """Learn the time of steps from minutes around the newest baseline."""
        for name, own in _by_model(windows):
            if self._room_for(name):
                self._model(name).recall(samples_of(own))

    def restore(self, rule: str, model_name: str, segment: Segment, since: float) -> bool:
        """Restore a breach that an earlier daemon confirmed at ``since`` (Unix seconds), also where
        it was found again meanwhile.

        False, and nothing is done, if no rule applies to that model and segment any more.
        """
        known = next((candidate for candidate in self._rules if candidate.name == rule), None)
        if (
            known is None
            or not known.scope.takes_in(self.target, model_name)
            or segment not in known.scope.segments([segment])
            or not self._room_for(model_name)
        ):
            return False
        findings = self._model(model_name).findings
        present = findings.get((rule, segment))
        if present is not None and present.verdict is Verdict.BREACH:
            findings[rule, segment] = replace(present, since=since)
            return True
        findings[rule, segment] = Finding(
            rule=known,
            target=self.target,
            model_name=model_name,
            segment=segment,
            verdict=Verdict.BREACH,
            seen=Verdict.NO_DATA,
            since=since,
            pending=None,
            readings=(),
        )
        return True

    def observe(
        self,
        windows: Iterable[Window],
        now: float,
        ranks: Mapping[str, Mapping[str, RankCounts]] = MappingProxyType({}),
    ) -> tuple[Finding, ...]:
        """Add closed minutes; returns the findings that became or ceased to be a breach.

        ``ranks`` are what the ranks of each model counted in them. ``now`` is the Unix time: a
        model without minutes for some time is judged on no data, and dropped after a day.
        """
        changed: list[Finding] = []
        for name, own in _by_model(windows):
            if not self._room_for(name):
                oldest = min(self._models.values(), key=lambda model: model.newest)
                changed += self._leave(oldest, now)
            model = self._model(name)
            for sample in samples_of(own):
                if sample.length == MINUTE and model.history.add(sample):
                    model.add_ranks(sample, ranks.get(name, {}))
                    # A baseline ages too: it is chosen again every hour.
                    if model.learn(sample) or sample.start % HOUR == 0:
                        self._choose(model)
                    changed += self._judge(model, float(sample.start + sample.length))
        for model in list(self._models.values()):
            if model.findings and now - model.judged_at > _STALE:
                changed += self._judge(model, now)
            if model.unseen(ALL, now) > GONE:
                changed += self._leave(model, now)
        return tuple(changed)

    def forget(self, now: float) -> tuple[Finding, ...]:
        """Forget all findings, as after a restart; returns how the breaches ended."""
        ended: list[Finding] = []
        for model in self._models.values():
            ended += model.end_breaches(now)
        return tuple(ended)

    def findings(self) -> tuple[Finding, ...]:
        """The latest findings, of every rule, model and segment."""
        return tuple(
            finding for model in self._models.values() for finding in model.findings.values()
        )

    def slos(self) -> tuple[SloStatus, ...]:
        """The status of the objectives, of every model."""
        return tuple(
            status
            for name, model in self._models.items()
            for status in model.book.statuses(name, max(model.judged_at, model.newest))
        )

    def goodput(self) -> dict[str, dict[int, Goodput]]:
        """Requests that met all objectives, by model and seconds of the window."""
        return {
            name: model.book.goodput(max(model.judged_at, model.newest))
            for name, model in self._models.items()
            if self._slos
        }

    def assessments(self) -> dict[str, Assessment]:
        """The measured effect of speculation over the last hour, by model."""
        return {name: evidence.assessment(HOUR) for name, evidence in self._evidence()}

    def draft_lengths(self) -> dict[str, DraftLengths | None]:
        """Why the drafts of each model vary in length; None for those that do not."""
        return {name: evidence.draft_lengths for name, evidence in self._evidence()}

    def ranks(self) -> dict[str, tuple[Rank, ...]]:
        """The data-parallel ranks of each model over the last hour."""
        return {name: evidence.ranks for name, evidence in self._evidence()}

    def present_speedups(self) -> dict[str, PresentSpeedup]:
        """The speedup of each model now."""
        return {name: model.present for name, model in self._models.items()}

    def baseline_latencies(self) -> dict[str, BaselineLatencies]:
        """Baseline latencies of the last hour, by model."""
        return {name: evidence.baseline_latencies() for name, evidence in self._evidence()}

    def recent(self, model_name: str) -> Sequence[Sample]:
        """The minutes of a model that are in memory, oldest first."""
        model = self._models.get(model_name)
        return () if model is None else model.history.minutes

    def baselines(self) -> dict[str, Baseline]:
        """Baselines by model."""
        return {name: model.baseline for name, model in self._models.items() if model.newest}

    def take_measurements(self) -> list[Measurement]:
        """New measurements from minutes without speculation since the last call."""
        left, self._left = self._left, []
        return left + [
            measurement for model in self._models.values() for measurement in model.take_new()
        ]

    def _evidence(self) -> Iterator[tuple[str, Evidence]]:
        for name, model in self._models.items():
            if model.newest:
                yield name, model.evidence or model.examine(model.newest)

    def _applying(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        return tuple(rule for rule in rules if rule.scope.takes_in(self.target))

    def _horizon(self) -> float:
        windows = (
            window
            for rule in self._rules
            for window in (rule.window, *(c.window or 0.0 for c in rule.conditions))
        )
        return max(windows, default=0.0)

    def _model(self, name: str) -> ModelRecord:
        if name not in self._models:
            self._models[name] = ModelRecord(
                self.target, name, self._horizon(), self._slos, self.objective
            )
        return self._models[name]

    def _room_for(self, name: str) -> bool:
        return name in self._models or len(self._models) < MOST_MODELS

    def _leave(self, model: ModelRecord, now: float) -> list[Finding]:
        """Drop a model; returns how its breaches ended."""
        del self._models[model.name]
        self._left += model.take_new()
        return model.end_breaches(now)

    def _choose(self, model: ModelRecord) -> None:
        if model.newest:
            stored = (e for e in self._measurements if e.key.model_name == model.name)
            model.compare_with(stored, self._max_age)

    def _judge(self, model: ModelRecord, now: float) -> list[Finding]:
        evidence = model.examine(now, self.experiment)
        model.present = evidence.present
        changed = []
        for rule in self._rules:
            if not rule.scope.takes_in(self.target, model.name):
                continue
            for segment in self._segments(rule, model):
                before = model.findings.get((rule.name, segment))
                if segment != ALL and model.unseen(segment, now) > GONE:
                    model.findings.pop((rule.name, segment), None)
                    if before is not None and before.in_breach:
                        changed.append(before.ended(now))
                    continue
                finding = judge(
                    rule,
                    evidence,
                    target=self.target,
                    model_name=model.name,
                    segment=segment,
                    before=before,
                    draft_cost_ratio=self.draft_cost_ratio,
                )
                model.findings[rule.name, segment] = finding
                if (before is not None and before.in_breach) is not finding.in_breach:
                    changed.append(finding)
        model.judged_at = now
        return changed

    def _segments(self, rule: Rule, model: ModelRecord) -> list[Segment]:
        if rule.scope.dimension == ALL.dimension:
            return [ALL]
        judged = {segment for name, segment in model.findings if name == rule.name}
        return rule.scope.segments(sorted({*model.segments, *judged}, key=order_of))


def _by_model(windows: Iterable[Window]) -> Iterator[tuple[str, list[Window]]]:
    grouped: dict[str, list[Window]] = {}
    for window in windows:
        grouped.setdefault(window.series.model_name, []).append(window)
    yield from grouped.items()
