"""What is wrong with the targets of a daemon, the greatest harm first."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from specwatch.domain.interval import Interval
from specwatch.domain.model import HOUR, Mode
from specwatch.guard.state import RESTARTS, Cause, Phase
from specwatch.rules.decision_view import FindingView, SloView, finding_view, slo_view
from specwatch.rules.verdicts import Finding
from specwatch.scrape.engine_stop import EngineStop
from specwatch.status import DaemonStatus, Means, TargetStatus

URGENT = ("critical", "warning")
"""Severities of rules whose breach is a problem."""
_LOSS = ("speedup_ratio", "speedup_ratio_unadjusted", "losing_draft_share")
"""Metrics whose breach says no more than that speculation loses."""
_UNJUDGED = ("unjudged",)
"""The metric whose breach says no more than that the traffic is unjudged."""


class ProblemKind(enum.StrEnum):
    """Kinds of problems, the greatest harm first."""

    LOSES = "loses"
    BURNS = "burns"
    """Requests use up an error budget so fast that somebody is paged."""
    UNREAD = "unread"
    STUCK = "stuck"
    HELD = "held"
    """The guard stopped at a failure and waits for an operator."""
    GUARD_FAILS = "guard_fails"
    SEVERAL = "several"
    """Several servers answer at its URL in turn, so nothing of it can be measured."""
    BREACH = "breach"
    LOST = "lost"
    """Speculation lost over the last hour, and does not certainly lose now."""
    UNJUDGED = "unjudged"
    """It has traffic, and nothing to judge by whether speculation pays for it."""
    SPENT = "spent"
    """An error budget is overspent, and burns slowly now."""
    STOPPED = "stopped"
    """The engine itself switched speculation off until its next start."""
    SWITCHED = "switched"
    """The guard switched speculation off, or is about to."""
    PROXY = "proxy"
    TAP = "tap"
    NOT_SHOWN = "not_shown"
    """A defect of specwatch: see its log."""


HARMFUL = (
    ProblemKind.LOSES,
    ProblemKind.BURNS,
    ProblemKind.UNREAD,
    ProblemKind.STUCK,
    ProblemKind.HELD,
)
"""Kinds for which somebody has to act now."""


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem of a target, or of one of its models.

    ``since`` is a Unix time in seconds, None if not known. ``speedup`` is that of the last minutes
    for ``loses``, of the last hour for ``lost``. ``switchable`` is whether the server has a switch,
    ``guard`` the mode of a guard that can act, empty without one, and ``phase`` its phase.
    """

    kind: ProblemKind
    target: str
    model_name: str = ""
    alone: bool = True
    """Whether the target has no other model."""
    since: float | None = None
    detail: str = ""
    speedup: Interval | None = None
    finding: FindingView | None = None
    slo: SloView | None = None
    guard: str = ""
    phase: str = ""
    workload: str = ""
    """The name of the workload that is guarded in place of the target, a pod of it."""
    waiting: str = ""
    """What the guard waits for, empty if for nothing."""
    rearm_at: float | None = None
    """When the guard will try speculation again."""
    switchable: bool = False
    stop: EngineStop | None = None
    means: Means = Means.CALIBRATE
    """For ``unjudged``, what measures it."""
    of_group: int = 0
    """How many servers of its group speculate, if it is the only one of them that loses."""


def problems(status: DaemonStatus) -> tuple[Problem, ...]:
    """All problems of all targets, those of the greatest harm first; of one kind the greatest loss,
    then the oldest."""
    every = _once([problem for target in status.targets for problem in problems_of(target, status)])
    groups = {target.name: target.group for target in status.targets}
    speculating = Counter(
        target.group for target in status.servers if Mode.ON in target.models.values()
    )
    losing = Counter(
        groups[problem.target] for problem in every if problem.kind is ProblemKind.LOSES
    )
    workloads = {target.name for target in status.targets if target.pods}
    every = [
        msgspec.structs.replace(problem, of_group=speculating[groups[problem.target]])
        if problem.kind is ProblemKind.LOSES
        and losing[groups[problem.target]] == 1
        and problem.target not in workloads
        else problem
        for problem in every
    ]
    kinds = list(ProblemKind)

    def harm(problem: Problem) -> tuple[int, float, float]:
        lost = 1.0 if problem.speedup is None else problem.speedup.value
        return kinds.index(problem.kind), lost, problem.since or status.now

    return tuple(sorted(every, key=harm))


def _once(every: Sequence[Problem]) -> list[Problem]:
    """Those of pods only where their workload does not have the same."""
    told = {(problem.target, *_about(problem)) for problem in every}
    return [problem for problem in every if (problem.workload, *_about(problem)) not in told]


def _about(problem: Problem) -> tuple[object, ...]:
    """What it is about, but for the target."""
    finding = problem.finding
    rule = None if finding is None else (finding.rule, finding.segment)
    return problem.kind, problem.model_name, rule, problem.slo and problem.slo.name


