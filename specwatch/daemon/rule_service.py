"""Evaluates the rules on closed windows, and keeps changed verdicts until they are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import structlog

from specwatch.config.loading import Config
from specwatch.config.rules import Rule
from specwatch.daemon.holdout_minutes import HoldoutMinutes
from specwatch.daemon.judged_target import (
    JudgedTarget,
    Scope,
    VerdictChange,
    log_change,
    scope_of,
)
from specwatch.domain.baseline import Baseline, Measurement
from specwatch.domain.holdout import Holdout
from specwatch.domain.model import HOUR, Batch, Moment
from specwatch.domain.sample import samples_of
from specwatch.errors import StoreError
from specwatch.rules.attribution import Attribution, explain
from specwatch.rules.decisions import Decision, TargetDecision
from specwatch.rules.history import REFERENCE_SECONDS
from specwatch.rules.judge import Judge
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.status import JudgingStatus
from specwatch.store.repository import Store

_log = structlog.get_logger("specwatch.daemon.rule_service")

MOST_WAITING = 1000
"""Changes of verdicts that wait for the database; beyond it the oldest are dropped."""
_MEASUREMENTS_SECONDS = 15.0
"""Seconds between two looks for baselines that others measured."""
_OWN_SECONDS = 600.0
"""Seconds between two writes of baselines from traffic."""

_CHANGED = "the rule was changed or removed"
_SWITCHED = "the guard switched speculation"


class RuleService:
    """Judges every target; safe to use from several threads.

    Nothing raises, neither when the database fails nor for a defect of ours: both are logged once,
    counted, and in ``status``.
    """

    def __init__(self, store: Store, config: Config, *, now: Callable[[], Moment]) -> None:
        self._store = store
        self._now = now
        self._config = config
        self._workload_of: Mapping[str, str] = {}
        """The workload of each pod that has one."""
        self._states: dict[str, JudgedTarget] = {}
        self._lock = threading.Lock()
        self._waiting: list[VerdictChange] = []
        self._of_removed_targets: list[Measurement] = []
        """Measurements of targets that left the configuration, not written yet."""
        self._unwritten: list[Measurement] = []
        """Measurements whose last write failed: they may be in the store or not."""
        self._defects = 0
        self._known_defects: set[str] = set()
        self._dropped = 0
        self._error: str | None = None
        self._measurements_version: tuple[float, ...] = ()
        """Version of the measurements that the judges have."""
        self.holdouts: Mapping[str, Sequence[Holdout]] = {}
        """The holdouts of the group of each target: set by the guards."""
        self._holdout_minutes = HoldoutMinutes(store)
        self._refresh_at = self._write_at = now().monotonic
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Judge by a configuration; targets that stay in it keep their state."""
        before, self._config = self._config, config
        same = (before.slos, before.baseline) == (config.slos, config.baseline)
        rules = config.effective_rules()
        same_rules = rules == before.effective_rules()
        self._workload_of = {
            target.name: target.workload.name
            for target in config.targets
            if target.workload is not None
        }
        states = {}
        for target in config.targets:
            state = self._states.get(target.name)
            if state is None:
                judge = Judge(
                    target.name,
                    rules,
                    config.slos,
                    max_age=config.baseline.max_age,
                    objective=target.objective,
                )
                state = JudgedTarget(judge)
            elif not (same and same_rules and state.judge.objective is target.objective):
                state.judge.objective = target.objective
                self._change(state, rules, None if same else config)
            state.judge.draft_cost_ratio = target.draft_cost_ratio
            states[target.name] = state
        left = [state for name, state in self._states.items() if name not in states]
        self._states = states
        for state in left:
            with state.lock:
                taken = state.judge.take_measurements()
            with self._lock:
                self._of_removed_targets += taken

    def observe(self, target: str, batch: Batch) -> None:
        """Judge a target by windows that closed."""
        state = self._states.get(target)
        if state is not None:  # else it left the configuration meanwhile
            self._guarded(target, self._observe, state, batch)

    @property
    def caught_up(self) -> bool:
        """Whether the past of every target is known."""
        return all(state.loaded for state in list(self._states.values()))

    def decision_of(self, target: str) -> TargetDecision:
        """The decision on a target after its last minute."""
        state = self._states.get(target)
        return TargetDecision() if state is None else state.decision

    def baselines_of(self, target: str) -> Mapping[str, Baseline]:
        """What a target is compared with now, by model."""
        state = self._states.get(target)
        if state is None:
            return {}
        with state.lock:
            return state.judge.baselines()

    def forget(self, target: str) -> None:
        """The server was restarted in another mode: end all findings from before."""
        state = self._states.get(target)
        if state is None:
            return
        now, daemon = self._now().wall, self._store.daemon
        with state.lock:
            ended = state.judge.forget(now)
            changes = [
                state.ended(state.decision_of(finding, daemon, now), now, _SWITCHED)
                for finding in ended
            ]
            state.decide()
        for finding in ended:
            log_change(finding)
        self._queue(changes)

    def status(self) -> JudgingStatus:
        """How judging itself goes."""
        return JudgingStatus(self._defects, len(self._waiting), self._dropped, self._error)

    def not_shown(self, target: str, error: Exception) -> None:
        """The state of a target could not be shown completely: a defect of ours."""
        self._defect("status_not_shown", target, error)

    def catch_up(self) -> None:
        """Read from the store what others measured, and what happened before this process.

        The past is read a target at a time, so that none waits for a whole fleet.
        """
        waiting = [state for state in self._states.values() if not state.loaded]
        now = self._now()
        if not waiting and now.monotonic < self._refresh_at:
            return
        try:
            version = self._store.measurements_version()
            if waiting or version != self._measurements_version:
                measurements = self._store.measurements()
                for state in list(self._states.values()):
                    self._guarded(state.judge.target, self._set_measurements, state, measurements)
                self._measurements_version = version
            self._read_experiments()
            self._read_holdouts(now.wall)
            self._refresh_at = now.monotonic + _MEASUREMENTS_SECONDS
            for state in waiting:
                self._guarded(state.judge.target, self._load, state, self._now().wall)
                state.loaded = True  # after a defect, too: it would only come again
        except StoreError as error:
            self._failed("history_unread", error)
        else:
            self._succeeded()

    def flush(self, *, final: bool = False) -> None:
        """Write the changes that wait; once it is time, also the baselines from traffic."""
        try:
            self._guarded("", self._write_decisions)
            if final or self._now().monotonic >= self._write_at:
                self._guarded("", self._write_measurements)
        except StoreError as error:
            self._failed("verdicts_unwritten", error)
        else:
            self._succeeded()

    def _observe(self, state: JudgedTarget, batch: Batch) -> None:
        now, daemon = self._now().wall, self._store.daemon
        with state.lock:
            changed = state.judge.observe(batch.windows, now, batch.ranks)
            # A verdict counts even where it cannot be shown or explained.
            self._guarded(state.judge.target, state.decide)
            changes = [state.change_of(finding, daemon, now) for finding in changed]
        for finding in changed:
            log_change(finding)
        self._queue(changes)

    def _change(self, state: JudgedTarget, rules: Sequence[Rule], config: Config | None) -> None:
        """Judge by other rules; given a configuration, by its objectives and ages too."""
        with state.lock:
            before = state.open_breaches()
            state.judge.rules = rules
            if config is not None:
                state.judge.set_objectives(config.slos, max_age=config.baseline.max_age)
                state.loaded = False  # the books of its objectives are empty
            gone = before.keys() - state.open_breaches().keys()
            now, daemon = self._now().wall, self._store.daemon
            ended = [
                state.ended(state.decision_of(before[scope], daemon, now), now, _CHANGED)
                for scope in gone
            ]
            state.decide()
        self._queue(ended)

    def _set_measurements(self, state: JudgedTarget, measurements: Sequence[Measurement]) -> None:
        """Keep unchanged objects: a target has two thousand points."""
        with state.lock:
            known = {_identity(before): before for before in state.judge.measurements}
            ours = self._measurements_of(state.judge.target, measurements)
            kept = [known.get(_identity(new)) for new in ours]
            state.judge.measurements = [
                *(old if old == new else new for old, new in zip(kept, ours, strict=True)),
                *state.of_holdouts,
            ]

    def _measurements_of(self, name: str, stored: Iterable[Measurement]) -> list[Measurement]:
        """The baselines of a target; a pod has those of its workload, as it does not live long."""
        measured = self._workload_of.get(name, name)
        return [
            one if measured == name else replace(one, key=replace(one.key, target=name))
            for one in stored
            if one.key.target == measured
        ]

    def _read_holdouts(self, now: float) -> None:
        holdouts = self.holdouts
        every = {holdout for group in holdouts.values() for holdout in group}
        new = self._holdout_minutes.read(every, now)
        for name, state in list(self._states.items()):
            group = holdouts.get(name, ())
            if not new.isdisjoint(group) or (not group and state.of_holdouts):
                self._guarded(name, self._set_holdouts, state, group)

    def _set_holdouts(self, state: JudgedTarget, holdouts: Sequence[Holdout]) -> None:
        measurements = self._holdout_minutes.measurements(state.judge.target, holdouts)
        with state.lock:
            state.set_holdouts(measurements)

    def _read_experiments(self) -> None:
        """Experiments on live traffic, of targets that have one in the configuration."""
        names = {target.name for target in self._config.targets if target.experiments is not None}
        stored = {one.target: one for one in self._store.switchbacks()} if names else {}
        for name, state in list(self._states.items()):
            with state.lock:
                state.judge.experiment = stored.get(name) if name in names else None

    def _load(self, state: JudgedTarget, now: float) -> None:
        """The past as far as it is needed, and the open breaches."""
        target = state.judge.target
        longest = max((slo.window for slo in self._config.slos), default=0.0)
        state.read_past(self._store, now, longest)
        breaches = [] if state.restored else self._store.open_breaches(target)
        with state.lock:
            self._restore(state, breaches, now)
            state.restored = True
            state.decide()
        _log.debug("history_read", target=target, open_breaches=len(breaches))

    def _restore(self, state: JudgedTarget, breaches: Sequence[Decision], now: float) -> None:
        """Keep open what an earlier daemon found, unless we have meanwhile found otherwise."""
        judge = state.judge
        for breach in breaches:
            scope = (breach.rule, breach.model_name, breach.segment)
            known = {scope_of(finding): finding for finding in judge.findings()}.get(scope)
            state.changed_at[scope] = max(breach.at, state.changed_at.get(scope, breach.at))
            if known is None or known.verdict is not Verdict.PASS:
                if not judge.restore(*scope, breach.at):
                    self._queue([state.ended(breach, now, _CHANGED)])
                elif known is not None and known.verdict is Verdict.BREACH:
                    self._drop_found_again(state.judge.target, scope)
                state.recall_cause(breach)
            else:
                self._queue([state.change_of(known, self._store.daemon, now)])

    def _drop_found_again(self, target: str, scope: Scope) -> None:
        """A breach that we found before we knew that it is stored."""
        with self._lock:
            self._waiting = [
                change
                for change in self._waiting
                if change.decision.target != target
                or (change.decision.rule, change.decision.model_name, change.decision.segment)
                != scope
            ]

    def _queue(self, changes: Sequence[VerdictChange]) -> None:
        with self._lock:
            self._waiting += changes
            self._drop()

    def _drop(self) -> None:
        surplus = len(self._waiting) - MOST_WAITING
        if surplus > 0:
            del self._waiting[:surplus]
            self._dropped += surplus
            _log.error("verdicts_dropped", verdicts=surplus, queued=MOST_WAITING)

    def _write_decisions(self) -> None:
        with self._lock:
            unread = {name for name, state in self._states.items() if not state.loaded}
            writing = [one for one in self._waiting if one.decision.target not in unread]
            self._waiting = [one for one in self._waiting if one.decision.target in unread]
        if not writing:
            return
        try:
            for index, change in enumerate(writing):
                if change.finding is not None:
                    writing[index] = VerdictChange(self._explained(change.decision, change.finding))
            self._store.write_verdicts([change.decision for change in writing], self._now().wall)
        except StoreError:
            with self._lock:
                self._waiting[:0] = writing
                self._drop()
            raise

    def _explained(self, decision: Decision, finding: Finding) -> Decision:
        """A breach with its attribution, from minutes in memory and the day before in the store."""
        state = self._states.get(decision.target)
        causes: list[Attribution] = []
        if state is not None:
            with state.lock:
                minutes = state.judge.recent(finding.model_name)
                baseline = state.judge.baselines().get(finding.model_name, Baseline())
            first = min((minute.start for minute in minutes), default=finding.since)
            hours = self._store.windows(
                target=decision.target,
                model_name=finding.model_name,
                since=first - REFERENCE_SECONDS,
                until=first - HOUR + 1,
                length=HOUR,
            )
            samples = [*samples_of(hours), *minutes]

            self._guarded(
                decision.target,
                lambda: causes.append(explain(finding.rule, samples, baseline, now=finding.since)),
            )
        if not causes or state is None:
            return decision
        with state.lock:
            state.explain(scope_of(finding), causes[0])
        return replace(decision, inputs={**decision.inputs, "attribution": asdict(causes[0])})

    def _write_measurements(self) -> None:
        """A failed write is repeated unchanged, so that nothing is added twice."""
        while taken := self._unwritten or self._taken():
            self._unwritten = taken
            self._store.write_measurements(taken, self._now().wall)
            self._unwritten = []
        self._write_at = self._now().monotonic + _OWN_SECONDS

    def _taken(self) -> list[Measurement]:
        with self._lock:
            taken, self._of_removed_targets = self._of_removed_targets, []
        for state in list(self._states.values()):
            with state.lock:
                taken += state.judge.take_measurements()
        return taken

    def _guarded(self, target: str, act: Callable[..., None], *args: Any) -> None:
        """Call ``act``; a defect in it is counted and logged, and stops nothing else."""
        try:
            act(*args)
        except StoreError:
            raise
        except Exception as error:
            self._defect("judging_failed", target, error)

    def _defect(self, event: str, target: str, error: Exception) -> None:
        """Count a defect of ours, and log it where it is a new one."""
        self._defects += 1
        known = f"{event} {target} {type(error).__name__} {error}"[:500]
        if known not in self._known_defects and len(self._known_defects) < MOST_WAITING:
            self._known_defects.add(known)
            _log.error(event, target=target, exc_info=error)

    def _failed(self, event: str, error: StoreError) -> None:
        if str(error) != self._error:
            _log.error(event, detail=str(error), retry=error.retry, queued=len(self._waiting))
        self._error = str(error)

    def _succeeded(self) -> None:
        self._error = None


def _identity(measurement: Measurement) -> tuple[object, ...]:
    return measurement.key, measurement.load_bin, measurement.origin
