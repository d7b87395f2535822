"""The rules on one target: its judge, the last decision, and the changes to store."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import structlog

from specwatch.domain import breakeven
from specwatch.domain.baseline import Measurement, Origin
from specwatch.domain.model import ALL, HOUR, MINUTE, Segment
from specwatch.domain.sample import total
from specwatch.domain.speedup import NO_BASELINE, NOT_READ
from specwatch.rules.attribution import Attribution, ChangeCause
from specwatch.rules.decision_view import stored_inputs
from specwatch.rules.decisions import Decision, ModelDecision, TargetDecision, leading
from specwatch.rules.history import REFERENCE_SECONDS
from specwatch.rules.judge import Judge
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.store.repository import Store

_log = structlog.get_logger("specwatch.daemon.rule_service")
_EVENTS = {
    Verdict.BREACH: "rule_breach",
    Verdict.PASS: "rule_cleared",
    Verdict.NO_DATA: "rule_ended",
}
_GONE = "no requests of that model or segment for a day"

Scope = tuple[str, str, Segment]
"""Name of a rule, a model, and a segment."""


class VerdictChange(NamedTuple):
    """A changed verdict that waits for the database; a breach with its finding, to be explained."""

    decision: Decision
    finding: Finding | None = None


@dataclass(slots=True)
class JudgedTarget:
    """The judge of one target; hold the lock for every call to the judge."""

    judge: Judge
    lock: threading.Lock = field(default_factory=threading.Lock)
    loaded: bool = False
    """Whether the past was read for the configured objectives."""
    restored: bool = False
    """Whether the breaches that an earlier daemon left open were read."""
    decision: TargetDecision = field(default_factory=TargetDecision)
    causes: dict[Scope, ChangeCause] = field(default_factory=dict)
    """The likely causes of breaches."""
    of_holdouts: Sequence[Measurement] = ()
    """The minutes of the holdouts of its group, as its baseline."""
    changed_at: dict[Scope, float] = field(default_factory=dict)
    """When the last change of a scope was, while it is in breach or the clock is behind that."""

    def read_past(self, store: Store, now: float, longest: float) -> None:
        """Hours as far back as sums are kept, or an objective looks (``longest`` seconds), whole
        hours of minutes, and minutes about the newest measurement without speculation.

        Takes the lock itself. Raises StoreError.
        """
        judge, rules = self.judge, self.judge.rules
        windows = [rule.window_of(condition) for rule in rules for condition in rule.conditions]
        # The last hour at least, and whole ones, so that nothing is both in an hour and a minute.
        minutes = (now - max([HOUR, *windows])) // HOUR * HOUR
        hours = min(now - REFERENCE_SECONDS - 2 * HOUR, minutes)
        spans: list[dict[str, Any]] = [
            {"since": now - longest, "until": hours, "length": HOUR, "dimension": ALL.dimension},
            {"since": hours, "until": minutes, "length": HOUR},
            {"since": minutes, "until": now},
        ]
        for span in spans:
            if span["since"] < span["until"]:
                read = list(store.windows(target=judge.target, **span))
                with self.lock:
                    judge.load(read)
        measured = max((measurement.at for measurement in judge.measurements), default=0.0)
        if measured:
            read = list(
                store.windows(
                    target=judge.target,
                    since=measured - HOUR,
                    until=measured + 3 * HOUR,
                    length=MINUTE,
                    dimension=ALL.dimension,
                )
            )
            with self.lock:
                judge.recall(read)

    def decide(self) -> None:
        """Renew the decision from the state of the judge."""
        judge = self.judge
        cost = judge.draft_cost_ratio
        baselines, latencies = judge.baselines(), judge.baseline_latencies()
        present, lengths = judge.present_speedups(), judge.draft_lengths()
        ranks = judge.ranks()
        models = {}
        for name, assessment in judge.assessments().items():
            prior = None
            if not self.restored and assessment.missing == NO_BASELINE:
                assessment = replace(assessment, missing=NOT_READ)
                present[name] = present[name]._replace(unjudged=None)
            elif self.restored and not baselines[name].known and lengths[name] is None:
                prior = breakeven.assumed_speedup(total(judge.recent(name)), cost)
            models[name] = ModelDecision(
                assessment,
                baselines[name],
                prior,
                cost,
                latencies[name],
                present[name],
                lengths[name],
                ranks[name],
            )
        open_breaches = self.open_breaches()
        self.causes = {
            scope: cause for scope, cause in self.causes.items() if scope in open_breaches
        }
        self.decision = TargetDecision(
            models, judge.findings(), judge.slos(), judge.goodput(), dict(self.causes)
        )

    def set_holdouts(self, measurements: Sequence[Measurement]) -> None:
        """Compare with other minutes of the holdouts of its group."""
        stored = (one for one in self.judge.measurements if one.origin is not Origin.HOLDOUT)
        self.judge.measurements = [*stored, *measurements]
        self.of_holdouts = measurements

    def explain(self, scope: Scope, attribution: Attribution) -> None:
        """Keep the likely cause of a breach, if one is known."""
        self.causes.pop(scope, None)
        if attribution.likely is not None:
            self.causes[scope] = attribution.likely
        self.decide()

    def recall_cause(self, breach: Decision) -> None:
        """Keep the likely cause that an earlier daemon stored with a breach."""
        try:
            stored = msgspec.convert(breach.inputs.get("attribution"), Attribution | None)
        except msgspec.ValidationError:
            return  # of another version
        if stored is not None:
            self.explain((breach.rule, breach.model_name, breach.segment), stored)

    def open_breaches(self) -> dict[Scope, Finding]:
        """The findings that are in breach."""
        return {
            scope_of(finding): finding
            for finding in self.judge.findings()
            if finding.verdict is Verdict.BREACH
        }

    def change_of(self, finding: Finding, daemon: str, now: float) -> VerdictChange:
        """A change as it is stored; a breach is explained when it is written."""
        decision = self.decision_of(finding, daemon, now)
        if finding.verdict is Verdict.NO_DATA:
            return self.ended(decision, finding.since, _GONE)
        breach = finding.verdict is Verdict.BREACH
        changed_at = self._later(scope_of(finding), finding.since, breach=breach)
        return VerdictChange(replace(decision, at=changed_at), finding if breach else None)

    def decision_of(self, finding: Finding, daemon: str, now: float) -> Decision:
        """A finding as it is stored, with the numbers that it rests on."""
        rule = finding.rule
        return Decision(
            daemon=daemon,
            target=self.judge.target,
            model_name=finding.model_name,
            segment=finding.segment,
            rule=rule.name,
            at=finding.since,
            verdict=str(finding.verdict),
            severity=rule.severity,
            action=rule.action,
            inputs=stored_inputs(finding, self.decision.models.get(finding.model_name), now),
        )

    def ended(self, breach: Decision, now: float, why: str) -> VerdictChange:
        """The end of a breach that can no longer be judged."""
        scope = (breach.rule, breach.model_name, breach.segment)
        ended_at = self._later(scope, now, breach=False)
        inputs = {"missing": why}
        return VerdictChange(
            replace(breach, at=ended_at, verdict=str(Verdict.NO_DATA), inputs=inputs)
        )

    def _later(self, scope: Scope, time: float, *, breach: bool) -> float:
        """The time to store for a change: after the previous one, even if the clock went back."""
        # Changes of a scope are stored by their second.
        later = max(time, self.changed_at.get(scope, -math.inf) + 1)
        if breach or later > time:
            self.changed_at[scope] = later
        else:
            self.changed_at.pop(scope, None)
        return later


def scope_of(finding: Finding) -> Scope:
    """The scope of a finding."""
    return finding.rule.name, finding.model_name, finding.segment


def log_change(finding: Finding) -> None:
    """Log a change, with the value of its leading condition."""
    breach = finding.verdict is Verdict.BREACH
    reading = leading(finding)
    (_log.warning if breach else _log.info)(
        _EVENTS[finding.verdict],
        rule=finding.rule.name,
        target=finding.target,
        model_name=finding.model_name,
        dimension=finding.segment.dimension,
        segment=finding.segment.value,
        metric=reading and reading[0].metric,
        value=reading and reading[1].value,
        threshold=reading and reading[0].threshold,
    )