def problems_of(target: TargetStatus, status: DaemonStatus) -> Sequence[Problem]:
    """The problems of one target, in no order."""
    broken = (Problem(kind=ProblemKind.NOT_SHOWN, target=target.name),)
    return status.attempt(target.name, partial(_of_target, target, status), broken)


def _of_target(target: TargetStatus, status: DaemonStatus) -> tuple[Problem, ...]:
    state = None if target.guard is None else target.guard.state
    make = partial(
        Problem,
        target=target.name,
        alone=len(target.models) < 2,
        guard="" if target.guard is None or not target.guard.able else target.guard.mode,
        phase="" if state is None else str(state.phase),
        workload=target.workload,
        waiting="" if state is None else state.waiting,
        switchable=target.switch is not None,
    )
    known = []
    if target.name in status.stuck:
        known.append(make(kind=ProblemKind.STUCK, since=target.last_success))
    elif target.failure is not None:
        # The guard's own restart is a problem only if it fails.
        if state is None or state.phase not in RESTARTS:
            since, detail = target.failure.since, target.failure.detail
            known.append(make(kind=ProblemKind.UNREAD, since=since, detail=detail))
    else:
        known += _of_decision(target, status.now, make)
        known += [
            make(kind=ProblemKind.STOPPED, model_name=name, since=stop.since, stop=stop)
            for name, stop in target.stops.items()
        ]
    alternated = target.alternated_at
    if alternated is not None and status.now - alternated < HOUR:
        known.append(make(kind=ProblemKind.SEVERAL))
    if target.guard is not None and target.guard.error:
        known.append(make(kind=ProblemKind.GUARD_FAILS, detail=target.guard.error))
    held = state is not None and state.phase in (Phase.HELD, Phase.ROLLING_BACK)
    incident = None if state is None else state.incident
    a_holdout = incident is not None and incident.cause is Cause.HOLDOUT
    if state is not None and state.phase is not Phase.OBSERVING and (held or not a_holdout):
        kind = ProblemKind.HELD if held else ProblemKind.SWITCHED
        detail = state.why if held else "" if incident is None else incident.what
        by_rule = incident is not None and incident.cause in (Cause.RULE, Cause.TRIAL_LOST)
        if by_rule and detail and not held:
            detail = f"rule {detail}"
        known.append(make(kind=kind, since=state.since, detail=detail, rearm_at=state.rearm_at))
    proxy = target.tap.proxy
    if proxy is not None and proxy.failure is not None:
        since, detail = proxy.failure.since, proxy.failure.detail
        known.append(make(kind=ProblemKind.PROXY, since=since, detail=detail))
    known += [
        make(kind=ProblemKind.TAP, model_name=trouble.model_name, detail=trouble.text)
        for trouble in target.tap.trouble
    ]
    return tuple(known)


def _of_decision(
    target: TargetStatus, now: float, make: Callable[..., Problem]
) -> Iterator[Problem]:
    """Yield the problems that the rules and objectives show."""
    losing = set()
    for name, known in target.decision.models.items():
        hour, present = known.assessment.speedup, known.present
        if not known.current(now) or target.without_speculation(name):
            continue
        kind = ProblemKind.LOSES if present.losing_since is not None else ProblemKind.LOST
        if kind is ProblemKind.LOSES or (hour is not None and hour.below(1)):
            losing.add(name)
            yield make(
                kind=kind,
                model_name=name,
                since=present.losing_since,
                speedup=hour if kind is ProblemKind.LOST else present.speedup,
                detail=_likely_cause(target, name),
            )
    unjudged = set()
    for name, known in target.decision.models.items():
        traffic = None if target.without_speculation(name) else known.unjudged(now)
        if traffic is not None:
            unjudged.add(name)
            yield make(
                kind=ProblemKind.UNJUDGED,
                model_name=name,
                since=traffic.since,
                detail=traffic.missing,
                means=target.means,
            )
    for finding in target.breaches:
        told = finding.model_name in losing and _only(_LOSS, finding)
        told |= finding.model_name in unjudged and _only(_UNJUDGED, finding)
        if finding.rule.severity in URGENT and not told:
            yield make(
                kind=ProblemKind.BREACH,
                model_name=finding.model_name,
                since=finding.since,
                finding=finding_view(finding),
            )
    for slo in target.decision.slos:
        burning = slo.burning is not None and slo.burning.severity == "critical"
        if burning or (slo.budget_left or 0.0) < 0:
            kind = ProblemKind.BURNS if burning else ProblemKind.SPENT
            yield make(kind=kind, model_name=slo.model_name, slo=slo_view(slo))


def _likely_cause(target: TargetStatus, model: str) -> str:
    """What explains most of a breach of the model; empty if that is not known."""
    causes = {
        rule: cause.sentence
        for (rule, name, _), cause in target.decision.causes.items()
        if name == model
    }
    return causes.get("net-negative") or next(iter(causes.values()), "")


def _only(metrics: Collection[str], finding: Finding) -> bool:
    """Whether a rule is about nothing but these metrics."""
    return all(condition.metric in metrics for condition in finding.rule.conditions)
